"""The pipeline over several systems against closed forms: its cuts, the crossing tensors, and their speed."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from tests.handmade import transformer
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.sizing import Sizer
from wse_sim.graph import Phase
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes import load_result, mode_of, simulate
from wse_sim.modes.pipelined_systems.plan import LINK, PipelinedSystemsPlan
from wse_sim.report import html, tables

SMALL = load_wafer("wse2").derive(rows=132, cols=137, program_rows=130, program_cols=130)
CLUSTER = load_cluster()
GRAPH = transformer(6, 128, 4, 128)
HIDDEN_BYTES = 128 * 128 * 2  # activations of one sample between two blocks


def compiled(systems, wafer=SMALL, cluster=CLUSTER, graph=GRAPH, batch=32, **options):
    found = api.compile(
        graph, wafer, mode="pipelined-systems", batch=batch, systems=systems, cluster=cluster, **options
    )
    assert isinstance(found, PipelinedSystemsPlan), found.message
    return found


@pytest.fixture(scope="module")
def two() -> PipelinedSystemsPlan:
    return compiled(2)


def test_every_kernel_lies_on_one_wafer_and_no_block_on_two(two):
    """The parts have the kernels of the graph once, in order; each block's kernels share a wafer and fit its SRAM."""
    kernels = [name for part in two.parts for stage in part.stages for name in stage.kernels]
    assert sorted(kernels) == sorted(kernel.name for kernel in GRAPH.kernels)
    forward = [kernel.name for kernel in GRAPH.kernels if kernel.phase is Phase.FORWARD]
    assert [stage.name for part in two.parts for stage in part.stages] == forward
    wafer_of = {name: i for i, part in enumerate(two.parts) for s in part.stages for name in s.kernels}
    for repeat in GRAPH.repeats:
        for block in repeat.instances:
            assert len({wafer_of[name] for name in block}) == 1
    for part in two.parts:
        assert all(stage.memory.total_bytes <= SMALL.sram_usable_bytes for stage in part.stages)
        assert not any(a.region.overlaps(b.region) for a, b in itertools.combinations(part.stages, 2))


def test_a_cut_between_blocks_carries_the_hidden_state_and_its_gradient(two):
    """128 tokens of 128 numbers in two bytes cross in both directions; the line needs both over the rate of the I/O."""
    (cut,) = two.cuts
    assert cut.bytes_per_sample == cut.backward_bytes_per_sample == HIDDEN_BYTES
    (line,) = [stage for stage in two.line.stages if stage.family == LINK]
    assert line.cycles_per_sample == pytest.approx(2 * HIDDEN_BYTES / SMALL.io_bytes_per_s * SMALL.clock_hz)


def test_a_cut_is_as_long_as_the_routes_to_both_edges(two):
    """Hops are the distances between the corners of the routes: to the edge of one wafer, and from an edge of the next."""
    ((crossing,),) = (cut.crossings for cut in two.cuts)
    ends = ((crossing.producer, "host"), ("host", *crossing.consumers))
    for part, end, hops in zip(two.parts, ends, crossing.hops, strict=True):
        (way,) = (stream for stream in part.host_streams if (stream.producer, stream.consumer) == end)
        assert 0 in (way.route[0][1], way.route[-1][1])
        assert hops == sum(abs(a - c) + abs(b - d) for (a, b), (c, d) in itertools.pairwise(way.route)) > 0


def test_samples_in_flight_reach_to_the_end_of_the_chain(two):
    """6 barriers and a little to the end of the model, 3 and a little to that of the wafer: ceil(2 d) + 2 = 15 and 9."""
    assert len({stage.name.split(".")[1] for stage in two.parts[0].stages if "." in stage.name}) == 3
    assert two.parts[0].stages[0].in_flight == 15
    alone = Sizer(two.parts[0].graph, SMALL, Prices(SMALL, {"training": True}))
    assert alone.in_flight["embed"] == 9


def test_endless_inference_goes_at_the_slowest_stage_of_both_wafers():
    graph = transformer(6, 128, 4, 128, training=False)
    plan = compiled(2, graph=graph, batch=512)
    result = simulate(plan, trace=False)
    slowest = max(stage.cycles_per_sample for part in plan.parts for stage in part.stages)
    assert result.samples_per_s == pytest.approx(SMALL.clock_hz / slowest, rel=0.01)


@pytest.mark.slow
def test_a_longer_line_delays_a_lone_sample_once_each_way(two):
    """A training step of one sample waits for one hop in each direction, cut by cut."""
    more_s = 40e-6
    later = CLUSTER.derive(swarmx_hop_s=CLUSTER.swarmx_hop_s + more_s)
    for systems in (2, 3):
        plan = dataclasses.replace(compiled(systems, batch=1), batch=1)
        near, far = (
            simulate(dataclasses.replace(plan, cluster=cluster), trace=False) for cluster in (CLUSTER, later)
        )
        assert far.step_s - near.step_s == pytest.approx(2 * (len(plan.parts) - 1) * more_s, rel=1e-6)


def test_a_slow_line_binds_at_its_own_rate(two):
    """With 1 MB/s of I/O a sample takes 65.5 ms on the line; a compiler that knows it does not cut the model."""
    slow = SMALL.derive(io_bytes_per_s=1e6)
    assert len(compiled(2, wafer=slow).parts) == 1
    parts = tuple(dataclasses.replace(part, wafer=slow) for part in two.parts)
    result = simulate(dataclasses.replace(two, wafer=slow, parts=parts), trace=False)
    assert result.binding == "system_links"
    assert result.samples_per_s == pytest.approx(1e6 / (2 * HIDDEN_BYTES), rel=0.1)
    assert result.samples_per_s <= 1e6 / (2 * HIDDEN_BYTES)


def test_what_is_sent_is_received(two):
    """Activations and gradients agree at both ends of every route, lines included; the time of every region adds up to
    the step.
    """
    result = simulate(two, trace=False)
    sums = result.conservation
    for name in ("activations", "gradients", "input"):
        assert sums[f"{name}_sent_bytes"] == sums[f"{name}_received_bytes"] > 0
    for use in result.kernels:
        total = use.busy_s + use.stalled_input_s + use.stalled_output_s + use.idle_s
        assert total == pytest.approx(result.step_s, rel=1e-9)
    assert result.flops_per_step == 32 * GRAPH.with_samples(1).total_flops
    assert simulate(two, trace=False) == result


@pytest.mark.slow
def test_more_systems_are_never_slower():
    rates = [api.run(GRAPH, mode="pipelined", batch=256, wafer=SMALL, trace=False).samples_per_s]
    for systems in (2, 3, 4):
        rates.append(simulate(compiled(systems, batch=256), trace=False).samples_per_s)
    assert all(b >= a for a, b in itertools.pairwise(rates))
    assert 1.5 < rates[1] / rates[0] < 2.2
    assert rates[-1] > 2.5 * rates[0]


def test_a_chain_as_long_as_it_helps():
    """There are two more stages than blocks: no more wafers are used than possible cuts allow, and the plan states
    this.
    """
    graph = transformer(1, 128, 4, 128)
    plan = compiled(40, graph=graph)
    assert len(plan.parts) < 40
    assert f"{len(plan.parts)} of 40 systems" in plan.notes[-2]


@pytest.mark.slow
def test_a_model_too_large_for_one_wafer_fits_on_several():
    """Each layer holds 12 x 128^2 weights of 16 bytes; the message names systems, and on enough of them it runs."""
    tiny = load_wafer("wse2").derive(rows=22, cols=22, program_rows=20, program_cols=20)
    assert isinstance(api.compile(GRAPH, tiny, mode="pipelined", batch=8), Infeasible)
    refused = api.compile(GRAPH, tiny, mode="pipelined-systems", batch=8, systems=2)
    assert isinstance(refused, Infeasible)
    assert re.search(r"or at least \d+ systems", refused.message)
    counts = [
        n
        for n in (3, 4, 6, 8, 10)
        if not isinstance(api.compile(GRAPH, tiny, mode="pipelined-systems", batch=8, systems=n), Infeasible)
    ]
    assert counts
    assert counts == [n for n in (3, 4, 6, 8, 10) if n >= counts[0]]


@pytest.mark.slow
def test_fewer_samples_in_flight_where_they_do_not_fit():
    """Five small wafers fit the model if stages keep half of the samples; six fit all of them, and are faster."""
    tiny = load_wafer("wse2").derive(rows=24, cols=24, program_rows=22, program_cols=22)
    five, six = (compiled(systems, wafer=tiny, batch=64) for systems in (5, 6))
    fewer = [[note for note in plan.notes if "that the pace needs" in note] for plan in (five, six)]
    assert (len(fewer[0]), len(fewer[1])) == (1, 0)
    assert five.line.in_flight < six.line.in_flight
    rates = [simulate(plan, trace=False).samples_per_s for plan in (five, six)]
    assert rates[0] < rates[1]


def test_nobody_gets_what_the_machine_does_not_offer_without_asking():
    """The machine's software has no pipeline over several systems, so auto selects one of its modes."""
    assert api.run(GRAPH, wafer=SMALL, batch=64, systems=2, trace=False).mode == "weight-streaming"


@pytest.mark.slow
def test_a_tensor_may_pass_several_wafers():
    """The last block reads the output of the first: it crosses every cut, is forwarded, and both ends count it equally."""
    last = GRAPH.kernel("h.5.out")
    far = dataclasses.replace(last, inputs=(*last.inputs, "h.0.out.out"))
    graph = dataclasses.replace(GRAPH, kernels=tuple(far if k is last else k for k in GRAPH.kernels))
    plan = compiled(3, graph=graph)
    assert [cut.bytes_per_sample for cut in plan.cuts] == [2 * HIDDEN_BYTES, 2 * HIDDEN_BYTES]
    assert [[c.goes_on for c in cut.crossings if c.tensor == "h.0.out.out"] for cut in plan.cuts] == [
        [True],
        [False],
    ]
    sums = simulate(plan, trace=False).conservation
    assert sums["activations_sent_bytes"] == sums["activations_received_bytes"]


def test_a_weight_on_two_wafers_is_updated_once(two):
    """The head reads the embedding's weight: its gradient, 4 bytes a number, comes over the line and goes back."""
    head, embed = GRAPH.kernel("head"), GRAPH.kernel("embed")
    tied = dataclasses.replace(head, parameters=embed.parameters)
    kernels = tuple(tied if k is head else k for k in GRAPH.kernels if k.name != "head.update")
    plan = compiled(2, graph=dataclasses.replace(GRAPH, kernels=kernels))
    elements = GRAPH.tensors[embed.parameters[0]].elements
    assert plan.tied_bytes == (("embed", 4.0 * elements, 1),)
    apart = plan.parts[0].stages[0].update_cycles
    both_ways_s = 2 * (4 * elements / SMALL.io_bytes_per_s + CLUSTER.swarmx_hop_s)
    assert plan.line.stages[0].update_cycles == pytest.approx(apart + both_ways_s * SMALL.clock_hz)


@pytest.mark.slow
def test_a_comparison_has_a_third_row_where_it_is_possible(tmp_path):
    """On one system there are two rows, on two a third; `pipelined` on two systems selects it, and reports read it."""
    rows = api.compare(GRAPH, wafer=SMALL, batch=64, trace=False)
    assert [row.mode for row in rows] == ["pipelined", "weight-streaming"]
    rows = api.compare(GRAPH, wafer=SMALL, batch=64, systems=2)
    assert [row.mode for row in rows] == ["pipelined", "weight-streaming", "pipelined-systems"]
    assert not rows[0].feasible
    result = rows[2]
    assert "pipelined-systems" in tables.comparison_text(rows)
    asked = api.run(GRAPH, wafer=SMALL, batch=64, systems=2, mode="pipelined", trace=False)
    assert (asked.mode, asked.samples_per_s) == (result.mode, result.samples_per_s)
    assert ("systems in use", "2 of 2") in result.facts
    assert "samples of the host use the same links (assumed)" in html.render(result)
    assert len(result.areas) == len(result.plan.parts[result.plan.slowest].stages)
    result.save(tmp_path)
    assert load_result(tmp_path) == result


def test_other_constants_and_factors_reach_every_part(two):
    """Half the clock halves the rate of stages; twice the cycles of every stage do too."""
    mode = mode_of(two)
    rate = mode.quick_figures(two)["samples_per_s"]
    slower = mode.repriced(two, SMALL.derive(clock_hz=SMALL.clock_hz / 2), CLUSTER)
    assert mode.quick_figures(slower)["samples_per_s"] == pytest.approx(rate / 2)
    names = {stage.name: 2.0 for part in two.parts for stage in part.stages}
    assert mode.quick_figures(mode.scaled(two, names))["samples_per_s"] == pytest.approx(rate / 2)
    assert {item.name for item in mode.work(two)} == set(names)
