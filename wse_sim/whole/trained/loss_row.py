"""The loss of a sample and its gradient, on the moving core next to the last row of the last layer.

Symbols: z the n logits, y the one-hot label, m = max z, s = sum of exp(z - m)::

    cross entropy   gradient  exp(z - m) / s - y      loss  log s - sum of (z - m) y
    squared error   gradient  z - y                   loss  sum of (z - y)^2 / 2

Rows are samples here, and tokens in a model with several rows per sample. Two totals of the batch stay on the
core in fp32: that of log s (or of the squares), and that of (z - m) y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Buffer, Builder, Operand, Place, fabric_in, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.modes.pipelined.loss import LOSSES

Floats = NDArray[np.float32]


def check_loss(loss: str) -> None:
    """Check that the loss is one of :data:`LOSSES`.

    Raises
    ------
    ModelError
        If it is not.
    """
    if loss not in LOSSES:
        raise ModelError(f"loss '{loss}' is unknown; use one of {', '.join(LOSSES)}")


class LossBuffers(NamedTuple):
    """Buffers of a core that computes the loss."""

    gradient: Buffer
    logits: Buffer
    exponentials: Buffer
    statistic: Buffer  # one number: m, then s, then 1 / s
    total: Buffer  # two numbers
    wanted: Buffer  # labels of all samples
    logarithm: Buffer


def loss_buffers(
    b: Builder, where: Place, sizes: tuple[int, int], rows: int, held: int = 1, name: str = "loss"
) -> LossBuffers:
    """Declare the buffers for labels of `rows` rows and gradients of `held` rows; `sizes` are the logits of a row, and the
    elements from one stored row to the next."""
    size, apart = sizes
    return LossBuffers(
        b.buffer(f"{name}.gradient", apart * held, "fp16", where, bank=0),
        b.buffer(f"{name}.logits", size, "fp16", where, bank=0),
        b.buffer(f"{name}.exponentials", size, "fp32", where, bank=0),
        b.buffer(f"{name}.statistic", 1, "fp32", where),
        b.buffer(f"{name}.total", 2, "fp32", where),
        b.buffer(f"{name}.wanted", apart * rows, "fp16", where, bank=2),
        b.buffer(f"{name}.logarithm", 1, "fp32", where),
    )


def write_loss(
    core: CoreClass,
    loss: str,
    held: LossBuffers,
    real: int,
    logits: int,
    label: Operand,
    slope: Operand,
    then: Callable[[], None] | None = None,
) -> None:
    """Write loss and gradient of one row, whose logits arrive on the color `logits`; `real` of them are not
    padding.

    `label` is its label and `slope` the place for its gradient; `then` is called once the logits have
    arrived.
    """
    # Padding of the last word is not a logit; its gradient stays 0.
    logit = held.logits.dsd(0, real)
    core.mov(held.logits.dsd(), fabric_in(logits), dtype="fp16", start="none")
    if then is not None:
        then()
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


def mean_of(loss: str, totals: Floats, rows: int) -> float:
    """Return the mean loss of `rows` rows from the totals of all cores (cores, 2)."""
    first, second = (float(total) for total in totals.reshape(-1, 2).sum(axis=0, dtype=np.float64))
    return (first - second if loss == "cross entropy" else first / 2) / rows


def one_hot(labels: NDArray[np.int64], size: int) -> Floats:
    """Return one-hot labels (rows, size)."""
    wanted = np.zeros((len(labels), size), np.float32)
    wanted[np.arange(len(labels)), labels] = 1
    return wanted
