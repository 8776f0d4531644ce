"""Two threads over one, by the clock: it needs two free cores.

Only the part "cycles" of a run is timed (``FabricResult.timings_s``): what builds the state takes one thread whatever
``threads`` is, and in the first run of a process it waits for fresh memory, which took as long as 300 cycles of a dense wafer.
Filling and draining cancel in the difference of a long and a short run.  Rounds with one and with two threads take turns, and of
each the fastest counts: a disturbed round says nothing about the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import run_program

THREADS = (1, 2)


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
