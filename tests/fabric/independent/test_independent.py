"""Compares executors with a second simulator that shares no line with them, on random programs and the kernels of the
library.

Oracle and wavelet executor share the core, the router, prices and values (``core.py``, ``router.py``, ``lower.py``, ``values.py``), so
that they agree says nothing about those.  The second simulator was written from the docstring of ``format/program.py``; where the two
differ, that text decides.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.fabric.independent.compare import differences, disagreements, of_seed
from tests.fabric.independent.machine import Machine
from tests.fabric.random_constants import WSE3, config_of
from tests.fabric.random_programs import random_program
from tests.generated import seeds
from wse_sim.bench.command import find, kernel_commands
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer
from wse_sim.kernels import load_families

HERE = Path(__file__).parent
NAMES = tuple(dict.fromkeys((*kernel_commands(), *load_families())))
SMALL = ("reduce2d", "norm", "pool2d")
READ = {"wse_sim.fabric.format.program", "wse_sim.fabric.format.config"}
"""The arrays of a program and the constants of a machine: all that the second simulator reads."""


def test_the_second_simulator_imports_no_executor() -> None:
    """Its files import each other, the format and the constants."""
    own = {f"tests.fabric.independent.{name}" for name in ("machine", "cores", "prices")}
    for name in own:
        tree = ast.parse((HERE / f"{name.rpartition('.')[2]}.py").read_text(encoding="utf-8"))
        named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        named |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
        ours = {
            module
            for module in named
            if module and module.partition(".")[0] in ("wse_sim", "tests", "benchmarks")
        }
        assert ours <= own | READ | {"wse_sim.fabric.format"}, name


def test_executors_are_the_machine_of_the_specification() -> None:
    """Cycles, every counter, values, remaining words and unfinished cores agree; oracle, wavelet on one to three
    threads, max-plus.
    """
    found = {seed: of_seed(seed) for seed in seeds(100_000, 40)}
    assert not {seed: names for seed, names in found.items() if names}


def test_a_word_that_goes_back_pays_no_turn() -> None:
    """A switch position sends to where it receives from; a few programs are run on WSE-3, where a turn takes 20 cycles."""
    assert of_seed(111, WSE3) == of_seed(2111, WSE3) == {}


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_executors_are_the_machine_of_the_specification_on_five_hundred_programs(block: int) -> None:
    """Half of the programs are on WSE-2, a tenth on WSE-3, the others on odd constants."""
    found = {seed: of_seed(seed) for seed in seeds(50 * block, 50)}
    assert not {seed: names for seed, names in found.items() if names}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in NAMES],
)
def test_a_kernel_of_the_library_is_that_of_the_specification(name: str) -> None:
    """At its default size: loops with steps, lengths by core, fresh and indexed products, mixed precision."""
    command = find(name)
    case = command.build(command.read({}), load_wafer("wse2"))
    assert disagreements(case.program, case.config, case.inputs, strict=True) == {}


@pytest.mark.slow
def test_a_difference_is_named() -> None:
    """One cycle more on one core, one word on one link, one value: each by its name."""
    made, config = random_program(1, config_of(1)), config_of(1)
    own = Machine(made.program, config, made.inputs).run()
    ran = run_program(made.program, config, executor="oracle", inputs=made.inputs, strict=False)
    assert differences(made.program, own, ran) == []
    for name in ("busy", "links", "queue_high"):
        counted = getattr(own, name).copy()
        counted.reshape(-1)[0] += 1
        # A cycle more of busy is one less of idle.
        assert name in differences(made.program, dataclasses.replace(own, **{name: counted}), ran)
    memory = own.memory.copy()
    memory[0] = np.nextafter(memory[0], np.float32(9))
    assert differences(made.program, dataclasses.replace(own, memory=memory), ran) == ["values of x"]
