"""More systems, sparser weights and wider links never slow a compiled and simulated step."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.handmade import transformer
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.simulation import simulate
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.steps import compile_streaming

WAFER, CLUSTER = load_wafer("wse2"), load_cluster("default")
SIZES = st.tuples(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([256, 768, 1024]),
    st.sampled_from([64, 512, 2048]),
    st.sampled_from([8, 60, 99, 500]),
)
LATENCY_FRACTION = 1e-3  # of a step: one more level of the SwarmX tree


def rate(sizes, systems=1, density=1.0, wafer=WAFER) -> float:
    layers, hidden, seq, batch = sizes
    graph = transformer(layers, hidden, hidden // 64, seq)
    choice = StreamingChoice(density=density)
    plan = compile_streaming(graph, wafer, CLUSTER, batch=batch, systems=systems, choice=choice)
    assert isinstance(plan, WeightStreamingPlan)
    return simulate(plan, trace=False).samples_per_s


@examples(8)
@given(SIZES)
def test_more_systems_never_lower_the_rate(sizes):
    rates = [rate(sizes, systems) for systems in (1, 2, 4, 16)]
    assert all(more >= less * (1 - LATENCY_FRACTION) for less, more in pairwise(rates))


@examples(8)
@given(SIZES)
def test_sparser_weights_never_lower_the_rate(sizes):
    rates = [rate(sizes, density=density) for density in (1.0, 0.5, 0.1)]
    assert all(sparse >= dense * (1 - 1e-9) for dense, sparse in pairwise(rates))


@examples(8)
@given(SIZES, st.sampled_from([2.0, 8.0]))
def test_wider_io_never_lowers_the_rate(sizes, factor):
    wide = WAFER.derive(io_bytes_per_s=WAFER.io_bytes_per_s * factor)
    assert rate(sizes, wafer=wide) >= rate(sizes) * (1 - 1e-9)
