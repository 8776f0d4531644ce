"""Weight streaming runs against numbers computed by hand; one cycle is one second, I/O is 1 byte/s."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.engine_plans import free_cluster, phase, streaming, unit_wafer
from tests.generated import examples
from wse_sim.engine.result import FRACTIONS
from wse_sim.graph import Phase
from wse_sim.graph.kernel_graph import Repeat
from wse_sim.modes import load_result, simulate
from wse_sim.modes.weight_streaming.swarmx import SwarmX

GRADIENT = Phase.WEIGHT_GRADIENT


def test_each_phase_takes_its_largest_term() -> None:
    """Compute, weights, gradients and floor bind one phase each; spill is added."""
    phases = [
        phase("compute", 10, weight_bytes=4.0, floor_s=2.0),  # 10
        phase("weights", 3, weight_bytes=8.0, floor_s=2.0),  # 8
        phase("floor", 1, weight_bytes=2.0, floor_s=5.0),  # 5
        phase("gradients", 1, GRADIENT, gradient_bytes=6.0),  # 6
        phase("spill", 2, spill_bytes=4.0),  # 2 + 4
    ]
    cluster = free_cluster(activation_server_bytes_per_s=1.0)
    result = simulate(streaming(phases, batch=7, cluster=cluster))
    assert result.step_s == pytest.approx(10 + 8 + 5 + 6 + 6)
    assert result.samples_per_s == pytest.approx(7 / 35)
    by_name = {use.name.partition(":")[0]: use for use in result.kernels}
    assert by_name["weights"].stalled_input_s == pytest.approx(5)
    assert by_name["gradients"].stalled_output_s == pytest.approx(5)
    assert by_name["floor"].idle_s == pytest.approx(4)
    assert by_name["spill"].stalled_output_s == pytest.approx(4)
    assert sum(use.busy_s for use in result.kernels) == pytest.approx(17)
    assert result.compute_utilization == pytest.approx(17 / 35)
    assert result.binding == "compute"
    assert result.bindings["weight_io"] == pytest.approx(14)
    assert result.bindings["spill"] == pytest.approx(4)  # by the slower of server and edge


def test_iteration_boundary_waits_for_the_update() -> None:
    """The first weights of a step arrive after gradients have left, and after update and transfer of the weights."""
    # Four systems: one level of the tree, 0.5 s each way.  Seen from the end of a step (0): gradients
    # at MemoryX 0.5, 4 / 2 x 16 = 32 bytes of traffic at 32 bytes/s until 1.5, first weights at the
    # wafer 2.0, last ones 6.0 = end of forward; 4 bytes of gradients out until 10.0.
    cluster = free_cluster(
        swarmx_hop_s=0.5, swarmx_fanout=4, memoryx_bytes_per_s=1.0, memoryx_update_bytes_per_s=32.0
    )
    phases = [phase("a", 1, weight_bytes=4.0), phase("a", 1, GRADIENT, gradient_bytes=4.0)]
    result = simulate(streaming(phases, batch=4, systems=4, cluster=cluster))
    assert result.step_s == pytest.approx(10)
    assert result.bindings["iteration_boundary"] == pytest.approx(2)


def test_prefetch_hides_the_latency_inside_a_step() -> None:
    """Only the first phase has the tree's latency if streams are prefetched, every phase if not."""
    phases = [phase(f"l{i}", 10, weight_bytes=1.0) for i in range(8)]
    slow = {"swarmx_hop_s": 3.0, "swarmx_fanout": 2}
    deep = free_cluster(weight_prefetch_phases=4, **slow)
    single = free_cluster(weight_prefetch_phases=1, **slow)
    assert simulate(streaming(phases, batch=2, systems=2, cluster=deep)).step_s == pytest.approx(80)
    # One stream at a time: it starts when the phase before has ended, 3 s before its own phase.
    assert simulate(streaming(phases, batch=2, systems=2, cluster=single)).step_s == pytest.approx(104)


def test_slow_memoryx_binds() -> None:
    """Updates slower than the phases stall the wafer through the bounded queue of gradients."""
    # 2 bytes of gradients are one parameter of 16 bytes of traffic: 16 s each at 1 byte/s.
    phases = [phase(f"l{i}", 1, weight_bytes=1.0) for i in range(12)]
    phases += [phase(f"l{11 - i}", 1, GRADIENT, gradient_bytes=2.0) for i in range(12)]
    result = simulate(streaming(phases, cluster=free_cluster(memoryx_update_bytes_per_s=1.0)))
    assert result.step_s == pytest.approx(12 * 16, rel=0.1)
    assert result.binding in ("memoryx_update", "iteration_boundary")


def test_near_empty_model_is_floors() -> None:
    """33 matmul phases of 0.28 ms make a step of 9.24 ms."""
    phases = [phase(f"l{i}", 0.0, weight_bytes=1e-9, floor_s=0.28e-3) for i in range(33)]
    result = simulate(streaming(phases))
    assert result.step_s == pytest.approx(9.24e-3, rel=1e-6)
    assert result.binding == "launch_floor"


def test_many_micro_batches_are_copies_of_one() -> None:
    """Extrapolated micro-batches give the step of a complete simulation."""
    phases = [phase("a", 3, weight_bytes=2.0), phase("a", 2, GRADIENT, gradient_bytes=5.0)]
    plan = streaming(phases, batch=40, micro_batch=1, micro_batches=40)
    short, full = simulate(plan), simulate(plan, extrapolate=False)
    assert short.extrapolated_samples == 34
    assert short.step_s == pytest.approx(full.step_s)
    assert short.step_s == pytest.approx(40 * 8)
    assert short.areas[0].fractions == pytest.approx(full.areas[0].fractions)


def test_host_binds_a_fast_model() -> None:
    """A worker of one sample in 5 s feeds a model that takes 1 s per sample."""
    plan = streaming(
        [phase("a", 4, weight_bytes=1.0)], batch=4, cluster=free_cluster(worker_samples_per_s=0.2)
    )
    result = simulate(plan)
    assert result.step_s == pytest.approx(20)
    assert result.compute_samples_per_s == pytest.approx(1.0)
    assert result.transmission_samples_per_s == pytest.approx(0.2)
    assert result.binding == "input_workers"


def test_tree_has_a_level_per_power_of_its_fanout() -> None:
    """The tree has ceil(log4 S) levels."""
    cluster = free_cluster(swarmx_fanout=4, swarmx_hop_s=1.0)
    assert [SwarmX.of(cluster, s).levels for s in (1, 2, 4, 5, 16, 17, 64, 192)] == [0, 1, 1, 2, 2, 3, 3, 4]


def test_more_systems_never_lower_the_rate() -> None:
    """The same shard on more systems: the rate of all grows."""
    phases = [phase(f"l{i}", 5, weight_bytes=2.0) for i in range(6)]
    phases += [phase(f"l{5 - i}", 5, GRADIENT, gradient_bytes=2.0) for i in range(6)]
    cluster = free_cluster(swarmx_hop_s=0.1)
    rates = [
        simulate(streaming(phases, batch=4 * n, systems=n, cluster=cluster)).samples_per_s
        for n in (1, 2, 4, 8, 64)
    ]
    assert rates == sorted(rates)


def test_recomputed_work_does_not_count_as_model_flops() -> None:
    """MFU leaves out the second forward run."""
    phases = [phase("a", 2, weight_bytes=1.0), phase("a", 2, weight_bytes=1.0, recompute=True)]
    result = simulate(streaming(phases, batch=1))
    assert result.flops_per_step == pytest.approx(2000)
    assert result.mfu == pytest.approx(2000 / 4 / unit_wafer().peak_fp16_flops_per_s)


def test_equal_blocks_fold_into_one_row() -> None:
    """Three equal layers of a repeat of the graph are one row of count 3."""
    phases = [phase(f"h.{i}.up", 2, weight_bytes=1.0) for i in range(3)]
    repeat = Repeat("h", tuple((item.kernel,) for item in phases))
    plan = streaming(phases)
    result = simulate(dataclasses.replace(plan, graph=dataclasses.replace(plan.graph, repeats=(repeat,))))
    assert [(use.name, use.count) for use in result.kernels] == [("h.*.up:forward", 3)]


def test_maps_links_and_files(tmp_path) -> None:
    """Fractions add up on every core, streams leave wavelets on links, a saved result is equal."""
    phases = [phase("a", 2, weight_bytes=4000.0), phase("a", 2, GRADIENT, gradient_bytes=4000.0)]
    plan = streaming(phases, batch=2, lanes=2, wafer=unit_wafer(io_bytes_per_s=1000.0))
    result = simulate(plan)
    assert np.allclose(sum(result.core_map(name) for name in FRACTIONS), 1.0, atol=1e-5)
    assert result.core_map("busy").max() == pytest.approx(4 / result.step_s)
    assert result.core_map("sram").max() == pytest.approx(16)
    assert result.active_pe_fraction == pytest.approx(14 * 510 / (16 * 512))
    # 1000 wavelets of weights serve 255 columns of a lane: each word runs down and up its column once,
    # so a column's 14 - 1 gaps carry 1000 / 255 wavelets, south and north together.  Gradients leave in 16 bits, two in a
    # wavelet, but their sums inside a column are fp32: twice as many.
    down, up = result.link_wavelets[5, 100, 2], result.link_wavelets[6, 100, 0]
    assert down + up == pytest.approx((1 + 2) * 1000 / 255, rel=1e-4)  # weights and gradients
    result.save(tmp_path)
    assert load_result(tmp_path) == result
    assert simulate(plan) == result


phase_lists = st.lists(
    st.tuples(*(st.integers(0, 6) for _ in range(4)), st.booleans()), min_size=1, max_size=8
)


@examples(60)
@given(rows=phase_lists, micro_batches=st.integers(1, 9), systems=st.sampled_from([1, 3, 8]))
def test_books_balance(rows: list[tuple[int, int, int, int, bool]], micro_batches: int, systems: int) -> None:
    """In every plan times add up, bytes sent are received, and faster I/O and servers never slow it."""
    phases = [
        phase(
            f"l{i % 3}",
            1 + compute,
            GRADIENT if is_gradient else Phase.FORWARD,
            weight_bytes=0.0 if is_gradient else float(size),
            gradient_bytes=float(size) if is_gradient else 0.0,
            spill_bytes=float(spill),
            floor_s=float(floor),
        )
        for i, (compute, size, spill, floor, is_gradient) in enumerate(rows)
    ]
    cluster = free_cluster(
        swarmx_hop_s=0.25, memoryx_bytes_per_s=1.0, swarmx_bytes_per_s=2.0, memoryx_update_bytes_per_s=20.0
    )
    plan = streaming(
        phases,
        batch=micro_batches * systems,
        systems=systems,
        micro_batch=1,
        micro_batches=micro_batches,
        cluster=cluster,
    )
    result = simulate(plan)
    fractions = result.areas[0].fractions
    assert fractions is not None
    assert sum(fractions) == pytest.approx(1)
    spent = sum(u.busy_s + u.stalled_input_s + u.stalled_output_s + u.idle_s for u in result.kernels)
    assert spent == pytest.approx(result.step_s, rel=1e-9)
    for name, value in result.conservation.items():
        assert value == result.conservation[name.replace("_sent_", "_received_")]
    faster_io = dataclasses.replace(plan, wafer=unit_wafer(io_bytes_per_s=2.0))
    faster_memory = dataclasses.replace(plan, cluster=cluster.derive(memoryx_bytes_per_s=2.0))
    for faster in (faster_io, faster_memory):
        assert simulate(faster).step_s <= result.step_s * (1 + 1e-9)


@pytest.mark.slow
def test_thousands_of_phases_run_in_time() -> None:
    """6,000 phases and three steps: a few events per phase, whatever the number of phases."""
    phases = [phase(f"l{i}", 1.0, weight_bytes=1.0) for i in range(3000)]
    phases += [phase(f"l{2999 - i}", 1.0, GRADIENT, gradient_bytes=1.0) for i in range(3000)]
    result = simulate(streaming(phases))
    few = simulate(streaming([*phases[:30], *phases[-30:]]))
    assert result.events <= 1.1 * 100 * few.events
    assert result.step_s == pytest.approx(6000, rel=0.01)
