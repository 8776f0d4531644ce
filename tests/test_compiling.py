"""The time of compiling machine code is reported once, and no run counts it as its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wse_sim import compile_time
from wse_sim.fabric.executors.parts import Parts

WORDS = ["kernel", "reduce", "--param", "cores=8", "--param", "words=16", "--timing", "fabric"]
DOOR = "import sys; sys.argv[0] = 'wse-sim'; from wse_sim.door import main; main()"


def test_time_of_the_compiler_is_no_part_of_a_run(monkeypatch: pytest.MonkeyPatch):
    """With an hour of compiling in the middle the part is shorter by that hour, so it is negative here."""
    monkeypatch.setattr(compile_time, "so_far", compile_time.Compiling())
    parts = Parts()
    compile_time.so_far.wall_s += 3600.0
    parts.done("all")
    assert -3600.0 <= parts.seconds["all"] < -3500.0


def test_numba_tells_what_it_compiles():
    """A new function adds CPU and wall seconds at its first call, and nothing at the second."""
    from wse_sim.jit import numba

    @numba.njit
    def fresh(n: int) -> int:
        return n * n + 1

    before = compile_time.so_far.cpu_s
    assert fresh(3) == 10
    after = compile_time.so_far.cpu_s
    assert fresh(4) == 17
    if not numba.config.DISABLE_JIT:
        assert after > before
        assert compile_time.so_far.cpu_s == after


@pytest.mark.slow
def test_a_command_says_once_that_it_compiles(tmp_path: Path):
    """With an empty cache there is one note, with a full one none."""

    def notes() -> int:
        out = subprocess.run(
            [sys.executable, "-c", DOOR, *WORDS],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return out.stderr.count("compiling machine code")

    assert [notes(), notes()] == [1, 0]


def test_the_module_that_counts_loads_nothing():
    """The command line's entry module imports it before anything else."""
    code = "import sys, wse_sim.compile_time; print([m for m in ('numba', 'numpy', 'torch') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
