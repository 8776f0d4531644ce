"""Measures programs in CSL on grids of growing size: CPU seconds of every phase, peak memory, and the growth of both.

    python -m benchmarks.csl_size [--only gemv] [--sizes 50x50,100x100,200x200] [--write]
    python -m benchmarks.csl_size --sources DIR --only 25-point     a checkout of Cerebras/csl-examples is in DIR

Prints JSON.  Each run is its own process with one thread: compile (layout, code, image), load (the machine at cycle 0), copy in, execute
(from the launch to the last core's release), copy out.  `growth` is the exponent p of seconds ~ cores^p between the two largest sizes.
With ``--write`` the rows go into ``docs/csl.json``, from which ``benchmarks.pages`` writes the table of ``docs/csl.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.csl import compile_program
from wse_sim.csl.host.arrays import MemcpyDataType, MemcpyOrder
from wse_sim.csl.host.runtime import SdkRuntime
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

OWN = Path(__file__).parent / "csl_programs"
KEPT = Path(__file__).parent.parent / "docs" / "csl.json"
Row = dict[str, Any]
PHASES = ("compile", "load", "in", "execute", "out")


@dataclass(frozen=True)
class Program:
    """A layout, its parameters for (columns, rows), the arrays that are copied (name, items of 32 bits per core), and the call."""

    title: str
    layout: str
    params: dict[str, int | str]
    into: tuple[tuple[str, int], ...]
    call: tuple[str, tuple[int, ...]]
    out: tuple[tuple[str, int], ...]
    public: bool = False


DIMS = {"width": "w", "height": "h"}
PROGRAMS = {
    "gemv": Program(
        "GEMV, tiles of 4 x 4", "gemv_layout.csl", {"cols": "w", "rows": "h", "m": 4, "n": 4}, (("A", 16), ("x", 4)), ("compute", ()), (("y", 4),),
    ),
    "stencil": Program(
        "five-point stencil, 16 values a core, 4 steps", "stencil_layout.csl", {"cols": "w", "rows": "h", "n": 16, "steps": 4}, (("u", 16),),
        ("run", ()), (("u", 16),),
    ),
    "25-point": Program(
        "25-point stencil of the public examples, 10 values a core, 2 steps", "benchmarks/25-pt-stencil/layout.csl",
        {**DIMS, "zDim": 10, "sourceLength": 10, "dx": 20, "srcX": 1, "srcY": 1, "srcZ": 0}, (("vp", 10), ("source", 10)),
        ("f_activate_comp", (2,)), (("maxmin_time", 5),), True,
    ),
}  # fmt: skip


def warm() -> None:
    """Load the machine code, so that no phase pays for it."""
    image = compile_program(
        OWN / "gemv_layout.csl", params={"cols": 2, "rows": 2, "m": 1, "n": 1}, memcpy=True
    ).image
    session = Session(image, load_wafer("wse2"))
    session.launch(0, 0, 2, 2, "compute")
    session.advance("commands")


def one(key: str, cols: int, rows: int, sources: str) -> Row:
    """Return all phases of one program on one grid, in this process."""
    warm()
    program = PROGRAMS[key]
    layout = (Path(sources) if program.public else OWN) / program.layout
    params = {n: {"w": cols, "h": rows}.get(str(v), v) for n, v in program.params.items()}
    seconds: dict[str, float] = {}
    begin = time.process_time()

    def lap(phase: str) -> None:
        nonlocal begin
        now = time.process_time()
        seconds[phase], begin = seconds.get(phase, 0.0) + now - begin, now

    options: Row = {
        "streaming": False,
        "data_type": MemcpyDataType.MEMCPY_32BIT,
        "order": MemcpyOrder.ROW_MAJOR,
        "nonblock": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        image = compile_program(layout, params=params, memcpy=True, out="out").image
        classes = len(image.classes)
        lap("compile")
        runner = SdkRuntime("out")
        runner.load()
        runner.run()
        lap("load")
        for name, n in program.into:
            items = np.random.default_rng(1).standard_normal(cols * rows * n, np.float32)
            runner.memcpy_h2d(runner.get_id(name), items, 0, 0, cols, rows, n, **options)
        lap("in")
        before = runner.session.cycle
        runner.launch(program.call[0], *(np.uint32(a) for a in program.call[1]))
        if runner.session.advance("commands").reason != "asked":
            raise SystemExit(f"{key} on {cols} x {rows} cores does not end")
        cycles = runner.session.cycle - before
        lap("execute")
        for name, n in program.out:
            found = np.zeros(cols * rows * n, np.float32)
            runner.memcpy_d2h(found, runner.get_id(name), 0, 0, cols, rows, n, **options)
        lap("out")
        runner.stop()
        os.chdir("/")
    return {
        "program": program.title, "key": key, "cols": cols, "rows": rows, "classes": classes, "cycles": cycles,
        **{f"{phase}_s": round(seconds[phase], 2) for phase in PHASES},
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
    }  # fmt: skip


def growth(rows: list[Row]) -> dict[str, float]:
    """Exponent of every phase and of the memory between the two largest grids of one program."""
    small, large = sorted(rows, key=lambda r: r["cols"] * r["rows"])[-2:]
    cores = math.log(large["cols"] * large["rows"] / (small["cols"] * small["rows"]))
    found = {}
    for name in (*(f"{phase}_s" for phase in PHASES), "peak_gb"):
        if small[name] > 0 and large[name] > 0 and cores:
            found[name] = round(math.log(large[name] / small[name]) / cores, 2)
    return found


def keep(rows: list[Row]) -> None:
    """Store rows in the data of the page; a grid that was measured before is replaced."""
    data = json.loads(KEPT.read_text())
    new = {(r["key"], r["cols"], r["rows"]): r for r in [*data.get("size", []), *rows]}
    data["size"] = [new[k] for k in sorted(new, key=lambda k: (k[0], k[1] * k[2]))]
    KEPT.write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    """Measure, print JSON."""
    parser = argparse.ArgumentParser(description="Programs in CSL on grids of growing size.")
    parser.add_argument("--only", choices=sorted(PROGRAMS), action="append")
    parser.add_argument("--sizes", default="50x50,100x100,200x200", help="columns x rows, with commas")
    parser.add_argument("--sources", default="", help="folder of the public examples")
    parser.add_argument("--write", action="store_true", help="into docs/csl.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        key, size = arguments.one.split(":")
        print(json.dumps(one(key, *map(int, size.split("x")), arguments.sources)))
        return
    keys = arguments.only or [k for k, p in PROGRAMS.items() if arguments.sources or not p.public]
    found: Row = {}
    for key in keys:
        rows = []
        for size in arguments.sizes.split(","):
            command = [sys.executable, "-m", "benchmarks.csl_size", "--one", f"{key}:{size}"]
            command += ["--sources", str(Path(arguments.sources).resolve())] if arguments.sources else []
            env = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        found[key] = {"rows": rows, "growth": growth(rows) if len(rows) > 1 else {}}
        if arguments.write:
            keep(rows)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
