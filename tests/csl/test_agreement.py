"""Every function run by the comptime interpreter and by the bytecode machine agrees, bit for bit.

The initialiser of `known` calls the function at compile time; `run` calls it on the core with arguments from variables.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples

from .generate import program
from .machine import Machine, compile_text

FUNCTIONS = 15


def check(folder: Path, seed: int, executor: str) -> None:
    text, kinds = program(seed, FUNCTIONS)
    machine = Machine(compile_text(folder, text), executor)
    machine.call("run")
    for k, kind in enumerate(kinds):
        known, found = machine.read(f"known{k}"), machine.read(f"found{k}")
        if kind in ("f16", "f32") and np.isnan(known).all():
            assert np.isnan(found).all(), (seed, k)
        else:
            assert known.tobytes() == found.tobytes(), (seed, k, kind, known, found)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("executor", ["fast", "oracle"])
def test_first_seed_on_both_executors(tmp_path: Path, executor: str) -> None:
    check(tmp_path, 1, executor)


@examples(12)
@given(st.integers(2, 10**6))
def test_generated_functions(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    check(tmp_path_factory.mktemp("csl"), seed, "fast")
