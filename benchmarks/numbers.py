"""Golden numbers: the current predictions of the simulator, in ``docs/numbers.json``.

    python -m benchmarks.numbers                    compute every number and write the file     (make numbers)
    python -m benchmarks.numbers --check [--quick]  compute again and compare within the bands
    python -m benchmarks.numbers --only models      compute one group again, keep the others
    python -m benchmarks.pages                      write the tables of the pages from the file

A *group* holds numbers of one sort: how they are made, the command that a reader can type, and the band, the
relative difference that is allowed.  Cycle counts and placements are integers and must be equal.  A *key* is
one run; its value is a flat mapping of fields.  Quick keys are compared by ``make test``, all by ``make test-all``.

The numbers are not measurements: they are predictions of this program, kept so that no result drifts unseen.
A change that means to move them runs the first command and says in its commit which moved, how far and why.

Long because a group of numbers is one function here, and all share the ways to keep and compare them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

if TYPE_CHECKING:
    from wse_sim.graph import KernelGraph
    from wse_sim.validation.suite import Point

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "numbers.json"
Value = float | int | str | bool | None
Fields = dict[str, Value]
Runs = dict[str, Callable[[], Fields]]

DIGITS = 12  # significant digits that the file keeps
ROUNDING = 1e-9  # relative: sums of floats in another order

WAFERS = ("wse1", "wse2", "wse3")
CLUSTERS = ("default",)
SEQ = {"gpt3-13b": 2048, "llama2-7b": 2048, "mixtral-8x7b": 2048, "gpt3-175b": 2048, "gpt-1b": 256}
BATCH = {"gpt3-13b": 64, "llama2-7b": 16, "mixtral-8x7b": 16, "gpt3-175b": 64, "fc-mnist": 256}
SYSTEMS = {"gpt3-175b": 4}
MODELS = (
    "fc-mnist", "gpt2-small", "gpt2-medium", "bert-base", "bert-large", "resnet18", "resnet50", "vit-base", "gpt3-125m",
    "gpt3-760m", "gpt-1b", "gpt3-13b", "llama2-7b", "mixtral-8x7b", "gpt3-175b", "unet-sd15",
)  # fmt: skip
INFERENCE = ("fc-mnist", "gpt2-small", "bert-large", "resnet50", "llama2-7b")
QUICK_MODELS = ("fc-mnist", "gpt2-small")
DECODERS = {
    "llama3-8b, 660 x 660, context 4096": ("llama3-8b", {"grid": 660, "context": 4096}),
    "llama3-8b, fastest grid": ("llama3-8b", {"context": 2048}),
    "llama3-8b, 360 x 360": ("llama3-8b", {"grid": 360, "context": 4096}),
    "llama3-8b, batch 8": ("llama3-8b", {"batch": 8, "context": 2048}),
    "llama3-8b on wse3": ("llama3-8b", {"context": 2048, "wafer": "wse3"}),
    "llama2-13b, 420 x 420": ("llama2-13b", {"grid": 420, "context": 4096}),
    "llama3-70b on 6 wse3": ("llama3-70b", {"context": 2048, "wafer": "wse3", "systems": 6}),
}
AGREEMENT_POINTS = 240
QUICK_EVERY = 6  # one agreement point in that many is stepped by the quick check
PLACERS = {
    "snake": 900.0,
    "peel": 900.0,
}  # deterministic ones, and a time limit that does not bind on a busy machine either


@dataclass(frozen=True)
class Group:
    """Numbers of one sort; `runs` gives a function per key, `band` the allowed relative difference."""

    name: str
    what: str
    command: str
    evidence: str
    runs: Callable[[], Runs]
    band: float = ROUNDING
    quick: Callable[[str], bool] = field(default=lambda key: True)


def _round(value: SupportsFloat | str | None) -> Value:
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    number = float(value)
    return number if not math.isfinite(number) else float(f"{number:.{DIGITS}g}")


# --- groups -------------------------------------------------------------------------------------------


def _validation() -> Runs:
    from wse_sim.validation.suite import load_suite

    runs: Runs = {}
    for point in load_suite().points:
        runs[point.id if point.id not in runs else f"{point.id} on {point.system}"] = partial(_point, point)
    return runs


def _point(point: Point) -> Fields:
    from wse_sim.validation.run import Row, predict

    row = Row(point, predict(point))
    return {
        "subject": point.subject,
        "mode": str(point.params.get("mode", "")).replace("_", " "),
        "measured": point.measured,
        "predicted": row.prediction.predicted,
        "unit": point.unit,
        "error": row.error,
        "counted": point.gate,
        "binding": row.prediction.binding,
    }


@lru_cache(maxsize=4)
def _graph(model: str, phase: str) -> KernelGraph:
    from wse_sim import api

    return api.read(model, api.RunOptions(phase=phase, seq=SEQ.get(model)))


def _models() -> Runs:
    named = [(model, "training") for model in MODELS] + [(model, "inference") for model in INFERENCE]
    return {
        f"{model}, {phase}, {mode}": partial(_model, model, phase, mode)
        for model, phase in named
        for mode in ("pipelined", "weight-streaming")
    }


def _model(model: str, phase: str, mode: str) -> Fields:
    from wse_sim import api

    options = api.RunOptions(
        phase=phase, mode=mode, seq=SEQ.get(model), batch=BATCH.get(model, 112), systems=SYSTEMS.get(model, 1)
    )
    graph = _graph(model, phase)
    result = api.run(graph, options)
    size: Fields = {"batch": options.batch, "systems": options.systems, "parameters": int(graph.parameters)}
    size |= {"kernels": len(graph.kernels)}
    if isinstance(result, api.Infeasible):
        return {
            **size,
            "feasible": False,
            "binding": result.binding,
            "need": result.need,
            "limit": result.limit,
        }
    memory = [use.memory for use in result.kernels]
    parts = {part.name: float(sum(getattr(held, part.name) for held in memory)) for part in fields(memory[0])}
    return {
        **size,
        "feasible": True,
        "binding": result.binding,
        "samples_per_s": result.samples_per_s,
        "compute_samples_per_s": result.compute_samples_per_s,
        "transmission_samples_per_s": result.transmission_samples_per_s,
        "step_s": result.step_s,
        "mfu": result.mfu,
        "compute_utilization": result.compute_utilization,
        "active_pe_fraction": result.active_pe_fraction,
        "flops_per_step": result.flops_per_step,
        "largest_core_bytes": max(held.total_bytes for held in memory),
        **{f"{name}_of_all_kernels": total for name, total in parts.items()},
        "link_wavelets": float(result.link_wavelets.sum(dtype="float64")),
        "busiest_link_wavelets": float(result.link_wavelets.max()),
    }


def _prices() -> Runs:
    from wse_sim.bench.command import kernel_commands

    return {
        f"{name} on {wafer}": partial(_price, name, {}, wafer)
        for wafer in ("wse2", "wse3")
        for name in sorted(kernel_commands())
    }


def _price(name: str, params: Mapping[str, Any], wafer: str) -> Fields:
    from wse_sim.bench.command import find, run_kernel
    from wse_sim.hardware import load_wafer

    report = run_kernel(name, params, load_wafer(wafer), timing="model")
    if report.model is None:
        raise ValueError(f"kernel {name} has no cost")
    parts = {f"{part}_cycles": float(cycles) for part, cycles in report.model.parts().items() if cycles}
    return {"cycles": report.model_cycles, "flops": float(find(name).flops(params)), **parts}


def _footprints() -> Runs:
    from benchmarks.footprints import every_mapping, footprints

    return {f"{name}, {mapping}": partial(footprints, name, mapping) for name, mapping in every_mapping()}


def _fabric() -> Runs:
    """Return the agreement points, stepped; and the default of every kernel on a WSE-3."""
    from benchmarks.kernel_agreement import sample
    from wse_sim.bench.command import kernel_commands

    points: Runs = {
        f"{number:03d} {label}": partial(_stepped, kernel, params, "wse2")
        for number, (label, kernel, params) in enumerate(sample(0, AGREEMENT_POINTS))
    }
    return points | {
        f"wse3 {name}": partial(_stepped, name, {}, "wse3") for name in sorted(kernel_commands())
    }


def _stepped(name: str, params: Mapping[str, Any], wafer: str) -> Fields:
    from wse_sim.bench.command import run_kernel
    from wse_sim.hardware import load_wafer

    report = run_kernel(name, params, load_wafer(wafer), timing="both", seed=0)
    text = ", ".join(f"{key}={value}" for key, value in params.items())
    return {
        "params": text,
        "model_cycles": report.model_cycles,
        "fabric_cycles": report.fabric_cycles,
        "difference": report.difference,
        "wavelets": int(report.fabric.link_wavelets.sum()),
    }


def _placement() -> Runs:
    from benchmarks.placement import generated

    return {
        f"{name}, {placer}": partial(_placed, name, placer, limit)
        for name in generated()
        for placer, limit in PLACERS.items()
    }


def _placed(name: str, placer: str, limit: float) -> Fields:
    from benchmarks.placement import generated
    from wse_sim.compiler.contest import place_graph

    result = place_graph(generated()[name], placer, limit, 0)
    return {
        "cost": result.cost,
        "slowest_cycles": result.max_time,
        "wire_l1": result.wire_l1,
        "legal": result.legal,
    }


def _plans() -> Runs:
    return {model: partial(_plan, model) for model in ("fc-mnist", "gpt2-small", "bert-large", "resnet50")}


def _plan(model: str) -> Fields:
    from wse_sim import api
    from wse_sim.whole.over_plain import by_family, priced_parts

    plan = api.compile(_graph(model, "training"), mode="pipelined", batch=BATCH.get(model, 112))
    if isinstance(plan, api.Infeasible):
        raise ValueError(plan.message)
    regions = [
        (stage.name, stage.region.row, stage.region.col, stage.region.rows, stage.region.cols)
        for stage in plan.stages
    ]
    digest = hashlib.sha256(json.dumps(regions).encode()).hexdigest()[:16]
    proofs = {row.family: row for row in by_family(priced_parts(plan)) if row.fraction >= 0.005}
    return {
        **{f"{family}_fraction": row.fraction for family, row in proofs.items()},
        **{f"{family}_laid_over_plain": row.laid_over_plain for family, row in proofs.items()},
        "stages": len(plan.stages),
        "streams": len(plan.streams),
        "pace_cycles": plan.pace_cycles,
        "link_cycles": plan.link_cycles,
        "bound_cycles": plan.lower_bound_cycles,
        "binding": plan.binding,
        "regions_sha256": digest,
    }


def _generation() -> Runs:
    return {name: partial(_generated, model, options) for name, (model, options) in DECODERS.items()}


def _generated(model: str, options: Mapping[str, Any]) -> Fields:
    from wse_sim import api

    chosen = dict(options)
    run = {name: chosen.pop(name) for name in ("batch", "systems", "wafer", "cluster") if name in chosen}
    answer: Any = api.run(
        model, mode="generation", phase="inference", seq=chosen.pop("context", 4096),
        mode_options=chosen, **{"batch": 1, **run},
    )  # fmt: skip
    if hasattr(answer, "need"):
        return {"feasible": False, "binding": answer.binding, "need": answer.need, "limit": answer.limit}
    found = answer.figures
    return {
        "grid": answer.plan.grid,
        "cols": answer.plan.cols,
        "regions": len(answer.plan.regions),
        "layers_per_region": answer.plan.layers_per_region,
        "tokens_per_s_per_user": found["tokens_per_s_per_user"],
        "tokens_per_s": found["tokens_per_s"],
        "time_to_first_token_s": found["time_to_first_token_s"],
        "prefill_tokens_per_s": found["prefill_tokens_per_s"],
        "max_context": answer.plan.max_context,
        "binding": answer.binding,
    }


def _quick_point(key: str) -> bool:
    return key.startswith(
        ("reduce", "fmac", "p2p", "wse3", "stencil", "decode", "prefill-llama3", "W21", "P07")
    )


def _quick_fabric(key: str) -> bool:
    number = key.split(maxsplit=1)[0]
    return number.isdigit() and int(number) % QUICK_EVERY == 0


def _quick_model(key: str) -> bool:
    return key.partition(",")[0] in QUICK_MODELS and "training" in key


def _left_out() -> Runs:
    """Return the answers for all points from one run, which every key shares."""
    from benchmarks.leave_one_out import counted_points

    return {point.id: partial(_left, point.id) for point in counted_points()}


@lru_cache(maxsize=1)
def _refits() -> dict[str, dict[str, Value]]:
    from benchmarks.leave_one_out import leave_one_out

    return {str(row["id"]): row for row in leave_one_out()["points"]}


def _left(point: str) -> Fields:
    row = _refits()[point]
    refit: Mapping[str, Value] = row.get("refit", {})
    return {"error": row.get("error"), "error_left_out": row.get("error_left_out"), **refit}


GROUPS = (
    Group(
        "validation",
        "every point of the shipped suite, predicted by formulas",
        "wse-sim validate",
        "predicted; `measured` is published and named in benchmarks/validation/suite.yaml",
        _validation,
        quick=_quick_point,
    ),
    Group(
        "left_out",
        "training points with the fitted numbers refitted without them",
        "python -m benchmarks.leave_one_out",
        "predicted; refitted to the other points",
        _left_out,
        quick=lambda key: False,
    ),
    Group(
        "models",
        "named models in both modes: rates, the bottleneck, memory, traffic",
        "wse-sim run MODEL --phase PHASE --mode MODE --batch BATCH --systems SYSTEMS",
        "predicted",
        _models,
        quick=_quick_model,
    ),
    Group(
        "prices",
        "closed-form cost of every kernel that has a command, at its default sizes",
        "wse-sim kernel NAME --wafer WAFER --timing model",
        "predicted",
        _prices,
    ),
    Group(
        "footprints",
        "bytes of SRAM of a core for every family, mapping and phase, with every attribute turned",
        "python -m benchmarks.numbers --only footprints",
        "predicted",
        _footprints,
    ),
    Group(
        "fabric",
        "cycles of fabric programs beside their formulas: sampled points, and every kernel on a WSE-3",
        "python -m benchmarks.kernel_agreement; wse-sim kernel NAME --wafer wse3 --timing both",
        "simulated wavelet by wavelet",
        _fabric,
        quick=_quick_fabric,
    ),
    Group(
        "placement",
        "generated instances of the placement contest by the deterministic placers",
        "python -m benchmarks.placement --placer PLACER --seeds 0",
        "computed",
        _placement,
        quick=lambda key: "snake" in key,
    ),
    Group(
        "plans",
        "pipelined plans: stages, pace, and a digest of all rectangles",
        "wse-sim place MODEL --placers shelves",
        "computed",
        _plans,
        quick=lambda key: key == "fc-mnist",  # the plan of the other is behind its rates
    ),
    Group(
        "generation",
        "decoders: decode and prefill rates, and the context that fits",
        "wse-sim generate MODEL --grid GRID --context CONTEXT",
        "predicted",
        _generation,
        quick=lambda key: key in ("llama3-8b, batch 8", "llama3-8b on wse3"),
    ),
)


# --- the file -----------------------------------------------------------------------------------------


def provenance() -> dict[str, Any]:
    """Return the inputs of the numbers: constants, suite and libraries."""
    from wse_sim.hardware import load_cluster, load_wafer

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    constants = {name: load_wafer(name).model_dump_json(exclude={"provenance"}) for name in WAFERS}
    constants |= {
        f"cluster {name}": load_cluster(name).model_dump_json(exclude={"provenance"}) for name in CLUSTERS
    }
    return {
        "written_by": "python -m benchmarks.numbers",
        "constants_sha256": {name: digest(text) for name, text in constants.items()},
        "suite_sha256": digest(
            (ROOT / "benchmarks" / "validation" / "suite.yaml").read_text(encoding="utf-8")
        ),
        "libraries": {name: version(name) for name in ("numpy", "numba", "scipy", "simpy", "torch")},
    }


def compute(group: Group, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Fields]]:
    """The numbers of a group, of all keys or of some."""
    runs = group.runs()
    for key in runs if keys is None else keys:
        yield key, {name: _round(value) for name, value in runs[key]().items()}


def read() -> dict[str, Any]:
    """Return the file."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def differences(group: Group, key: str, before: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """Return one line per field that left the band of its group."""
    lines = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        number = isinstance(old, float) or isinstance(new, float)
        if number and isinstance(old, float | int) and isinstance(new, float | int):
            if math.isclose(old, new, rel_tol=group.band, abs_tol=1e-12):
                continue
            fraction = f" ({new / old - 1:+.3%})" if old else ""
            lines.append(f"{group.name} / {key} / {name}: {old:.10g} -> {new:.10g}{fraction}")
        elif old != new:
            lines.append(f"{group.name} / {key} / {name}: {old!r} -> {new!r}")
    return lines


def check(quick: bool = False, only: Iterable[str] = ()) -> list[str]:
    """Compute again and compare with the file: the differences, none if nothing moved."""
    kept = read()
    lines: list[str] = []
    wanted = set(only)
    for group in GROUPS:
        if wanted and group.name not in wanted:
            continue
        before = kept["groups"][group.name]["numbers"]
        keys = list(group.runs())
        lines += [
            f"{group.name} / {key}: in the file, not computed" for key in sorted(set(before) - set(keys))
        ]
        lines += [
            f"{group.name} / {key}: computed, not in the file" for key in sorted(set(keys) - set(before))
        ]
        chosen = [key for key in keys if key in before and (not quick or group.quick(key))]
        for key, now in compute(group, chosen):
            lines += differences(group, key, before[key], now)
    return lines


def write(only: Iterable[str] = ()) -> None:
    """Compute the groups (all, or those named) and write the file."""
    wanted = set(only)
    groups = read()["groups"] if wanted else {}
    for group in GROUPS:
        if wanted and group.name not in wanted:
            continue
        print(f"{group.name}: {group.what}", file=sys.stderr)
        groups[group.name] = {
            "what": group.what,
            "command": group.command,
            "evidence": group.evidence,
            "band": group.band,
            "numbers": dict(compute(group)),
        }
    ordered = {group.name: groups[group.name] for group in GROUPS}
    text = json.dumps({"provenance": provenance(), "groups": ordered}, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write, check or render."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.numbers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    parser.add_argument("--quick", action="store_true", help="with --check: the quick keys only")
    parser.add_argument(
        "--only", nargs="+", default=[], choices=[group.name for group in GROUPS], help="these groups only"
    )
    options = parser.parse_args(arguments)
    if options.check:
        lines = check(options.quick, options.only)
        print("\n".join(lines) or "no number moved")
        return int(bool(lines))
    write(options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
