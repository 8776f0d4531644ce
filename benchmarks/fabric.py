"""Measures the speed of the fabric executors in process CPU time of one thread.

``python -m benchmarks.fabric [--json] [--only KEY ...] [--keep WHERE]``; a router-cycle is one router simulated for one cycle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks import fabric_memory, fabric_peer, fabric_table, measurements
from benchmarks.fabric_threads import csl_gain, gain, memory_rate
from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program
from wse_sim.hardware import load_wafer

Where = tuple[int | slice, int | slice]


def wafer_config(name: str = "wse2") -> FabricConfig:
    """Return the constants of a wafer."""
    return FabricConfig.from_wafer(load_wafer(name))


def crossing_streams(config: FabricConfig, rows: int, cols: int, words: int) -> Program:
    """Four colors, one per direction, across the region: four moves per router and cycle.

    Sources and sinks of opposite streams are neighbours, so that no core sends and receives: that would share its
    issue slot and halve the rate.
    """
    b = Builder(rows, cols, config)
    x = b.buffer("x", 1)
    inner_rows, inner_cols = slice(2, rows - 2), slice(2, cols - 2)
    streams: tuple[tuple[str, str, Where, Where, Where], ...] = (
        ("E", "W", (inner_rows, 0), (inner_rows, cols - 1), (inner_rows, slice(0, cols))),
        ("W", "E", (inner_rows, cols - 2), (inner_rows, 1), (inner_rows, slice(1, cols - 1))),
        ("S", "N", (0, inner_cols), (rows - 1, inner_cols), (slice(0, rows), inner_cols)),
        ("N", "S", (rows - 2, inner_cols), (1, inner_cols), (slice(1, rows - 1), inner_cols)),
    )
    colors = range(len(streams))
    for color, (out, back, first, last, along) in zip(colors, streams, strict=True):
        b.route(color, along, rx=back, tx=out)
        b.route(color, first, rx="R", tx=out)
        b.route(color, last, rx=back, tx="R")
        k = b.core_class(f"source {color}")
        k.mov(fabric_out(color), x.dsd(0, 1, 0), length=words, start="none")
        b.place(k, first)
        k = b.core_class(f"sink {color}")
        k.mov(x.dsd(0, 1, 0), fabric_in(color), length=words, start="none")
        b.place(k, last)
    return b.build()


def row_streams(config: FabricConfig, rows: int, cols: int, fraction: float, words: int) -> Program:
    """Return the streams of 64 hops to the east on one color until `fraction` of the routers carry one."""
    b = Builder(rows, cols, config)
    x = b.buffer("x", 1)
    length = 64
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(0, 1, 0), length=words, start="none")
    sink.mov(x.dsd(0, 1, 0), fabric_in(0), length=words, start="none")
    n = max(1, round(fraction * rows * cols / length))
    per_row = cols // length
    for i in range(n):
        row, col = (i * 7919) % rows, ((i * 31) % per_row) * length
        b.route(0, (row, slice(col, col + length)), rx="W", tx="E")
        b.route(0, (row, col), rx="R", tx="E")
        b.route(0, (row, col + length - 1), rx="W", tx="R")
        b.place(source, (row, col))
        b.place(sink, (row, col + length - 1))
    return b.build()


def _rate(program: Program, executor: str = "wavelet") -> tuple[float, FabricResult]:
    config = wafer_config()
    run_program(row_streams(config, 4, 64, 1.0, 2), config, executor=executor)  # load the machine code
    result = run_program(program, config, executor=executor, strict=False)
    return result.router_cycles_per_s, result


def _steady_rate(rows: int, cols: int, extra: int, wafer: str = "wse2", executor: str = "wavelet") -> float:
    """Router-cycles per CPU second while all links are busy: two runs, filling and draining cancel."""
    config = wafer_config(wafer)
    fill = max(rows, cols) * config.hop_cycles
    programs = [crossing_streams(config, rows, cols, words) for words in (fill, fill, fill + extra)]
    # the first run loads the machine code and waits for fresh memory, which would not cancel
    _, short, long = (run_program(program, config, executor=executor) for program in programs)
    router_cycles = (long.cycles - short.cycles) * rows * cols
    moves = (long.link_wavelets[:, :, :4].sum() - short.link_wavelets[:, :, :4].sum()) / router_cycles
    print(
        f"  {moves:.3f} moves per router-cycle, cpu {short.cpu_s:.2f} and {long.cpu_s:.2f} s", file=sys.stderr
    )
    return router_cycles / (long.cpu_s - short.cpu_s)


def dense_256() -> float:
    """Router-cycles per CPU second, 256 x 256, 4 moves per router-cycle, fp32 payload."""
    return statistics.median(_steady_rate(256, 256, 3000) for _ in range(3))


def dense_wafer() -> float:
    """The same on the whole wafer of 757 x 996 routers."""
    return _steady_rate(996, 757, 600)


def dense_256_wse3() -> float:
    """As dense_256 on links of two cycles that carry eight words in nine."""
    return statistics.median(_steady_rate(256, 256, 1000, "wse3") for _ in range(3))


def sparse_1pct() -> float:
    """Router-cycles per CPU second of the whole wafer, 1 % of the routers active."""
    return _rate(row_streams(wafer_config(), 996, 757, 0.01, 4000))[0]


def sparse_0p1pct() -> float:
    """The same with 0.1 %."""
    return _rate(row_streams(wafer_config(), 996, 757, 0.001, 20000))[0]


def threads2_dense_wafer() -> float:
    """Rate of dense_wafer with two threads over that with one."""
    config = wafer_config()
    return gain(lambda words: crossing_streams(config, 996, 757, words), (996, 1596), config, 2)


def memory_gb_per_s() -> float:
    """What one core reads and writes of memory."""
    return memory_rate(1)


def memory2_gb_per_s() -> float:
    """What two cores do together."""
    return memory_rate(2)


def threads2_sparse_1pct() -> float:
    """The same for sparse_1pct."""
    config = wafer_config()
    return gain(lambda words: row_streams(config, 996, 757, 0.01, words), (100, 20_100), config, 3)


def threads2_csl_stencil_100() -> float:
    """The same for a stencil in CSL on 100 x 100 cores."""
    return csl_gain("stencil", "run", n=16, steps=5)


def oracle_dense_64() -> float:
    """As dense_256 on 64 x 64 cores with the oracle."""
    return _steady_rate(64, 64, 300, executor="oracle")


def neighbours_32() -> float:
    """Router-cycles per CPU second, every core of 32 x 32 sends and receives 0.4 words a cycle: see fabric_peer."""
    return fabric_peer.measure(32, 3000, 0.4)["router_cycles_per_s"]


_PEAK = (
    "import resource; from benchmarks.fabric import crossing_streams, wafer_config; "
    "from wse_sim.fabric.run import run_program; config = wafer_config(); "
    "run_program(crossing_streams(config, 996, 757, 50), config, executor='wavelet'); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


def wafer_peak_gb() -> float:
    """Largest memory of a process that builds and runs four crossing streams on the whole wafer, values included, GB."""
    out = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True, check=True)
    return float(out.stdout) * 1024 / 1e9


_WARM = (
    "import time; import wse_sim.fabric.run; t = time.process_time(); from benchmarks.fabric import warm_up; warm_up();"
    "print(time.process_time() - t)"
)


def warm_up() -> None:
    """Compile (or load) the code of every executor with a tiny program."""
    config = wafer_config()
    program = row_streams(config, 2, 64, 1.0, 2)
    for executor in ("oracle", "wavelet"):
        run_program(program, config, executor=executor)


def _compile(cached: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        seconds = 0.0
        for _ in range(2 if cached else 1):
            out = subprocess.run(
                [sys.executable, "-c", _WARM],
                env={**os.environ, "NUMBA_CACHE_DIR": folder}, capture_output=True, text=True, check=True,
            )  # fmt: skip
            seconds = float(out.stdout)
    return seconds


def compile_cold_s() -> float:
    """CPU seconds to compile all jitted code into an empty cache."""
    return _compile(cached=False)


def compile_cached_s() -> float:
    """CPU seconds to load it in a fresh process."""
    return _compile(cached=True)


def maxplus_keys() -> dict[str, Callable[[], float]]:
    """Return the keys of the max-plus executor, measured in :mod:`benchmarks.fabric_maxplus`."""
    from benchmarks.fabric_maxplus import KEYS

    return dict(KEYS)


BENCHMARKS: dict[str, Callable[[], float]] = {
    function.__name__: function
    for function in (
        dense_256,
        dense_wafer,
        dense_256_wse3,
        sparse_1pct,
        sparse_0p1pct,
        oracle_dense_64,
        neighbours_32,
        threads2_dense_wafer,
        threads2_sparse_1pct,
        threads2_csl_stencil_100,
        memory_gb_per_s,
        memory2_gb_per_s,
        wafer_peak_gb,
        compile_cold_s,
        compile_cached_s,
    )
} | maxplus_keys()
"""By key of the JSON output; other modules may add theirs."""


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmarks and print them, then the table of executors; values that were not run are those kept last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=sorted(BENCHMARKS), nargs="+", metavar="KEY")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write the values into docs/measured.json, with the machine"
    )
    options = parser.parse_args(arguments)
    results = {}
    for key in options.only or BENCHMARKS:
        start = time.perf_counter()
        results[key] = BENCHMARKS[key]()
        print(f"{key}: {results[key]:.6g} ({time.perf_counter() - start:.1f} s wall)", file=sys.stderr)
    if options.keep:
        measurements.keep("fabric", results, options.keep)
    if not options.only:
        memory = fabric_memory.bytes_by_executor()
        if options.keep:
            measurements.keep("fabric_memory", memory, options.keep)
        table = fabric_table.executors({**measurements.read("fabric")["values"], **results}, memory)
        print("\n".join("\t".join(row) for row in (fabric_table.HEAD, *table)), file=sys.stderr)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
