"""Order of the passes in training: alternating (1F1B), or all forward passes of a round first (GPipe)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from tests.handmade import transformer
from tests.whole.plans import corner
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined.estimate import step_cycles
from wse_sim.modes.pipelined.loss import with_loss
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.run import PipelinedRun, free_step_cycles
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.whole import inputs_over_rows

CLUSTER = load_cluster()
SMALL = load_wafer("wse2").derive(rows=132, cols=137, program_rows=130, program_cols=130)
GRAPH = transformer(2, 128, 4, 32)


def plan(schedule: str, batch: int, replicas: int = 1) -> PipelinedPlan:
    """Return the small transformer under a schedule."""
    made = compile_pipelined(
        GRAPH, SMALL, CLUSTER, batch=batch, schedule=schedule, replicas=replicas, layouts=False
    )
    assert isinstance(made, PipelinedPlan)
    return made


def passes(made: PipelinedPlan) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Return (begin, end) of the passes of the first batch, by stage and direction."""
    trace = RunTrace(is_on=True, unit_s=1.0)
    run = PipelinedRun(made, Options(steps=1), None, trace)
    run.execute()
    out: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for span in trace.slices():
        if span.role in ("forward", "backward"):
            out.setdefault((span.track, span.role), []).append((span.start_s, span.start_s + span.duration_s))
    return out


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_a_round_goes_forward_before_it_comes_back(size: int) -> None:
    """12 samples in rounds of 1, 3, 4 and 12: in every stage the passes of a round, forward and then backward, follow
    those of the round before.
    """
    made = dataclasses.replace(plan("gpipe", 12), round_samples=size)
    found = passes(made)
    for stage in made.stages:
        forward, backward = found[stage.name, "forward"], found[stage.name, "backward"]
        assert len(forward) == len(backward) == 12
        for i in range(0, 12, size):
            last_end = forward[i + size - 1][1]
            assert all(begin >= last_end - 1e-6 for begin, _ in backward[i : i + size])
            if i:
                assert forward[i][0] >= backward[i - 1][1] - 1e-6


def test_gradients_wait_for_the_last_results_of_a_round() -> None:
    """Gradients arrive at the cores that send results, and the last results leave after the fill. In this chain a loss sends its
    first gradient before."""
    model = nn.Sequential(nn.Linear(91, 78), nn.ReLU(), nn.Linear(78, 103))
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 91),), training=True, optimizer="sgd"))
    chain = api.compile(graph, corner(32), mode="pipelined", batch=12, replicas=1)
    assert isinstance(chain, PipelinedPlan)
    assert chain.round_samples == 12
    found = passes(with_loss(chain, "squared error"))
    for stage in chain.stages:
        forward, backward = found[stage.name, "forward"], found[stage.name, "backward"]
        assert stage.latency_cycles > 0
        assert backward[0][0] >= forward[-1][1] + stage.latency_cycles - 1e-6


@pytest.mark.slow
def test_a_stage_holds_all_samples_of_its_batch() -> None:
    """With 8, 16 and 24 samples, and 24 on two replicas, each sample takes as many bytes of a stage as the one before
    it.
    """
    made = {held: plan("gpipe", held) for held in (8, 16, 24)}
    for held, rounds in made.items():
        assert rounds.round_samples == held
        assert {stage.in_flight for stage in rounds.stages} == {held}
    stages = zip(*(made[held].stages for held in (8, 16, 24)), strict=True)
    for few, more, most in ([s.memory.activations_bytes * s.region.cores for s in row] for row in stages):
        assert 0 < more - few == pytest.approx(most - more)
    assert plan("gpipe", 24, replicas=2).round_samples == 12
    assert plan("1f1b", 24).round_samples == 0
    assert max(stage.in_flight for stage in plan("1f1b", 24).stages) < 24


def test_a_batch_that_no_stage_can_hold_does_not_fit() -> None:
    """1F1B keeps some samples of 20,000; GPipe would keep all of them, and states the missing memory."""
    found = compile_pipelined(GRAPH, SMALL, CLUSTER, batch=20_000, schedule="gpipe", recompute="none")
    assert isinstance(found, Infeasible)
    assert "activations of all samples in flight" in found.where
    assert isinstance(compile_pipelined(GRAPH, SMALL, CLUSTER, batch=20_000), PipelinedPlan)


@pytest.mark.parametrize("batch", [2, 8, 32])
def test_a_batch_by_formula_and_by_events(batch: int) -> None:
    """Fill, the slowest forward pass of every sample, the slowest backward pass and drain are within 6 % of the events.

    max f + max b of two stages is never less than max (f + b) of one, so the schedule is not faster than 1F1B by more than the fill.
    """
    rounds = plan("gpipe", batch)
    events = free_step_cycles(rounds)
    assert step_cycles(rounds) == pytest.approx(events, rel=0.06)
    least = batch * (
        max(stage.forward_cycles for stage in rounds.stages)
        + max(stage.backward_cycles for stage in rounds.stages)
    )
    assert events >= least * (1 - 1e-9)


def test_inference_has_no_rounds() -> None:
    """Without backward passes the schedule changes nothing."""
    graph = transformer(2, 128, 4, 32, training=False)
    made = [compile_pipelined(graph, SMALL, CLUSTER, batch=8, schedule=name) for name in ("1f1b", "gpipe")]
    assert isinstance(made[0], PipelinedPlan)
    assert isinstance(made[1], PipelinedPlan)
    assert made[0].stages == made[1].stages
    assert made[1].round_samples == 0
