"""Issue cycles of every core, and control words that it sends, counted from a program without running it.

A core issues the same instructions whatever it waits for, so its busy cycles follow from lengths, rates and loops alone: a vector
instruction of n elements takes its start and ``ceil(steps cost)`` cycles, and a loop its body as often as it says.  A control word that reaches a core takes it a cycle that is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import ProgramError
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.lower import lower
from wse_sim.fabric.format.program import Op, Program

Cores = NDArray[np.intp]


def issued_cycles(program: Program, config: FabricConfig) -> NDArray[np.int64]:
    """Cycles that each core issues until it halts, (rows, cols) without host columns.

    Raises
    ------
    ProgramError
        If a core has tasks: how often they run depends on the words that arrive.

    Examples
    --------
    >>> from wse_sim.fabric.format.builder import Builder, scalar
    >>> from wse_sim.hardware import load_wafer
    >>> config = FabricConfig.from_wafer(load_wafer("wse2"))
    >>> b = Builder(1, 1, config)
    >>> y, core = b.buffer("y", 64, "fp32"), b.core_class("adds")
    >>> with core.loop(3):
    ...     core.add(y.dsd(), y.dsd(), scalar(1.0), start="none")
    >>> b.place(core, (0, 0))
    >>> issued_cycles(b.build(), config)
    array([[96]])
    """
    costs = lower(program, config).costs
    found = np.zeros(program.n_cores, np.int64)
    for cores, row, times, count in _runs(program):
        op = program.code[row, P.OP]
        if op == Op.BUSY:
            found[cores] += times * count
        elif op >= P.FIRST_VECTOR_OP:
            start, per, milli = costs[row]
            steps = -(-count // per) if per else count
            work = np.maximum((999 + steps * milli) // 1000, 1)
            found[cores] += times * (start + np.where(count > 0, work, 0))
    return _on_fabric(program, found)


def control_words(program: Program) -> dict[int, NDArray[np.int64]]:
    """Control words that each core sends until it halts, (rows, cols) without host columns, by color; colors with none are left out.

    Raises
    ------
    ProgramError
        If a core has tasks.
    """
    found: dict[int, NDArray[np.int64]] = {}
    for cores, row, times, _ in _runs(program):
        if program.code[row, P.OP] == Op.CONTROL:
            color = int(program.slot_color[program.code[row, P.D + P.BUF]])
            sent = found.setdefault(color, np.zeros(program.n_cores, np.int64))
            sent[cores] += times
    return {color: _on_fabric(program, sent) for color, sent in found.items()}


def _on_fabric(program: Program, values: NDArray[np.int64]) -> NDArray[np.int64]:
    grid = values.reshape(program.rows, program.cols)
    return grid[:, program.west : program.cols - program.east]


def _runs(program: Program) -> Iterator[tuple[Cores, int, NDArray[np.int64], NDArray[np.int64]]]:
    """Every instruction of every class: its cores, its row of the code, how often it runs, how many elements it has on each."""
    if len(program.tasks):
        raise ProgramError(
            f"the program has {len(program.tasks)} tasks, and how often a task runs depends on words that arrive; run it to count cycles"
        )
    of_class = program.class_of_instruction()
    for kind in np.unique(of_class):
        cores = np.flatnonzero(program.core_class == kind)
        if cores.size:
            yield from _of_class(program, cores, np.flatnonzero(of_class == kind))


def _of_class(
    program: Program, cores: Cores, rows: Cores
) -> Iterator[tuple[Cores, int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the instructions of the cores of one class, whose rows of the code are given."""
    times = np.ones(len(cores), np.int64)
    around: list[NDArray[np.int64]] = []
    for row in rows:
        line, op = program.code[row], program.code[row, P.OP]
        own = line[P.N_PARAM]
        count = program.params[own, cores] if own >= 0 else np.full(len(cores), line[P.N])
        count = np.maximum(0, count.astype(np.int64))
        if op == Op.LOOP:
            around.append(times)
            times = times * count
        elif op == Op.ENDLOOP:
            times = around.pop()
        else:
            yield cores, int(row), times, count
