"""Measures the memory of the fabric executors: bytes that a run allocates for a core and for each of its colors.

``python -m benchmarks.fabric_memory [--json] [--keep WHERE]``.  A color of a core has five router queues and one input queue.
Of the machine of CSL programs: what a session asks for; the operating system gives the pages that are touched.
"""

from __future__ import annotations

import argparse
import json
import tracemalloc

from benchmarks import csl, measurements
from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import run_program
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

SIDE = 128
RUNS = (("oracle", "wse2"), ("wavelet", "wse2"), ("wavelet", "wse3"), ("max-plus", "wse2"))


def streams(config: FabricConfig, side: int, colors: int) -> Program:
    """Every row sends 8 words from its first core to its last, on each color; one buffer of one element per core."""
    b = Builder(side, side, config)
    x = b.buffer("x", 1)
    source, sink = b.core_class("source"), b.core_class("sink")
    everywhere = slice(0, side)
    for color in range(colors):
        source.mov(fabric_out(color), x.dsd(0, 1, 0), length=8, start="none")
        sink.mov(x.dsd(0, 1, 0), fabric_in(color), length=8, start="none")
        b.route(color, (everywhere, everywhere), rx="W", tx="E")
        b.route(color, (everywhere, 0), rx="R", tx="E")
        b.route(color, (everywhere, side - 1), rx="W", tx="R")
    b.place(source, (everywhere, 0))
    b.place(sink, (everywhere, side - 1))
    return b.build()


def peak_bytes(executor: str, wafer: str, colors: int) -> float:
    """Return the peak memory of a run in bytes per core, the program itself not counted."""
    config = FabricConfig.from_wafer(load_wafer(wafer))
    run_program(streams(config, 4, colors), config, executor=executor)  # load the machine code
    program = streams(config, SIDE, colors)
    tracemalloc.start()
    run_program(program, config, executor=executor)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / program.n_cores


def bytes_by_executor() -> dict[str, dict[str, float]]:
    """By executor and wafer: bytes of a core without colors, and of each color, from runs with two and with six."""
    table = {}
    for executor, wafer in RUNS:
        few, many = (peak_bytes(executor, wafer, colors) for colors in (2, 6))
        per_color = (many - few) / 4
        table[f"{executor} {wafer}"] = {
            "bytes_per_core": round(few - 2 * per_color),
            "bytes_per_color": round(per_color),
        }
    table["csl wse2"] = csl_bytes()
    return table


PER_COLOR = (
    "route", "rstate", "filter_row", "filter_count", "q_count", "q_head", "q_word", "q_flag", "q_stamp", "credit", "color_queue",
)  # fmt: skip
"""Arrays of the machine with an entry for every color of a core."""


def csl_bytes() -> dict[str, float]:
    """Return the same for the machine that runs CSL, on the GEMV of the benchmark."""
    program, _ = csl.compiled("gemv", cols=SIDE, rows=SIDE, m=8, n=8)
    session = Session(program.image, load_wafer("wse2"))
    colors = len(session.machine.color_of)
    of_colors = sum(getattr(session.machine, name).nbytes for name in PER_COLOR) / SIDE**2
    rest = session.nbytes_per_core() - of_colors
    return {"bytes_per_core": round(rest), "bytes_per_color": round(of_colors / colors)}


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", metavar="WHERE", help="write the values into docs/measured.json")
    options = parser.parse_args(arguments)
    table = bytes_by_executor()
    if options.keep:
        measurements.keep("fabric_memory", table, options.keep)
    if options.json:
        print(json.dumps(table))
        return
    for name, row in table.items():
        print(f"{name:16} {row['bytes_per_core']:6d} bytes a core {row['bytes_per_color']:6d} more a color")


if __name__ == "__main__":
    main()
