"""Plans of a hand-made transformer: legal, with the true bottleneck, and equal after a round trip."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.handmade import transformer
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import ModelError
from wse_sim.graph import Phase
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.rectangle import free_seconds
from wse_sim.modes.weight_streaming.steps import compile_streaming
from wse_sim.serialize import load, same, save

WAFER, CLUSTER = load_wafer("wse2"), load_cluster()


def pipeline(graph=None, wafer=WAFER, batch=64, layouts=False):
    """Return the pipelined plan of a small transformer for long batches, which the search for short ones starts from."""
    return compile_pipelined(graph or transformer(), wafer, CLUSTER, batch=batch, layouts=layouts)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("blocks", "layouts"), [(6, False), (1, True)])
def test_regions_do_not_overlap_and_lie_on_the_program_rectangle(blocks, layouts):
    """Every kernel gets its own rectangle, in the layout of a short batch as well."""
    plan = pipeline(transformer(blocks, 512, 8, 128), layouts=layouts)
    assert isinstance(plan, PipelinedPlan)
    for one, other in itertools.combinations(plan.stages, 2):
        assert not one.region.overlaps(other.region), (one.name, other.name)
    for stage in plan.stages:
        region = stage.region
        assert region.row >= 0
        assert region.row + region.rows <= WAFER.program_rows
        assert region.col >= 0
        assert region.col + region.cols <= WAFER.program_cols
        assert stage.memory.total_bytes <= WAFER.sram_usable_bytes
        assert region.compute_cores <= region.cores


@pytest.mark.slow
def test_areas_equalise_the_times_of_large_stages():
    """No stage with more than 1 % of the cores is much faster than the slowest, because that would waste cores."""
    plan = pipeline(transformer(4, 1024, 16, 128))
    pace = max(stage.cycles_per_sample for stage in plan.stages)
    large = [s for s in plan.stages if s.region.cores > 0.01 * WAFER.program_cores]
    assert len(large) >= 16
    assert min(s.cycles_per_sample for s in large) > 0.6 * pace
    assert sum(s.region.cores for s in plan.stages) > 0.85 * WAFER.program_cores


@pytest.mark.slow
def test_dead_rows_are_left_out_and_cost_pace():
    """Regions avoid dead rows; fewer rows never make the pipeline faster."""
    graph = transformer(4, 512, 8, 128)
    dead = WAFER.derive(dead_rows=tuple(range(300, 700)))
    whole, damaged = pipeline(graph), pipeline(graph, dead)
    for stage in damaged.stages:
        assert stage.region.row + stage.region.rows <= 300 or stage.region.row >= 700
    pace = [max(s.cycles_per_sample for s in plan.stages) for plan in (whole, damaged)]
    assert pace[1] > pace[0]


def test_a_model_too_large_says_sram_need_and_limit():
    """96 x 12,288 needs 175 G weights x 18 B; the wafer has 745,500 x 44,976 B = 33.5 GB."""
    answer = pipeline(transformer(24, 12288, 96, 128))
    assert isinstance(answer, Infeasible)
    assert answer.binding == "SRAM"
    assert answer.limit == 745_500 * 44_976
    # per block 12 h^2 weights, 24 blocks, and 18 bytes each (embedding and head are small here)
    assert answer.need == pytest.approx(24 * 12 * 12288**2 * 18, rel=0.01)
    assert "weight streaming" in answer.message


@pytest.mark.slow
def test_halving_sram_never_makes_the_pipeline_faster():
    """More of a binding resource helps, less never speeds up."""
    graph = transformer(6, 1024, 16, 256)
    times = []
    for fraction in (1.0, 0.5, 0.25):
        usable = int(WAFER.sram_usable_bytes * fraction)
        plan = pipeline(graph, WAFER.derive(sram_bytes=usable + WAFER.sram_reserved_bytes))
        times.append(
            float("inf") if isinstance(plan, Infeasible) else max(s.cycles_per_sample for s in plan.stages)
        )
    assert times[0] <= times[1] * 1.003  # the bisection stops within 0.2 %
    assert times[1] <= times[2] * 1.003


@pytest.mark.slow
def test_plans_are_deterministic_and_load_back_equal(tmp_path: Path):
    """Two compilations are equal bit for bit, and equal to the saved plan."""
    one, two = pipeline(layouts=True), pipeline(layouts=True)
    assert same(one, two)
    save(one, tmp_path, "plan")
    assert same(load(tmp_path, "plan"), one)
    streamed = compile_streaming(transformer(), WAFER, CLUSTER, batch=8)
    save(streamed, tmp_path, "streamed")
    assert same(load(tmp_path, "streamed"), streamed)


def test_streaming_recomputes_exactly_when_activations_do_not_fit():
    """24 blocks of hidden 1024: at batch 64 all is kept, at 2048 every block runs forward again."""
    graph = transformer(24, 1024, 16, 128)
    small = compile_streaming(graph, WAFER, CLUSTER, batch=64)
    large = compile_streaming(graph, WAFER, CLUSTER, batch=2048)
    assert isinstance(small, WeightStreamingPlan)
    assert isinstance(large, WeightStreamingPlan)
    assert small.recompute == "none"
    assert large.recompute == "full"
    again = [p for p in large.phases if p.recompute]
    forward = [
        p for p in large.phases if p.phase is Phase.FORWARD and not p.recompute and p.layer.startswith("h.")
    ]
    assert len(again) == len(forward) == 24 * 5


def test_parallel_products_of_one_tensor_run_as_one_phase():
    """Query, key and value products read one tensor: one phase of the summed width."""
    import dataclasses

    from wse_sim.graph import Kernel, frozen
    from wse_sim.modes.weight_streaming.work import merge_parallel

    def gemm(name: str, n: int, phase=Phase.FORWARD, forward="", **dims: int) -> Kernel:
        base = {"m": 64, "k": 32, "n": n} | dims
        return Kernel(name, "gemm", frozen(base), phase, inputs=("x",), layer=f"attn.{name[0]}", flops=2 * 64 * 32 * n,
                      sample_dim="m", forward=forward)  # fmt: skip

    kernels = [gemm("q", 32), gemm("k", 16), gemm("v", 16)]
    merged = merge_parallel(kernels)
    assert [w.kernel.dims["n"] for w in merged] == [64]
    assert merged[0].kernel.flops == sum(k.flops for k in kernels)
    back = [gemm(f"{k.name}.dx", 32, Phase.INPUT_GRADIENT, k.name, k=k.dims["n"]) for k in kernels]
    both = merge_parallel([*kernels, *back])
    assert [dict(w.kernel.dims) for w in both] == [{"m": 64, "k": 32, "n": 64}, {"m": 64, "k": 64, "n": 32}]
    other = dataclasses.replace(kernels[1], inputs=("y",))
    assert len(merge_parallel([kernels[0], other])) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 0}, "give 1 to"),
        ({"batch": 4, "systems": 10**6}, "exceed"),
        ({"batch": 4, "choice": {"density": 0.0}}, "density"),
        ({"batch": 4, "choice": {"lanes": 1000}}, "lanes"),
        ({"batch": 4, "choice": {"recompute": "some"}}, "recompute"),
    ],
)
def test_impossible_requests_are_sentences(change, says):
    """Invalid input causes an error that names the value and the remedy."""

    def request() -> None:
        choice = StreamingChoice(**change.pop("choice", {}))
        compile_streaming(transformer(), WAFER, CLUSTER, choice=choice, **change)

    with pytest.raises(ModelError, match=says):
        request()


@pytest.mark.slow
@examples(15)
@given(
    layers=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4]),
    width=st.sampled_from([16, 48, 64]),
    seq=st.integers(1, 96),
    training=st.booleans(),
)
def test_any_small_transformer_compiles_in_both_modes(layers, heads, width, seq, training):
    """Legal regions, finite times, memory within SRAM, for random shapes."""
    graph = transformer(layers, heads * width, heads, seq, training=training)
    plan = pipeline(graph, batch=3)
    assert isinstance(plan, PipelinedPlan)
    assert all(np.isfinite(s.cycles_per_sample) and s.cycles_per_sample > 0 for s in plan.stages)
    for one, other in itertools.combinations(plan.stages, 2):
        assert not one.region.overlaps(other.region)
    streamed = compile_streaming(graph, WAFER, CLUSTER, batch=3)
    assert isinstance(streamed, WeightStreamingPlan)
    assert free_seconds(streamed) > 0


@examples(20)
@given(factor=st.sampled_from([1.5, 2.0, 4.0]), batch=st.sampled_from([1, 64, 1024]))
def test_wider_io_never_lengthens_a_streamed_step(factor, batch):
    """Twice the I/O bandwidth never slows weight streaming."""
    graph = transformer(3, 512, 8, 64)
    slow = compile_streaming(graph, WAFER, CLUSTER, batch=batch)
    fast = compile_streaming(
        graph, WAFER.derive(io_bytes_per_s=WAFER.io_bytes_per_s * factor), CLUSTER, batch=batch
    )
    assert free_seconds(fast) <= free_seconds(slow) * (1 + 1e-12)
