"""A kernel that cannot use the wafer: the note names a remedy that helps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wse_sim
from wse_sim.engine.result import Result


class Recurrent(nn.Module):
    """A recurrence of 200 dependent steps with a state that few cores hold."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(16, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


def _run(net: nn.Module, x: torch.Tensor, replicas: int) -> Result:
    found = wse_sim.run(
        net, (x,), mode="pipelined", phase="inference", batch=64, mode_options={"replicas": replicas}
    )
    assert isinstance(found, Result)
    return found


def _said(result: Result) -> list[str]:
    return [note for note in result.notes if "is the slowest and uses" in note]


@pytest.mark.slow
def test_copies_are_named_where_one_kernel_has_no_more_to_divide_and_they_help() -> None:
    """The steps of a recurrent layer bind on under 1 % of the cores; two copies are twice as fast."""
    alone = _run(Recurrent(), torch.zeros(1, 200, 16), 1)
    assert alone.binding == "compute"
    (note,) = _said(alone)
    assert "of 745,500 cores" in note
    assert "replicas up to" in note
    assert _run(Recurrent(), torch.zeros(1, 200, 16), 2).samples_per_s >= 1.95 * alone.samples_per_s


def test_a_product_that_fills_the_wafer_has_no_such_note() -> None:
    assert not _said(_run(nn.Linear(2048, 2048, bias=False), torch.zeros(1, 512, 2048), 1))


def test_a_kernel_that_the_host_cannot_feed_has_no_such_note() -> None:
    """The kernel has 96 cores, and is still faster than the samples arrive."""
    small = _run(nn.Linear(8, 8, bias=False), torch.zeros(1, 512, 8), 1)
    assert small.binding != "compute"
    assert not _said(small)
