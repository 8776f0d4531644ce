"""``wse-sim kernel``: computes one kernel by formula and runs it wavelet by wavelet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wse_sim.atomic_files import together, write_whole
from wse_sim.cli.certainty import Certainty, read_parameters, unused_bounds
from wse_sim.cli.common import Screen, all_but, print_json, progress, say_without_effect, unused
from wse_sim.declarations import Without, command
from wse_sim.errors import WseError
from wse_sim.files import claim_folder
from wse_sim.options import KernelOptions, option
from wse_sim.units import counted

if TYPE_CHECKING:
    from wse_sim.bench.command import KernelReport
    from wse_sim.hardware import Wafer
    from wse_sim.kernels.contract.family import Tiling
    from wse_sim.uncertainty import Interval

TRACE_ROWS = 2_000_000  # events that a wse-viz trace keeps


class KernelCommandOptions(KernelOptions):
    """Options of a kernel run, and of the files that its command writes."""

    timings: bool = option(False, "Print where the simulator's own time goes.")
    heatmap: bool = option(False, "Draw maps of the cores and links into --out.")
    out: Path | None = option(None, "Folder for pictures (default: out).", writes="folder")
    wse_viz: Path | None = option(None, "Write a trace that wse-viz reads.", writes="file")
    cycles: str | None = option(None, "Window A:B of that trace.")
    region: str | None = option(None, "ROW,COL,ROWS,COLS of that trace.")
    kernels: Path | None = option(None, "A Python file with your own kernel.")


@command
def kernel_command(
    name: Annotated[str, typer.Argument(help="Kernel name; an unknown name lists all names.")],
    options: KernelCommandOptions,
    screen: Annotated[Screen, Without("timings")],
    certainty: Certainty,
    param: Annotated[list[str] | None, typer.Option("--param", help="key=value, repeated.")] = None,
    emit: Annotated[
        tuple[str, Path] | None,
        typer.Option("--emit", help="csl FOLDER: write the kernel as a CSL program instead of running it."),
    ] = None,
) -> None:
    """Run one kernel: cycles of the closed form, of the program that ran, and their difference."""
    from wse_sim.bench.command import find, fitting, run_kernel
    from wse_sim.hardware import load_wafer

    say_without_effect([*_idle(options, emit is not None), *unused_bounds(certainty)], screen.strict)
    if options.kernels is not None:
        from wse_sim.kernels import load_path

        load_path(options.kernels)
    given = read_parameters(param, options.rows, options.cols)
    how: dict[str, Any] = {"executor": options.executor, "threads": options.threads}
    if options.wse_viz is not None:
        how = {"executor": "oracle", "trace_rows": TRACE_ROWS}
    wafer = load_wafer(options.wafer)
    chosen = fitting(find(name), given, wafer)
    for key in chosen.keys() - given.keys():
        print(f"wse-sim: note: {key}={chosen[key]}, the most that wafer {wafer.name} has", file=sys.stderr)
    given = chosen
    if emit is not None:
        _emit(name, given, wafer, *emit)
        return
    window = _numbers(options.cycles, ":", 2, "--cycles") if options.cycles else None
    place = _numbers(options.region, ",", 4, "--region") if options.region else None
    if window is not None and window[0] >= window[1]:
        raise WseError(f"--cycles {options.cycles} is an empty window; give A:B with A smaller than B")
    if place is not None and not (place[2] and place[3]):
        raise WseError(
            f"--region {options.region} covers no core; give ROW,COL,ROWS,COLS with at least one of each"
        )
    if place is not None:
        _check_region(options.region or "", place, find(name).call(find(name).read(given)).tiling)
    if options.timing == "model" and (options.heatmap or options.wse_viz is not None):
        asked = "--heatmap" if options.heatmap else "--wse-viz"
        raise WseError(f"{asked} needs a run on the fabric; use --timing fabric or both")
    if options.heatmap and options.out is None:
        claim_folder(Path("out"))
    with progress(screen.quiet) as say:
        say("run (the first run compiles the executors)")
        waits = (options.out or Path("out")) / "deadlock.txt"
        report = run_kernel(name, given, wafer, timing=options.timing, waits=waits, **how)
    if options.wse_viz is not None:
        _write_trace(report, wafer, given, options.wse_viz, window, place)
    if options.heatmap:
        _draw(report, options.out or Path("out"), screen.quiet)
    interval = _interval(report, wafer, given, certainty)
    if screen.as_json:
        extra: dict[str, Any] = {"timings_s": _timings(report)} if options.timings else {}
        print_json(_as_json(report) | extra | ({"interval": interval.as_dict()} if interval else {}))
    else:
        _print(report)
        for part, seconds in _timings(report).items() if options.timings else ():
            print(f"  {seconds:12.3f} s  {part}")
        if interval is not None:
            print(f"  {interval.text('cycles')}")


def _idle(options: KernelCommandOptions, is_written: bool) -> list[str]:
    """Return the options that have no effect on this command, one line each."""
    if is_written:
        kept = all_but(KernelCommandOptions, "rows", "cols", "wafer", "kernels")
        return unused(options, kept, "with --emit: the kernel is written, not run")
    idle = unused(options, ("cycles", "region"), "without --wse-viz") if options.wse_viz is None else []
    idle += unused(options, ("out",), "without --heatmap") if not options.heatmap else []
    idle += unused(options, ("threads",), "with --executor gpu") if options.executor == "gpu" else []
    if options.timing == "model":
        return idle + unused(options, ("executor",), "with --timing model")
    return idle + (unused(options, ("executor",), "with --wse-viz") if options.wse_viz is not None else [])


def _check_region(text: str, place: tuple[int, ...], tiling: Tiling) -> None:
    """Raise an error if no core of the kernel is in the window of the trace."""
    rows, cols = int(tiling.rows), int(tiling.cols)
    if place[0] >= rows or place[1] >= cols:
        raise WseError(
            f"--region {text} is outside the kernel's {rows:,} x {cols:,} cores; give ROW,COL,ROWS,COLS within them"
        )


def _emit(name: str, given: dict[str, Any], wafer: Wafer, language: str, folder: Path) -> None:
    """Write the kernel as a program in another language."""
    from wse_sim.bench.command import find
    from wse_sim.bench.emit import write_csl

    if language != "csl":
        raise WseError(f"--emit {language} is unknown; use --emit csl FOLDER")
    for path in write_csl(name, given, find(name).build(given, wafer), folder):
        print(path)


def _interval(
    report: KernelReport, wafer: Wafer, given: dict[str, Any], certainty: Certainty
) -> Interval | None:
    """Return the bounds of the printed cycles: those of the program if one ran, else those of the formula."""
    if certainty.interval is None or report.model_cycles is None:
        return None
    from wse_sim.uncertainty import kernel_interval

    value = report.fabric_cycles if report.fabric is not None else report.model_cycles
    return kernel_interval(report.name, given, wafer, value=value, percent=certainty.interval)


def _timings(report: KernelReport) -> dict[str, float]:
    """Return the seconds of the simulator's own work by part; empty if no program ran."""
    return {} if report.fabric is None else dict(report.fabric.timings_s)


def _as_json(report: KernelReport) -> dict[str, Any]:
    fabric = report.fabric
    data: dict[str, Any] = {
        "kernel": report.name,
        "params": dict(report.params),
        "cycles": report.fabric_cycles if fabric is not None else report.model_cycles,
        "model_cycles": report.model_cycles,
        "model_parts_cycles": None if report.model is None else report.model.parts(),
        "fabric_cycles": report.fabric_cycles,
        "difference": report.difference,
        "largest_term": report.largest_term,
        "terms_cycles": dict(report.terms),
        "max_abs_error": report.max_abs_error,
    }
    if fabric is not None:
        data |= {
            "executor": fabric.executor,
            "certificate": None if fabric.certificate is None else fabric.certificate.to_dict(),
            "wall_s": fabric.wall_s,
            "cpu_s": fabric.cpu_s,
            "router_cycles_per_s": fabric.router_cycles_per_s,
            "wavelets": int(fabric.link_wavelets.sum()),
        }
    return data


def _print(report: KernelReport) -> None:
    shown = ", ".join(f"{key}={value}" for key, value in report.params.items())
    print(f"{report.name} ({shown})")
    if report.model is not None:
        parts = ", ".join(f"{key} {value:,.6g}" for key, value in report.model.parts().items() if value)
        print(f"  model   {report.model_cycles:>14,.6g} cycles   ({parts})")
    fabric = report.fabric
    if fabric is not None:
        print(
            f"  fabric  {report.fabric_cycles:>14,} cycles   (executor {fabric.executor}, {fabric.wall_s:.3g} s)"
        )
        if fabric.certificate is not None:
            print(f"  certificate            {fabric.certificate.sentence()}")
    if report.difference is not None:
        cycles = report.terms[report.largest_term]
        term = f"{report.largest_term}, {cycles:+,.4g} cycles on the fabric" if abs(cycles) >= 1 else "none"
        print(f"  difference {report.difference:>+11.2%}          largest term: {term}")
    if report.max_abs_error is not None:
        print(f"  largest error of a value against numpy: {report.max_abs_error:.3g}")


def _draw(report: KernelReport, out: Path, quiet: bool) -> None:
    if report.fabric is None:
        raise WseError("--heatmap needs a run on the fabric; use --timing fabric or both")
    from wse_sim.report.heatmap import draw_fabric_map

    fabric = report.fabric
    cycles = max(1, fabric.cycles)
    cores = {
        "busy": fabric.busy / cycles,
        "stalled on input": fabric.stalled_in / cycles,
        "stalled on output": fabric.stalled_out / cycles,
        "idle": fabric.idle / cycles,
    }
    names = ("north", "east", "south", "west")
    links = {side: fabric.link_wavelets[:, :, i] for i, side in enumerate(names)}
    title = f"{report.name}, {fabric.cycles:,} cycles"
    with together(out) as part:
        draw_fabric_map(cores, part / "kernel_cores.png", title=title, label="fraction of the cycles")
        draw_fabric_map(links, part / "kernel_links.png", title=title, label="wavelets over each link")
    if not quiet:
        print(f"wrote {out / 'kernel_cores.png'}\nwrote {out / 'kernel_links.png'}", file=sys.stderr)


def _write_trace(
    report: KernelReport,
    wafer: Wafer,
    given: dict[str, Any],
    path: Path,
    window: tuple[int, ...] | None,
    place: tuple[int, ...] | None,
) -> None:
    if report.fabric is None:
        raise WseError("--wse-viz needs a run on the fabric; use --timing fabric or both")
    from wse_sim.bench.command import find
    from wse_sim.fabric.wseviz import export_trace

    case = find(report.name).build(given, wafer)
    text = export_trace(case.program, case.config, report.fabric, cycles=window, region=place)  # type: ignore[arg-type]
    write_whole(path, text)


def _numbers(text: str, separator: str, count: int, option: str) -> tuple[int, ...]:
    numbers = [counted(part.strip()) for part in text.split(separator)]
    found = tuple(number for number in numbers if number is not None)
    if len(numbers) != count or len(found) != count:
        raise WseError(f"{option} {text} cannot be parsed; give {count} integers separated by '{separator}'")
    return found
