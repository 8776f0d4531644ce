"""Dropout: a random mask times a scale.

Mapping: elements spread over all cores of the rectangle, n = ceil(elements / cores).

    T = n e + o        (one random number per element, scalar code);      backward e / 4

The mask is drawn by a counter-based generator, so the backward pass does not store it. Source: calibration
(GPT-2 small, special elements).  The fabric has no random generator: the program multiplies by a given mask,
in scalar code of e cycles per element, the time that drawing it would take. Band of cost against program: 1
%.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.chains import Chain
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import per_core, pointwise
from wse_sim.kernels.contract.family import Array, Case, Cost, Dims, How, Kept, ProgramOptions, Tiling, asked
from wse_sim.kernels.contract.parameters import Attributes, attribute
from wse_sim.kernels.contract.registry import register


@dataclass(frozen=True)
class DropoutAttributes(Attributes):
    """Attributes of dropout: the fraction that is dropped."""

    p: float = attribute(0.1, "fraction that is dropped")


class Dropout(OnElements):
    """The family of dropout."""

    name = "dropout"
    attributes = DropoutAttributes
    moves = True

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """The cost of random elements; zero if p is 0."""
        phase, dtype, attrs = self.asked(tiling, how)
        if DropoutAttributes.of(attrs).p == 0.0:
            return 0.0 * pointwise(dims["elements"], tiling, wafer, dtype=dtype)
        fraction = 1.0 if phase is Phase.FORWARD else wafer.backward_special_fraction
        return pointwise(dims["elements"], tiling, wafer, dtype=dtype, special=fraction)

    def compute(self, x: Array, *, p: float = 0.1, seed: int = 0, dtype: str = "fp32") -> Array:
        """Return x times the mask of `seed`; the input gradient is the result's gradient times the same
        mask."""
        return core.binary("mul", core.rounded(x, dtype), core.keep_mask(np.shape(x), p, seed), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program: on every core, scalar code that applies the mask and takes the time to draw it;
        backward alike."""
        phase, dtype, attrs = asked(options, "fp32")
        seed, p = int(options.get("seed", 0)), DropoutAttributes.of(attrs).p
        fraction = 1.0 if phase is Phase.FORWARD else wafer.backward_special_fraction
        c = Chain(tiling, int(per_core(dims["elements"], tiling)), wafer, dtype, seed)
        values = c.whole()
        x = c.buffer("x", values, bank=0)
        mask = c.buffer("mask", core.rounded(core.keep_mask(values.shape, p, seed), dtype))
        if p > 0.0:
            element = c.period(fraction * wafer.special_element_cycles)
            c.core.mul(x.dsd(), x.dsd(), mask.dsd(), dtype=dtype, period=element)
        c.expected["x"] = self.compute(values, p=p, seed=seed, dtype=dtype)
        return c.case()

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the kept bytes: one bit per element."""
        return Kept((), (kernel.dims["elements"] + 7) // 8)


FAMILY = register(Dropout())
