"""One router, shared by oracle and wavelet executor: neighbours, switch positions, commands, round-robin."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.program import Program
from wse_sim.jit import helper_kernel

RAMP = 4
ADVANCE, RESET = int(P.Command.ADVANCE), int(P.Command.RESET)


@helper_kernel
def neighbour(core, port, cols):
    """Return the core on the other side of a mesh port."""
    if port == 0:
        return core - cols
    if port == 1:
        return core + 1
    if port == 2:
        return core + cols
    return core - 1


@helper_kernel
def advanced(position, cfg, command, cfg_positions, cfg_ring):
    """Return the switch position after a command."""
    if command == RESET:
        return 0
    if command == ADVANCE:
        if position + 1 < cfg_positions[cfg]:
            return position + 1
        return 0 if cfg_ring[cfg] else position
    return position


@helper_kernel
def popped_payload(word, pop_mode, command):
    """Return a control payload after a router has processed its first command; after the eighth, cores ignore
    it."""
    if pop_mode == 0 or (pop_mode == 2 and command != ADVANCE):
        return word
    ignored = (word >> 24) & 0xFF
    return ((word & 0xFFFF) >> 2) | (word & 0x3F0000) | (((ignored >> 1) | (ignored & 0x80)) << 24)


def turning_outputs(program: Program) -> npt.NDArray[np.uint8]:
    """Port mask per route config: outputs that some input reaches by a change of direction."""
    turns = np.zeros(len(program.cfg_rx), np.uint8)
    for i in range(4):
        for q in range(4):
            if i != q and q != (i + 2) % 4:
                both = ((program.cfg_rx >> i) & 1) & ((program.cfg_tx >> q) & 1)
                turns |= (both.any(axis=1).astype(np.uint8) << q).astype(np.uint8)
    return turns
