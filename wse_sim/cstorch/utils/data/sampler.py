"""A sampler that gives each input worker a separate fraction of the indices."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch

from wse_sim.cstorch import distributed, faults

# Stands in the place of an index that only fills up the last batch.
pad_index = -1


class DistributedSampler(torch.utils.data.Sampler):
    """Indices of a dataset, shuffled by epoch and distributed over the input workers.

    Args:
        data_source: the dataset (its length counts).
        shuffle: another order each epoch.
        seed: of the order.
        start_index: indices of the first epoch to leave out (a resumed run).
        shard: deal out over workers; otherwise each worker sees all.
        batch_size: give lists of that many indices instead of single ones (for ``batch_sampler=``).
        drop_last: leave out what does not make a whole share (or batch); otherwise fill up.
        pad_last: fill up with :data:`pad_index` instead of repeating the first indices.
        num_samples: use only so many of the indices.
    """

    def __init__(
        self,
        data_source: Sized,
        shuffle: bool = True,
        seed: int | None = None,
        start_index: int = 0,
        shard: bool = True,
        batch_size: int | None = None,
        drop_last: bool = True,
        pad_last: bool = False,
        num_samples: int | None = None,
        **_other: object,
    ) -> None:
        if drop_last and pad_last:
            raise faults.program_error(
                "DistributedSampler: drop_last and pad_last exclude each other; give one of them"
            )
        if batch_size is not None and batch_size < 1:
            raise faults.program_error(f"DistributedSampler: batch_size={batch_size} must be at least 1")
        self.data_source, self.shuffle, self.seed = data_source, shuffle, 0 if seed is None else int(seed)
        self.start_index, self.batch_size = start_index, batch_size
        self.drop_last, self.pad_last = drop_last, pad_last
        self.total = len(data_source) if num_samples is None else min(num_samples, len(data_source))
        self.rank = distributed.get_streaming_rank() if shard else 0
        self.workers = distributed.num_streamers() if shard else 1
        self.epoch = 0
        group = self.workers * (batch_size or 1)
        if drop_last and self.total < group:
            raise faults.program_error(
                f"DistributedSampler: {self.total} samples do not fill one batch of {batch_size or 1} for each of "
                f"{self.workers} workers; set drop_last=False or use more data"
            )

    def set_state(self, samples: int) -> None:
        """Resume after this number of samples of the first epoch (over all workers)."""
        self.start_index = samples % max(self.total, 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def _indices(self) -> list[int]:
        """Return all indices of this epoch in order, filled up or cut to whole groups."""
        if self.shuffle:
            draw = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(self.data_source), generator=draw)[: self.total].tolist()
        else:
            order = list(range(self.total))
        if self.epoch == 0:
            order = order[self.start_index :]
        group = self.workers * (self.batch_size or 1)
        whole = len(order) // group * group
        if self.drop_last:
            return order[:whole]
        missing = -len(order) % group
        if missing and order:
            fill = [pad_index] * missing if self.pad_last else (order * (missing // len(order) + 1))[:missing]
            order = order + fill
        return order

    def __iter__(self) -> Iterator[Any]:
        order = self._indices()
        if self.batch_size is None:
            yield from order[self.rank :: self.workers]
            return
        # Batches are distributed round-robin, so together the workers keep the order of batches.
        for start in range(self.rank * self.batch_size, len(order), self.workers * self.batch_size):
            yield order[start : start + self.batch_size]

    def __len__(self) -> int:
        left = self.total - (self.start_index if self.epoch == 0 else 0)
        group = self.workers * (self.batch_size or 1)
        groups = left // group if self.drop_last else -(-left // group)
        return max(0, groups)
