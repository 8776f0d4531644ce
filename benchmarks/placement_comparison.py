"""Compares placers, links and colors, and dead cores. ``python -m benchmarks.placement_comparison [PART ...] [--keep WHERE]``

placers      GPT-2 small with three placers of the default machine (training, sequence 1024, batch 112), within ``--time-limit`` in all
links        What the busiest link carries over what it can at the pace of the slowest stage, and the colors taken, with
             the densest stacks of the shelves only, and with the choice among all stacks that the compiler makes
dead_cores   Cycles of the slowest stage over those of the whole wafer: cores dead at random (one draw), ``shelves``
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from unittest import mock

import numpy as np

from benchmarks import measurements
from benchmarks.measurements import Row
from wse_sim import api
from wse_sim.compiler import shelves
from wse_sim.compiler.coloring import colors_for_streams
from wse_sim.compiler.plan import Infeasible
from wse_sim.frontend import load_model
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.modes import simulate
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.placement_comparison import score
from wse_sim.modes.pipelined.plan import PipelinedPlan

PLACERS = ("shelves", "peel", "portfolio")
CROWDED = (
    ("ResNet-50", "resnet50", True),
    ("ViT-Base", "vit-base", True),
    ("DiT-XL/2", "dit-xl2", True),
    ("DiT-XL/2, inference", "dit-xl2", False),
    ("BERT-base", "bert-base", True),
)
"""Models whose links or colors once bound: name in the page, name of the model, training."""
DEAD = (5, 10, 20, 40, 100)
REPAIRS = ("avoid", "shift")
SEQ, BATCH = 1024, 112


def _plan(graph: KernelGraph, wafer: Wafer | None = None, **how: object) -> PipelinedPlan | Infeasible:
    made = api.compile(
        graph, load_wafer("wse2") if wafer is None else wafer, mode="pipelined", batch=BATCH, **how
    )
    return made if isinstance(made, Infeasible) else expect(made, PipelinedPlan)


def placers(time_limit_s: float) -> list[Row]:
    """Return a row per placer, the fastest plan first."""
    graph, rows = load_model("gpt2-small", seq=SEQ, training=True), []
    for name in PLACERS:
        plan = _plan(graph, placer=name, time_limit_s=time_limit_s / 2)
        if isinstance(plan, Infeasible):
            continue
        found = score(plan, 0.0)
        rows.append(
            {
                "placer": name,
                "samples_per_s": simulate(plan, trace=False).samples_per_s,
                "slowest_cycles": found.slowest_cycles,
                "ratio": found.ratio,
                "wire_l1_cores": found.wire_l1,
                "region_fraction": found.region_fraction,
            }
        )
    return sorted(rows, key=lambda row: -row["samples_per_s"])


def links() -> Row:
    """Return link use and colors of crowded models, in the densest stacks and as the compiler places them."""
    found = {}
    for label, name, training in CROWDED:
        graph = load_model(name, training=training)
        with mock.patch.object(shelves, "STACKS", shelves.STACKS[:1]):
            dense = _crowd(_plan(graph))
        found[label] = {
            "dense": dense,
            "placed": _crowd(_plan(graph)),
            "colors": colors_for_streams(load_wafer("wse2").colors, training),
        }
    return found


def _crowd(plan: PipelinedPlan | Infeasible) -> Row:
    if isinstance(plan, Infeasible):
        return {"infeasible": plan.binding, "colors": plan.need if plan.binding == "colors" else None}
    width = 2 if plan.graph.training else 1
    return {
        "link": plan.link_cycles / plan.pace_cycles,
        "colors": max((stream.color for stream in plan.streams), default=-width) + width,
    }


def dead_cores() -> Row:
    """Return the cost of dead cores, as a fraction of the cycles of the slowest stage."""
    graph, whole = load_model("gpt2-small", seq=SEQ, training=True), load_wafer("wse2")
    rng = np.random.default_rng(0)
    places = rng.permutation(whole.program_rows * whole.program_cols)[: max(DEAD)]
    rows, cols = np.unravel_index(places, (whole.program_rows, whole.program_cols))
    dead = tuple((int(row), int(col)) for row, col in zip(rows, cols, strict=True))
    best = _pace(_plan(graph))
    return {
        repair: {
            str(count): _pace(_plan(graph, whole.derive(dead_cores=dead[:count], defect_repair=repair)))
            / best
            - 1
            for count in DEAD
        }
        for repair in REPAIRS
    }


def _pace(plan: PipelinedPlan | Infeasible) -> float:
    return float("inf") if isinstance(plan, Infeasible) else plan.pace_cycles


def main() -> None:
    """Measure the parts that are requested, print them, keep them if asked."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.placement_comparison", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", help="placers, links, dead_cores; default: all")
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds for the placers that search")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write the values into docs/measured.json, with the machine"
    )
    asked = parser.parse_args()
    able: Mapping[str, Callable[[], object]] = {
        "placers": lambda: placers(asked.time_limit),
        "links": links,
        "dead_cores": dead_cores,
    }
    wrong = sorted(set(asked.parts) - set(able))
    if wrong:
        parser.error(f"part '{wrong[0]}' is unknown; use {', '.join(able)}")
    for part in asked.parts or able:
        began = time.process_time()
        values = able[part]()
        print(
            json.dumps({part: values, "cpu_s": round(time.process_time() - began, 1)}, indent=1), flush=True
        )
        if asked.keep:
            measurements.keep(part, {"rows": values} if isinstance(values, list) else values, asked.keep)


if __name__ == "__main__":
    main()
