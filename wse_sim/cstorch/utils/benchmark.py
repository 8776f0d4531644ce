"""Measurement of a loader's speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wse_sim.cstorch import faults
from wse_sim.cstorch.batches import infer_batch_size
from wse_sim.cstorch.utils.data.dataloader import DataLoader


@dataclass
class BatchMetrics:
    """One batch: its samples, and the seconds until it arrived."""

    samples: int
    seconds: float


@dataclass
class Benchmark:
    """Measurements of a loader."""

    epochs: int
    batches: list[BatchMetrics] = field(default_factory=list)

    @property
    def total_samples(self) -> int:
        return sum(b.samples for b in self.batches)

    @property
    def total_seconds(self) -> float:
        return sum(b.seconds for b in self.batches)

    @property
    def samples_per_s(self) -> float:
        return self.total_samples / self.total_seconds if self.total_seconds else 0.0

    @property
    def median_batch_s(self) -> float:
        return statistics.median(b.seconds for b in self.batches)

    def __str__(self) -> str:
        return (
            f"{len(self.batches)} batches in {self.epochs} epochs: {self.samples_per_s:.6g} samples/s, "
            f"median {1e3 * self.median_batch_s:.4g} ms per batch"
        )


def benchmark_dataloader(
    input_fn: Callable[..., Any],
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    sampling_frequency: int | None = None,
    profile_activities: object = None,
    print_metrics: bool = True,
) -> Benchmark:
    """Draw batches from a loader and time them.

    Args:
        input_fn: makes the loader.
        num_epochs: passes; default 1.
        steps_per_epoch: batches of a pass; default all.
        sampling_frequency: kept for programs that give it; every batch is timed.
        profile_activities: likewise.
        print_metrics: print the result.

    Raises:
        ProgramError: the loader gives no batch.
    """
    found = Benchmark(num_epochs or 1)
    for _ in range(found.epochs):
        source = DataLoader(input_fn).batches(endless=False)
        count = 0
        while steps_per_epoch is None or count < steps_per_epoch:
            start = time.perf_counter()
            batch = next(source, None)
            if batch is None:
                break
            found.batches.append(BatchMetrics(infer_batch_size(batch) or 1, time.perf_counter() - start))
            count += 1
        source.close()
    if not found.batches:
        raise faults.program_error("benchmark_dataloader: the loader gives no batch")
    if print_metrics:
        print(found)
    return found
