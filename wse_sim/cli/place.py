"""``wse-sim place``: kernel placement, of contest instances and of models."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wse_sim.atomic_files import together, whole
from wse_sim.cli.common import Screen, all_but, console, print_json, progress, say_without_effect, unused
from wse_sim.compiler.placers.options import PlaceOptions, listed
from wse_sim.declarations import command
from wse_sim.errors import WseError
from wse_sim.files import claim_folder

if TYPE_CHECKING:
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.graph import KernelGraph
    from wse_sim.modes.base import Mode
    from wse_sim.modes.pipelined.plan import PipelinedPlan

CONTEST = "ispd2020:"
CONTEST_LIMIT_S = 60.0


@command
def place_command(
    options: PlaceOptions,
    screen: Screen,
    model: Annotated[
        str | None,
        typer.Argument(help="ispd2020:FILE.kgraph, or a model as for run; with --check PLACEMENT."),
    ] = None,
    check: Annotated[
        tuple[Path, Path] | None, typer.Option("--check", help="Evaluate a placement: FILE.kgraph PLACEMENT.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for placements and pictures.")] = None,
) -> None:
    """Place kernels: a contest instance, or a model with several placers ranked by simulated throughput."""
    say_without_effect(_idle(model, options, check is not None), screen.strict)
    if out is not None:
        claim_folder(out)
    if check is not None or (model is not None and model.startswith(CONTEST)):
        _contest(model, options, check, out, screen)
        return
    if model is None:
        raise WseError(
            f"nothing to place; give {CONTEST}FILE.kgraph, --check FILE.kgraph PLACEMENT, or a model "
            "('wse-sim show models' lists names)"
        )
    if options.mode is None:
        from wse_sim.modes import resting

        options = options.replace(mode=resting().name)
    _check_mode(str(options.mode))
    names, objectives = listed(options.placers), listed(options.objective)
    with progress(screen.quiet) as say:
        say("capture")
        graph = _read(model, options.phase, options.seq)
        answer = _compare(graph, names, objectives, options, say)
    _model_result(answer, out, screen.as_json)


def _idle(model: str | None, options: PlaceOptions, is_check: bool) -> list[str]:
    """Return the options that have no effect on this command, one line each."""
    if is_check:
        return unused(options, all_but(PlaceOptions), "with --check")
    if model is not None and model.startswith(CONTEST):
        kept = all_but(PlaceOptions, "placer", "time_limit", "seed")
        return unused(options, kept, "for an instance of the contest")
    return unused(options, ("placer",), "for a model, which takes --placers")


def _contest(
    model: str | None,
    options: PlaceOptions,
    check: tuple[Path, Path] | None,
    out: Path | None,
    screen: Screen,
) -> None:
    from wse_sim.compiler import contest
    from wse_sim.compiler.placers import placer_named

    if check is not None:
        result = contest.check_contest(check[0], check[1])
    else:
        with progress(screen.quiet) as say:
            result = contest.run_contest(
                Path(str(model).removeprefix(CONTEST)),
                placer=options.placer,
                time_limit_s=options.time_limit or placer_named(options.placer).limit_s or CONTEST_LIMIT_S,
                seed=options.seed,
                progress=lambda name, cost: say(f"{name}: cost {cost:g}"),
            )
    if out is not None:
        with together(out) as part:
            result.write(part / "placement.paint")
            contest.draw(result, part / "placement.png")
    data = {
        "max_time": result.max_time,
        "wire_l1": result.wire_l1,
        "cost": result.cost,
        "lower_bound": result.lower_bound,
        "wall_s": result.wall_s,
        "legal": result.legal,
        "seed": options.seed,
        "placer": "check" if check is not None else options.placer,
        "notes": list(result.notes),
    }
    over = _over(options.time_limit, result.wall_s, options.time_limit) if check is None else ""
    if screen.as_json:
        print_json(data | ({"time": over} if over else {}))
        return
    units = {"max_time": "steps", "wire_l1": "tiles", "lower_bound": "steps", "wall_s": "s"}
    for key, value in data.items():
        if key == "notes":
            continue
        text = f"{value:.2f}" if key == "wall_s" else f"{value:g}" if isinstance(value, float) else str(value)
        if key in ("max_time", "wire_l1", "cost", "lower_bound"):
            text = f"{float(str(value)):.10g}"
        print(f"{key:<12} {text} {units.get(key, '')}".rstrip())
    for note in (*result.notes, *([over] if over else [])):
        print(f"note: {note}")


def _check_mode(name: str) -> None:
    """Refuse a mode whose plans have no placement."""
    from wse_sim.modes import MODES, mode_named, option_names

    def places(mode: Mode) -> bool:
        return "placer" in option_names(mode)

    if not places(mode_named(name)):
        able = ", ".join(mode.name for mode in MODES if places(mode))
        raise WseError(f"mode '{name}' has no placer: its kernels own no regions; use {able}")


def _read(model: str, phase: str, seq: int | None) -> KernelGraph:
    from wse_sim.frontend import load_model

    return load_model(model, seq=seq, training=phase == "training")


def _compare(
    graph: KernelGraph,
    names: list[str],
    objectives: list[str],
    options: PlaceOptions,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Place with each placer for each objective, simulate the plans, and rank them.

    Return the rows, best first, and the plans in the same order.
    """
    from wse_sim import api
    from wse_sim.compiler.placers import StagePlacer, placer_named
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.hardware import load_cluster, load_wafer
    from wse_sim.modes import simulate
    from wse_sim.modes.base import expect
    from wse_sim.modes.pipelined.placement_comparison import score, verdict
    from wse_sim.modes.pipelined.plan import PipelinedPlan

    wafer = load_wafer(options.wafer)
    cluster = load_cluster(options.cluster)
    found = []
    failed: list[tuple[str, Infeasible]] = []
    searches = sum(not isinstance(placer_named(name), StagePlacer) for name in names) * len(objectives)
    limit_s = options.time_limit / searches if options.time_limit is not None and searches else None
    began = time.perf_counter()
    for name, objective in product(names, objectives):
        say(f"place: {name}, {objective}")
        start = time.perf_counter()
        plan = api.compile(
            graph,
            wafer,
            mode=str(options.mode),
            cluster=cluster,
            batch=options.batch,
            placer=name,
            objective=objective,
            seed=options.seed,
            replicas=options.replicas,
            time_limit_s=limit_s,
        )
        wall = time.perf_counter() - start
        if isinstance(plan, Infeasible):
            failed.append((name, plan))
            continue
        plan = expect(plan, PipelinedPlan)
        say(f"simulate: {name}, {objective}")
        result = simulate(plan, trace=False)
        found.append((score(plan, wall), result, plan, objective))
    found.sort(key=lambda item: -item[1].samples_per_s)
    rows = [
        {
            "placer": item.placer,
            "objective": objective,
            "samples_per_s": result.samples_per_s,
            "slowest_kernel": item.slowest,
            "slowest_cycles": item.slowest_cycles,
            "bound_cycles": item.bound_cycles,
            "ratio": item.ratio,
            "wire_l1_cores": item.wire_l1,
            "byte_hops_per_sample": item.byte_hops,
            "region_fraction": item.region_fraction,
            "latency_cycles": item.latency_cycles,
            "time_and_wire": item.time_and_wire,
            "link_use": item.link_use,
            "wall_s": item.wall_s,
            "binding": result.binding,
            "replicas": plan.replicas,
        }
        for item, result, plan, objective in found
    ]
    return {
        "model": graph.name,
        "phase": "training" if graph.training else "inference",
        "batch": options.batch,
        "objective": ", ".join(objectives),
        "placements": rows,
        "time": _over(options.time_limit, time.perf_counter() - began, limit_s),
        "infeasible": [{"placer": name, "message": answer.message} for name, answer in failed],
        "verdict": verdict([item[0] for item in found], [item[1].samples_per_s for item in found])
        if found
        else "",
        "plans": [item[2] for item in found],
    }


def _over(limit_s: float | None, took_s: float, each_s: float | None) -> str:
    """Return why a command took longer than its time limit, or ""."""
    if limit_s is None or took_s <= limit_s:
        return ""
    limited = "no placer searches" if each_s is None else f"searches were given {each_s:.3g} s each"
    return (
        f"{took_s:.1f} s instead of --time-limit {limit_s:g} s: {limited}; starting processes, sizing, routing and "
        "simulation come on top, and take longer on a busy machine"
    )


def _model_result(answer: dict[str, Any], out: Path | None, as_json: bool) -> None:
    plans: list[PipelinedPlan] = answer.pop("plans")
    if out is not None and plans:
        from wse_sim.report.placements import draw_plans

        titles = [
            f"{row['placer']}, {row['objective']}: {row['samples_per_s']:.5g} samples/s\n"
            f"slowest {row['slowest_cycles']:,.0f} cycles ({row['ratio']:.3f} x bound), "
            f"{100 * row['region_fraction']:.1f} % in regions\nwire {row['wire_l1_cores']:,.0f} cores"
            for row in answer["placements"]
        ]
        with whole(out / "placements.png") as part:
            draw_plans(plans, titles, part)
    if as_json:
        print_json(answer)
    else:
        _table(answer)
    if not plans:
        raise typer.Exit(1)


_SHARED: dict[str, Callable[[dict[str, Any]], str]] = {
    "placer": lambda row: str(row["placer"]),
    "samples/s": lambda row: f"{row['samples_per_s']:.5g}",
    "slowest": lambda row: f"{row['slowest_cycles']:.0f}",
    "/area": lambda row: f"{row['ratio']:.3f}",
}
_LAST: dict[str, Callable[[dict[str, Any]], str]] = {
    "links": lambda row: f"{row['link_use']:.2f}",
    "latency": lambda row: f"{row['latency_cycles']:.4g}",
    "wall s": lambda row: f"{row['wall_s']:.0f}",
}
SINGLE = {
    **_SHARED,
    "wire L1": lambda row: f"{row['wire_l1_cores']:.0f}",
    "GB hops": lambda row: f"{row['byte_hops_per_sample'] / 1e9:.3g}",
    "used": lambda row: f"{100 * row['region_fraction']:.0f} %",
    **_LAST,
}
"""Columns for one objective, in 80 characters."""
SEVERAL = {
    "objective": lambda row: str(row["objective"]),
    **_SHARED,
    "T+wire": lambda row: f"{row['time_and_wire']:.0f}",
    **_LAST,
}


def _table(answer: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=f"{answer['model']}, {answer['phase']}, batch {answer['batch']}, objective {answer['objective']}",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0),
    )
    several = "," in answer["objective"]
    columns = SEVERAL if several else SINGLE
    for head in columns:
        table.add_column(head, justify="left" if head in ("objective", "placer") else "right", no_wrap=True)
    for row in answer["placements"]:
        table.add_row(*(show(row) for show in columns.values()))
    screen = console()
    if answer["placements"]:
        screen.print(table)
        slowest = answer["placements"][0]
        print(
            "slowest: cycles per sample of the slowest kernel; /area: over the area bound; wire L1: cores;\n"
            "GB hops: bytes x links per sample; used: fraction of the wafer in regions; T+wire: slowest + wire L1;\n"
            "links: busiest link over the slowest kernel, above 1 they bind; latency: cycles of one sample"
        )
        print(
            f"area bound {slowest['bound_cycles']:.6g} cycles per sample: all stages at their smallest area,\n"
            "with the cores that regions set aside, and no unused core"
        )
        print(answer["verdict"])
    if answer["time"]:
        print(answer["time"])
    for fault in answer["infeasible"]:
        print(f"{fault['placer']}: {fault['message']}")
