"""Bands of rows of register cores, one thread each: whatever their number and their rows, every result is that of one thread."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from benchmarks.csl import check_gemv, fill_gemv
from tests.fabric.vm.random_bytecode import RandomProgram
from tests.fabric.vm.test_csl_programs import session_of
from tests.generated import cases, seeds
from wse_sim.errors import ProgramError
from wse_sim.fabric.vm import session as host
from wse_sim.fabric.vm.session import Session

SHAPES = [(2, 2), (3, 3), (5, 1), (5, 2), (6, 2), (7, 1)]
THREADS = (2, 3, 5)


def words_of_the_host(seed: int, s: Session) -> None:
    """Words into cores, and into routers from every side: also where a band ends."""
    rng = random.Random(seed)
    colors = [color for color in range(24) if s.machine.slot_of[color] >= 0]
    for _ in range(rng.randint(0, 6)):
        row, col = rng.randrange(s.image.rows), rng.randrange(s.image.cols)
        s.inject(
            col, row, rng.choice(colors), np.arange(rng.randint(1, 8)), port=rng.choice([None, 0, 1, 2, 3, 4]),
            start_cycle=rng.randint(0, 60), period_milli=rng.choice([1000, 1500, 7000]), control=rng.random() < 0.1,
        )  # fmt: skip


def compare(seed: int, threads: int, *, in_turns: bool) -> str:
    """One random program on one thread and on several; returns how it ended."""
    program = RandomProgram(seed, SHAPES)
    has_colors = bool(program.a.config.any())
    words = functools.partial(words_of_the_host, seed) if has_colors and seed % 2 else None
    options = {"words": words, "pieces": seed % 5}
    one = program.run("fast", **options)
    several = program.run("fast", threads=threads, in_turns=in_turns, **options)
    for name, value in one.items():
        assert several[name] == value, (seed, threads, name)
    return str(one["reason"])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("threads", THREADS)
def test_bands_equal_one_thread(threads: int) -> None:
    """Bands of one row and of several; fewer rows than threads; words of the host, and calls that end in the middle."""
    reasons = {compare(1000 * threads + seed, threads, in_turns=True) for seed in range(cases(50))}
    assert {"asked", "waits"} <= reasons


@pytest.mark.thinned(1)
@pytest.mark.parametrize("threads", THREADS)
def test_threads_equal_one_thread(threads: int) -> None:
    """The same with threads of the system."""
    for seed in seeds(50_000, 12):
        compare(seed, threads, in_turns=False)


@pytest.mark.slow
def test_bands_that_no_one_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts at random rows."""
    for seed in seeds(0, 60):
        rng = np.random.default_rng(seed)

        def uneven(weights: np.ndarray, n: int, rng: np.random.Generator = rng) -> list[int]:
            return sorted(rng.choice(np.arange(1, len(weights)), n - 1, replace=False).tolist())

        monkeypatch.setattr(host, "cut", uneven)
        compare(20_000 + seed, THREADS[seed % 3], in_turns=True)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_compiled_program_on_bands(arch: str) -> None:
    """Vectors travel down the columns, sums along the rows: values of numpy, cycles and counters of one thread."""
    found = []
    for threads in (1, 3, 4):
        s = session_of("gemv", arch, "fast", cols=3, rows=4, m=5, n=3, threads=threads)
        tiles, x = fill_gemv(s, 5, 3)
        s.launch(0, 0, 3, 4, "compute")
        assert s.advance("commands").reason == "asked"
        assert check_gemv(s, tiles, x) < 1e-6
        found.append((s.cycle, {name: values.tolist() for name, values in s.counters().items()}))
    assert found[0] == found[1] == found[2]


def test_less_than_one_thread_is_refused() -> None:
    """One sentence."""
    with pytest.raises(ProgramError, match="threads = 0 is less than 1; use 1 or the number of free"):
        session_of("gemv", "wse2", "fast", cols=3, rows=4, m=5, n=3, threads=0)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(2))
def test_bands_equal_one_thread_on_five_hundred_programs(block: int) -> None:
    """The long run."""
    for seed in seeds(100_000 + 250 * block, 250):
        compare(seed, THREADS[seed % 3], in_turns=True)
