"""Generated malformed files of every format with its own grammar: pins, studies, layouts, programs.

A sound file of the format is changed in one or two places: a field of another type, a word that is doubled, left
out, exchanged or replaced by something odd.  Each case is a command line, held to what
:mod:`tests.doors.test_malformed` holds its cases to.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from tests.doors.test_malformed import (
    DAMAGE,
    NOWHERE,
    NUMBERS,
    TYPES,
    broken,
    called,
    check,
    here,
    paths_in,
)
from tests.generated import examples
from tests.placement.graphs import kgraph_text
from wse_sim.compiler.plan import Infeasible
from wse_sim.frontend.parameters import ModelParameters
from wse_sim.serialize import save

pytestmark = pytest.mark.generated
__all__ = ["here"]  # the fixture

WORDS = re.compile(r"\w+|\s+|[^\w\s]")
ODD_WORDS = (
    "",
    "0",
    "-1",
    "99999999999999999999",
    "1e400",
    "nan",
    "(",
    ")",
    "{",
    "}",
    ";",
    "x",
    "é",
    "\x00",
    "\n",
    '"',
)
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 10**6), st.sampled_from(["drop", "double", "swap", "odd"]), st.sampled_from(ODD_WORDS)
    ),
    min_size=1,
    max_size=2,
)


def changed(text: str, changes: list[tuple[int, str, str]]) -> str:
    """Return the text with some of its words dropped, doubled, exchanged with the next, or replaced."""
    words = WORDS.findall(text)
    for at, how, odd in changes:
        here = at % len(words)
        if how == "drop":
            words[here] = ""
        elif how == "double":
            words[here] *= 2
        elif how == "swap":
            words[here - 1], words[here] = words[here], words[here - 1]
        else:
            words[here] = odd
    return "".join(words)


def test_pins(here: Path) -> None:
    """Every field of a pin file is checked; the file is read before the model, which does not exist."""
    data = {
        "pins": [
            {"module": "h.*.mlp", "rows": 60, "cols": 80},
            {"module": "lm_head", "region": "east", "replicas": 2},
        ]
    }
    file = here / "pins.yaml"
    fields = st.sampled_from(["module", "rows", "cols", "region", "replicas", "parts_in", "strange"])

    @examples(120)
    @given(st.integers(0, 1), fields, st.sampled_from(TYPES + NUMBERS), st.booleans())
    def case(which: int, field: str, value: Any, whole: bool) -> None:
        pins = [dict(pin) for pin in data["pins"]]
        pins[which][field] = value
        file.write_text(yaml.safe_dump({"pins": value if whole else pins}))
        check(["run", NOWHERE, "--pins", str(file)], here, must=2)

    case()


def test_studies(here: Path) -> None:
    """Every field of a study is checked by --dry-run: nothing runs, no file appears."""
    data = {
        "about": "a study", "fixed": {"model": "fc-mnist", "mode": "pipelined"}, "outputs": ["samples_per_s"], "draws": 2,
        "grid": {"batch": {"from": 8, "to": 64, "steps": 3, "scale": "log"}, "systems": [1, 2]},
        "sample": {"method": "sobol", "runs": 4, "seed": 1, "over": {"wafer.clock_hz": {"from": 1e9, "to": 1.1e9}}},
        "constraints": ["batch % systems == 0"],
    }  # fmt: skip
    file = here / "study.yaml"
    places = list(paths_in(data))

    @examples(150)
    @given(st.sampled_from(places), DAMAGE)
    def case(place: tuple[Any, ...], damage: tuple[str, Any]) -> None:
        file.write_text(yaml.safe_dump(broken(data, place, *damage)))
        check(["study", str(file), "--dry-run", "--workers", "0"], here)

    case()


def test_constraints_of_a_study(here: Path) -> None:
    """A constraint is an expression and executes nothing."""
    file = here / "study.yaml"
    texts = st.sampled_from([
        "", "batch", "batch %", "__import__('os')", "batch / 0 > 1", "9 ** 9 ** 9", "batch < 'x'", "f(batch)", "(" * 300,
        "batch if", "lambda: 1", "[1][2]", "batch.real", "1e999 > batch", "not", "batch == batch ==", "x" * 5000,
    ])  # fmt: skip

    @examples(40)
    @given(texts)
    def case(text: str) -> None:
        data = {"fixed": {"model": "fc-mnist"}, "grid": {"batch": [8, 9]}, "constraints": [text]}
        file.write_text(yaml.safe_dump(data))
        check(["study", str(file), "--dry-run", "--workers", "0"], here)

    case()


def test_layouts_and_placements(here: Path) -> None:
    """Kernel graphs of the contest and their placements are evaluated."""
    graph, paint = here / "g.kgraph", here / "p.paint"
    text = kgraph_text([(14, 14, 3, 3, 16, 32, 1), (7, 7, 3, 3, 32, 64, 1)], [(0, 1)])
    graph.write_text(text)
    status, err = called(
        ["place", f"ispd2020:{graph}", "--placer", "snake", "--time-limit", "1", "--out", "made"]
    )
    assert status == 0, err
    sound = (here / "made" / "placement.paint").read_text()
    for path in (here / "made").iterdir():
        path.unlink()
    (here / "made").rmdir()

    @examples(160)
    @given(st.booleans(), CHANGES)
    def case(is_graph: bool, changes: list[tuple[int, str, str]]) -> None:
        graph.write_text(changed(text, changes) if is_graph else text)
        paint.write_text(sound if is_graph else changed(sound, changes))
        check(["place", "--check", str(graph), str(paint)], here)

    case()


LAYOUT = """param size: u16;
layout {
  @set_rectangle(2, 1);
  const c = @get_color(3);
  @set_tile_code(0, 0, "core.csl", .{ .n = size });
  @set_tile_code(1, 0, "core.csl", .{ .n = size + 1 });
  @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
}
"""
CORE = """param n: u16;
var a = @zeros([8]f32);
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
const id = @get_local_task_id(9);
task main() void {
  var i: u16 = 0;
  while (i < n) : (i += 1) { a[i % 8] = a[i % 8] + @as(f32, i); }
  @fadds(d, d, 1.0);
}
comptime { @bind_local_task(main, id); @activate(id); }
"""


def test_programs_in_csl(here: Path) -> None:
    """A layout or a program with changed words compiles, or the compiler names the fault's place."""
    folder = here / "csl"
    folder.mkdir()
    layout, core = folder / "layout.csl", folder / "core.csl"
    words = [
        "cslc",
        str(layout),
        "--arch",
        "wse2",
        "--fabric-dims=9,3",
        "--fabric-offsets=4,1",
        "--params=size:4",
    ]
    layout.write_text(LAYOUT)
    core.write_text(CORE)
    status, text = called([*words, "-o", str(folder / "out")])
    assert status == 0, text

    @examples(120)
    @given(st.booleans(), CHANGES)
    def case(is_layout: bool, changes: list[tuple[int, str, str]]) -> None:
        layout.write_text(changed(LAYOUT, changes) if is_layout else LAYOUT)
        core.write_text(CORE if is_layout else changed(CORE, changes))
        status, text = called([*words, "-o", str(folder / "out")])
        assert status in (0, 2), (layout.read_text(), core.read_text(), text)
        assert status == 0 or len(text) > 12, text
        assert "Traceback" not in text
        assert "fault of the simulator" not in text

    case()


@pytest.mark.parametrize("name", get_args(ModelParameters.model_fields["family"].annotation))
def test_every_family_of_models_needs_what_it_needs(here: Path, name: str) -> None:
    """A family with no field, or with one field alone, is read or refused in one sentence."""
    file = here / "family.yaml"
    fields = ("layers", "hidden", "heads", "ffn", "vocab", "input", "patch", "classes", "seq", "context")
    for field in (None, *fields):
        data = {"family": name} | ({field: 8} if field else {})
        file.write_text(yaml.safe_dump({"name": "x", "source": "made", "model": data}))
        check(["show", "model", str(file)], here)


def same(text: str, other: str) -> bool:
    """Return whether two texts are the same JSON."""
    try:
        return bool(json.loads(text) == json.loads(other))
    except ValueError:
        return False


def test_a_result_with_changed_words(here: Path) -> None:
    """A saved result that is edited by hand is refused in one sentence."""
    folder = here / "saved"
    save(Infeasible("pipelined", "m", "SRAM", 2.0, 1.0, "bytes", "x", "shrink it"), folder, "result")
    sound = (folder / "result.json").read_text()

    @examples(80)
    @given(CHANGES)
    def case(changes: list[tuple[int, str, str]]) -> None:
        text = changed(sound, changes)
        if not same(text, sound):
            (folder / "result.json").write_text(text)
            check(["report", str(folder)], here, must=2)

    case()
    shutil.rmtree(folder)
