"""Replicas whose number does not divide the batch: every sample is delivered once, and none is missing."""

from __future__ import annotations

import pytest

from tests.engine.engine_plans import pipelined, stage, stream
from tests.handmade import transformer
from wse_sim.compiler.plan import CoreMemory
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes import simulate
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined


def copies(replicas: int, batch: int, training: bool, forward: float = 2.0) -> PipelinedPlan:
    """Return the chains of two stages, 2 + 4 cycles each in training."""
    backward = 2.0 * forward if training else 0.0
    free = CoreMemory()  # without weights the sum of gradients costs nothing
    stages = [
        stage(f"{n}{r}", forward, backward, replica=r, memory=free) for r in range(replicas) for n in "ab"
    ]
    streams = [stream(f"a{r}", f"b{r}") for r in range(replicas)]
    return pipelined(stages, streams, batch=batch, training=training)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("replicas", "batch"), [(2, 7), (3, 10), (3, 112), (5, 113), (7, 8)])
@pytest.mark.parametrize("extrapolate", [True, False])
def test_uneven_shares_end_and_the_largest_sets_the_step(replicas, batch, training, extrapolate):
    """The step lasts as long as the largest share; three batches in a row end."""
    result = simulate(copies(replicas, batch, training), steps=3, extrapolate=extrapolate)
    share = -(-batch // replicas)
    pace = 6.0 if training else 2.0
    assert result.step_s >= (share - 1) * pace
    assert result.step_s <= (share + 4) * pace


@pytest.mark.slow
def test_extrapolated_and_full_runs_agree():
    """The steady state of uneven shares gives the step of the full simulation."""
    plan = copies(3, 1000, True)
    short, full = simulate(plan), simulate(plan, extrapolate=False)
    assert short.extrapolated_samples > 0
    assert short.step_s == pytest.approx(full.step_s, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_model_runs_on_three_replicas(training):
    """Batch 112 on 3 replicas is 38, 37 and 37 samples, host input included."""
    graph = transformer(1, 32, 2, 8, training=training)
    plan = compile_pipelined(graph, load_wafer("wse2"), load_cluster(), batch=112, replicas=3)
    assert isinstance(plan, PipelinedPlan)
    result = simulate(plan, trace=False)
    assert result.samples_per_s > 0
