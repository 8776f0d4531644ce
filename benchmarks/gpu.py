"""Measures speed and agreement of the fabric executors on a machine with a GPU, by the clock.

``python -m benchmarks.gpu [--programs N] [--keep WHERE]`` steps the dense and the sparse load of :mod:`benchmarks.fabric` on the
whole wafer: on the GPU, and with the wavelet executor on one and on all processor cores of the same machine.  Then it runs N
random programs and every kernel of the library (default size) on the GPU and on the oracle, and counts those that differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks import measurements
from benchmarks.fabric import crossing_streams, row_streams, wafer_config
from tests.fabric.agreement import FIELDS
from tests.fabric.executors.test_differential import CONFIG
from tests.fabric.executors.test_threads import compare
from wse_sim.bench.command import find, kernel_commands
from wse_sim.errors import WseError
from wse_sim.fabric.executors.gpu.device import what_is_missing
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer
from wse_sim.kernels import load_families

WAFER = (996, 757)
SHORT = 1000
FIRST_SEED = 300_000


def cycles_per_s(program_of: Callable[[int], Program], words: int, executor: str, threads: int = 1) -> float:
    """Wafer cycles per second while words flow: a run of `words` less one of SHORT words, filling cancels."""
    config = wafer_config()
    _, short, long = (  # the first run compiles
        run_program(program_of(n), config, executor=executor, threads=threads, strict=False)
        for n in (10, SHORT, words)
    )
    return (long.cycles - short.cycles) / (long.timings_s["cycles"] - short.timings_s["cycles"])


def _dense(words: int) -> Program:
    return crossing_streams(wafer_config(), *WAFER, words)


def _sparse(words: int) -> Program:
    return row_streams(wafer_config(), *WAFER, 0.01, words)


def differing_programs(number: int) -> list[int]:
    """Return the seeds of random programs whose counters, values, faults or deadlocks differ from those of the oracle."""
    differ = []
    for seed in range(FIRST_SEED, FIRST_SEED + number):
        try:
            compare(seed, CONFIG, "gpu", 1)
        except AssertionError:
            differ.append(seed)
    return differ


def differing_kernels() -> tuple[int, dict[str, list[str]]]:
    """Return the number of kernels of the library that ran, and the counters or final memories that differ from those
    of the oracle.
    """
    differ: dict[str, list[str]] = {}
    names = tuple(dict.fromkeys((*kernel_commands(), *load_families())))
    for kernel in names:
        command = find(kernel)
        case = command.build(command.read({}), load_wafer("wse2"))
        try:
            expected, found = (
                run_program(case.program, case.config, executor=one, inputs=case.inputs)
                for one in ("oracle", "gpu")
            )
        except WseError as fault:
            differ[kernel] = [str(fault)]
            continue
        fields = [f for f in FIELDS if not np.array_equal(getattr(expected, f), getattr(found, f))]
        fields += [
            f"values of {name}" for name in case.program.buffers
            if not np.allclose(expected.read(name), found.read(name), rtol=2e-7, atol=0, equal_nan=True)
        ]  # fmt: skip
        if fields:
            differ[kernel] = fields
    return len(names), differ


def main(arguments: list[str] | None = None) -> None:
    """Measure, print as JSON, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--keep", metavar="WHERE", help="write the values into docs/measured.json")
    options = parser.parse_args(arguments)
    missing = what_is_missing()
    if missing:
        sys.exit(f"nothing to measure: {missing}")
    cores = os.cpu_count() or 1
    runs: dict[str, Callable[[], float]] = {
        "dense_gpu": lambda: cycles_per_s(_dense, 21_000, "gpu"),
        "sparse_gpu": lambda: cycles_per_s(_sparse, 21_000, "gpu"),
        "dense_1_core": lambda: cycles_per_s(_dense, 1_600, "wavelet"),
        "dense_all_cores": lambda: cycles_per_s(_dense, 5_000, "wavelet", cores),
        "sparse_1_core": lambda: cycles_per_s(_sparse, 21_000, "wavelet"),
        "sparse_all_cores": lambda: cycles_per_s(_sparse, 101_000, "wavelet", cores),
    }
    values: dict[str, object] = {"cores": cores}
    for name, run in runs.items():
        values[name] = sorted(run() for _ in range(3))[1]
        print(f"{name}: {values[name]:.4g} wafer cycles/s", file=sys.stderr)
    start = time.perf_counter()
    values["programs"], values["differ"] = options.programs, len(differing_programs(options.programs))
    values["kernels"], of_kernels = differing_kernels()
    values["kernels_differ"] = of_kernels
    print(f"agreement: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    if options.keep:
        measurements.keep("gpu", values, options.keep)
    print(json.dumps(values))


if __name__ == "__main__":
    main()
