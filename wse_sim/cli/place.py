"""``wse-sim place``: kernel placement, of contest instances and of models."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wse_sim.cli.common import (
    ClusterOption,
    JsonOption,
    QuietOption,
    WaferOption,
    console,
    one_of,
    print_json,
    progress,
)
from wse_sim.errors import WseError

if TYPE_CHECKING:
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.modes.pipelined.plan import PipelinedPlan

CONTEST = "ispd2020:"
PHASES = ("training", "inference")


def place_command(
    model: Annotated[
        str | None,
        typer.Argument(help="ispd2020:FILE.kgraph, or a model as for run; with --check PLACEMENT."),
    ] = None,
    placer: Annotated[
        str, typer.Option("--placer", help="Contest: portfolio, peel, shelves or exact.")
    ] = "portfolio",
    placers: Annotated[
        str, typer.Option("--placers", help="Model: shelves, snake, peel, portfolio, exact; comma-separated.")
    ] = "shelves,peel,portfolio",
    mode: Annotated[str, typer.Option("--mode", help="Model: pipelined.")] = "pipelined",
    objective: Annotated[
        str, typer.Option("--objective", help="Model: throughput, delta-t+wire, latency; comma-separated.")
    ] = "throughput",
    batch: Annotated[int, typer.Option("--batch", help="Model: samples per step.")] = 112,
    seq: Annotated[int | None, typer.Option("--seq", help="Model: sequence length.")] = None,
    phase: Annotated[str, typer.Option("--phase", help="Model: training or inference.")] = "training",
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="Model: copies side by side (default: by rate).")
    ] = None,
    wafer: WaferOption = "wse2",
    cluster: ClusterOption = "default",
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", help="Seconds per search (default: 60 contest, 20 model)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed; equal seeds give equal placements.")] = 0,
    check: Annotated[
        tuple[Path, Path] | None, typer.Option("--check", help="Evaluate a placement: FILE.kgraph PLACEMENT.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for placements and pictures.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Place kernels: a contest instance, or a model with several placers ranked by simulated throughput."""
    if time_limit is not None and not time_limit > 0:
        raise WseError(f"--time-limit {time_limit:g} is not positive; give seconds")
    if check is not None or (model is not None and model.startswith(CONTEST)):
        _contest(model, placer, 60.0 if time_limit is None else time_limit, seed, check, out, as_json, quiet)
        return
    if model is None:
        raise WseError(
            f"nothing to place; give {CONTEST}FILE.kgraph, --check FILE.kgraph PLACEMENT, or a model "
            "('wse-sim show models' lists names)"
        )
    one_of(mode, ("pipelined",), "mode")
    one_of(phase, PHASES, "phase")
    names = _names(placers)
    objectives = _objectives(objective)
    with progress(quiet) as say:
        say("capture")
        graph = _read(model, phase, seq)
        options = {
            "batch": batch,
            "seed": seed,
            "time_limit_s": time_limit,
            "replicas": replicas,
        }
        answer = _compare(graph, names, objectives, wafer, cluster, options, say)
    _model_result(answer, out, as_json)


def _contest(
    model: str | None,
    placer: str,
    time_limit: float,
    seed: int,
    check: tuple[Path, Path] | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    from wse_sim.compiler import contest

    if check is not None:
        result = contest.check_contest(check[0], check[1])
    else:
        with progress(quiet) as say:
            result = contest.run_contest(
                Path(str(model).removeprefix(CONTEST)),
                placer=placer,
                time_limit_s=time_limit,
                seed=seed,
                progress=lambda name, cost: say(f"{name}: cost {cost:g}"),
            )
    if out is not None:
        _folder(out)
        result.write(out / "placement.paint")
        contest.draw(result, out / "placement.png")
    data = {
        "max_time": result.max_time,
        "wire_l1": result.wire_l1,
        "cost": result.cost,
        "lower_bound": result.lower_bound,
        "wall_s": result.wall_s,
        "legal": result.legal,
        "seed": seed,
        "placer": "check" if check is not None else placer,
        "notes": list(result.notes),
    }
    if as_json:
        print_json(data)
        return
    units = {"max_time": "steps", "wire_l1": "tiles", "lower_bound": "steps", "wall_s": "s"}
    for key, value in data.items():
        if key == "notes":
            continue
        text = f"{value:.2f}" if key == "wall_s" else f"{value:g}" if isinstance(value, float) else str(value)
        if key in ("max_time", "wire_l1", "cost", "lower_bound"):
            text = f"{float(str(value)):.10g}"
        print(f"{key:<12} {text} {units.get(key, '')}".rstrip())
    for note in result.notes:
        print(f"note: {note}")


def _folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise WseError(f"--out {out} cannot be made ({fault.strerror}); name another folder") from None


def _names(placers: str) -> list[str]:
    from wse_sim.compiler.placing import STAGE_PLACERS

    names = list(dict.fromkeys(name.strip() for name in placers.split(",") if name.strip()))
    if not names:
        raise WseError(f"--placers names none; use some of {', '.join(STAGE_PLACERS)}")
    for name in names:
        one_of(name, STAGE_PLACERS, "placers")
    return names


def _objectives(objective: str) -> list[str]:
    from wse_sim.compiler.placing import OBJECTIVES

    names = list(dict.fromkeys(name.strip() for name in objective.split(",") if name.strip()))
    for name in names or [objective]:
        one_of(name, OBJECTIVES, "objective")
    return names


def _read(model: str, phase: str, seq: int | None) -> Any:
    from wse_sim.frontend import load_model

    return load_model(model, seq=seq, training=phase == "training")


def _compare(
    graph: Any,
    names: list[str],
    objectives: list[str],
    wafer: str,
    cluster: str,
    options: dict[str, Any],
    say: Any,
) -> dict[str, Any]:
    """Place with each placer for each objective, simulate, rank: rows best first; plans in the same order."""
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.hardware import load_cluster, load_wafer
    from wse_sim.modes.pipelined.comparing import score, verdict
    from wse_sim.modes.pipelined.steps import compile_pipelined
    from wse_sim.modes.simulation import simulate

    found = []
    failed: list[tuple[str, Infeasible]] = []
    for name, objective in product(names, objectives):
        say(f"place: {name}, {objective}")
        start = time.perf_counter()
        plan = compile_pipelined(
            graph, load_wafer(wafer), load_cluster(cluster), placer=name, objective=objective, **options
        )
        wall = time.perf_counter() - start
        if isinstance(plan, Infeasible):
            failed.append((name, plan))
            continue
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
            "region_share": item.region_share,
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
        "batch": options["batch"],
        "objective": ", ".join(objectives),
        "placements": rows,
        "infeasible": [{"placer": name, "message": answer.message} for name, answer in failed],
        "verdict": verdict([item[0] for item in found], [item[1].samples_per_s for item in found])
        if found
        else "",
        "plans": [item[2] for item in found],
    }


def _model_result(answer: dict[str, Any], out: Path | None, as_json: bool) -> None:
    plans: list[PipelinedPlan] = answer.pop("plans")
    if out is not None and plans:
        from wse_sim.modes.pipelined.comparing import draw_plans

        _folder(out)
        titles = [
            f"{row['placer']}, {row['objective']}: {row['samples_per_s']:.5g} samples/s\n"
            f"slowest {row['slowest_cycles']:.4g} cycles ({row['ratio']:.3f} x bound), "
            f"{row['region_share']:.1%} in regions\nwire {row['wire_l1_cores']:.0f} cores"
            for row in answer["placements"]
        ]
        draw_plans(plans, titles, out / "placements.png")
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
    "share": lambda row: f"{row['region_share']:.0%}",
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
            "GB hops: bytes x links per sample; share: of the wafer in regions; T+wire: slowest + wire L1;\n"
            "links: busiest link over the slowest kernel, above 1 they bind; latency: cycles of one sample"
        )
        print(
            f"area bound {slowest['bound_cycles']:.6g} cycles per sample: all stages at their least area,\n"
            "cores that move data included, no remainder"
        )
        print(answer["verdict"])
    for fault in answer["infeasible"]:
        print(f"{fault['placer']}: {fault['message']}")
