"""Options of the pipelined compiler: replicas, objectives, placers, dead cores, answers that name the limit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.handmade import transformer
from wse_sim.compiler.defects import repair, usable_bands, usable_cores
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import ConfigError, ModelError
from wse_sim.frontend import Pin, pin_kernels
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined import steps
from wse_sim.modes.pipelined.placement_comparison import score, verdict
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.report.placements import draw_plans
from wse_sim.serialize import same

WAFER, CLUSTER = load_wafer("wse2"), load_cluster()
SMALL = WAFER.derive(rows=132, cols=137, program_rows=130, program_cols=130)
GRAPH = transformer(2, 128, 4, 32)


def plan(**options) -> PipelinedPlan:
    """Return a plan of the small transformer on a small wafer, by default the one for long batches.

    The search for short ones starts from it and takes twenty times as long; tests/modes/test_short_batches.py is
    about it.
    """
    options.setdefault("layouts", False)
    wafer = options.pop("wafer", SMALL)
    made = compile_pipelined(options.pop("graph", GRAPH), wafer, CLUSTER, batch=16, **options)
    assert isinstance(made, PipelinedPlan), made.message
    check_legal(made)
    return made


def check_legal(made: PipelinedPlan) -> None:
    """Check that regions do not overlap, are inside the fabric, and avoid dead rows and cores."""
    wafer = made.wafer
    owner = np.zeros((wafer.rows, wafer.cols), int)
    for stage in made.stages:
        r = stage.region
        assert 0 <= r.row <= r.row + r.rows <= wafer.rows
        assert 0 <= r.col <= r.col + r.cols <= wafer.cols
        owner[r.row : r.row + r.rows, r.col : r.col + r.cols] += 1
    assert owner.max() == 1
    assert not owner[list(wafer.dead_rows)].any()
    assert not any(owner[row, col] for row, col in wafer.dead_cores)


def pace(made: PipelinedPlan) -> float:
    """Return the cycles per sample of the slowest stage."""
    return max(stage.cycles_per_sample for stage in made.stages)


@pytest.mark.slow
def test_replicas_are_equal_copies_with_streams_of_their_own():
    """Two replicas have twice the stages in the same order, and streams stay within a replica."""
    one, two = plan(replicas=1), plan(replicas=2)
    count = len(one.stages)
    assert len(two.stages) == 2 * count
    assert [s.replica for s in two.stages] == [0] * count + [1] * count
    assert [s.kernels for s in two.stages[:count]] == [s.kernels for s in two.stages[count:]]
    replica_of = {s.name: s.replica for s in two.stages}
    assert all(replica_of[s.producer] == replica_of[s.consumer] for s in two.streams)
    assert len(two.streams) == 2 * len(one.streams)
    assert pace(two) >= pace(one)  # half the cores each


@pytest.mark.slow
def test_replicas_of_a_tiny_model_raise_the_simulated_rate():
    """A model that cannot use the wafer, fed by 8 workers, is replicated and runs faster for it."""
    from wse_sim.modes.simulation import simulate

    tiny = transformer(1, 32, 2, 8, training=False)
    fast = CLUSTER.derive(input_workers_per_system=8, worker_samples_per_s=1e6, worker_bytes_per_s=1e12)
    found = {}
    for replicas in (1, None):
        made = compile_pipelined(tiny, WAFER, fast, batch=64, replicas=replicas)
        assert isinstance(made, PipelinedPlan)
        check_legal(made)
        found[replicas] = (made.replicas, simulate(made, trace=False).samples_per_s)
    assert found[1][0] == 1
    assert found[None][0] > 1
    assert found[None][1] > 1.5 * found[1][1]


@pytest.mark.parametrize(("replicas", "said"), [(0, "give 1 or more"), (17, "ask for 1 to 16")])
def test_every_replica_needs_a_sample(replicas, said):
    """A batch of 16 has 1 to 16 replicas."""
    with pytest.raises(ModelError, match=said):
        plan(replicas=replicas)


def test_a_large_model_stays_alone():
    """A model that fills the wafer is not replicated."""
    assert plan().replicas == 1


def test_host_streams_end_at_the_edge():
    """Tokens enter at the west or east edge, and the last tensor leaves there; their bytes are on the links."""
    made = plan()
    names = {(s.producer == "host", s.consumer == "host") for s in made.host_streams}
    assert names == {(True, False), (False, True)}
    for stream in made.host_streams:
        row, col = stream.route[0] if stream.producer == "host" else stream.route[-1]
        assert col in (0, made.wafer.cols - 1)
        assert 0 <= row < made.wafer.program_rows


@pytest.mark.slow
def test_one_dead_core_costs_no_column_and_is_told():
    """A spare column replaces that of the dead core; the note compares the pace with that of a wafer without defects."""
    whole, hurt = plan(), plan(wafer=SMALL.derive(dead_cores=((60, 60),)))
    assert pace(hurt) <= pace(whole) * 1.25
    note = next(n for n in hurt.notes if "without defects" in n)
    assert "0 dead rows and 1 dead cores leave 16900 of 16900 cores" in note
    assert not any("defects" in n for n in whole.notes)


def test_spares_make_good_for_dead_rows_and_cores():
    """With 2 spare rows and 7 spare columns, the third dead row costs 130 cores and the eighth dead core of a row costs
    one.
    """
    assert usable_bands(SMALL.derive(dead_rows=(5,))) == [(0, 5), (6, 125)]
    assert usable_cores(SMALL.derive(dead_rows=(5, 6))) == 130 * 130
    assert usable_cores(SMALL.derive(dead_rows=(5, 6, 7))) == 129 * 130
    assert usable_cores(SMALL.derive(dead_cores=tuple((9, c) for c in range(8)))) == 130 * 130 - 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_regions_avoid_any_dead_cores(seed):
    """With random dead cores and rows, plans are always legal and never faster than on a wafer without defects."""
    draw = np.random.default_rng(seed)
    cores = tuple(
        (int(r), int(c)) for r, c in zip(draw.integers(0, 132, 9), draw.integers(0, 137, 9), strict=True)
    )
    rows = tuple(int(r) for r in draw.integers(0, 130, seed))
    wafer = SMALL.derive(dead_cores=cores, dead_rows=rows)
    assert pace(plan(wafer=wafer)) >= pace(plan()) * 0.995
    if seed == 1:
        plan(wafer=wafer, layouts=True)  # those of a short batch are legal, too


def test_shifted_rows_bypass_dead_cores_at_the_cost_of_hops():
    """Row 5 skips column 3, row 6 skips columns 3 and 8: the shift is 0, then 1 (2) behind them."""
    wafer = SMALL.derive(dead_cores=((5, 3), (6, 3), (6, 8)), defect_repair="shift")
    mended = repair(wafer)
    assert (mended.repaired, mended.wafer.dead_cores) == (3, ())
    assert mended.shift[5, :6].tolist() == [0, 0, 0, 1, 1, 1]
    assert mended.shift[6, 6:9].tolist() == [1, 2, 2]
    # down column 10, rows 4 to 7: shifts 0, 1, 2, 0 cost 1 + 1 + 2 hops; along row 6 two
    assert mended.extra_hops([(4, 10), (7, 10)]) == mended.extra_hops([(7, 10), (4, 10)]) == 4
    assert mended.extra_hops([(6, 0), (6, 20)]) == 2
    assert mended.extra_hops([(4, 10), (7, 10), (7, 30)]) == 4


def test_a_repaired_wafer_keeps_its_pace_and_delays_words():
    """40 dead cores: with spare columns the pace is that of a wafer without defects, with more hops; eight in a row
    stay dead.
    """
    draw = np.random.default_rng(3)
    dead = tuple(
        (int(r), int(c)) for r, c in zip(draw.integers(0, 130, 40), draw.integers(0, 130, 40), strict=True)
    )
    whole, hurt = plan(), plan(wafer=SMALL.derive(dead_cores=dead, defect_repair="shift"))
    assert pace(hurt) == pace(whole)
    more = [b.hops - a.hops for a, b in zip(whole.streams, hurt.streams, strict=True)]
    assert min(more) >= 0
    assert max(more) > 0
    assert all(b.latency_cycles >= a.latency_cycles for a, b in zip(whole.stages, hurt.stages, strict=True))
    assert any("dead cores are replaced by spare columns" in note for note in hurt.notes)
    row = SMALL.derive(dead_cores=tuple((9, c) for c in range(8)), defect_repair="shift")
    assert len(repair(row).wafer.dead_cores) == 8
    with pytest.raises(ConfigError, match="defect_repair"):
        SMALL.derive(defect_repair="glue")


@pytest.mark.slow
@pytest.mark.parametrize("repair_by", ["avoid", "shift"])
def test_more_dead_cores_never_speed_up(repair_by):
    """Each set of dead cores contains the one before: the slowest kernel never gets faster (0.5 % of search)."""
    draw = np.random.default_rng(5)
    dead = [
        (int(r), int(c)) for r, c in zip(draw.integers(0, 130, 24), draw.integers(0, 130, 24), strict=True)
    ]
    paces = [
        pace(plan(wafer=SMALL.derive(dead_cores=tuple(dead[:n]), defect_repair=repair_by)))
        for n in (0, 3, 8, 24)
    ]
    assert all(b >= a * 0.995 for a, b in itertools.pairwise(paces)), paces


@pytest.mark.thinned(2)
@pytest.mark.parametrize("placer", ["shelves", "snake", "peel"])
def test_every_placer_is_legal_and_deterministic(placer):
    """The same seed gives the same plan, byte for byte."""
    one = plan(placer=placer, time_limit_s=0.5, layouts=True)
    assert same(one, plan(placer=placer, time_limit_s=0.5, layouts=True))
    assert one.placer == placer
    assert pace(one) >= one.lower_bound_cycles * 0.999


def test_objectives_trade_what_they_name():
    """The objective latency gives a lower latency than throughput; wire never costs more than it saves."""
    graph = transformer(2, 128, 4, 32, training=False)
    made = {name: plan(graph=graph, objective=name) for name in ("throughput", "delta-t+wire", "latency")}
    scores = {name: score(p, 0.0) for name, p in made.items()}
    assert scores["latency"].latency_cycles <= scores["throughput"].latency_cycles
    fast, short = scores["throughput"], scores["delta-t+wire"]
    assert short.slowest_cycles + short.wire_l1 <= 1.01 * (fast.slowest_cycles + fast.wire_l1)
    with pytest.raises(ConfigError, match="no objective"):
        plan(objective="beauty")
    with pytest.raises(ConfigError, match="no placer"):
        plan(placer="oracle")


@pytest.mark.slow
def test_scores_and_pictures(tmp_path):
    """The verdict states whether shorter wire improved throughput; the picture has a panel per plan."""
    plans = [plan(), plan(placer="snake", time_limit_s=0.5)]
    scores = [score(p, 1.0) for p in plans]
    assert all(0 < s.region_fraction <= 1 and s.ratio >= 0.999 and s.latency_cycles > 0 for s in scores)
    text = verdict(scores, [2.0, 1.0])
    assert "wire" in text
    draw_plans(plans, ["a", "b"], tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2, 4])
def test_more_links_never_slow_the_plan(scale):
    """Wider links leave the pace as it is and never load a link more."""
    one, wide = plan(), plan(wafer=SMALL.derive(link_bytes_per_cycle=4.0 * scale))
    assert pace(wide) <= pace(one) * 1.01


def test_too_large_answers_name_need_and_limit():
    """For each size the need exceeds the limit stated."""
    for layers, hidden in ((8, 768), (12, 1024), (24, 2048)):
        answer = compile_pipelined(transformer(layers, hidden, 8, 64), SMALL, CLUSTER, batch=4)
        assert isinstance(answer, Infeasible)
        assert answer.need > answer.limit > 0
        assert "times as much" in answer.message


@pytest.mark.slow
def test_edges_of_copies_are_disjoint():
    """Regions of two replicas never overlap, whatever the placer."""
    made = plan(replicas=2, placer="snake", time_limit_s=0.5)
    for a, b in itertools.combinations(made.stages, 2):
        assert not a.region.overlaps(b.region)


def test_another_placer_is_tried_where_the_streams_need_too_many_colors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The default placer is refused for colors: the plan is the one of the next placer, with a note; pins keep the refusal."""
    own = steps._best_routed
    colors = Infeasible("pipelined", GRAPH.name, "colors", 20.0, 15.0, "colors", "a router", "another placer")

    def refused_first(sizer, cluster, options):
        return colors if options.placer == "shelves" else own(sizer, cluster, options)

    asked = plan(placer="peel")
    monkeypatch.setattr(steps, "_best_routed", refused_first)
    found = plan()
    assert found.placer == "peel"
    assert [stage.region for stage in found.stages] == [stage.region for stage in asked.stages]
    assert any("placed by 'peel'" in note and "20 colors" in note for note in found.notes)
    pinned = pin_kernels(GRAPH, Pin(module=GRAPH.kernels[0].layer, region="head"))
    assert compile_pipelined(pinned, SMALL, CLUSTER, batch=16, layouts=False) is colors


def test_replicas_beyond_the_workers_of_the_cluster_are_noted() -> None:
    """A cluster with one worker: two replicas have two, and a note says so; one replica has none."""
    assert CLUSTER.input_workers_per_system == 1
    assert any("2 instead of input_workers_per_system (1)" in note for note in plan(replicas=2).notes)
    assert not any("input_workers_per_system" in note for note in plan(replicas=1).notes)
