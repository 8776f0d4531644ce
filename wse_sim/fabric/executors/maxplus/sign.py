# mypy: disable-error-code="assignment"
"""Signatures of streams of cycles: two streams that differ only by a shift in time have equal signatures.

A row of the table holds (hash, last cycle, first cycle, length) of one stream.  The hash is a polynomial in the
differences of successive cycles, modulo 2^64; different streams share one with a probability of about 2^-64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.maxplus.graph import CORE, IS_RING, SLOT
from wse_sim.jit import inlined_kernel

HASH, LAST, FIRST, LENGTH = range(4)
SIGN_FIELDS = 4
_FACTOR = 0x5851F42D4C957F2D  # odd, from Knuth's MMIX generator


@inlined_kernel
def sign(row, cycle, table):  # type: ignore[no-untyped-def]
    """Append a cycle to the stream of a row."""
    if table[row, LENGTH] == 0:
        table[row, FIRST], table[row, LAST] = cycle, cycle
    table[row, HASH] = (table[row, HASH] + cycle - table[row, LAST] + 1) * _FACTOR
    table[row, LAST] = cycle
    table[row, LENGTH] += 1


@inlined_kernel
def mix(row, value, table):  # type: ignore[no-untyped-def]
    """Mix a value that is not a cycle into the hash of a row."""
    table[row, HASH] = (table[row, HASH] + value + 1) * _FACTOR


def by_core(
    nodes: npt.NDArray[np.int32], table: npt.NDArray[np.int64], n_cores: int, n_slots: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Hashes and first cycles (-1: no word) int64 (R, 3 slots): what left the ring, moved on, was read on each slot.

    `table` has two rows per node: moves and reads.
    """
    hashes = np.zeros((n_cores, n_slots, 3), np.int64)
    firsts = np.full((n_cores, n_slots, 3), -1, np.int64)
    core, slot, ring = nodes[:, CORE], nodes[:, SLOT], nodes[:, IS_RING] == 1
    for kind, chosen, rows in ((0, ring, table[0::2]), (1, ~ring, table[0::2]), (2, ~ring, table[1::2])):
        used = chosen & (rows[:, LENGTH] > 0)
        hashes[core[used], slot[used], kind] = rows[used, HASH]
        firsts[core[used], slot[used], kind] = rows[used, FIRST]
    return hashes.reshape(n_cores, -1), firsts.reshape(n_cores, -1)
