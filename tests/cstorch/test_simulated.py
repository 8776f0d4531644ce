"""The cost of a script's step on the wafer equals that of ``wse-sim run`` for the model, with clipping added."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

import wse_sim
import wse_sim.cstorch as cstorch
from tests.cstorch.test_replay import Attention, loop
from wse_sim.cstorch import runtime
from wse_sim.cstorch.simulated import WEIGHT_SERVERS, cluster_of
from wse_sim.hardware import load_cluster


class WithLoss(nn.Module):
    """The model and its loss in one module, as ``wse_sim.lower`` takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Attention(True)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.model(ids), target.flatten())


def compiled(clip: float | None = None, scale: bool = False, **options):
    """One step of a script, compiled and executed once."""
    backend = cstorch.backend("CSX", **options)
    torch.manual_seed(0)
    with backend.device:
        model = Attention(True)
    cstorch.compile(model, backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    scaler = cstorch.amp.GradScaler(loss_scale="dynamic") if scale else None

    @cstorch.trace
    def step(ids, target):
        loss = functional.cross_entropy(model(ids), target.flatten())
        cstorch.amp.optimizer_step(loss, optimizer, scaler, max_gradient_norm=clip)
        return loss

    ids = torch.randint(0, 31, (4, 8), generator=torch.Generator().manual_seed(1))
    with loop(1) as execution:
        step(*execution.feed((ids, ids)))
        execution.end_step()
    return runtime.run().compiled[0]


@pytest.mark.slow
def test_a_script_costs_what_its_model_costs(tmp_path):
    ids = torch.zeros(4, 8, dtype=torch.long)
    expected = wse_sim.lower(WithLoss(), (ids, ids), training=True, optimizer="sgd")
    made = compiled(artifact_dir=tmp_path)
    assert len(made.graph.kernels) == len(expected.kernels)
    assert made.graph.parameters == expected.parameters
    assert made.graph.total_flops == expected.total_flops
    assert made.result.step_s == pytest.approx(wse_sim.run(expected, batch=4).step_s, rel=0.01)
    assert {k.layer for k in made.graph.kernels} >= {"norm", "qkv", "out", "drop"}


@pytest.mark.slow
def test_clipping_and_scaling_are_named_on_top(tmp_path):
    """A norm reads every gradient, and a scale reads and writes it: more work than without."""
    plain = compiled(artifact_dir=tmp_path).on_top_s
    runtime.reset()
    clipped = compiled(clip=1.0, artifact_dir=tmp_path).on_top_s
    runtime.reset()
    both = compiled(clip=1.0, scale=True, artifact_dir=tmp_path).on_top_s
    assert "gradient norm" not in plain
    assert "loss scaling" not in plain
    assert clipped["gradient norm"] > 0
    assert clipped["gradient clipping"] > 0
    assert both["loss scaling"] > 0
    assert {k: both[k] for k in ("gradient norm", "gradient clipping")} == {
        k: clipped[k] for k in ("gradient norm", "gradient clipping")
    }


@pytest.mark.slow
def test_compile_only_has_the_same_plan_and_no_values(tmp_path):
    executed = compiled(artifact_dir=tmp_path).result.step_s
    runtime.reset()
    assert compiled(artifact_dir=tmp_path, compile_only=True).result.step_s == executed
    assert runtime.run().global_step == 0
    runtime.reset()
    assert compiled(artifact_dir=tmp_path, validate_only=True).result is None


@pytest.mark.parametrize("fraction", [0.5, 1.0, 2.0])
def test_a_script_has_the_servers_and_workers_that_it_asks_for(fraction):
    """Half of the weight servers feed at half the rate; twice as many update twice as fast, but the connection feeds no
    faster.
    """
    settings = SimpleNamespace(
        num_workers_per_csx=3, max_act_per_csx=2, max_wgt_servers=round(fraction * WEIGHT_SERVERS)
    )
    found = cluster_of(SimpleNamespace(options=SimpleNamespace(cluster="default"), settings=settings))
    base = load_cluster("default")
    assert found.memoryx_bytes_per_s == base.memoryx_bytes_per_s * min(fraction, 1.0)
    assert found.memoryx_update_bytes_per_s == base.memoryx_update_bytes_per_s * fraction
    assert found.input_workers_per_system == 3 * base.input_workers_per_system
    assert found.activation_server_bytes == 2 * base.activation_server_bytes
