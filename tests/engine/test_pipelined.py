"""Pipelined runs against numbers computed by hand; one cycle is one second."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.engine_plans import (
    COLS,
    ROWS,
    chain,
    free_cluster,
    pipelined,
    stage,
    stream,
    unit_wafer,
)
from tests.generated import examples
from wse_sim import api
from wse_sim.engine.result import FRACTIONS, Result
from wse_sim.errors import ConfigError
from wse_sim.graph import frozen
from wse_sim.modes import load_result, simulate
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.run import PipelineDeadlockError, allreduce_cycles
from wse_sim.report.tables import headline


def total_s(use: object) -> float:
    return use.busy_s + use.stalled_input_s + use.stalled_output_s + use.idle_s  # type: ignore[attr-defined]


def use_of(result: Result, name: str):
    return next(use for use in result.kernels if use.name == name)


def test_fill_steady_state_and_drain_of_three_stages() -> None:
    """Ten samples pass three stages of 1 + 2 cycles that transfer complete samples."""
    # The last stage gets its first sample at 2, is busy 10 x 3 cycles until 32; the last gradient then
    # passes the two stages before it in 2 cycles each: 36.
    result = simulate(chain([(1, 2)] * 3, batch=10))
    assert result.step_s == pytest.approx(36)
    assert result.bindings["compute"] == pytest.approx(30)
    assert result.bindings["fill_drain"] == pytest.approx(6)
    assert [use.busy_s for use in result.kernels] == pytest.approx([30, 30, 30])
    assert result.binding == "compute"
    assert result.compute_utilization == pytest.approx(1.0)


def test_rows_stream_between_stages() -> None:
    """One sample of 100 rows passes three stages of 100 cycles."""
    # Stage 1 starts when stage 0 has made its first row (1), and ends one row after it (101); so 102.
    plan = chain([(100, 0)] * 3, batch=1, training=False, rows_per_sample=100)
    assert simulate(plan, steps=1).step_s == pytest.approx(102)


def test_barrier_reads_the_whole_sample_first() -> None:
    """A barrier in the middle starts when stage 0 has ended."""
    # 100 (stage 0) + 100 (barrier) + 1 row of the last stage.
    plan = chain([(100, 0)] * 3, batch=1, training=False, rows_per_sample=100)
    middle = dataclasses.replace(plan.stages[1], barrier=True)
    plan = dataclasses.replace(plan, stages=(plan.stages[0], middle, plan.stages[2]))
    assert simulate(plan, steps=1).step_s == pytest.approx(201)


def test_rows_on_different_cores_leave_when_their_core_is_ready() -> None:
    """Each core of the middle stage has some of the rows and works 40 cycles on them."""
    # Row 0 leaves the stages at 1, 41 and 42; row 99 at 100, 140 and 141. Rows that left together would at 240.
    plan = chain([(100, 0), (40, 0), (100, 0)], batch=1, training=False, rows_per_sample=100)
    middle = dataclasses.replace(plan.stages[1], rows_per_sample=1, parallel=True)
    plan = dataclasses.replace(plan, stages=(plan.stages[0], middle, plan.stages[2]))
    assert simulate(plan, steps=1).step_s == pytest.approx(141)
    together = dataclasses.replace(middle, parallel=False)
    plan = dataclasses.replace(plan, stages=(plan.stages[0], together, plan.stages[2]))
    assert simulate(plan, steps=1).step_s == pytest.approx(240)


def test_a_core_that_is_ready_takes_the_next_sample() -> None:
    """Two passes of 40 and 60 cycles that share cores with rows of their own keep the pace of their sum, 100 cycles."""
    plan = chain([(20, 30), (40, 60), (20, 30)], batch=200, rows_per_sample=50)
    middle = dataclasses.replace(plan.stages[1], rows_per_sample=1, parallel=True)
    plan = dataclasses.replace(plan, stages=(plan.stages[0], middle, plan.stages[2]))
    step_s = simulate(plan).step_s
    assert 200 * 100 <= step_s <= 200 * 100 + 2 * (20 + 40 + 20 + 30 + 60 + 30)


def test_hops_delay_the_rows() -> None:
    """A stream of 7 hops adds 7 cycles."""
    plan = pipelined(
        [stage("a", 100, rows_per_sample=100), stage("b", 100, rows_per_sample=100)],
        [stream("a", "b", hops=7)],
        batch=1,
        training=False,
    )
    assert simulate(plan, steps=1).step_s == pytest.approx(108)


def test_update_ends_the_batch() -> None:
    """One stage computes 4 samples of 1 + 2 cycles and an update of 5 cycles, then the next batch."""
    result = simulate(chain([(1, 2)], batch=4, update_cycles=5.0))
    assert result.step_s == pytest.approx(17)
    assert use_of(result, "s0").parts["update"] == pytest.approx(5)
    assert use_of(result, "s0").busy_s == pytest.approx(17)


def test_cycles_in_which_cores_wait_are_stalled() -> None:
    """In a stage of 10 cycles the cores wait 3 for input and 1 for output, next to a stage of 5, for 8 samples."""
    # The pace is that of all 10 cycles; of each sample 6 are busy.  The second stage waits 5 cycles per sample.
    parts = frozen(compute=6.0, stalled_input=3.0, stalled_output=1.0)
    plan = pipelined(
        [stage("a", 10, forward_parts=parts), stage("b", 5)], [stream("a", "b")], batch=8, training=False
    )
    result = simulate(plan)
    assert result.step_s == pytest.approx(80)
    slow = use_of(result, "a")
    assert (slow.busy_s, slow.stalled_input_s, slow.stalled_output_s, slow.idle_s) == pytest.approx(
        (48, 24, 8, 0)
    )
    assert use_of(result, "b").busy_s == pytest.approx(40)


@given(st.data())
@examples(20)
def test_stalls_take_from_busy_time_alone(data: st.DataObject) -> None:
    """Stating the waiting cycles of a stage's passes changes no sample's time, and no other stage's."""
    cycles = st.integers(1, 12)
    times = [(data.draw(cycles), data.draw(cycles)) for _ in range(data.draw(st.integers(1, 4)))]
    plan = chain(times, batch=6)
    waits = [[data.draw(st.floats(0, one)) for one in both] for both in times]
    on_output = data.draw(st.floats(0, 1))
    stages = tuple(
        dataclasses.replace(
            each,
            forward_parts=_waiting(each.forward_cycles, ahead, on_output),
            backward_parts=_waiting(each.backward_cycles, back, on_output),
        )
        for each, (ahead, back) in zip(plan.stages, waits, strict=True)
    )
    told = simulate(dataclasses.replace(plan, stages=stages))
    plain = simulate(plan)
    assert told.step_s == plain.step_s
    for use, other, pair in zip(told.kernels, plain.kernels, waits, strict=True):
        assert other.busy_s - use.busy_s == pytest.approx(6 * sum(pair), abs=1e-9)
        assert use.stalled_output_s - other.stalled_output_s == pytest.approx(
            6 * sum(pair) * on_output, abs=1e-9
        )
        assert total_s(use) == pytest.approx(total_s(other))


def _waiting(cycles: float, waits: float, on_output: float) -> Mapping[str, float]:
    """Return the causes of a pass of `cycles` with that many of waiting."""
    stalled = frozen(stalled_input=waits * (1 - on_output), stalled_output=waits * on_output)
    return frozen(compute=cycles - waits, **stalled)


def test_inference_runs_at_the_pace_of_the_slowest_stage() -> None:
    """Batches follow each other: 8 samples at 4 cycles each, whatever the depth."""
    result = simulate(chain([(1, 0), (4, 0), (2, 0)], batch=8, training=False))
    assert result.step_s == pytest.approx(32)
    # The first stage makes a sample in 1 cycle and then waits for room: 3 of 4 cycles.
    assert use_of(result, "s0").stalled_output_s == pytest.approx(24)
    assert use_of(result, "s2").busy_s == pytest.approx(16)


def test_one_sample_in_flight_runs_without_overlap() -> None:
    """With one sample in flight every sample takes the complete route forward and back."""
    # 3 x 1 forward + 3 x 2 backward = 9 cycles per sample.
    result = simulate(chain([(1, 2)] * 3, batch=20, in_flight=1))
    assert result.step_s == pytest.approx(180)
    assert result.binding == "back_pressure"


def test_slow_producer_does_not_hold_the_cores_of_its_reader() -> None:
    """Forward rows that arrive slowly leave the reader's cores to backward passes."""
    # a: 50 + 10, b: 10 + 20, c: 10 + 50 cycles.  Each pass of b is open for 50 cycles, 100 in all, but
    # only charged 30: the pace stays at 60, that of a and c.
    plan = chain([(50, 10), (10, 20), (10, 50)], batch=400, rows_per_sample=50)
    result = simulate(plan, extrapolate=False)
    assert result.step_s / 400 == pytest.approx(60, rel=0.02)


def test_added_samples_equal_simulated_ones() -> None:
    """A long batch gives the same step when it is extrapolated as when it is simulated completely."""
    plan = chain([(3, 5), (4, 4), (2, 6)], batch=600, rows_per_sample=4, update_cycles=3.0)
    short, full = simulate(plan), simulate(plan, extrapolate=False)
    assert short.extrapolated_samples > 400
    assert full.extrapolated_samples == 0
    assert short.step_s == pytest.approx(full.step_s, rel=1e-9)
    for one, other in zip(short.kernels, full.kernels, strict=True):
        assert one.busy_s == pytest.approx(other.busy_s, rel=1e-6)
        assert one.stalled_input_s == pytest.approx(other.stalled_input_s, abs=1e-6 * full.step_s)


@pytest.mark.slow
def test_uneven_pipeline_is_extrapolated_within_two_thousandths() -> None:
    """Unequal stages with barriers and few samples in flight swing around their pace."""
    names = [f"s{i}" for i in range(24)]
    stages = [
        stage(n, 100 + i * 7 % 13, 200 + i * 5 % 11, rows_per_sample=64, barrier=i % 8 == 3, in_flight=10)
        for i, n in enumerate(names)
    ]
    plan = pipelined(
        stages,
        [stream(a, b) for a, b in itertools.pairwise(names)],
        batch=800,
        in_flight=10,
    )
    short, full = simulate(plan, trace=False), simulate(plan, trace=False, extrapolate=False)
    assert short.extrapolated_samples > 400
    assert short.step_s == pytest.approx(full.step_s, rel=2e-3)


def test_deadlock_names_the_stages() -> None:
    """Two stages that read each other never start, and the fault names them."""
    stages = [stage("in", 1), stage("left", 1), stage("right", 1)]
    streams = [stream("in", "left"), stream("left", "right"), stream("right", "left")]
    with pytest.raises(PipelineDeadlockError, match=r"left -> right -> left|right -> left -> right"):
        simulate(pipelined(stages, streams, batch=2, training=False))


def test_stream_without_room_is_a_deadlock() -> None:
    """A stream without room for a sample stops its producer at once."""
    with pytest.raises(PipelineDeadlockError, match="a"):
        simulate(pipelined([stage("a", 1), stage("b", 1)], [stream("a", "b", capacity=0)], batch=2))


def test_no_rate_is_more_than_the_busiest_link_carries() -> None:
    """24 bytes per sample cross a link of 4 bytes per cycle in 6 cycles, whereas the slowest stage takes 3.

    Inference: a sample every 6 cycles.  Training: 50 samples enter until 294, and the last is there and back in
    2 (1 + 2) = 6 cycles more.  With a link of 2.4 cycles nothing waits for it: 50 (1 + 2) and 3 for one stage more.
    """
    loads = np.zeros((ROWS, COLS, 4), np.float32)
    loads[1, 2, 1] = 24
    infers = simulate(chain([(3, 0), (2, 0)], batch=50, training=False, link_bytes_per_sample=loads))
    assert infers.compute_samples_per_s == pytest.approx(1 / 6)
    trains = simulate(chain([(1, 2)] * 2, batch=50, link_bytes_per_sample=loads), extrapolate=False)
    assert trains.step_s == pytest.approx(300)
    assert trains.compute_samples_per_s == pytest.approx(1 / 6)
    for result in (infers, trains):
        assert (result.binding, result.compute_binding) == ("links", "links")
        assert dict(headline(result))["Compute Samples/s"].endswith(" (links bind)")
        source = result.kernels[0]
        assert source.stalled_output_s > source.idle_s + source.stalled_input_s
    wide = simulate(chain([(1, 2)] * 2, batch=50, link_bytes_per_sample=loads * 0.4))
    assert wide.step_s == pytest.approx(153)
    assert wide.compute_binding == "compute"


VISION = {"family": "vit", "layers": 6, "hidden": 768, "heads": 12, "ffn": 3072, "input": 224, "patch": 32}
SMALL = {"family": "encoder", "layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "seq": 128, "vocab": 1000}


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        SMALL,
        pytest.param(VISION | {"classes": 1000}, marks=pytest.mark.slow),
    ],
    ids=lambda model: model["family"],
)
def test_words_of_a_model_at_its_rate_fit_the_links(model: dict[str, object]) -> None:
    """Short samples on WSE-3, in inference: kernels alone would run at 1.2 and 1.5 times the rate of a link."""
    plan = api.compile(api.load_model(model), "wse3", mode="pipelined", batch=64, replicas=1, prices="plain")
    assert isinstance(plan, PipelinedPlan)
    assert plan.link_cycles > 1.1 * plan.pace_cycles
    result = simulate(plan, trace=False)
    link = plan.wafer.link_bytes_per_cycle / plan.wafer.wavelet_cycles * plan.wafer.clock_hz
    used = result.compute_samples_per_s * float(plan.link_bytes_per_sample.max()) / link
    assert 0.98 < used <= 1 + 1e-9
    assert result.compute_binding == "links"


def test_slow_input_workers_bind() -> None:
    """A worker of one sample in ten cycles feeds a stage that takes three."""
    slow = free_cluster(worker_samples_per_s=0.1)
    result = simulate(chain([(1, 2)], batch=50, cluster=slow))
    assert result.samples_per_s == pytest.approx(0.1, rel=0.02)
    assert result.compute_samples_per_s == pytest.approx(1 / 3)
    assert result.transmission_samples_per_s == pytest.approx(0.1)
    assert result.binding == "input_workers"
    four = free_cluster(worker_samples_per_s=0.1, input_workers_per_system=4)
    assert simulate(chain([(1, 2)], batch=50, cluster=four)).samples_per_s > 3 * result.samples_per_s


def test_jitter_of_workers_repeats_with_its_seed() -> None:
    """The same seed gives the same run, another seed another one."""
    plan = chain([(1, 2)], batch=50, cluster=free_cluster(worker_samples_per_s=0.3))
    one, again, other = (simulate(plan, jitter=0.5, seed=s) for s in (1, 1, 2))
    assert one == again
    assert one.step_s != other.step_s


def test_jitter_of_workers_leaves_their_mean() -> None:
    """A worker takes 10 cycles a sample, times a number that is uniform in 0.5 to 1.5: 10 n cycles for n samples.

    The deviation of one is 10 x 0.5 / sqrt(3); four of the sum, for 1,000 samples, are 3.7 % of the time.
    """
    plan = chain([(1, 2)], batch=1000, cluster=free_cluster(worker_samples_per_s=0.1))
    assert simulate(plan, jitter=0.5, seed=1, trace=False).step_s == pytest.approx(
        10_000, abs=4 * 10 * 0.5 * (1000 / 3) ** 0.5
    )


def test_a_slow_input_is_prepared_or_sent_and_the_slower_of_both_counts() -> None:
    """A worker takes 1 / 0.2 = 5 cycles for the sample or 4 bytes / 0.5 = 8 cycles for its bytes."""
    for samples_per_s, bytes_per_s, cycles in ((0.2, 0.5, 8.0), (0.1, 0.5, 10.0)):
        cluster = free_cluster(worker_samples_per_s=samples_per_s, worker_bytes_per_s=bytes_per_s)
        result = simulate(chain([(1, 2)], batch=50, cluster=cluster))
        assert result.samples_per_s == pytest.approx(1 / cycles, rel=0.02)


@pytest.mark.parametrize(("read", "write", "cycles"), [(4.0, 8.0, 3 * 6 / 4), (16.0, 2.0, 3 * 4 / 2)])
def test_reads_and_writes_of_sram_bound_a_region(read: float, write: float, cycles: float) -> None:
    """60 operations on 10 cores are 3 multiply-accumulates, each of which reads a 16-bit weight and an fp32 sum and writes
    the sum: 6 bytes and 4.  Operations take 3 cycles; an input of a sample in 10 cycles makes the run longer.
    """
    wafer = unit_wafer(sram_read_bytes_per_cycle=read, sram_write_bytes_per_cycle=write)
    slow = free_cluster(worker_samples_per_s=0.1)
    result = simulate(chain([(1, 2)], batch=8, wafer=wafer, cluster=slow))
    assert use_of(result, "s0").bound == "sram"
    assert use_of(result, "s0").bound_fraction == pytest.approx(8 * cycles / result.step_s)


def test_twice_the_link_width_helps_a_link_bound_run() -> None:
    """A link that carries 40 bytes a sample at 4 bytes a cycle allows a sample in 10 cycles."""
    loads = np.zeros((ROWS, COLS, 4), np.float32)
    loads[2, 3, 1] = 40
    plan = chain([(1, 2)], batch=40, link_bytes_per_sample=loads)
    result = simulate(plan)
    assert result.binding == "links"
    assert result.step_s == pytest.approx(400, rel=0.01)
    assert result.link_wavelets[2, 3, 1] == pytest.approx(40 * 40 / 4)
    wide = dataclasses.replace(plan, wafer=unit_wafer(link_bytes_per_cycle=8.0))
    assert simulate(wide).step_s == pytest.approx(200, rel=0.01)


def test_replicas_share_the_batch_and_sum_their_gradients() -> None:
    """Two copies of a stage have half the samples each, one all-reduce and one update."""
    copies = [stage("a", 1, 2, update_cycles=4.0), stage("b", 1, 2, update_cycles=4.0, replica=1)]
    plan = pipelined(copies, [], batch=10)
    # The graph names no parameters: 8 bytes x 10 cores stand for them.  Chain and back over 4 links of
    # 4 bytes: 2 x 80 / 16 = 10 cycles; the copies lie 4 hops apart: 2 x 4 = 8.  5 x 3 + 18 + 4 = 37.
    assert allreduce_cycles(plan, list(plan.stages)) == pytest.approx(18)
    result = simulate(plan)
    assert result.step_s == pytest.approx(37)
    assert result.bindings["gradient_sync"] == pytest.approx(18)


def test_skip_connection_waits_for_the_long_way() -> None:
    """A stream around two barriers needs room for the samples on the longer route."""
    names = ["a", "b", "c", "d"]
    stages = [stage(n, 10, rows_per_sample=10, barrier=n in "bc") for n in names]

    def plan(room: int):
        streams = [stream("a", "b"), stream("b", "c"), stream("c", "d"), stream("a", "d", capacity=room)]
        return pipelined(stages, streams, batch=64, training=False)

    assert simulate(plan(4)).step_s == pytest.approx(640)
    assert simulate(plan(1)).step_s > 640 * 1.2


def test_timing_factors_scale_stages() -> None:
    """Another timing source makes one stage twice as slow."""
    plan = chain([(1, 2), (1, 2)], batch=100)
    assert simulate(plan, timing={"s1": 2.0}).step_s == pytest.approx(2 * simulate(plan).step_s, rel=0.02)


def test_impossible_options_are_told() -> None:
    """Impossible options cause one-sentence faults."""
    plan = chain([(1, 2)], batch=2)
    with pytest.raises(ConfigError, match="steps 0"):
        simulate(plan, steps=0)
    with pytest.raises(ConfigError, match="timing 'guess'"):
        simulate(plan, timing="guess")
    with pytest.raises(ConfigError, match="jitter"):
        simulate(plan, jitter=1.5)


def test_runs_repeat_and_load_back_equal(tmp_path) -> None:
    """Two runs are equal bit for bit, and so is a saved one."""
    plan = chain([(3, 5), (4, 4)], batch=30, rows_per_sample=4)
    one, other = simulate(plan), simulate(plan)
    assert one == other
    one.save(tmp_path)
    assert load_result(tmp_path) == one


def test_maps_add_up_on_every_core() -> None:
    """Fractions of time add up to one on every core of the fabric."""
    result = simulate(chain([(3, 5), (1, 1), (2, 6)], batch=30))
    total = sum(result.core_map(name) for name in FRACTIONS)
    assert np.allclose(total, 1.0, atol=1e-5)


def test_timeline_of_a_region_does_not_overlap() -> None:
    """Slices of one track follow each other."""
    result = simulate(chain([(3, 5), (4, 4), (2, 6)], batch=12, rows_per_sample=4))
    for track in {piece.track for piece in result.timeline}:
        spans = sorted((p.start_s, p.start_s + p.duration_s) for p in result.timeline if p.track == track)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(spans))
    assert simulate(chain([(3, 5)], batch=12), trace=False).timeline == ()


@examples(60)
@given(
    times=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5),
    batch=st.integers(1, 60),
    rows=st.integers(1, 5),
    barriers=st.integers(0, 31),
    parallel=st.integers(0, 31),
    in_flight=st.integers(1, 12),
    training=st.booleans(),
    skip=st.booleans(),
)
def test_books_balance(
    times: list[tuple[int, int]],
    batch: int,
    rows: int,
    barriers: int,
    parallel: int,
    in_flight: int,
    training: bool,
    skip: bool,
) -> None:
    """In every plan times add up to the step, bytes sent are received, and no stage exceeds its rate."""
    names = [f"s{i}" for i in range(len(times))]
    stages = [
        stage(
            *(n, f, b if training else 0),
            rows_per_sample=rows,
            barrier=bool(barriers >> i & 1),
            parallel=bool(parallel >> i & 1),
        )
        for i, (n, (f, b)) in enumerate(zip(names, times, strict=True))
    ]
    streams = [stream(a, b) for a, b in itertools.pairwise(names)]
    if skip and len(names) > 2:
        streams.append(stream(names[0], names[-1]))
    result = simulate(pipelined(stages, streams, batch=batch, training=training, in_flight=in_flight))
    for use in result.kernels:
        assert total_s(use) == pytest.approx(result.step_s, rel=1e-6)
        assert min(use.busy_s, use.stalled_input_s, use.stalled_output_s, use.idle_s) >= -1e-9
    slowest = max(s.cycles_per_sample for s in stages)
    assert result.step_s >= batch * slowest * (1 - 1e-6) or not training
    assert result.samples_per_s <= min(result.compute_samples_per_s, result.transmission_samples_per_s)
    sums = result.conservation
    for name in sums:
        assert sums[name] == sums[name.replace("_sent_", "_received_")]


@pytest.mark.slow
def test_a_long_pipeline_runs_in_time() -> None:
    """250 stages and a batch of 1024 take seconds, not minutes."""
    names = [f"s{i}" for i in range(250)]
    stages = [
        stage(n, 100 + i % 13, 200 + i % 11, rows_per_sample=128, in_flight=6) for i, n in enumerate(names)
    ]
    plan = pipelined(
        stages,
        [stream(a, b) for a, b in itertools.pairwise(names)],
        batch=1024,
        in_flight=6,
        wafer=unit_wafer(cols=1200, program_cols=1100),
        link_bytes_per_sample=np.zeros((ROWS, 1200, 4), np.float32),
    )
    result = simulate(plan)
    assert result.extrapolated_samples > 900  # of 1,024: the steady state is found early
    assert result.events < 5_000 * len(names)
    assert result.step_s == pytest.approx(1024 * 322, rel=0.02)
