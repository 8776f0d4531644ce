"""Measures the speed of the max-plus executor in CPU seconds of one process with one thread.

    python -m benchmarks.fabric_maxplus [--only KEY]

Times include everything that ``run_program(executor="max-plus")`` does (following routes, graph, solving, certificate, counters, result) but not
the builder, which has its own key.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from wse_sim.fabric.format.builder import Builder, Param
from wse_sim.fabric.format.classes import fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program
from wse_sim.hardware.wafer import load_wafer

ROWS, COLS = 996, 757


def wafer_config() -> FabricConfig:
    """WSE-2."""
    return FabricConfig.from_wafer(load_wafer("wse2"))


def chain(config: FabricConfig, cores: int, words: int) -> Program:
    """A row adds its vectors towards core 0; two colors alternate."""
    b = Builder(1, cores, config)
    x = b.buffer("x", words)
    for parity in (0, 1):
        k = b.core_class(f"middle {parity}")
        k.add(fabric_out(parity), fabric_in(1 - parity), x.dsd(), start="none")
        here = (0, slice(parity, cores, 2))
        b.place(k, here)
        b.route(parity, here, "R", "W")
        b.route(1 - parity, here, "E", "R")
    root, tail = b.core_class("root"), b.core_class("tail")
    root.add(x.dsd(), fabric_in(1), x.dsd(), start="none")
    b.place(root, (0, 0))
    b.route(0, (0, 0), "E", "R")
    tail.mov(fabric_out((cores - 1) % 2), x.dsd(), start="none")
    b.place(tail, (0, cores - 1))
    return b.build()


def gemv(
    config: FabricConfig, rows: int, cols: int, n: int, m: int, turns: int, *, edge: bool = False
) -> Program:
    """y = A x on tiles of n x m: x down the columns into an FMAC of ceil(n / 4) cycles, then a chain to column 0.

    The vectors are received `turns` times one after the other, pipelined as far as the queues allow.  `edge`: row 0
    only sends x, as a host's input does, so that the next vector arrives while the chain still runs: both meet on the ramps.
    Otherwise row 0 computes as well, which spaces the vectors.
    """
    b = Builder(rows, cols, config)
    a, x, y = b.buffer("a", n * m), b.buffer("x", m), b.buffer("y", n)
    timing: dict[str, Any] = {"b_stride": n, "start": "none", "period": 1000 * -(-n // 4)}
    body, last = slice(1 if edge else 0, rows), (cols - 1) % 2
    for parity in (0, 1):
        here = slice(parity, cols, 2)
        b.route(1 + parity, (body, here), "R", "W")
        b.route(2 - parity, (body, here), "E", "R")
    b.route(1, (body, 0), "E", "R")
    b.route(2, (body, 0), "E", "R")
    b.route(2 - last, (body, cols - 1), "", "")
    b.route(0, None, "N", "RS")
    b.route(0, (rows - 1, slice(None)), "N", "R")
    b.route(0, (0, slice(None)), "R", "S")
    places = {"even": slice(2, cols - 1, 2), "odd": slice(1, cols - 1, 2), "first": 0, "last": cols - 1}
    for top in (True, False):
        for kind, at in places.items():
            k = b.core_class(f"{kind} {'top' if top else 'below'}")
            b.place(k, (0 if top else slice(1, rows), at))
            with k.loop(turns):
                if top:
                    k.mov(fabric_out(0), x.dsd(), start="none")
                    if edge:
                        continue
                    k.fmac_vectors(y.dsd(), x.dsd(), a.dsd(), n, **timing)
                else:
                    k.fmac_vectors(y.dsd(), fabric_in(0), a.dsd(), n, length=m, **timing)
                send = {"even": 1, "odd": 2, "last": 1 + last}.get(kind, 0)
                if kind == "first":
                    k.add(y.dsd(), fabric_in(2), y.dsd(), start="none")
                elif kind == "last":
                    k.mov(fabric_out(send), y.dsd(), start="none")
                else:
                    k.add(fabric_out(send), fabric_in(3 - send), y.dsd(), start="none")
    return b.build()


def summa(config: FabricConfig, size: int, block: int, turns: int) -> Program:
    """C += A B on size x size cores: in step k, column k broadcasts its A along the rows, row k its B down the columns.

    Every step has its own two colors (2 size <= 24), so that no switch turns.
    """
    b = Builder(size, size, config)
    words = block * block
    a, v, c = b.buffer("a", words), b.buffer("b", words), b.buffer("c", words)
    ra, rb = b.buffer("ra", words), b.buffer("rb", words)
    for k in range(size):
        for color, axis in ((2 * k, 1), (2 * k + 1, 0)):
            back, forth = ("W", "E") if axis else ("N", "S")
            for i in range(size):
                here = (slice(None), i) if axis else (i, slice(None))
                low, high = i > 0, i < size - 1
                if i == k:
                    rx, tx = "R", (back if low else "") + (forth if high else "")
                else:
                    after = i > k
                    onward = (high and forth) if after else (low and back)
                    rx, tx = (back if after else forth), "R" + (onward or "")
                b.route(color, here, rx, tx)
    for row in range(size):
        for col in range(size):
            core = b.core_class(f"{row} {col}")
            with core.loop(turns):
                for k in range(size):
                    if col == k:
                        core.mov(fabric_out(2 * k), a.dsd(), start="none")
                    else:
                        core.mov(ra.dsd(), fabric_in(2 * k), start="none")
                    if row == k:
                        core.mov(fabric_out(2 * k + 1), v.dsd(), start="none")
                    else:
                        core.mov(rb.dsd(), fabric_in(2 * k + 1), start="none")
                    with core.loop(block):
                        left, right = (a if col == k else ra), (v if row == k else rb)
                        core.fmac_vectors(
                            c.dsd(), left.dsd(0, block), right.dsd(0, block), block, start="none"
                        )
            b.place(core, (row, col))
    return b.build()


def halo(config: FabricConfig, rows: int, cols: int, words: int, work: int | Param, turns: int) -> Program:
    """Exchange with four neighbours in four phases (receive or send east, west, south, north), then `work` cycles."""
    b = Builder(rows, cols, config)
    x = b.buffer("x", 8 * words)
    row, col = np.divmod(np.arange(rows * cols).reshape(rows, cols), cols)
    moves = (("E", "W", 0, 1), ("W", "E", 0, -1), ("S", "N", 1, 0), ("N", "S", -1, 0))
    has = [
        (row + dr >= 0) & (row + dr < rows) & (col + dc >= 0) & (col + dc < cols) for _, _, dr, dc in moves
    ]
    kind = (row + col) % 2
    for d, (out, back, _, _) in enumerate(moves):
        for parity in (0, 1):
            b.route_mask(2 * d + parity, has[d] & (kind == parity), "R", out)
            b.route_mask(2 * d + parity, has[d ^ 1] & (kind != parity), back, "R")
    code = kind.copy()
    for d in range(4):
        code |= has[d] << (d + 1)
    for value in np.unique(code):
        k = b.core_class(f"halo {value}")
        parity = int(value) & 1
        with k.loop(turns):
            k.busy(work)
            for d in range(4):
                if (value >> (d + 1)) & 1:
                    k.mov(fabric_out(2 * d + parity), x.dsd(0, words), start="none")
                if (value >> ((d ^ 1) + 1)) & 1:
                    k.mov(x.dsd(words * (d + 1), words), fabric_in(2 * d + 1 - parity), start="none")
        b.place(k, code == value)
    return b.build()


def cpu_seconds(run: Callable[[], FabricResult], repeat: int = 1) -> tuple[float, FabricResult]:
    """Least CPU time of some runs, and the last result."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return best, result


def solved(program: Program, config: FabricConfig, repeat: int = 1) -> tuple[float, FabricResult]:
    """Timing-only run."""
    return cpu_seconds(lambda: run_program(program, config, executor="max-plus", functional=False), repeat)


def maxplus_ns_per_word() -> float:
    """Return the nanoseconds per word and queue actor (ring, router, read): a chain of 256 cores, 1,024 words."""
    config = wafer_config()
    cores, words = 256, 1024
    program = chain(config, cores, words)
    solved(program, config)
    seconds, _ = solved(program, config, 5)
    return 1e9 * seconds / (3 * (cores - 1) * words)


def maxplus_speedup_summa() -> float:
    """Ratio to the stepped active list on SUMMA 12 x 12, b = 8, 20 turns."""
    config = wafer_config()
    program = summa(config, 12, 8, 20)
    solved(program, config)
    seconds, result = solved(program, config, 3)
    other, reference = cpu_seconds(lambda: run_program(program, config, functional=False))
    if result.cycles != reference.cycles:
        raise RuntimeError(f"max-plus {result.cycles} cycles, stepped {reference.cycles}")
    return other / seconds


def gemv_wafer_s() -> float:
    """One-shot GEMV, n = m = 8, on the whole wafer; the better of two runs (the first one maps fresh memory)."""
    config = wafer_config()
    solved(gemv(config, 4, 6, 8, 8, 1), config)
    return solved(gemv(config, ROWS, COLS, 8, 8, 1), config, 2)[0]


def gemv_x20_wafer_s() -> float:
    """20 vectors pipelined from the edge: contention on the ramp of every core; most rows are copies of a proved one."""
    config = wafer_config()
    solved(gemv(config, 24, 6, 8, 8, 20, edge=True), config)
    seconds, result = solved(gemv(config, ROWS, COLS, 8, 8, 20, edge=True), config)
    if result.certificate.clean:
        raise RuntimeError("the pipelined GEMV was meant to contend")
    return seconds


def gemv_x20_values_wafer_s() -> float:
    """The same with values in every core: times from the copies, values from all cores without a clock."""
    config = wafer_config()
    run_program(gemv(config, 24, 6, 8, 8, 20, edge=True), config, executor="max-plus")
    program = gemv(config, ROWS, COLS, 8, 8, 20, edge=True)
    return cpu_seconds(lambda: run_program(program, config, executor="max-plus"))[0]


def gemv_x20_clean_wafer_s() -> float:
    """The same with a top row that computes as well: no two words meet."""
    config = wafer_config()
    solved(gemv(config, 24, 6, 8, 8, 20), config)
    return solved(gemv(config, ROWS, COLS, 8, 8, 20), config)[0]


def periodic_wafer_s() -> float:
    """Return a halo exchange of about 10^6 cycles on the whole wafer."""
    config = wafer_config()
    solved(halo(config, 6, 6, 4, 1000, 20), config)
    return solved(halo(config, ROWS, COLS, 4, 1000, 980), config)[0]


KEYS: dict[str, Callable[[], float]] = {
    "maxplus_ns_per_word": maxplus_ns_per_word,
    "maxplus_speedup_summa": maxplus_speedup_summa,
    "gemv_wafer_s": gemv_wafer_s,
    "periodic_wafer_s": periodic_wafer_s,
    "gemv_x20_wafer_s": gemv_x20_wafer_s,
    "gemv_x20_values_wafer_s": gemv_x20_values_wafer_s,
    "gemv_x20_clean_wafer_s": gemv_x20_clean_wafer_s,
}


def main() -> None:
    """Print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(KEYS))
    chosen = parser.parse_args().only
    print(json.dumps({key: round(fn(), 4) for key, fn in KEYS.items() if chosen in (None, key)}, indent=2))


if __name__ == "__main__":
    main()
