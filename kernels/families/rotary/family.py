"""Rotary positions of queries and keys: y = x cos + turned(x) sin, pairs of features of every head.

Mapping: heads over all cores of the rectangle, n = ceil(elements / cores); on the whole fabric whole heads of d features.

    T = starts o + n / d (2 d / w + 2 (turned / b) ceil(b / 2 / a))        b features of a block, a sums per cycle

Backward: a product of whole heads is one of halves. Four starts forward, five backward. Angles are tables on the cores.
Source: vector rates of the SDK documentation.
Program: :mod:`wse_sim.kernels.families.rotary.core`.  Band of cost against program: 1 % from 200 elements per core;
halves of an odd number of elements begin half a word apart and take up to 50 % longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.errors import KernelError
from wse_sim.kernels.blocks.on_tables import OnTables, WorkAttributes
from wse_sim.kernels.contract.family import Attrs, Dims, Role
from wse_sim.kernels.contract.parameters import attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.rotary.core import PAIR, Turning


@dataclass(frozen=True)
class RotaryAttributes(WorkAttributes):
    """Attributes of rotary positions."""

    block: int = attribute(
        0, "features whose halves turn together: those of a head, 2 for neighbours; 0: not known", at_least=0
    )
    turned: int = attribute(0, "features of a head that turn, the first ones; 0: all pairs", at_least=0)


class Rotary(OnTables):
    """The family of rotary positions."""

    name = "rotary"
    dims = sizes(elements="elements of queries or keys", cols="features of a head")
    more_dims = sizes(rows="heads of all tokens of a sample")
    attributes = RotaryAttributes
    role = Role.POSITIONS
    lies = "heads over all cores"

    def work(self, dims: Dims, attrs: Attrs, dtype: str = "fp16") -> Turning:
        """Return the rotation of a core's heads.

        Raises
        ------
        KernelError
            If the features that turn are not whole blocks of pairs.
        """
        width, stated = int(dims["cols"]), RotaryAttributes.of(attrs)
        turned = stated.turned or width - width % PAIR
        block = stated.block or turned or PAIR
        if block % PAIR or turned % block or turned > width:
            raise KernelError(
                f"rotary positions turn {turned} of {width} features in blocks of {block}; give blocks of an even number of "
                "features, and let whole blocks turn"
            )
        return Turning(unit=width, dtype=dtype, block=block, turned=turned)


FAMILY = register(Rotary())
