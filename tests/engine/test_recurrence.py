"""The recurrence of weight streaming gives the results of its discrete-event simulation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.handmade import transformer
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.registry import mode_of

WAFER = load_wafer().derive(rows=60, cols=60, program_rows=58, program_cols=56)
GRAPHS = {training: transformer(layers=3, hidden=64, seq=32, training=training) for training in (True, False)}


@examples(60)
@given(
    training=st.booleans(),
    batch=st.integers(1, 200),
    micro_batch=st.integers(1, 40),
    systems=st.sampled_from([1, 3, 64]),
    scales=st.lists(st.floats(-3, 3), min_size=8, max_size=8),
    depth=st.integers(1, 6),
)
def test_the_recurrence_is_the_simulation(training, batch, micro_batch, systems, scales, depth):
    """Every rate and every time changes by up to a thousand times: each of them binds in some of the examples."""
    rates = [10.0**scale for scale in scales]
    base = load_cluster()
    cluster = base.derive(
        weight_prefetch_phases=depth,
        memoryx_bytes_per_s=base.memoryx_bytes_per_s * rates[0],
        memoryx_update_bytes_per_s=base.memoryx_update_bytes_per_s * rates[1],
        swarmx_bytes_per_s=base.swarmx_bytes_per_s * rates[2],
        swarmx_hop_s=1e-6 * rates[3],
        activation_server_bytes_per_s=base.activation_server_bytes_per_s * rates[4],
        worker_samples_per_s=base.worker_samples_per_s * rates[5],
    )
    wafer = WAFER.derive(io_bytes_per_s=WAFER.io_bytes_per_s * rates[6], launch_floor_s=1e-6 * rates[7])
    plan = api.compile(
        GRAPHS[training], wafer, mode="weight-streaming", batch=batch, micro_batch=micro_batch, systems=systems,
        cluster=cluster,
    )  # fmt: skip
    if isinstance(plan, Infeasible):
        return
    simulated = api.simulate(plan, trace=False)
    quick = mode_of(plan).quick_figures(plan)["samples_per_s"]
    assert quick == pytest.approx(simulated.samples_per_s, rel=1e-9)


def test_spilled_activations_count():
    """SRAM is so small that the inputs of the blocks leave the wafer."""
    wafer = WAFER.derive(sram_bytes=6400)
    plan = api.compile(
        GRAPHS[True], wafer, mode="weight-streaming", batch=64, micro_batch=32, recompute="none"
    )
    assert not isinstance(plan, Infeasible)
    simulated = api.simulate(plan, trace=False)
    assert mode_of(plan).quick_figures(plan)["samples_per_s"] == pytest.approx(
        simulated.samples_per_s, rel=1e-9
    )
    assert plan.spilled_bytes > 0
