"""Rotations of positions: which features of a head turn together, their tables, and what is supported.

y = x C + x[partner] S: C and S have cosines, and sines that are negative where the partner is the second of a pair.
"""

from __future__ import annotations

import numpy as np

from wse_sim.frontend.rotations import HALVES, TABLES
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.whole.regions.contract import PAIR, Floats, IntArray, refused

ROTARY = "rotary"


def is_rotation(kernel: Kernel) -> bool:
    """Return whether a kernel turns pairs of features by their positions."""
    return kernel.family == "generated" and kernel.attrs.get("ops") == ROTARY


def check_rotation(graph: KernelGraph, kernel: Kernel) -> None:
    """Check that a rotation works on tokens with tables (:func:`wse_sim.whole.rotations.with_rotations`).

    Raises
    ------
    ModelError
        If it does not.
    """
    if len(kernel.parameters) != len(TABLES):
        what = "in training" if graph.training else "with an operand, pairs or tables that are not known"
        raise refused(
            kernel,
            f"rotates positions {what}, and the whole fabric rotates queries and keys of attention in inference",
            "write x cos + turned(x) sin with constant tables between the layers and the attention",
        )
    if kernel.dims["cols"] % PAIR:
        raise refused(kernel, f"rotates heads of {kernel.dims['cols']} features", "use an even number")


def partner(width: int, turned: int, pairs: str) -> IntArray:
    """Return the feature of a head of `width` features that each of the first `turned` turns with; itself for the others.

    >>> partner(6, 4, "halves").tolist(), partner(4, 4, "neighbours").tolist()
    ([2, 3, 0, 1, 4, 5], [1, 0, 3, 2])
    """
    found = np.arange(width)
    found[:turned] = (found[:turned] + turned // 2) % turned if pairs == HALVES else found[:turned] ^ 1
    return found


def table(values: Floats, width: int, heads: int, pairs: str, *, is_sine: bool) -> Floats:
    """Return cosines or sines (T, turned features) as (T, H d): sines with their signs, 1 or 0 for other features."""
    turned = values.shape[-1]
    rows = np.asarray(values, np.float32).reshape(-1, turned)
    wide = np.full((len(rows), width), 0.0 if is_sine else 1.0, np.float32)
    wide[:, :turned] = rows
    if is_sine:
        wide *= np.where(partner(width, turned, pairs) > np.arange(width), -1.0, 1.0)
    return np.tile(wide, (1, heads))
