"""The contest's formats, performance functions and evaluator, against numbers computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from wse_sim.compiler.contest import (
    check_contest,
    draw,
    evaluate,
    format_placement,
    parse_kgraph,
    parse_placement,
    place_graph,
)
from wse_sim.compiler.placement.contest_shapes import ContestShapes, evaluate_kernel, inner_convolutions
from wse_sim.errors import ConfigError, PlacementError

TWO = """(*
width=20
height=20
wdeltat=2
wlength=3
wadapter=0
memlimit=24576
*)
input[0] n=[8 8 4] name='k0'
conv[1] W=8 H=8 R=1 S=1 C=4 K=4 T=1 U=1 name='k1'
conv[2] W=8 H=8 R=3 S=3 C=4 K=2 T=2 U=2 name='k2'
input[0]:_ -> conv[1]:x, shape:[8][8][4]
conv[1]:y -> conv[2]:x, shape:[8][8][4]
"""

# k1: h=2 w=1 c=2 k=1: height 2*1*(2+1) = 6, width 3*1 = 3, time 4*8*2*4*1 = 256
# k2: h=1 w=2 c=1 k=2: height 1*2*(1+1) = 4, width 3*2 = 6, time 8*4*4*1*9/4 = 288
# A convolution is H W C K R S T U, then h w c k.
PLACED = """k1 = conv( 8 8 4 4 1 1 1 1 2 1 2 1 )
k2 = conv( 8 8 4 2 3 3 2 2 1 2 1 2 )
k1 : place(0 0 R0)
k2 : place(3 1 R90)
"""
# The same in the form of published placements: include, labels, numbers with a zero in front, the map of all.
PUBLISHED = """include "common.paint"
k01 = conv( 8 8 4 4 1 1 1 1 2 1 2 1 )
k01 : name('k01)
k01 : place(0 0 R0)
k02 = conv( 8 8 4 2 3 3 2 2 1 2 1 2 )
k02 : name('k02)
k02 : place(3 1 R90)

kmap = union( k01
 k02 )
"""
# The same with arguments in the order H W R S C K T U of older files of this tool.
OLDER = PLACED.replace("8 8 4 4 1 1", "8 8 1 1 4 4").replace("8 8 4 2 3 3", "8 8 3 3 4 2")


def test_dblock_of_the_official_description():
    """The dblock of the contest's own example takes 50176 steps."""
    # h=w=4 of 56: 14 * 14 = 196 positions; conv1 ceil(256/8) * ceil(64/8) = 32 * 8 = 256: 50176
    # conv2 ceil(64/8) * ceil(64/64) * 9 = 72: 14112; conv3 ceil(64/8) * ceil(256/16) = 128: 25088
    # height 16 * (8 + 1) = 144, width 3 * (8 + 64 + 16) = 264
    convs = inner_convolutions("dblock", (56, 56, 256))
    height, width, time, memory = evaluate_kernel(convs, 4, 4, (8, 8, 8), (8, 64, 16))
    assert (height, width, time) == (144, 264, 50176)
    # conv1: 256/8 * 64/8 + 56/4 * 56/4 * 64/8 = 256 + 1568 = 1824
    # conv2: 64/8 * 64/64 * 9 + 58/4 * 58/4 * 64/64 = 72 + 210.25 = 282.25
    # conv3: 64/8 * 256/16 + 14 * 14 * 256/16 = 128 + 3136 = 3264
    assert memory == pytest.approx(3264)


def test_cblock_has_strides_and_a_halved_convolution():
    """A cblock's third convolution works on half the rows and columns."""
    # F=16, H=W=8, all arguments 1: conv1 64*8*4 = 2048, conv2 64*4*4*9/4 = 2304,
    # conv3 4*4*4*16 = 1024, conv4 64*8*16/4 = 2048; width 3 * 4, height 1 * 2
    convs = inner_convolutions("cblock", (8, 8, 16))
    assert evaluate_kernel(convs, 1, 1, (1, 1, 1, 1), (1, 1, 1, 1))[:3] == (2, 12, 2304)


def test_cost_of_a_hand_placed_pair():
    """Cost is the weighted sum of the slowest kernel's time and the L1 between centres."""
    graph = parse_kgraph(TWO)
    result = evaluate(graph, parse_placement(graph, PLACED))
    # centres: k1 (1.5, 3); k2 turned to 4 x 6 at (3, 1): (5, 4); L1 = 3.5 + 1 = 4.5
    assert result.max_time == 288
    assert result.wire_l1 == 4.5
    assert result.cost == 2 * 288 + 3 * 4.5
    assert result.legal


def test_placement_text_round_trip():
    """Writing and reading a placement changes nothing."""
    graph = parse_kgraph(TWO)
    places = parse_placement(graph, PLACED)
    assert parse_placement(graph, format_placement(graph, places)) == places


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.replace("conv[", "conv[ ").replace(" -> ", "\t->\t"),
        lambda t: t.rstrip("\n"),
        lambda t: t.replace("name='k1'", "name='x' name='k1'"),
        lambda t: t.replace(" W=", "\tw = ").replace("width=20", "  width = 20  "),
        lambda t: t.replace("(*\n", "").replace("*)\n", "") + "(* the end *)\n\n",
        lambda t: t.replace("width=20\n", "width=20 ").replace("*)", "free words *) (* and more *)"),
        lambda t: t.replace("conv[1] W", "CONV[01] W"),
    ],
)
def test_reader_tolerates_layout(change):
    """White space, line ends, a missing last newline and doubled names do not change the graph."""
    assert parse_kgraph(change(TWO)) == parse_kgraph(TWO)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("width=20", "", "'width'"),
        ("width=20", "width=-3", "width=-3"),
        ("wlength=3", "wlength=abc", "wlength=abc"),
        ("K=4", "", "k=nothing"),
        ("K=4", "K=0", "k=0"),
        ("conv[2] W", "pool[2] W", "'pool'"),
        ("conv[2] W", "conv[1] W", "twice"),
        ("conv[2]:x", "conv[9]:x", "node 9"),
        ("name='k2'", "name='k1'", "'k1'"),
        ("T=2 U=2", "T=2 U=1", "U=1"),
        ("K=4", "K=4\N{SUPERSCRIPT TWO}", "k=4\N{SUPERSCRIPT TWO}"),
        ("K=4", "K=" + "7" * 30, "k=7777"),
        ("name='k2'", "name='k 2'", "'k 2'"),
        ("conv[2] W", "conv 2 W", "line 11"),
        ("conv[1]:y -> ", "conv[1]:y - ", "line 13"),
    ],
)
def test_faults_of_the_graph_are_one_sentence(old, new, words):
    """Each fault names the value."""
    with pytest.raises(ConfigError) as caught:
        parse_kgraph(TWO.replace(old, new))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", [PUBLISHED, PUBLISHED.replace("\n", "\r\n"), OLDER], ids=["own", "crlf", "older"]
)
def test_published_and_older_files_mean_the_same_placement(tmp_path: Path, text):
    """Files in the published form and in the older order of arguments are the placement of the hand-worked pair."""
    graph = parse_kgraph(TWO)
    assert parse_placement(graph, text) == parse_placement(graph, PLACED)
    (tmp_path / "g.kgraph").write_text(TWO)
    (tmp_path / "p.paint").write_bytes(text.encode())
    result = check_contest(tmp_path / "g.kgraph", tmp_path / "p.paint")
    assert result.cost == 2 * 288 + 3 * 4.5
    assert any("H W C K R S T U" in note for note in result.notes) == (text == OLDER)


def test_written_files_have_the_published_form(tmp_path: Path):
    """Another tool reads our files: the lines and arguments have the published order."""
    graph = parse_kgraph(TWO)
    evaluate(graph, parse_placement(graph, PLACED)).write(tmp_path / "p.paint")
    words = (tmp_path / "p.paint").read_text().split()
    assert words == PUBLISHED.replace("k0", "k").split()


def test_a_graph_without_edges_earns_a_note():
    """A file truncated before its edges is still evaluated; the note states that no wire was counted."""
    cut = parse_kgraph(TWO[: TWO.index("input[0]:_")])
    result = evaluate(cut, parse_placement(cut, PLACED))
    assert result.wire_l1 == 0
    assert any("no edges" in note for note in result.notes)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("place(3 1 R90)", "place(2 1 R90)", "'k1' and 'k2' overlap"),
        ("place(3 1 R90)", "place(17 1 R90)", "'k2' covers x 17..21"),
        ("place(0 0 R0)", "place(-1 0 R0)", "'k1' covers x -1..2"),
        ("place(0 0 R0)", "place(0 " + "9" * 30 + " R0)", "'k1' covers x 0..3, y 999"),
        ("k2 : place(3 1 R90)\n", "", "'k2' has no place"),
        ("2 1 2 1 )", "2 1 5 1 )", "c=5"),
        ("2 1 2 1 )", "2 1 2 )", "execution arguments"),
        ("k1 = conv( 8 8", "k1 = conv( 9 8", "'k1'"),
        ("R90", "R45", "not allowed"),
        ("k2 : place", "k3 : place", "'k3'"),
        ("k2 : place", "nonsense k2 place", "neither"),
        ("R90)\n", "R90)\nm = union( k1 k5 )", "'k5'"),
        ("R90)\n", "R90)\nk1 : place(9 9 R0)", "given twice"),
        ("R90)\n", "R90)\ninclude common", "neither"),
    ],
)
def test_check_names_the_first_illegality(tmp_path: Path, old, new, words):
    """Every illegality is a PlacementError that names the kernel or the line."""
    (tmp_path / "g.kgraph").write_text(TWO)
    (tmp_path / "p.paint").write_text(PLACED.replace(old, new))
    with pytest.raises(PlacementError) as caught:
        check_contest(tmp_path / "g.kgraph", tmp_path / "p.paint")
    assert words in str(caught.value)


def test_memory_limit_is_checked():
    """A kernel over the memory limit is illegal at every position."""
    # k1: C/c * K/k = 2 * 4 = 8, and 8/1 * 8/2 * 4 = 128: 136 words
    graph = parse_kgraph(TWO.replace("24576", "135"))
    with pytest.raises(PlacementError, match=r"136\.0 words"):
        evaluate(graph, parse_placement(graph, PLACED))


def test_front_is_the_pareto_set_of_all_arguments():
    """The front at a level equals the one of a search over all execution arguments."""
    shapes = ContestShapes("conv", (4, 3, 3, 3, 3, 4, 1), 60.0, 24)
    for level in (1296.0, 400.0, 150.0, 60.0):
        best: dict[int, int] = {}
        for h in range(1, 5):
            for w in range(1, 4):
                for c in range(1, 4):
                    for k in range(1, 5):
                        height, width, time, memory = evaluate_kernel(shapes.convs, h, w, (c,), (k,))
                        if time <= level and memory <= 60 and height <= 24 and width <= 24:
                            best[height] = min(width, best.get(height, 99))
        expected = []
        for height in sorted(best):
            if not expected or best[height] < expected[-1][0]:
                expected.append((best[height], height))
        front = shapes.front(level)
        assert list(zip(front.widths.tolist(), front.heights.tolist(), strict=True)) == expected
        for width, height in expected:
            h, w, c, k = shapes.fit((width, height), level)
            found = evaluate_kernel(shapes.convs, h, w, c, k)
            assert found[0] <= height
            assert found[1] <= width
            assert found[2] <= level
            assert found[3] <= 60


def test_place_write_check_and_draw(tmp_path: Path):
    """A placed graph passes its own check with the same cost, and has a picture."""
    (tmp_path / "g.kgraph").write_text(TWO)
    result = place_graph(parse_kgraph(TWO), "snake", 1.0)
    result.write(tmp_path / "p.paint")
    again = check_contest(tmp_path / "g.kgraph", tmp_path / "p.paint")
    assert (again.max_time, again.wire_l1, again.cost) == (result.max_time, result.wire_l1, result.cost)
    assert result.lower_bound <= result.max_time
    draw(result, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_one_kernel_alone_has_no_wire():
    """One kernel takes the fastest shape that fits, so cost is its time."""
    text = TWO.replace("conv[2]", "output[2]").replace("conv[1]:y -> output[2]:x, shape:[8][8][4]", "")
    result = place_graph(parse_kgraph(text), "portfolio", 1.0)
    assert result.wire_l1 == 0.0
    # 20 x 20 tiles: k <= 6 so all K=4; h*w*(c+1) <= 20: h*w=4, c=4: 16 positions; h*w=6, c=2: 12
    # positions * 2; h*w=10 (5 x 2 -> 2*4=8), c=1: 8 * 4 = 32: 16 is the least
    assert result.max_time == 16
