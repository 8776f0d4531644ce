"""Colors whose routes are trees, and the links of these trees, for all executors."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.router import RAMP, neighbour, turning_outputs
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Op, Program
from wse_sim.jit import bare_kernel

ROOT = 1 << RAMP  # port mask of a router that takes words from its core


def tree_slots(program: Program, *, dead_ends: bool = False) -> npt.NDArray[np.bool_]:
    """Bool (slots,): one switch position and one input per router (or none, if `dead_ends` are taken), no commands."""
    inputs = ((program.cfg_rx[:, :1] >> np.arange(5)) & 1).sum(axis=1)
    plain = (program.cfg_positions == 1) & (inputs <= 1) & (dead_ends | (inputs == 1))
    plain[0] = True
    is_tree = np.array([plain[np.unique(row)].all() for row in program.route], np.bool_)
    sends_command = (program.code[:, P.OP] == Op.CONTROL) | (program.code[:, P.ADVANCE] > 0)
    is_tree[program.code[sends_command, P.D + P.BUF]] = False
    return is_tree


def turned_inputs(program: Program) -> npt.NDArray[np.uint8]:
    """Port mask (slots, R) of inputs whose link changes direction."""
    turns = turning_outputs(program)[program.route].reshape(program.n_slots, program.rows, program.cols)
    turned = np.zeros_like(turns)
    turned[:, 1:] |= ((turns[:, :-1] >> 2) & 1) << 0  # out to S of the router above: in from N
    turned[:, :-1] |= ((turns[:, 1:] >> 0) & 1) << 2
    turned[:, :, 1:] |= ((turns[:, :, :-1] >> 1) & 1) << 3
    turned[:, :, :-1] |= ((turns[:, :, 1:] >> 3) & 1) << 1
    return turned.reshape(program.route.shape)


def link_lengths(program: Program, config: FabricConfig) -> npt.NDArray[np.int64]:
    """Cycles (4,) of a straight link, of one that changes direction, of both over the edge of a die.

    What no link of the program does costs nothing here, so that the longest is as long as any link is.
    """
    hop = config.hop_cycles
    turns = config.turn_cycles if turning_outputs(program).any() else 0
    edge = config.die_crossing_cycles if program.die_edges.any() else 0
    return np.array([hop, hop + turns, hop + edge, hop + turns + edge], np.int64)


@bare_kernel
def grow_trees(roots, route, cfg_rx, cfg_tx, turned, die_edges, cols, queue_cells, tree, sizes, stack):
    """Follow every tree from its root: its number in the leaves, and the cells on its longest path."""
    k = 0
    for slot in range(roots.shape[0]):
        for root in range(roots.shape[1]):
            if not roots[slot, root]:
                continue
            tree[slot, root] = k
            stack[0, 0], stack[0, 1] = root, queue_cells[0]
            n = 1
            while n > 0:
                n -= 1
                core, path = stack[n, 0], stack[n, 1]
                tx = np.int64(cfg_tx[route[slot, core], 0])
                sizes[k] = max(sizes[k], path)
                if (tx >> RAMP) & 1:
                    tree[slot, core] = k
                for q in range(4):
                    if not (tx >> q) & 1:
                        continue
                    other, p = neighbour(core, q, cols), (q + 2) % 4
                    if cfg_rx[route[slot, other], 0] == 1 << p:
                        turns, crosses = (
                            (np.int64(turned[slot, other]) >> p) & 1,
                            (np.int64(die_edges[other]) >> p) & 1,
                        )
                        stack[n, 0], stack[n, 1] = other, path + queue_cells[1 + turns + 2 * crosses]
                        n += 1
            k += 1


@bare_kernel
def count_tree_links(copied, route, cfg_rx, cfg_tx, cols, entered, waiting, links, stack):
    """Count words over every link of the trees: those that entered, minus those that wait (slots, R, 5) on
    the route."""
    for slot in range(route.shape[0]):
        if copied[slot] >= 0:
            continue
        for root in range(route.shape[1]):
            if route[slot, root] == 0 or cfg_rx[route[slot, root], 0] != ROOT or entered[slot, root] == 0:
                continue
            stack[0, 0], stack[0, 1] = root, entered[slot, root] - waiting[slot, root, RAMP]
            n = 1
            while n > 0:
                n -= 1
                core, moves = stack[n, 0], stack[n, 1]
                tx = np.int64(cfg_tx[route[slot, core], 0])
                for q in range(5):
                    if not (tx >> q) & 1:
                        continue
                    links[core, q] += moves
                    if q == RAMP:
                        continue
                    other, p = neighbour(core, q, cols), (q + 2) % 4
                    if cfg_rx[route[slot, other], 0] == 1 << p:
                        stack[n, 0], stack[n, 1] = other, moves - waiting[slot, other, p]
                        n += 1
