"""Change of layout: cat, slice, pad, copy, transpose, permute, ...

Mapping: elements spread over all cores, n = ceil(elements / cores), b = words(n).

    view, reshape                    T = 0           (addresses only)
    copies (cat, slice, pad, ...)    T = o + n / mov + b             (to a neighbour at most)
    exchanges (transpose, permute)   T = 2 o + 2 b + max(b, (R + C) b / 4 - 2 b)

An exchange sends half of each row's words over its middle link, C b / 4 per direction, then half of each
column's.  Source: link width; the same bound as the transpose of a published FFT.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Cost, Dims, Family, Footprint, How, Tiling, asked, register
from wse_sim.kernels.equations import check_tiling, mov_rate, per_core, pointwise_footprint, words

FREE = frozenset({"view", "reshape", "unsqueeze", "squeeze", "expand", "detach", "alias", "flatten"})
EXCHANGES = frozenset({"transpose", "permute", "roll", "flip", "shuffle", "movedim", "t"})


class Layout(Family):
    """The family of data movement without arithmetic."""

    name = "layout"
    dims = ("elements",)
    mappings = ("stationary", "streamed")

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Stage buffers of the operands and code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        return pointwise_footprint(dims["elements"], tiling, dtype)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Nothing, a local copy, or an exchange over the middle links."""
        _, dtype, attrs = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        op = str(attrs.get("op", "copy"))
        n = per_core(dims["elements"], tiling)
        zero = 0.0 * n
        if op in FREE:
            return Cost(compute=zero)
        b = words(n, dtype) * wafer.wavelet_cycles
        start = wafer.vector_start_cycles
        if op not in EXCHANGES:
            return Cost(compute=n / mov_rate(dtype, wafer), ramp=b + zero, startup=start + zero)
        middle = (tiling.rows + tiling.cols) * b / 4.0
        return Cost(
            ramp=2 * b + zero,
            fabric=np.maximum(b, middle - 2 * b) + zero,
            startup=2 * start + zero,
            idle=(tiling.rows + tiling.cols) * wafer.hop_cycles + zero,
        )

    def compute(self, *operands: Any, op: str = "copy", axes: Any = None, dtype: str = "fp32") -> Any:
        """Moved values: copy, cat (along `axes`), transpose or permute (to `axes`), pad (`axes` = widths)."""
        from wse_sim.kernels import numerics as core

        values = [core.rounded(x, dtype) for x in operands]
        if op == "cat":
            return np.concatenate(values, axis=0 if axes is None else axes)
        if op in {"transpose", "permute", "t"}:
            return np.ascontiguousarray(np.transpose(values[0], axes))
        if op == "pad":
            return np.pad(values[0], axes)
        if op in {"copy", "clone", "contiguous"}:
            return values[0].copy()
        raise KernelError(f"layout has no numerics for '{op}'; use copy, cat, transpose, permute, pad")


FAMILY = register(Layout())
