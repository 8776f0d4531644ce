"""Token ids of the prompts of many requests, stored in two arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from wse_sim.serving.base import Ticks, nothing


class Contents(Sequence[Ticks]):
    """Token ids (or ids of runs of tokens) of prompts; request n has `ids[starts[n]:starts[n + 1]]`."""

    def __init__(self, ids: Ticks, starts: Ticks) -> None:
        self.ids, self.starts = ids, starts

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, number: int) -> Ticks: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Ticks]: ...
    def __getitem__(self, number: int | slice) -> Ticks | Sequence[Ticks]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return self.ids[self.starts[number] : self.starts[number + 1]]


def flat_contents(content: Sequence[Ticks] | None, count: int) -> tuple[Ticks, Ticks]:
    """Offsets, (requests + 1,), and all ids; zeros and an empty array if the contents are not known."""
    if content is None:
        return np.zeros(count + 1, np.int64), nothing()
    if isinstance(content, Contents):
        return content.starts, content.ids
    sizes = np.array([0, *(len(one) for one in content)], np.int64)
    return np.cumsum(sizes), np.concatenate([nothing(), *content]).astype(np.int64)
