"""``wse-sim place``: kernel placement, of contest instances and of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wse_sim.cli.common import JsonOption, QuietOption, print_json, progress
from wse_sim.errors import WseError

CONTEST = "ispd2020:"


def place_command(
    model: Annotated[str | None, typer.Argument(help="ispd2020:FILE.kgraph")] = None,
    placer: Annotated[str, typer.Option("--placer", help="The placer, or portfolio.")] = "portfolio",
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for the search.")] = 60.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed; equal seeds give equal placements.")] = 0,
    check: Annotated[
        tuple[Path, Path] | None, typer.Option("--check", help="Evaluate a placement: FILE.kgraph PLACEMENT.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for placement.paint and the picture.")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Place the kernels of a contest instance, or check a placement."""
    from wse_sim.compiler import contest

    if check is not None:
        result = contest.check_contest(check[0], check[1])
    else:
        if model is None or not model.startswith(CONTEST):
            raise WseError(
                f"'{model}' cannot be placed; give {CONTEST}FILE.kgraph, or --check FILE.kgraph PLACEMENT"
            )
        with progress(quiet) as say:
            result = contest.run_contest(
                Path(model.removeprefix(CONTEST)),
                placer=placer,
                time_limit_s=time_limit,
                seed=seed,
                progress=lambda *info: say(" ".join(str(item) for item in info)),
            )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
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
    }
    if as_json:
        print_json(data)
    else:
        for key, value in data.items():
            print(f"{key:<12} {value}")
