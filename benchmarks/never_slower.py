"""Tests that more is never slower: random improvements of hardware and batch, and the rates that they lose.

    python -m benchmarks.never_slower --changes 2000 --keep      (half an hour; writes the entry of docs/measured.json)

A change is one constant of a wafer or a cluster times 1.1, 2 or 8 (or divided, where less is better), or twice the
batch.  Both plans of weight streaming are compiled and their rates compared without the host.  A change loses if its rate is
more than 0.5 % below that before it.  `--micro-batch search` tries all divisors of the batch, as the vendor's `explore` does.

Change n is the same in every run of a seed.  With `--keep` a run continues behind the changes that are recorded, so a long
count can be made in parts; `--again` begins at the first.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from benchmarks import measurements
from wse_sim import api
from wse_sim.engine.host import InputPath
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.modes.weight_streaming import WeightStreaming
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.recurrence import step_seconds
from wse_sim.modes.weight_streaming.steps import plan_streaming

MODELS = ("fc-mnist", "gpt2-small", "resnet50", "bert-base", "gpt3-350m", "vit-base", "gpt3-1.3b")
SYSTEMS = (1, 1, 4)
MORE = ("clock_hz", "link_bytes_per_cycle", "io_bytes_per_s", "fma_mixed_per_cycle", "fma_fp32_per_cycle", "add_fp32_per_cycle",
        "sram_bytes", "program_rows", "program_cols")  # fmt: skip
LESS = (
    "hop_cycles",
    "ramp_cycles",
    "launch_floor_s",
    "vector_start_cycles",
    "special_element_cycles",
    "kernel_code_bytes",
)
OF_CLUSTER = (
    "memoryx_bytes_per_s",
    "memoryx_update_bytes_per_s",
    "swarmx_bytes_per_s",
    "activation_server_bytes_per_s",
)
FACTORS = (1.1, 2.0, 8.0)
LOSS = 0.005
WHERE = "weight streaming, seven models, one and four systems, without the host"
FREE = InputPath(workers=1, worker_s=1e-15, io_s=1e-15, link_s=1e-15)


def better(change: str, factor: float, wafer: Wafer, cluster: Cluster) -> tuple[Wafer, Cluster] | None:
    """Return the machines with one constant changed; None where such a machine cannot be."""
    owner: Any = cluster if change in OF_CLUSTER else wafer
    value = getattr(owner, change)
    new = value / factor if change in LESS else value * factor
    new = max(1, round(new)) if isinstance(value, int) else new
    fields = {change: new}
    if change in ("program_rows", "program_cols"):
        whole = change.removeprefix("program_")
        fields[whole] = getattr(wafer, whole) + new - value
    try:
        made = type(owner).model_validate(owner.model_dump() | fields)
    except ValueError:
        return None
    return (wafer, made) if owner is cluster else (made, cluster)


@dataclass(frozen=True)
class Change:
    """One change for the better: of the batch, or of one constant."""

    model: str
    wafer: str
    systems: int
    batch: int
    name: str  # of the constant, or "batch"
    factor: float

    @classmethod
    def drawn(cls, seed: int, number: int) -> Change:
        """Return the change of this number."""
        chance = random.Random(f"{seed} {number}")
        systems = chance.choice(SYSTEMS)
        name = chance.choice((*MORE, *LESS, *OF_CLUSTER, *["batch"] * 6))
        return cls(
            model=chance.choice(MODELS),
            wafer=chance.choice(("wse2", "wse3")),
            systems=systems,
            batch=systems * chance.choice((1, 4, 16, 64, 128, 256)),
            name=name,
            factor=2.0 if name == "batch" else chance.choice(FACTORS),
        )

    def __str__(self) -> str:
        on = f"{self.systems} x {self.wafer}" if self.systems > 1 else self.wafer
        return f"{self.model} on {on}, batch {self.batch}: {self.name} x {self.factor:g}"


Machines = tuple[Wafer, Cluster]
Rate = tuple[float, WeightStreamingPlan | None]


@lru_cache(maxsize=4096)
def rate(model: str, machines: str, systems: int, batch: int, *, search: bool) -> Rate:
    """Return the samples per second without the host; 0 where nothing fits."""
    wafer, cluster = _machines[machines]
    choice = StreamingChoice(batch=batch, choose_micro_batch="search" if search else "no-spill")
    plan = plan_streaming(_graph(model), wafer, cluster, systems, choice)
    if not isinstance(plan, WeightStreamingPlan):
        return 0.0, None
    return batch / step_seconds(plan, FREE, WeightStreaming.simulated_steps), None if search else plan


_machines: dict[str, Machines] = {}
"""By the change that makes them."""


@cache
def _graph(model: str) -> KernelGraph:
    return api.load_model(model, batch=2, training=True)


def loss_of(change: Change, *, search: bool) -> tuple[float, str] | None:
    """Return the fraction of the rate that a change loses, and the change in words; None where no such machine can be."""
    sound = _machines.setdefault(change.wafer, (load_wafer(change.wafer), load_cluster("default")))
    name, batch = change.wafer, change.batch
    if change.name == "batch":
        batch *= 2
    else:
        machines = better(change.name, change.factor, *sound)
        if machines is None:
            return None
        name = f"{change.wafer} {change.name} {change.factor}"
        _machines[name] = machines
    before, _ = rate(change.model, change.wafer, change.systems, change.batch, search=search)
    after, plan = rate(change.model, name, change.systems, batch, search=search)
    how = "" if plan is None else f" ({plan.recompute}, {plan.spilled_bytes / 1e9:.1f} GB spilled)"
    loss = 1 - after / before if before else 0.0
    return loss, f"{change}: -{loss:.2%}{how}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=2000, help="with those that are recorded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch", choices=("default", "search"), default="default")
    parser.add_argument("--most-cpu-s", type=float, default=1e9, help="stop then")
    parser.add_argument("--again", action="store_true", help="begin at the first change")
    parser.add_argument("--keep", action="store_true", help="write docs/measured.json, every 50 changes")
    options = parser.parse_args()
    kept = {} if options.again else measurements.read("never_slower")["values"].get(options.micro_batch, {})
    counts = Counter({key: value for key, value in kept.items() if isinstance(value, int)})
    largest = float(kept.get("largest", 0.0))
    while counts["changes"] < options.changes and time.process_time() < options.most_cpu_s:
        change = Change.drawn(options.seed, counts["drawn"])
        counts["drawn"] += 1
        found = loss_of(change, search=options.micro_batch == "search")
        if found is not None:
            kind = "batch" if change.name == "batch" else "hardware"
            counts.update(["changes", kind])
            largest = max(largest, float(found[0]))
            if found[0] > LOSS:
                counts[f"{kind} lost"] += 1
                print(found[1], flush=True)
        if options.keep and (counts["drawn"] % 50 == 0 or counts["changes"] == options.changes):
            row = {**counts, "largest": round(largest, 4)}
            measurements.keep("never_slower", {options.micro_batch: row}, WHERE)
    print({**counts, "largest": round(largest, 4)})


if __name__ == "__main__":
    main()
