"""Counts the memory traffic of a cycle of the GPU executor, access by access.

``NUMBA_DISABLE_JIT=1 python -m benchmarks.fabric_gpu [--rows N] [--cols N]`` counts; every access counts once, although
caches answer most of them.  The speed is a key of ``python -m benchmarks.fabric`` on a machine with a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import ClassVar, NamedTuple, TypeVar, cast

import numpy as np

from benchmarks import measurements
from benchmarks.fabric import crossing_streams, wafer_config
from wse_sim.errors import WseError
from wse_sim.fabric.executors.base import Options
from wse_sim.fabric.executors.gpu.loop import first_half, second_half
from wse_sim.fabric.executors.gpu.planes import make_state
from wse_sim.fabric.format.lower import lower
from wse_sim.fabric.format.memory import new_memory
from wse_sim.jit import is_interpreted

WAFER = (996, 757)
BYTES_PER_S = 4.8e12  # of the memory of one H200
CYCLES = 20

Group = TypeVar("Group", bound=NamedTuple)


class Counting(np.ndarray):
    """An array that adds the bytes of every access to ``counts[tag]``."""

    counts: ClassVar[Counter[str]] = Counter()
    tag = ""

    def __array_finalize__(self, whole: object) -> None:
        self.tag = getattr(whole, "tag", "")

    def __getitem__(self, place: object) -> object:
        found = super().__getitem__(place)  # type: ignore[index]
        if not isinstance(found, np.ndarray):
            self.counts[self.tag] += self.itemsize
        return found

    def __setitem__(self, place: object, value: object) -> None:
        self.counts[self.tag] += self.itemsize
        super().__setitem__(place, value)  # type: ignore[index]


def counted(group: Group, tag: str) -> Group:
    """Return `group` with arrays that count accesses under `tag`."""
    arrays = []
    for array in group:
        arrays.append(np.array(array).view(Counting))
        arrays[-1].tag = tag
    return cast(Group, type(group)(*arrays))


def traffic(rows: int, cols: int) -> dict[str, float]:
    """Return the bytes of one cycle of four crossing streams once all links are busy, and the rate that they allow on
    the whole wafer.
    """
    config = wafer_config()
    program = crossing_streams(config, rows, cols, 10**6)
    state = make_state(lower(program, config), new_memory(program), Options())
    arguments = (
        counted(state.routes, "routers"), counted(state.planes, "routers"), counted(state.payload, "cores"),
        counted(state.cores, "cores"), counted(state.tally, "routers"), state.marks, state.settings.sets,
    )  # fmt: skip
    start = max(rows, cols) + 40
    for t in range(start + CYCLES):
        if t == start:
            Counting.counts.clear()
        first_half(0, 1, t, *arguments)
        second_half(0, 1, t, *arguments)
    per_word = Counting.counts["routers"] / CYCLES / (rows * -(-cols // 64))
    per_core = Counting.counts["cores"] / CYCLES / len(state.routes.stations)
    stations = 4 * (WAFER[0] - 4) + 4 * (WAFER[1] - 4)
    wafer = per_word * WAFER[0] * -(-WAFER[1] // 64) + per_core * stations
    return {
        "bytes_per_word": per_word,
        "bytes_per_core_at_work": per_core,
        "bytes_per_router_cycle_wafer": wafer / (WAFER[0] * WAFER[1]),
        "wafer_cycles_per_s_at_most": BYTES_PER_S / wafer,
    }


def main() -> None:
    """Count, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--cols", type=int, default=128)
    parser.add_argument("--keep", action="store_true", help="write the values into docs/measured.json")
    options = parser.parse_args()
    if not is_interpreted():
        raise WseError("accesses are counted in plain Python; set NUMBA_DISABLE_JIT=1")
    found = traffic(options.rows, options.cols)
    print(json.dumps(found))
    if options.keep:
        measurements.keep(
            "fabric_gpu", found, f"{options.rows} x {options.cols} routers, counted in plain Python"
        )


if __name__ == "__main__":
    main()
