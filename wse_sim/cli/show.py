"""``wse-sim show``: wafers, clusters, models and kernels."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wse_sim.cli.common import JsonOption, print_json, say_without_effect
from wse_sim.cli.strict_parser import StrictGroup
from wse_sim.declarations import said_timings
from wse_sim.errors import WseError
from wse_sim.files import claim_file
from wse_sim.options import MOST_COUNT
from wse_sim.units import summary

if TYPE_CHECKING:
    from wse_sim.graph import KernelGraph
    from wse_sim.hardware import Cluster, Wafer
    from wse_sim.hardware.chip import Chip

PartArgument = Annotated[str, typer.Argument(help="Show only names that contain this text, such as clock.")]

app = typer.Typer(cls=StrictGroup, help="Show what the simulator knows.", no_args_is_help=True)


@app.command("wafer")
def show_wafer(
    name: Annotated[str, typer.Argument(help="A wafer's name or YAML file.")] = "wse2",
    part: PartArgument = "",
    as_json: JsonOption = False,
) -> None:
    """Print the constants of a wafer with unit, source and evidence: all, or those whose name contains PART."""
    from wse_sim.hardware import load_wafer, wafer_names

    wafer = load_wafer(name)
    _constants(f"wafer {wafer.name} (shipped: {', '.join(wafer_names())})", wafer, as_json, part)


@app.command("cluster")
def show_cluster(
    name: Annotated[str, typer.Argument(help="A cluster's name or YAML file.")] = "default",
    part: PartArgument = "",
    as_json: JsonOption = False,
) -> None:
    """Print the constants of a cluster with unit, source and evidence: all, or those whose name contains PART."""
    from wse_sim.hardware import cluster_names, load_cluster

    cluster = load_cluster(name)
    _constants(f"cluster {cluster.name} (shipped: {', '.join(cluster_names())})", cluster, as_json, part)


@app.command("chip")
def show_chip(
    wafer: Annotated[str, typer.Argument(help="A wafer's name or YAML file.")] = "wse2",
    chip: Annotated[
        str | None, typer.Option("--chip", help="The silicon, by name or YAML file (default: the wafer's).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print area, power and yield of a wafer, and the constants that they follow from."""
    from wse_sim.hardware import load_wafer
    from wse_sim.hardware.chip import chip_names, chip_of, load_chip, silicon_of

    described = load_wafer(wafer)
    silicon = load_chip(chip) if chip is not None else chip_of(described)
    found = silicon_of(described, silicon)
    if as_json:
        constants = {key: constant.model_dump(mode="json") for key, constant in silicon.provenance.items()}
        data = {
            "wafer": described.name,
            "chip": silicon.name,
            **found.__dict__,
            "is_buildable": found.is_buildable,
        }
        print_json(data | {"constants": constants})
    else:
        print(f"wafer {described.name} in the silicon of {silicon.name}")
        print(f"  core     {found.core_mm2:.4g} mm2 with {described.sram_bytes:,} bytes of SRAM")
        print(
            f"  area     {found.cores_mm2:,.0f} mm2 of cores, {100 * found.area_fraction:.1f} % of what the wafer has for them"
        )
        print(f"  power    {found.power_w:,.0f} W at work, at most {silicon.most_power_w:,.0f} W")
        print(
            f"  yield    {100 * found.yield_fraction:.1f} %; {found.dead_cores:,.0f} cores are dead and replaced by spares"
        )
        if found.fault:
            print(f"  {found.fault}")
        _constants(f"chip {silicon.name} (shipped: {', '.join(chip_names())})", silicon, as_json)
    if found.fault:
        raise typer.Exit(1)


def _constants(title: str, item: Wafer | Cluster | Chip, as_json: bool, part: str = "") -> None:
    from wse_sim.report.text import amount

    rows = {
        key: constant.model_dump(mode="json")
        for key, constant in item.provenance.items()
        if part.lower() in key
    }
    if not rows:
        near = get_close_matches(part, item.provenance, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "leave it out to see all"
        raise WseError(f"no constant of {item.name} has '{part}' in its name; {hint}")
    if as_json:
        print_json({"name": item.name, "constants": rows})
        return
    print(title)
    for key, row in rows.items():
        low, high = row["range"] or (None, None)
        ends = [amount(end, row["unit"]) for end in (low, high)]
        band = "" if low is None else f"   90 %: {ends[0]} to {ends[1]}" if low < high else "   (exact)"
        print(f"  {key:<30} {amount(row['value'], row['unit'])}{band}")
        print(f"  {'':<30} {row['evidence']}: {row['source']}")
        if row["acts"] != "models":
            print(
                f"  {'':<30} used in {'reports' if row['acts'] == 'report' else row['acts']} only, not in the rates of models"
            )
        if row["because"]:
            print(f"  {'':<30} range: {row['because']}")


@app.command("models")
def show_models(as_json: JsonOption = False) -> None:
    """List the models that can be named."""
    from wse_sim.frontend import model_names

    names = model_names()
    if as_json:
        print_json({"models": list(names)})
    else:
        print("\n".join(names))


@app.command("kernels")
def show_kernels(as_json: JsonOption = False) -> None:
    """List the kernel families of the library."""
    from wse_sim.kernels import REGISTRY, load_families

    load_families()
    rows = [
        {
            "name": name,
            "dims": list(family.dims),
            "mappings": list(family.mappings),
            "about": summary(type(family)),
        }
        for name, family in sorted(REGISTRY.items())
    ]
    if as_json:
        print_json({"kernels": rows})
        return
    for row in rows:
        print(f"{row['name']:<16} ({', '.join(row['dims'])})  [{', '.join(row['mappings'])}]")
        about = re.sub("^The family of (an? )?", "", str(row["about"]))
        print(f"{'':<16} {about[:1].upper()}{about[1:]}")


@app.command("model")
def show_model(
    name: Annotated[str, typer.Argument(help="A model, as for wse-sim run.")],
    batch: Annotated[int, typer.Option("--batch", help="Samples.")] = 1,
    seq: Annotated[int | None, typer.Option("--seq", help="Sequence length.")] = None,
    table: Annotated[
        bool, typer.Option("--table", help="The tree of modules with parameters, FLOPs, activations.")
    ] = False,
    graph: Annotated[
        Path | None, typer.Option("--graph", help="Draw the kernel graph, repeats folded (SVG).")
    ] = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print to standard error where the time went.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print parameters, FLOPs and kernels of a model."""
    with said_timings() if timings else nullcontext():
        _show_model(name, batch, seq, table, graph, as_json)


def _show_model(
    name: str, batch: int, seq: int | None, table: bool, graph: Path | None, as_json: bool
) -> None:
    from wse_sim.frontend import draw_graph, load_model, table_of, takes_sequence

    if seq is not None and not takes_sequence(name):
        say_without_effect([f"--seq {seq} has no effect: a sample of {name} is not a sequence"], strict=False)
    if not 1 <= batch <= MOST_COUNT:
        raise WseError(f"--batch {batch} is out of range; give 1 to {MOST_COUNT:,} samples")
    if graph is not None:
        claim_file(graph, "--graph")
    if table or graph is not None:
        stated = load_model(name, seq=seq, training=not table).with_samples(batch)
        if graph is not None:
            print(f"wrote {draw_graph(stated, graph)}", file=sys.stderr)
        if table:
            print(table_of(stated))
        return
    forward = load_model(name, seq=seq).with_samples(batch)
    training = load_model(name, seq=seq, training=True).with_samples(batch)
    data: dict[str, Any] = {
        "name": forward.name,
        "samples": batch,
        "parameters": forward.parameters,
        "forward_flops": forward.forward_flops,
        "training_flops": training.total_flops,
        "facts": dict(forward.facts),
        "repeats": [
            {"container": r.container, "count": r.count, "kernels": len(r.instances[0])}
            for r in forward.repeats
        ],
        "kernels": _kernel_rows(forward),
        "notes": list(training.notes),
    }
    if as_json:
        print_json(data)
        return
    print(f"{forward.name}: {forward.parameters:,} parameters, batch {batch}")
    print(f"  forward   {forward.forward_flops:,} FLOP")
    print(f"  training  {training.total_flops:,} FLOP")
    for repeat in data["repeats"]:
        print(f"  {repeat['container']}: {repeat['count']} equal blocks of {repeat['kernels']} kernels")
    print(f"  {'kernel':<16} {'count':>6} {'FLOP':>20}  shape")
    for row in data["kernels"]:
        shape = ", ".join(f"{key}={value}" for key, value in row["shape"].items())
        print(f"  {row['class']:<16} {row['count']:>6} {row['flops']:>20,}  {shape}")


def _kernel_rows(graph: KernelGraph) -> list[dict[str, Any]]:
    """Return the distinct kernels with their counts."""
    rows: dict[Any, dict[str, Any]] = {}
    for kernel in graph.kernels:
        row = rows.setdefault(
            kernel.signature,
            {
                "class": kernel.family,
                "count": 0,
                "flops": 0,
                "shape": dict(kernel.dims),
                "attributes": dict(kernel.attrs),
            },
        )
        row["count"] += 1
        row["flops"] += kernel.flops
    return list(rows.values())
