"""Checks of values in forward() that only raise are left out; of other tests of values the example decides."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.obstacles import DECIDED  # noqa: E402

from .checked import WIDTH, Checked, Linear  # noqa: E402

SAMPLES = 4
X = (torch.randn(SAMPLES, WIDTH),)
FLOPS = 2 * SAMPLES * WIDTH * WIDTH  # of one linear layer


@pytest.mark.parametrize("training", [False, True])
def test_checks_of_every_form_are_left_out(training: bool) -> None:
    module = Checked()
    module(*X)  # the example passes
    graph = lower(module, X, training=training)
    # The input needs no gradient: a step has the layer's product and that of its weight gradient.
    assert graph.total_flops == FLOPS * (2 if training else 1)
    told = [note for note in graph.notes if note.startswith("checks:")]
    assert len(told) == 7
    assert "if torch.isnan(x).any():" in told[0]


class Caught(Linear):
    def forward(self, x: Tensor) -> Tensor:
        try:
            if x.sum() > 0:
                raise ValueError
            return self.layer(x)
        except ValueError:
            return x


class Counted(Linear):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum().item() > 3:  # the comparison is not torch's
            raise ValueError
        return self.layer(x)


class Chosen(Linear):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + 1
        return self.layer(x)


@pytest.mark.parametrize(("kind", "line"), [(Caught, 36), (Counted, 45), (Chosen, 52)])
def test_a_test_that_chooses_the_work_takes_the_branch_of_the_example(
    kind: type[nn.Module], line: int
) -> None:
    """The sum is negative, so that no branch is taken; a note names the line."""
    graph = lower(kind(), (-torch.ones(SAMPLES, WIDTH),))
    assert graph.total_flops == FLOPS
    assert any(note.startswith(DECIDED) and f"test_raising_checks.py:{line}" in note for note in graph.notes)
