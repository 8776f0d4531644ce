"""The CTC loss in forward(): its kernels and the FLOPs of the rest, for each way of stating lengths."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from wse_sim.frontend import lower

FRAMES, SEQUENCES, CLASSES, LABELS = 12, 3, 16, 4


class Recogniser(nn.Module):
    """A product and its loss."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.fc, self.way = nn.Linear(8, CLASSES), way

    def forward(self, x: Tensor, labels: Tensor, frames: Tensor, sizes: Tensor) -> Tensor:
        scores = self.fc(x).log_softmax(-1)
        if self.way == "tensors":
            return nn.CTCLoss(zero_infinity=True)(scores, labels, frames, sizes)
        if self.way == "lists":
            return functional.ctc_loss(
                scores, labels.flatten(), [FRAMES] * SEQUENCES, [LABELS] * SEQUENCES, reduction="sum"
            )
        return torch.ctc_loss(scores, labels, frames, sizes)


def given() -> tuple[Tensor, ...]:
    frames, sizes = torch.full((SEQUENCES,), FRAMES), torch.full((SEQUENCES,), LABELS)
    return torch.randn(FRAMES, SEQUENCES, 8), torch.ones(SEQUENCES, LABELS).long(), frames, sizes


@pytest.mark.parametrize(
    "way",
    ["tensors", pytest.param("lists", marks=pytest.mark.slow), pytest.param("torch", marks=pytest.mark.slow)],
)
def test_training_has_a_sum_over_alignments_each_way(way: str) -> None:
    graph = lower(Recogniser(way), given(), training=True)
    sums = [k for k in graph.kernels if k.family == "ctc"]
    assert [dict(k.dims) for k in sums] == [
        {"steps": FRAMES, "states": 2 * LABELS + 1, "batch": SEQUENCES}
    ] * 2
    assert sums[0].phase != sums[1].phase
    # The product and its weight gradient; the loss has no products.
    assert graph.total_flops == 2 * 2 * FRAMES * SEQUENCES * 8 * CLASSES
    assert graph.facts["training_flops"] == "as torch counts"
