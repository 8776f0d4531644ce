"""Cycles counted from a program equal those that the executor counts, core by core."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fabric.random_programs import Features, random_program
from wse_sim.errors import ProgramError
from wse_sim.fabric.format.builder import Builder, scalar
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.count import issued_cycles
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer

CONFIG = FabricConfig.from_wafer(load_wafer("wse2"))


def test_loops_and_lengths_of_single_cores_on_paper() -> None:
    """Two columns have one class: 64 sums of fp32 in memory, two per cycle, three times on one and five times on the
    other; 7 more cycles.

    A loop of no turns and a vector of no elements take nothing but the start of the vector.
    """
    b = Builder(1, 3, CONFIG)
    y = b.buffer("y", 64, "fp32")
    core = b.core_class("adds")
    with core.loop(b.param(np.array([[3, 5, 0]]))):
        core.add(y.dsd(), y.dsd(), scalar(1.0), start="none")
    core.busy(7)
    b.place(core, (0, slice(0, 2)))
    assert issued_cycles(b.build(), CONFIG).tolist() == [[3 * 32 + 7, 5 * 32 + 7, 0]]


def test_random_programs_issue_what_is_counted() -> None:
    """Programs have loops, threads, maps and forks, without tasks and control words. A core that a deadlock stops has
    issued less, never more.
    """
    features, ended = Features(tasks=0.0, switches=0.0, merges=0.0), 0
    for seed in range(30):
        program = random_program(seed, CONFIG, features).program
        if len(program.tasks) or program.has_control:
            continue
        found, counted = (
            run_program(program, CONFIG, executor="wavelet", functional=False),
            issued_cycles(program, CONFIG),
        )
        assert (found.busy <= counted).all(), seed
        if found.deadlock is None:
            assert np.array_equal(found.busy, counted), seed
            ended += counted.any()
    assert ended > 5


def test_programs_with_tasks_are_refused() -> None:
    """The number of runs of a task depends on words that arrive."""
    made = next(one for one in (random_program(seed, CONFIG) for seed in range(20)) if len(one.program.tasks))
    with pytest.raises(ProgramError, match="run it to count cycles"):
        issued_cycles(made.program, CONFIG)
