"""The loss of a sample and its gradient, on the moving core beside the last row of the last layer.

Symbols: z the n logits, y the label as ones and zeros, m = max z, s = sum of exp(z - m)::

    cross entropy   gradient  exp(z - m) / s - y      loss  log s - sum of (z - m) y
    squared error   gradient  z - y                   loss  sum of (z - y)^2 / 2

Both totals of the batch stay on the core in fp32: of log s (or of the squares), and of (z - m) y.
"""

from __future__ import annotations

from typing import NamedTuple

from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.whole.paths import Cell

LOSSES = ("cross entropy", "squared error")


def check_loss(loss: str) -> None:
    """The loss is one of :data:`LOSSES`.

    Raises
    ------
    ModelError
        If it is not.
    """
    if loss not in LOSSES:
        raise ModelError(f"loss '{loss}' is unknown; use one of {', '.join(LOSSES)}")


class LossBuffers(NamedTuple):
    """The buffers of the core."""

    gradient: Buffer
    logits: Buffer
    exponentials: Buffer
    statistic: Buffer  # one number: m, then s, then 1 / s
    total: Buffer  # two numbers
    wanted: Buffer  # labels of all samples
    logarithm: Buffer


def loss_buffers(b: Builder, cell: Cell, size: int, samples: int) -> LossBuffers:
    """Declare them for `size` logits of each of the samples."""
    return LossBuffers(
        b.buffer("loss.gradient", size, "fp16", cell),
        b.buffer("loss.logits", size, "fp16", cell),
        b.buffer("loss.exponentials", size, "fp32", cell, bank=0),
        b.buffer("loss.statistic", 1, "fp32", cell),
        b.buffer("loss.total", 2, "fp32", cell),
        b.buffer("loss.wanted", size * samples, "fp16", cell, bank=2),
        b.buffer("loss.logarithm", 1, "fp32", cell),
    )


def write_loss(core: CoreClass, loss: str, held: LossBuffers, real: int, logits: int) -> None:
    """Loss and gradient of one sample, whose logits come on the color `logits`; `real` of them are not filling."""
    # What fills up the last word is no logit: its gradient stays 0.
    size = held.gradient.length
    label = held.wanted.dsd(0, real, step=size)
    logit, slope = held.logits.dsd(0, real), held.gradient.dsd(0, real)
    core.mov(held.logits.dsd(), fabric_in(logits), dtype="fp16", start="none")
    if loss == "squared error":
        core.sub(slope, logit, label)
        core.mac(held.total.dsd(0, real, stride=0), slope, slope)
        return
    statistic, logarithm, total = held.statistic.dsd(), held.logarithm.dsd(), held.total
    one, value = held.statistic.dsd(0, real, stride=0), held.exponentials.dsd(0, real)
    core.mov(statistic, scalar(-3e38))
    core.max(one, one, logit)
    core.sub(value, logit, one)
    core.mac(total.dsd(1, real, stride=0), value, label)
    core.map(Fn.EXP, value, value)
    core.mov(statistic, scalar(0.0))
    core.add(one, one, value)
    core.map(Fn.LOG, logarithm, statistic)
    core.add(total.dsd(0, 1), total.dsd(0, 1), logarithm)
    core.map(Fn.RECIPROCAL, statistic, statistic)
    core.mul(value, value, one)
    core.sub(slope, value, label)
