"""Values of all buffers of a program: one float32 array with a contiguous range for every buffer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.format.program import Program

Memory = npt.NDArray[np.float32]
Inputs = Mapping[str, npt.ArrayLike]


def new_memory(program: Program, inputs: Inputs | None = None, *, functional: bool = True) -> Memory:
    """Memory at cycle 0: zeros, and the values (rows, cols, length) of every buffer in `inputs`.

    Without elements if not `functional`: a timing-only run stores no values.

    Raises
    ------
    ProgramError
        If a buffer is unknown or its values have another shape.
    """
    memory = np.zeros(program.arena_elements if functional else 0, np.float32)
    for name, values in (inputs or {}).items() if functional else ():
        view = buffer_view(program, memory, name)
        data = np.asarray(values, np.float32)
        if program.buffers[name].dtype == "fp16":
            data = data.astype(np.float16).astype(np.float32)
        try:
            view[...] = data
        except ValueError as fault:
            raise ProgramError(
                f"buffer '{name}' takes values of shape {view.shape} but got {data.shape}; give (rows, cols, length)"
            ) from fault
    return memory


def buffer_view(program: Program, memory: Memory, name: str) -> Memory:
    """View (rows, cols, length) of a buffer's rectangle in `memory`.

    Raises
    ------
    ProgramError
        If the buffer is unknown or the memory belongs to a timing-only run.
    """
    if name not in program.buffers:
        raise ProgramError(
            f"buffer '{name}' is unknown; the program has {', '.join(program.buffers) or 'none'}"
        )
    if memory.size == 0:
        raise ProgramError(f"buffer '{name}' has no values in a timing-only run; use functional=True")
    info = program.buffers[name]
    size = info.rows * info.cols * info.length
    return memory[info.base : info.base + size].reshape(info.rows, info.cols, info.length)
