"""Measures the speed of CSL programs on the simulated fabric, in process CPU time of one thread.

``python -m benchmarks.csl [--json] [--only KEY] [--cold]``.  The programs are those of ``benchmarks/csl_programs``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measurements
from wse_sim.csl import compile_program
from wse_sim.csl.compiler import CompiledProgram
from wse_sim.csl.debug.debugger import Debugger
from wse_sim.fabric.vm.replay import ReplaySession
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

PROGRAMS = Path(__file__).parent / "csl_programs"
GRIDS = (4, 32, 100)
WAFER = (750, 994)
DEBUGGED_STEPS = 20


def compiled(name: str, **params: int) -> tuple[CompiledProgram, float]:
    """Return a program of the folder, and the CPU seconds of its compilation."""
    begin = time.process_time()
    program = compile_program(PROGRAMS / f"{name}_layout.csl", memcpy=True, params=params)
    return program, time.process_time() - begin


def address(session: Session, name: str) -> int:
    """Word address of an exported array; the same in every class of these programs."""
    found = {symbol.address for cls in session.image.classes for symbol in cls.symbols if symbol.name == name}
    (pointer,) = found
    return int(session.peek(0, 0, pointer, 1)[0])


def timed(session: Session, function: str) -> tuple[float, int]:
    """CPU seconds and cycles of one call on all cores."""
    rows, cols = session.image.rows, session.image.cols
    before = session.cycle
    session.launch(0, 0, cols, rows, function)
    begin = time.process_time()
    outcome = session.advance("commands")
    if outcome.reason != "asked":
        raise SystemExit(f"the program stopped: {outcome} {[str(w) for w in session.status()[:4]]}")
    return time.process_time() - begin, session.cycle - before


def fill_gemv(session: Session, m: int, n: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Random tiles and vectors into all cores; returns them as (rows, cols, n, m) and (rows, cols, n)."""
    rng = np.random.default_rng(seed)
    rows, cols = session.image.rows, session.image.cols
    tiles = rng.standard_normal((rows, cols, n, m), np.float32)
    x = rng.standard_normal((rows, cols, n), np.float32)
    session.poke_region(
        0, 0, cols, rows, address(session, "A"), tiles.reshape(rows, cols, -1).view(np.uint16)
    )
    session.poke_region(0, 0, cols, rows, address(session, "x"), x.view(np.uint16))
    return tiles, x


def check_gemv(session: Session, tiles: np.ndarray, x: np.ndarray) -> float:
    """Largest relative error of the sums in the last column."""
    m = tiles.shape[3]
    cols, rows = session.image.cols, session.image.rows
    got = session.peek_region(cols - 1, 0, 1, rows, address(session, "y"), 2 * m).view(np.float32)[:, 0]
    want = np.einsum("rcnm,rcn->rm", tiles.astype(np.float64), x.astype(np.float64))
    return float(np.abs(got - want).max() / np.abs(want).max())


def scalar_speed() -> dict[str, Any]:
    """Return the opcodes per second of scalar code on one core."""
    program, _ = compiled("loop", n=64, turns=400)
    session = Session(program.image, load_wafer("wse2"))
    seconds, cycles = timed(session, "compute")
    opcodes = int(session.counters()["opcodes"][0, 0])
    return {
        "opcodes": opcodes,
        "opcodes_per_s": opcodes / seconds,
        "cycles": cycles,
        "cycles_per_s": cycles / seconds,
    }


def grid_speed(name: str, size: int, **params: int) -> dict[str, Any]:
    """Cycles and core-cycles per second on a square grid, values checked for the GEMV."""
    program, compile_s = compiled(name, cols=size, rows=size, **params)
    session = Session(program.image, load_wafer("wse2"))
    found: dict[str, Any] = {"classes": len(program.image.classes), "compile_s": compile_s}
    if name == "gemv":
        tiles, x = fill_gemv(session, params["m"], params["n"])
    seconds, cycles = timed(session, "compute" if name == "gemv" else "run")
    if name == "gemv":
        found["relative_error"] = check_gemv(session, tiles, x)
    busy = int(session.counters()["busy"].sum())
    return {
        **found,
        "cycles": cycles,
        "seconds": seconds,
        "cycles_per_s": cycles / seconds,
        "busy_core_cycles_per_s": busy / seconds,
    }


def wafer_speed(m: int = 4, n: int = 4) -> dict[str, Any]:
    """Return the GEMV on the largest program rectangle, with values; resident bytes per core."""
    cols, rows = WAFER
    program, compile_s = compiled("gemv", cols=cols, rows=rows, m=m, n=n)
    before = resident_bytes()
    session = Session(program.image, load_wafer("wse2"))
    tiles, x = fill_gemv(session, m, n)
    seconds, cycles = timed(session, "compute")
    after = resident_bytes() - tiles.nbytes - x.nbytes
    return {
        "cores": cols * rows, "compile_s": compile_s, "cycles": cycles, "seconds": seconds, "cycles_per_s": cycles / seconds,
        "relative_error": check_gemv(session, tiles, x), "resident_bytes_per_core": (after - before) / (cols * rows),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def debugged(
    program: CompiledProgram, name: str, points: Callable[[Debugger], object] | None
) -> tuple[float, int]:
    """Return CPU seconds and cycles of a call in a debugger that has these points and continues wherever it stops."""
    session = ReplaySession(program.image, load_wafer("wse2"))
    debugger = Debugger(lambda debugger, _: debugger.resume())
    debugger.attach(session, program.image)
    if points is not None:
        points(debugger)
    return timed(session, name)


def debugger_cost(rounds: int = 2) -> dict[str, object]:
    """Return the cycles per CPU second of a stencil on 16 x 16 cores alone and in a debugger, the best of some rounds
    in turns.

    ``break_point`` and ``watch_point`` are never reached or written; ``reached`` and ``written`` are once in every step of one core,
    with a condition that does not hold.
    """
    program, _ = compiled("stencil", cols=16, rows=16, n=16, steps=DEBUGGED_STEPS)
    source = (PROGRAMS / "stencil.csl").read_text(encoding="utf-8").splitlines()
    rare, often = (source.index(text) + 1 for text in ("    sys.unblock_cmd_stream();", "  step += 1;"))
    never = "step > 60000"
    kinds: dict[str, Callable[[], tuple[float, int]]] = {
        "alone": lambda: timed(Session(program.image, load_wafer("wse2")), "run"),
        "attached": lambda: debugged(program, "run", None),
        "break_point": lambda: debugged(
            program, "run", lambda d: d.break_at("stencil.csl", rare, (0,), never)
        ),
        "watch_point": lambda: debugged(program, "run", lambda d: d.watch_variable("u_ptr", 0, never)),
        "reached": lambda: debugged(program, "run", lambda d: d.break_at("stencil.csl", often, (0,), never)),
        "written": lambda: debugged(program, "run", lambda d: d.watch_variable("step", 0, never)),
    }
    rates: dict[str, float] = {}
    cycles = set()
    for _ in range(rounds):
        for kind, run in kinds.items():
            seconds, took = run()
            cycles.add(took)
            rates[kind] = max(rates.get(kind, 0.0), took / seconds)
    (same,) = cycles  # a debugger changes no cycle
    times = {f"{kind}_times": rates["alone"] / rate for kind, rate in rates.items() if kind != "alone"}
    return {"cycles": same, "cycles_per_s": rates["alone"], **times}


def start_up() -> dict[str, float]:
    """Return the CPU seconds until the first result in a fresh process: with machine code compiled, and taken from the
    cache.
    """
    script = "from benchmarks.csl import scalar_speed; scalar_speed()"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for label in ("cold_s", "cached_s"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-c", script], check=True, env={**os.environ, "NUMBA_CACHE_DIR": folder}
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found[label] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


def measure(only: str | None, cold: bool) -> dict[str, Any]:
    """Return all results by key; the machine code is loaded before the first."""
    program, _ = compiled("loop", n=2, turns=1)
    timed(Session(program.image, load_wafer("wse2")), "compute")
    jobs: dict[str, Any] = {"scalar": scalar_speed}
    for size in GRIDS:
        jobs[f"gemv_{size}"] = lambda size=size: grid_speed("gemv", size, m=8, n=8)
        jobs[f"stencil_{size}"] = lambda size=size: grid_speed("stencil", size, n=16, steps=20)
    jobs["gemv_wafer"] = wafer_speed
    jobs["debugger"] = debugger_cost
    if cold:
        jobs["start"] = start_up
    return {key: job() for key, job in jobs.items() if only is None or key.startswith(only)}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description="Speed of CSL programs on the simulated fabric.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="keys that begin with this")
    parser.add_argument("--cold", action="store_true", help="also compile the machine code afresh")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write the values into docs/measured.json, with the machine"
    )
    arguments = parser.parse_args()
    results = measure(arguments.only, arguments.cold)
    if arguments.keep:
        speeds = {key: row for key, row in results.items() if key != "debugger"}
        for name, values in (("csl_speed", speeds), ("csl_debugger", results.get("debugger"))):
            if values:
                measurements.keep(name, values, arguments.keep)
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    for key, row in results.items():
        print(key + ": " + ", ".join(f"{name} {value:,.6g}" for name, value in row.items()))


if __name__ == "__main__":
    main()
