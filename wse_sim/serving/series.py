"""A run over time: samples of the engines, per replica and in total, as counts, rates and fractions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.serving.base import SAMPLED, TICK_S, Served, Ticks
from wse_sim.serving.energy import PowerDraw

MOST_KEPT = 4_000_000  # values of single replicas; with more, only their sum is kept
COUNTS = len(SAMPLED)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SampledRun:
    """Samples of all replicas at common times.

    `total` has the columns of :data:`SAMPLED`, then busy ticks of each region, summed over the replicas; `single` the same of each
    replica, (replicas, samples, columns), or empty if these would be too many.
    """

    at_ticks: Ticks  # (samples,)
    total: Ticks  # (samples, columns)
    single: Ticks
    replicas: int


def sampled_run(served: Served) -> SampledRun:
    """Return the samples of replicas, thinned to the coarsest interval; a replica that has ended keeps its
    last state."""
    every = max(served.every_ticks)
    thin = [
        _thinned(rows, every // own) for rows, own in zip(served.samples, served.every_ticks, strict=True)
    ]
    count = max(len(rows) for rows in thin)
    total = np.zeros((count, thin[0].shape[1]), np.int64)
    for rows in thin:
        total += _padded(rows, count)
    is_kept = count * total.shape[1] * len(thin) <= MOST_KEPT
    single = (
        np.stack([_padded(rows, count) for rows in thin])
        if is_kept
        else np.zeros((0, *total.shape), np.int64)
    )
    at = np.arange(count, dtype=np.int64) * every
    end = int(served.last_ticks.max(initial=0))
    at[-1] = max(end, int(at[-2]) if count > 1 else 0)  # the last row is the state at the end
    return SampledRun(at, total, single, len(thin))


def _thinned(rows: Ticks, step: int) -> Ticks:
    """Keep every `step`-th row, and the last one."""
    return rows if step == 1 else np.concatenate([rows[:-1:step], rows[-1:]])


def _padded(rows: Ticks, count: int) -> Ticks:
    return np.concatenate([rows, np.repeat(rows[-1:], count - len(rows), axis=0)])


def columns_of(run: SampledRun, rows: Ticks, *, blocks: int, draw: PowerDraw | None) -> dict[str, Floats]:
    """Return the columns of the series of some rows (of all replicas or of one), by name.

    Rates and fractions are those between a sample and the one before (a turn counts as it enters, so that a region may seem
    busy a little more than all of a short time); `blocks` is how many of them the rows have in all.
    `power_w` is there if the power of the wafers is known, and for the sum of all replicas it is that of all of them.
    """
    at_s = run.at_ticks * TICK_S
    span_s = np.maximum(np.diff(at_s, prepend=at_s[:1]), 0.0)
    replicas = run.replicas if rows is run.total else 1

    def per_s(column: Ticks) -> Floats:
        grown = np.diff(column, prepend=column[:1]).astype(float)
        return np.divide(grown, span_s, out=np.zeros_like(grown), where=span_s > 0)

    busy = [per_s(column) * TICK_S / replicas for column in rows[:, COUNTS:].T]
    cached, computed = per_s(rows[:, SAMPLED.index("cached")]), per_s(rows[:, SAMPLED.index("computed")])
    prompts = cached + computed
    found = {
        "time_s": at_s,
        "running": rows[:, 0].astype(float),
        "waiting": rows[:, 1].astype(float),
        "kv_usage": rows[:, 2] / max(1, blocks),
        "output_tokens_per_s": per_s(rows[:, SAMPLED.index("emitted")]),
        "computed_tokens_per_s": computed,
        "hit_ratio": np.divide(cached, prompts, out=np.zeros_like(cached), where=prompts > 0),
        "preemptions": rows[:, SAMPLED.index("preemptions")].astype(float),
    }
    if draw is not None:
        used = np.array(draw.core_fractions) @ np.array(busy)
        each = draw.systems * replicas
        found["power_w"] = each * (draw.idle_w + used * (draw.active_w - draw.idle_w))
    return found | {f"busy_{number}": part for number, part in enumerate(busy)}
