"""Measures programs in CSL whose course does not depend on data: which cases qualify, why others do not, and the
speed-up of their cycles.

    python -m benchmarks.csl_static [--sizes 100x100] [--write]           speed of the project's own programs
    python -m benchmarks.csl_static --sources DIR [--only NAME] [--write] every command file of a checkout of Cerebras/csl-examples in DIR

Prints JSON.  Seconds are CPU time of one thread.  With ``--write`` the rows go into ``docs/csl.json``, from which ``benchmarks.pages`` writes
the tables of ``docs/csl.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.csl_size import KEPT, OWN, PROGRAMS, warm
from wse_sim.csl import compile_program
from wse_sim.csl.host.commands import check_case, find_cases
from wse_sim.csl.host.launches import STATIC_VARIABLE, Found, read_found
from wse_sim.csl.static.fold import fold
from wse_sim.csl.static.launches import Launch, StaticTimes
from wse_sim.csl.static.schedule import Call
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

Row = dict[str, Any]
ARCHES = ("wse2", "wse3")
LARGEST_MACHINE = 50_000
"""Cores up to which the machine runs beside."""


def case_row(name: str, arch: str, file: Path, timeout_s: float) -> Row:
    """Return the findings for one command file: launches, how many are lowered and agree with the machine, and what may
    decide the course.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "launches.jsonl"
        os.environ[STATIC_VARIABLE] = str(kept)
        case = check_case(name, arch, file, timeout_s)
        found = read_found(kept)
    lowered = [launch for launch in found.launches if launch.cycles is not None]
    return {
        "case": name, "arch": arch, "passed": case.passed, "runs": len(found.courses), "launches": len(found.launches), "lowered": len(lowered),
        "equal": sum(launch.cycles == launch.machine_cycles for launch in lowered), "decides": decides(found), "refused": refused(found.launches),
    }  # fmt: skip


def decides(found: Found) -> str:
    """Return the first reason why data may decide the course of a run; "" if none may."""
    return next((v.reason for course in found.courses for v in course if v.reason), "")


def refused(launches: list[Launch]) -> str:
    """Return why the first launch that is not lowered is not."""
    return next((launch.reason for launch in launches if launch.cycles is None), "")


def speed_row(key: str, cols: int, rows: int, sources: str) -> Row:
    """Measure one program on one grid: cycles and CPU seconds on the machine (small grids), and without values."""
    program, wafer = PROGRAMS[key], load_wafer("wse2")
    layout = (Path(sources) if program.public else OWN) / program.layout
    params = {n: {"w": cols, "h": rows}.get(str(v), v) for n, v in program.params.items()}
    image = compile_program(layout, params=params, memcpy=True).image
    row: Row = {"program": program.title, "key": key, "cols": cols, "rows": rows, "how": "", "cycles": None}
    name, arguments = program.call
    begin = time.process_time()
    launch = StaticTimes(image, wafer).launch(name, arguments)
    if launch.cycles is not None:
        row |= {"cycles": launch.cycles, "how": f"max-plus, {launch.how}"}
    else:
        folded = fold(image, wafer, [Call(name, arguments)])
        if not folded.reason:
            row |= {"cycles": folded.cycles[0], "how": f"{folded.cols} x {folded.rows} cores run"}
        row["reason"] = folded.reason
    row["static_s"] = round(time.process_time() - begin, 2)
    if cols * rows <= LARGEST_MACHINE:
        session = Session(image, wafer)
        session.advance("cycle", cycles=1000)
        start = session.cycle
        session.launch(0, 0, cols, rows, name, arguments, row_cycles=wafer.launch_row_cycles)
        begin = time.process_time()
        if session.advance("commands").reason != "asked":
            raise SystemExit(f"{key} on {cols} x {rows} cores does not end")
        row |= {
            "machine_s": round(time.process_time() - begin, 2),
            "machine_cycles": session.cycle - start - 1,
        }
    return row


def warm_up() -> None:
    """Load the machine code of both ways."""
    warm()
    image = compile_program(
        OWN / "stencil_layout.csl", params={"cols": 40, "rows": 40, "n": 2, "steps": 1}, memcpy=True
    ).image
    StaticTimes(image, load_wafer("wse2")).launch("run")
    fold(image, load_wafer("wse2"), [Call("run")])


def keep(name: str, rows: list[Row], keys: tuple[str, ...]) -> None:
    """Store rows in the data of the page; one that was measured before is replaced."""
    data = json.loads(KEPT.read_text())
    new = {tuple(row[key] for key in keys): row for row in [*data.get(name, []), *rows]}
    data[name] = [new[key] for key in sorted(new)]
    KEPT.write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    """Measure, print JSON."""
    parser = argparse.ArgumentParser(description="Programs in CSL whose course no data decide.")
    parser.add_argument("--sources", default="", help="folder of the public examples")
    parser.add_argument("--cases", action="store_true", help="every command file of the sources")
    parser.add_argument("--only", default=None, help="cases or programs whose name holds this text")
    parser.add_argument("--arch", choices=ARCHES, default=None)
    parser.add_argument("--sizes", default="100x100", help="columns x rows, with commas")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one case")
    parser.add_argument("--write", action="store_true", help="into docs/csl.json")
    arguments = parser.parse_args()
    found = []
    if arguments.cases:
        for name, arch, file in find_cases(Path(arguments.sources), arguments.arch, arguments.only):
            found.append(case_row(name, arch, file, arguments.timeout))
            print(json.dumps(found[-1]), flush=True)
        if arguments.write:
            keep("static", found, ("case", "arch"))
        return
    warm_up()
    for key, program in PROGRAMS.items():
        if (program.public and not arguments.sources) or (arguments.only and arguments.only not in key):
            continue
        for size in arguments.sizes.split(","):
            cols, rows = map(int, size.split("x"))
            found.append(speed_row(key, cols, rows, arguments.sources))
            print(json.dumps(found[-1]), flush=True)
    if arguments.write:
        keep("static_speed", found, ("key", "cols", "rows"))


if __name__ == "__main__":
    main()
