"""Runs a load that common network simulators run as well: every node sends single words to the node one east and one
south of it.

``python -m benchmarks.fabric_peer [--side 32] [--words 12000] [--load 0.4] [--threads 1] [--json]
                                      [--beside PATH [--keep WHERE]]``

On the mesh, as there, the last column sends to the first one and the last row to the first one; words go east or west first, then north or south.
Every link then carries one stream or none.  A node sends ``load`` words a cycle, at most 0.5: a core
cannot send and receive in one cycle.

BookSim 2 with the file that ``--booksim`` prints runs the same: the same mesh, routes of dimension order, packets of one flit,
the same rate, one virtual channel.  Its rate is its cycles times nodes over its CPU time (``time ./booksim FILE``).
``--beside PATH`` runs that program of yours with the file, and prints both.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import tempfile

import numpy as np

from benchmarks import measurements
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.classes import fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program
from wse_sim.hardware import load_wafer

BOOKSIM = """topology = mesh; k = {side}; n = 2; routing_function = dor;
num_vcs = 1; vc_buf_size = 8; wait_for_tail_credit = 0;
vc_allocator = islip; sw_allocator = islip; alloc_iters = 1;
credit_delay = 1; routing_delay = 0; vc_alloc_delay = 1; sw_alloc_delay = 1;
input_speedup = 1; output_speedup = 1; internal_speedup = 1.0;
traffic = neighbor; packet_size = 1; injection_rate = {load};
sim_type = throughput; sample_period = 500; warmup_periods = 1; max_samples = 3;
"""
INTERIOR, WESTWARD, NORTHWARD, CORNER = 0, 3, 5, 7  # first colors of the streams of a kind


def neighbours(config: FabricConfig, side: int, words: int, load: float) -> Program:
    """Every core of side x side sends `words` words to its neighbour in the south-east, around the edges."""
    b = Builder(side, side, config)
    x = b.buffer("x", 1)
    last = side - 1
    for color in range(3):
        for row in range(side):
            first = (color - row) % 3
            if row < last:  # sources; then the routers where words turn; then sinks
                b.route(INTERIOR + color, (row, slice(first, last, 3)), rx="R", tx="E")
                b.route(INTERIOR + color, (row, slice(first + 1, side, 3)), rx="W", tx="S")
                b.route(INTERIOR + color, (row + 1, slice(first + 1, side, 3)), rx="N", tx="R")
    for row in range(last):
        color = WESTWARD + row % 2
        b.route(color, (row, slice(1, last)), rx="E", tx="W")
        b.route(color, (row, last), rx="R", tx="W")
        b.route(color, (row, 0), rx="E", tx="S")
        b.route(color, (row + 1, 0), rx="N", tx="R")
    for col in range(last):
        color = NORTHWARD + col % 2
        b.route(color, (slice(1, last), col + 1), rx="S", tx="N")
        b.route(color, (last, col), rx="R", tx="E")
        b.route(color, (last, col + 1), rx="W", tx="N")
        b.route(color, (0, col + 1), rx="S", tx="R")
    b.route(CORNER, (last, slice(1, last)), rx="E", tx="W")
    b.route(CORNER, (last, last), rx="R", tx="W")
    b.route(CORNER, (last, 0), rx="E", tx="N")
    b.route(CORNER, (slice(1, last), 0), rx="S", tx="N")
    b.route(CORNER, (0, 0), rx="S", tx="R")
    sent = [[sent_on(row, col, side) for col in range(side)] for row in range(side)]
    kinds = np.array([[(sent[r][c], sent[r - 1][c - 1]) for c in range(side)] for r in range(side)])
    for out, into in np.unique(kinds.reshape(-1, 2), axis=0):
        k = b.core_class(f"sends on {out}, takes from {into}")
        period = round(500 / load)  # sending and receiving take turns in the issue slot
        k.mov(fabric_out(int(out)), x.dsd(0, 1, 0), length=words, start="none", thread=1, period=period)
        k.mov(x.dsd(0, 1, 0), fabric_in(int(into)), length=words, start="none", thread=2)
        for thread in (1, 2):
            k.join(thread)
        b.place(k, (kinds == (out, into)).all(axis=2))
    return b.build()


def sent_on(row: int, col: int, side: int) -> int:
    """Color on which a core sends."""
    last = side - 1
    if row == last:
        return CORNER if col == last else NORTHWARD + col % 2
    return WESTWARD + row % 2 if col == last else INTERIOR + (row + col) % 3


def main(arguments: list[str] | None = None) -> None:
    """Print cycles, words over links and router-cycles a second."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--words", type=int, default=12_000)
    parser.add_argument("--load", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--booksim", action="store_true", help="print the file for BookSim 2, run nothing")
    parser.add_argument(
        "--beside", metavar="PATH", help="a program of BookSim 2 that you built: run it as well"
    )
    parser.add_argument("--keep", metavar="WHERE", help="write the values into docs/measured.json")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    if not (0 < asked.load <= 0.5 and asked.side >= 4):
        parser.error(
            f"--load {asked.load:g} --side {asked.side}: use a load above 0 up to 0.5, a side from 4"
        )
    if asked.booksim:
        print(BOOKSIM.format(side=asked.side, load=asked.load), end="")
        return
    found = measure(asked.side, asked.words, asked.load, asked.threads)
    if asked.beside:
        found |= beside(asked.beside, asked.side, asked.load)
    if asked.keep:
        measurements.keep("fabric_peer", found, asked.keep)
    if asked.json:
        print(json.dumps(found))
        return
    print(", ".join(f"{key} {value:,.4g}" for key, value in found.items()))


def measure(side: int, words: int, load: float, threads: int = 1) -> dict[str, float]:
    """One run after one that loads the machine code."""
    config = FabricConfig.from_wafer(load_wafer("wse2"))

    def run(n: int) -> FabricResult:
        return run_program(neighbours(config, side, n, load), config, executor="wavelet", threads=threads)

    run(10)
    result = run(words)
    moves = float(result.link_wavelets[:, :, :4].sum())
    return {
        "cycles": result.cycles,
        "link_moves_per_router_cycle": moves / (result.cycles * side**2),
        "hops_per_word": moves / (words * side**2),
        "cpu_s": result.cpu_s,
        "router_cycles_per_s": result.router_cycles_per_s,
    }


def beside(program: str, side: int, load: float) -> dict[str, float]:
    """Run BookSim 2 once."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write(BOOKSIM.format(side=side, load=load))
        file.flush()
        done = subprocess.run([program, file.name], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = re.search(r"Time taken is (\d+) cycles", done.stdout)
    if found is None:
        raise SystemExit(f"{program} names no time taken; give a program of BookSim 2")
    cycles = int(found[1])
    return {
        "booksim_cycles": cycles,
        "booksim_cpu_s": cpu_s,
        "booksim_router_cycles_per_s": cycles * side**2 / cpu_s,
    }


if __name__ == "__main__":
    main()
