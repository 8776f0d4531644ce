"""More is never slower: random changes of hardware and batch for the better, and what they cost.

    python -m benchmarks.never_slower --changes 2000 --keep      (half an hour; writes the entry of docs/measured.json)

A change is one constant of a wafer or a cluster times 1.1, 2 or 8 (or divided, where less is better), or twice the
batch.  Both plans of weight streaming are compiled and their rates compared without the host.  A change loses if its rate is
more than 0.5 % below that before it.  `--micro-batch search` tries all divisors of the batch, as the vendor's `explore` does.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import Any

from benchmarks import measured
from wse_sim import api
from wse_sim.engine.host import InputPath
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.modes.weight_streaming import WeightStreaming
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.recurrence import step_seconds
from wse_sim.modes.weight_streaming.steps import plan_streaming

MODELS = ("fc-mnist", "gpt2-small", "resnet50", "bert-base")
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
FREE = InputPath(workers=1, worker_s=1e-15, io_s=1e-15, link_s=1e-15)


def better(change: str, factor: float, wafer: Wafer, cluster: Cluster) -> tuple[Wafer, Cluster] | None:
    """The machines with one constant changed; None where such a machine cannot be."""
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


def rate(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, batch: int, *, search: bool
) -> tuple[float, WeightStreamingPlan | None]:
    """Samples per second without the host; 0 where nothing fits."""
    choice = StreamingChoice(batch=batch, search_micro_batch=search)
    plan = plan_streaming(graph, wafer, cluster, 1, choice)
    if not isinstance(plan, WeightStreamingPlan):
        return 0.0, None
    return batch / step_seconds(plan, FREE, WeightStreaming.simulated_steps), plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch", choices=("default", "search"), default="default")
    parser.add_argument("--most-cpu-s", type=float, default=1e9, help="stop then")
    parser.add_argument("--keep", action="store_true", help="write docs/measured.json")
    options = parser.parse_args()
    chance, search = random.Random(options.seed), options.micro_batch == "search"
    graphs = {name: api.load_model(name, batch=2, training=True) for name in MODELS}
    cluster, done, lost = load_cluster("default"), 0, list[tuple[float, str]]()
    kinds: Counter[str] = Counter()
    while done < options.changes and time.process_time() < options.most_cpu_s:
        model, batch = chance.choice(MODELS), chance.choice((1, 4, 16, 64, 128, 256))
        wafer, change = (
            load_wafer(chance.choice(("wse2", "wse3"))),
            chance.choice((*MORE, *LESS, *OF_CLUSTER, *["batch"] * 6)),
        )
        factor = 2.0 if change == "batch" else chance.choice(FACTORS)
        machines = (wafer, cluster) if change == "batch" else better(change, factor, wafer, cluster)
        if machines is None:
            continue
        before, _ = rate(graphs[model], wafer, cluster, batch, search=search)
        after, plan = rate(graphs[model], *machines, batch * 2 if change == "batch" else batch, search=search)
        done += 1
        kinds["batch" if change == "batch" else "hardware"] += 1
        loss = 1 - after / before if before else 0.0
        if loss > LOSS:
            kinds["batch lost" if change == "batch" else "hardware lost"] += 1
            spills = "" if plan is None else f", {plan.recompute}, {plan.spilled_bytes / 1e9:.1f} GB spilled"
            lost.append(
                (loss, f"{model} on {wafer.name}, batch {batch}: {change} x {factor:g}: -{loss:.2%}{spills}")
            )
            print(lost[-1][1], flush=True)
    row = {"changes": done, **kinds, "largest": round(float(max(lost, default=(0.0, ""))[0]), 4)}
    print(row)
    if options.keep:
        measured.keep(
            "never_slower",
            {options.micro_batch: row},
            "weight streaming, four models, one system, without the host",
        )


if __name__ == "__main__":
    main()
