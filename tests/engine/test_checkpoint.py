"""Checkpoints: their time is computed by hand and spread over the steps between them."""

from __future__ import annotations

import dataclasses

import pytest

from tests.handmade import transformer
from wse_sim.engine.checkpoint import Checkpoints, checkpoint_bytes
from wse_sim.errors import ConfigError
from wse_sim.graph import TensorKind
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.simulation import simulate
from wse_sim.modes.weight_streaming.steps import compile_streaming

GRAPH = transformer(layers=2, hidden=256, heads=4, seq=64)


def run(checkpoints: Checkpoints | None = None):
    plan = compile_streaming(GRAPH, load_wafer("wse2"), load_cluster("default"), batch=64)
    return simulate(plan, trace=False, checkpoints=checkpoints)


def test_a_checkpoint_adds_its_share_to_every_step():
    size = checkpoint_bytes(GRAPH)
    assert size >= 4 * GRAPH.parameters
    plain, saved = run(), run(Checkpoints(every_steps=10, storage_bytes_per_s=1e8))
    assert saved.step_s == pytest.approx(plain.step_s + size / 1e8 / 10)
    assert saved.samples_per_s == pytest.approx(64 / saved.step_s)
    assert saved.bindings["checkpoints"] == pytest.approx(size / 1e9)
    assert sum(saved.areas[0].fractions) == pytest.approx(1)
    longer = [
        after - before for before, after in zip(plain.areas[0].times_s, saved.areas[0].times_s, strict=True)
    ]
    assert longer == pytest.approx([0, 0, 0, size / 1e8 / 10])  # cores are idle while a checkpoint is written
    assert any("checkpoint" in note for note in saved.notes)


def test_a_checkpoint_holds_weights_and_moments():
    """AdamW has 4 bytes of weight and two moments of 4 each; a graph without updates has the weights alone."""
    assert checkpoint_bytes(GRAPH) == (4 + 2 * 4) * GRAPH.parameters
    kernels = tuple(kernel for kernel in GRAPH.kernels if kernel.phase != "update")
    assert checkpoint_bytes(dataclasses.replace(GRAPH, kernels=kernels)) == 4 * GRAPH.parameters


def test_a_checkpoint_holds_frozen_weights_without_moments():
    """A frozen tensor takes 4 bytes per number, a trained one 12 with its moments."""
    name, weight = next(
        (n, t) for n, t in GRAPH.tensors.items() if t.trains and t.kind is TensorKind.PARAMETER
    )
    tensors = {**GRAPH.tensors, name: dataclasses.replace(weight, trains=False)}
    part = dataclasses.replace(GRAPH, tensors=tensors)
    assert checkpoint_bytes(GRAPH) - checkpoint_bytes(part) == (12 - 4) * weight.elements
    assert part.parameters == GRAPH.parameters


def test_rarer_checkpoints_never_slow_the_run():
    rates = [run(Checkpoints(every)).samples_per_s for every in (1, 10, 1000)]
    assert rates == sorted(rates)
    assert rates[-1] <= run().samples_per_s


@pytest.mark.parametrize("bad", [Checkpoints(0), Checkpoints(5, -1.0)])
def test_impossible_checkpoints_are_one_sentence(bad):
    with pytest.raises(ConfigError, match=r"out of range|is invalid"):
        run(bad)
