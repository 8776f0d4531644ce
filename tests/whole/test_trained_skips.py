"""Skips in training: when elementwise work of several operands starts and sends, in the plan and on the fabric."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.whole.plans import corner  # noqa: E402
from wse_sim import api  # noqa: E402
from wse_sim.modes.base import expect  # noqa: E402
from wse_sim.modes.pipelined.plan import PipelinedPlan  # noqa: E402
from wse_sim.whole import compare_training, inputs_over_rows  # noqa: E402

TOKENS, FEATURES, SAMPLES = 13, 24, 12


class Around(nn.Module):
    """A skip around one layer, the sum bent, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = (nn.Linear(FEATURES, FEATURES) for _ in range(2))
        self.last = nn.Linear(FEATURES, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(torch.relu(x + self.inner(x)))


def test_elementwise_work_sends_a_sample_after_a_pass() -> None:
    """Cores have a part of every sample and compute at the same time, so the first token leaves after a pass of all 13.

    As a stage of 13 rows the sum would send its first row after a thirteenth of a pass, and three stores, each of which
    receives a sample before it sends, would delay a skip around a single layer: 26 % of a step of one round.
    """
    graph = api.lower(Around(), (torch.zeros(1, TOKENS, FEATURES),), training=True, optimizer="sgd")
    plan = expect(
        api.compile(
            inputs_over_rows(graph), wafer=corner(32), batch=SAMPLES, mode="pipelined", replicas=1,
            placer="snake",
        ),
        PipelinedPlan,
    )  # fmt: skip
    found = compare_training(plan)
    assert abs(found.difference) < 0.03
    regions = {region.name: region for region in found.regions}
    added, last = regions["add"], regions["last"]
    one_pass = next(stage.forward_cycles for stage in plan.stages if stage.name == "add")
    for begin, end in ((added.started, last.started), (added.engine_started, last.engine_started)):
        assert end - begin >= one_pass
