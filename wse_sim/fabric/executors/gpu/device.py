"""The device that runs the kernels: a GPU, or numba's simulator of one (``NUMBA_ENABLE_CUDASIM=1``)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Protocol

import numba
import numpy as np

from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.gpu.planes import Array, Marks, RunState

THREADS = 64  # of a block, so that the words of a wafer keep all multiprocessors of a large GPU at work
SIMULATED_THREADS = 3


class GpuDevice(Protocol):
    """Stores the state of a run and steps it."""

    def upload(self, state: RunState) -> RunState:
        """Copy `state` to the device."""

    def advance(self, state: RunState, t: int, until: int) -> None:
        """Step cycles t .. until - 1 of a state on the device, or fewer if the run ends."""

    def marks(self, state: RunState) -> Marks:
        """Return the marks of a state on the device."""

    def download(self, state: RunState, onto: RunState) -> None:
        """Copy the arrays that a run changes from the device to `onto`."""


def what_is_missing() -> str | None:
    """Return None if a GPU is available; otherwise what is missing."""
    if is_simulated():
        return None
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed"
    version = importlib.metadata.version("numba-cuda")
    if version.startswith("0.30.") and not hasattr(np, "row_stack"):
        return f"numba-cuda {version} cannot compile with NumPy {np.__version__} (pip install 'numpy<2.5')"
    from numba import cuda

    return None if cuda.is_available() else "no GPU with a driver was found"


def is_simulated() -> bool:
    """Return whether ``NUMBA_ENABLE_CUDASIM=1`` is set."""
    return bool(getattr(numba.config, "ENABLE_CUDASIM", False))


def each_array(change: Callable[[Array], Array], state: RunState) -> RunState:
    """Return `state` with a function applied to every array."""
    return RunState._make(type(group)(*map(change, group)) for group in state)


class Cuda:
    """The GPU that numba selects.

    ``persistent``: one launch steps many cycles.  Otherwise, or where blocks cannot wait for each other, every half of a
    cycle is a launch.
    """

    def __init__(self, *, persistent: bool = True) -> None:
        self.persistent = persistent

    def upload(self, state: RunState) -> RunState:
        """See :class:`GpuDevice`."""
        if is_simulated():  # its threads work on the arrays of the host
            return each_array(np.copy, state)
        from numba import cuda

        needs = sum(array.nbytes for group in state for array in group)
        free = int(cuda.current_context().get_memory_info().free)
        if needs > free:
            raise ProgramError(
                f"the program takes {needs / 1e9:.1f} GB on the GPU, which has {free / 1e9:.1f} GB free; use executor='wavelet'"
            )
        return each_array(lambda array: cuda.to_device(np.ascontiguousarray(array)), state)

    def advance(self, state: RunState, t: int, until: int) -> None:
        """See :class:`GpuDevice`."""
        from wse_sim.fabric.executors.gpu import kernels

        work = int(state.routes.first_core.shape[0]) + int(state.routes.stations.shape[0])
        threads = SIMULATED_THREADS if is_simulated() else THREADS
        blocks = self._blocks(state, threads)
        if self.persistent and blocks > 0:
            kernels.run_cycles[min(blocks, -(-work // threads)), threads](*state, t, until)
            return
        for cycle in range(t, until):
            kernels.run_first[-(-work // threads), threads](*state, cycle)
            kernels.run_second[-(-work // threads), threads](*state, cycle)

    def marks(self, state: RunState) -> Marks:
        """See :class:`GpuDevice`."""
        return Marks(*map(_host, state.marks))

    def download(self, state: RunState, onto: RunState) -> None:
        """See :class:`GpuDevice`."""
        pairs = [
            (state.planes.rec, onto.planes.rec),
            (state.planes.position, onto.planes.position),
            (state.payload.entered, onto.payload.entered),
            (state.cores.st, onto.cores.st),
            (state.cores.arena, onto.cores.arena),
            (state.cores.bins, onto.cores.bins),
            *zip(state.tally, onto.tally, strict=True),
        ]
        for there, here in pairs:
            if here.size:
                here[...] = _host(there)

    @staticmethod
    def _blocks(state: RunState, threads: int) -> int:
        """Return the number of blocks that fit on the device at once; 0 if blocks cannot wait for each
        other."""
        if is_simulated():
            return 1
        from wse_sim.fabric.executors.gpu.kernels import run_cycles

        run_cycles[1, threads](*state, 0, 0)  # compiles it
        return min(int(one.max_cooperative_grid_blocks(threads)) for one in run_cycles.overloads.values())


def _host(array: Array) -> Array:
    """Copy a device array to the host; it is typed like the host array."""
    return array if isinstance(array, np.ndarray) else array.copy_to_host()
