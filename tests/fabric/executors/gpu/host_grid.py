"""A device without a GPU: the threads of a grid run one after the other, in an order that changes in every half cycle.

What the kernels run is run here, compiled for the processor.  A thread that read what another one writes in the same half
would see it in one order and not in the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wse_sim.fabric.executors.gpu.device import Cuda, each_array
from wse_sim.fabric.executors.gpu.loop import first_half, has_fault, is_over, second_half
from wse_sim.fabric.executors.gpu.planes import Marks, RunState
from wse_sim.jit import bare_kernel


@bare_kernel
def run_in_turns(orders, routes, planes, payload, cores, tally, marks, settings, t, until):  # type: ignore[no-untyped-def]
    """Step cycles t .. until - 1, or fewer; row k of `orders` is the order of the threads in half cycle k."""
    n = orders.shape[1]
    while t < until and not is_over(t, marks, settings.sets):
        for k in range(n):
            i = orders[(2 * t) % orders.shape[0], k]
            first_half(i, n, t, routes, planes, payload, cores, tally, marks, settings.sets)
        if has_fault(marks):
            return
        for k in range(n):
            i = orders[(2 * t + 1) % orders.shape[0], k]
            second_half(i, n, t, routes, planes, payload, cores, tally, marks, settings.sets)
        t += 1


class HostGrid:
    """`threads` threads of one grid, shuffled by `seed`."""

    def __init__(self, threads: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.orders = np.array([rng.permutation(threads) for _ in range(62)], np.int64)

    def upload(self, state: RunState) -> RunState:
        """Return a copy; what the program says stays read-only, so the machine code is that of the other executors."""
        return each_array(_copied, state)

    def advance(self, state: RunState, t: int, until: int) -> None:
        """Run all threads, one after the other."""
        run_in_turns(self.orders, *state, t, until)

    def marks(self, state: RunState) -> Marks:
        """Return the marks unchanged."""
        return state.marks

    def download(self, state: RunState, onto: RunState) -> None:
        """Copy everything that a device would return into `onto`."""
        Cuda().download(state, onto)


def _copied(array: NDArray[np.generic]) -> NDArray[np.generic]:
    copy = np.copy(array)
    copy.flags.writeable = array.flags.writeable
    return copy
