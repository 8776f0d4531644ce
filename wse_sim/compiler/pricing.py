"""Cycles and bytes of the graph's kernels on candidate tilings, computed once per kernel signature."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels import Cost, Footprint, Tiling, family
from wse_sim.kernels.contract.family import Count
from wse_sim.kernels.contract.parameters import Attributes

FloatArray = NDArray[np.float64]


class Prices:
    """Costs and footprints of kernels on one wafer; equal kernels share them."""

    def __init__(self, wafer: Wafer, options: Mapping[str, Any] | None = None) -> None:
        self.wafer = wafer
        self.options = dict(options or {})
        self._cost: dict[Any, Cost] = {}
        self._footprint: dict[Any, Footprint] = {}
        self.of_shapes: dict[Hashable, Any] = {}
        """Prices of stages on many shapes, by what :meth:`wse_sim.compiler.sizing.Sizer.shape_prices` looks up."""

    @classmethod
    def shared(cls, wafer: Wafer, options: Mapping[str, Any]) -> Prices:
        """Return the prices that plans made within :func:`shared_prices` have in common; new ones outside."""
        known = _SHARED.get()
        if known is None:
            return cls(wafer, options)
        key = id(wafer), tuple(sorted(options.items()))
        return known.setdefault(key, cls(wafer, options))

    def cost(self, kernel: Kernel, rows: Count, cols: Count, mapping: str, lanes: Count = 1) -> Cost:
        """Return the cycles by cause for tilings of `rows` x `cols`: integers, or arrays that broadcast."""
        key = (kernel.signature, mapping, _key(rows), _key(cols), _key(lanes))
        found = self._cost.get(key)
        if found is None:
            tiling = Tiling(rows=rows, cols=cols, mapping=mapping, lanes=lanes, options=self.options)
            found = family(kernel.family).cost(
                kernel.dims, tiling, self.wafer, phase=kernel.phase, dtype=kernel.dtype, attrs=kernel.attrs
            )
            found = self._cost[key] = _with_links(found, kernel, self.wafer)
        return found

    def footprint(
        self, kernel: Kernel, rows: Count, cols: Count, mapping: str, lanes: Count = 1
    ) -> Footprint:
        """Return the bytes per core for tilings of `rows` x `cols`: integers, or arrays that broadcast."""
        key = (kernel.signature, mapping, _key(rows), _key(cols), _key(lanes))
        found = self._footprint.get(key)
        if found is None:
            tiling = Tiling(rows=rows, cols=cols, mapping=mapping, lanes=lanes, options=self.options)
            found = family(kernel.family).footprint(
                kernel.dims, tiling, self.wafer, phase=kernel.phase, dtype=kernel.dtype, attrs=kernel.attrs
            )
            self._footprint[key] = found
        return found


_SHARED: ContextVar[dict[Hashable, Prices] | None] = ContextVar("shared prices", default=None)


@contextmanager
def shared_prices() -> Iterator[None]:
    """Share prices among the plans that are made within this context, so that equal stages are priced once."""
    known = _SHARED.get()
    token = _SHARED.set({} if known is None else known)
    try:
        yield
    finally:
        _SHARED.reset(token)


def _with_links(cost: Cost, kernel: Kernel, wafer: Wafer) -> Cost:
    """Return the cost of a kernel, extended to the cycles of the busiest link of its streams.

    The cost is unchanged if the kernel's attributes state no words on that link.
    """
    link_words = Attributes.of(kernel.attrs).link_words
    if not link_words:
        return cost
    link_cycles = link_words * wafer.wavelet_cycles  # an array if constants of the wafer are arrays
    return cost + Cost(stalled_input=np.maximum(0.0, link_cycles - (cost.total - cost.idle)))


def _key(value: Count) -> int | bytes:
    return value.tobytes() if isinstance(value, np.ndarray) else value


def parts_of(cost: Cost) -> dict[str, float]:
    """Return the parts of a scalar cost as plain floats."""
    return {name: float(np.asarray(part)) for name, part in cost.parts().items()}


@lru_cache(maxsize=64)
def geometric(limit: int, ratio: float = 1.06) -> NDArray[np.int64]:
    """Return candidate side lengths 1, 2, 3, ... up to `limit`; each is about `ratio` times the previous one
    and at least one more.
    """
    sizes = [1]
    while sizes[-1] < limit:
        sizes.append(min(limit, max(sizes[-1] + 1, round(sizes[-1] * ratio))))
    return np.array(sizes, np.int64)
