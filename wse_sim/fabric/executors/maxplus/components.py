"""Closed components: cores and routers that are connected by links which some word can use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.maxplus.graph import Reach
from wse_sim.fabric.format.program import Program
from wse_sim.jit import helper_kernel, kernel


@helper_kernel
def find_root(label, i):  # type: ignore[no-untyped-def]
    """Return the representative of `i`, with path halving."""
    while label[i] != i:
        label[i] = label[label[i]]
        i = label[i]
    return i


@kernel
def unite(rows, cols, inputs):  # type: ignore[no-untyped-def]
    """Return labels (R,) int32: the smallest core of each core's component."""
    n_slots, n = inputs.shape
    label = np.arange(n).astype(np.int32)
    for slot in range(n_slots):
        for r in range(n):
            ports = inputs[slot, r]
            for q in range(4):
                if (ports >> q) & 1:
                    other = r - cols if q == 0 else (r + 1 if q == 1 else (r + cols if q == 2 else r - 1))
                    a, b = find_root(label, r), find_root(label, other)
                    if a < b:
                        label[b] = a
                    elif b < a:
                        label[a] = b
    for r in range(n):
        label[r] = find_root(label, r)
    return label


def label_components(program: Program, found: Reach) -> npt.NDArray[np.int32]:
    """Return the component of every core: the index of its first core."""
    labels: npt.NDArray[np.int32] = unite(program.rows, program.cols, found.inputs)
    return labels
