"""Measures the speed-up of two threads over one by the clock, which needs two free cores.

Only the part "cycles" of a run is timed (``FabricResult.timings_s``): what builds the state takes one thread whatever
``threads`` is, and in the first run of a process it waits for fresh memory, which took as long as 300 cycles of a dense wafer.
Filling and draining cancel in the difference of a long and a short run.  Rounds with one and with two threads take turns, and of
each the fastest counts: a disturbed round says nothing about the program.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from benchmarks import csl
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import run_program
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

THREADS = (1, 2)
SWEEPS = 20


def seconds_a_cycle(
    short: Program, long: Program, config: FabricConfig, rounds: int
) -> tuple[dict[int, float], int]:
    """Least seconds of a steady cycle by number of threads, and cores."""
    best = dict.fromkeys(THREADS, float("inf"))
    for threads in THREADS:  # machine code and memory
        run_program(short, config, executor="wavelet", threads=threads)
    for _ in range(rounds):
        for threads in THREADS:
            few, many = (
                run_program(program, config, executor="wavelet", threads=threads) for program in (short, long)
            )
            seconds = many.timings_s["cycles"] - few.timings_s["cycles"]
            best[threads] = min(best[threads], seconds / (many.cycles - few.cycles))
    return best, short.n_cores


def gain(of: Callable[[int], Program], words: tuple[int, int], config: FabricConfig, rounds: int) -> float:
    """Rate with two threads over rate with one, of a program with few and with many words."""
    seconds, cores = seconds_a_cycle(of(words[0]), of(words[1]), config, rounds)
    rates = {threads: cores / one for threads, one in seconds.items()}
    print(
        "  " + ", ".join(f"{n} threads {1e6 * seconds[n]:.1f} us a cycle, {rates[n]:.3g} router-cycles/s" for n in THREADS),
        file=sys.stderr,
    )  # fmt: skip
    return rates[2] / rates[1]


def memory_rate(threads: int, rounds: int = 5) -> float:
    """Return the GB/s that this number of threads read and write together in 64 MiB, each in its own part; the best of
    some rounds.
    """
    words = np.zeros(1 << 23, np.uint64)
    parts = np.split(words, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            begin = time.perf_counter()
            for done in [pool.submit(_sweep, part) for part in parts]:
                done.result()
            best = min(best, time.perf_counter() - begin)
    return 2 * SWEEPS * words.nbytes / best / 1e9


def _sweep(part: npt.NDArray[np.uint64]) -> None:
    for _ in range(SWEEPS):
        np.bitwise_xor(part, np.uint64(1), out=part)


def csl_gain(name: str, function: str, rounds: int = 3, **params: int) -> float:
    """The same for a program in CSL on 100 x 100 cores, calls whole."""
    program, _ = csl.compiled(name, cols=100, rows=100, **params)
    best = dict.fromkeys(THREADS, float("inf"))
    for _ in range(rounds + 1):  # the first round loads machine code
        for threads in THREADS:
            session = Session(program.image, load_wafer("wse2"), threads=threads)
            session.launch(0, 0, 100, 100, function)
            begin = time.perf_counter()
            session.advance("commands")
            best[threads] = min(best[threads], time.perf_counter() - begin)
    print("  " + ", ".join(f"{n} threads {best[n]:.4f} s" for n in THREADS), file=sys.stderr)
    return best[1] / best[2]
