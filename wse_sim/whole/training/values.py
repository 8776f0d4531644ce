"""Weights of a layer as the tiles of its cores, and back.

Symbols: N outputs and K inputs of the layer; row i of R and column c of C of its cores have k_i inputs and v
outputs::

    W (N, K)  <->  tiles (R, C, max k_i x v)      the tile of a core is its part of W transposed, inputs first

Elements beyond k_i, K or N are zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.layout import PAIR, RegionLayout

Floats = NDArray[np.float32]


def tiles(layout: RegionLayout, weight: Floats) -> Floats:
    """Return a weight (N, K) as tiles (rows, cols, inputs x outputs) of the cores."""
    most, v, cols = max(len(row.inputs) for row in layout.rows), layout.outputs, layout.cols
    wide = np.zeros((cols * v, PAIR * ceil_div(layout.k, PAIR)), np.float32)
    wide[: layout.n, : layout.k] = weight
    x = np.zeros((len(layout.rows), cols, most, v), np.float32)
    for i, row in enumerate(layout.rows):
        count = len(row.inputs)
        x[i, :, :count] = wide[:, row.inputs].T.reshape(count, cols, v).swapaxes(0, 1)
    return x.reshape(len(layout.rows), cols, -1)


def untiled(layout: RegionLayout, held: Floats) -> Floats:
    """Return the weight (N, K) from the tiles of all cores."""
    v, cols = layout.outputs, layout.cols
    x = held.reshape(len(layout.rows), cols, -1, v)
    wide = np.zeros((cols * v, PAIR * ceil_div(layout.k, PAIR)), np.float32)
    for i, row in enumerate(layout.rows):
        count = len(row.inputs)
        wide[:, row.inputs] = x[i, :, :count].swapaxes(0, 1).reshape(count, cols * v).T
    return wide[: layout.n, : layout.k]
