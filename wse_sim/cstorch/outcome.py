"""Artifacts of a run: run.json, performance.json, one folder per compile with its kernel graph, the page, the
summary."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wse_sim.atomic_files import together, write_whole
from wse_sim.cstorch import runtime
from wse_sim.files import claim_folder

if TYPE_CHECKING:
    from wse_sim.cstorch.compiled import Compiled
    from wse_sim.cstorch.roles import ExecutionRole

INTERRUPTED = 130
PAGE = "report.html"


def write(run: runtime.Run, execution: ExecutionRole) -> None:
    """Write the results so far into the folder of the backend; called after every execution."""
    if run.backend is None or not run.compiled:
        return
    folder = claim_folder(run.folder, "artifact_dir")
    _json(folder / "run.json", record(run))
    if run.executes:
        _json(folder / "performance.json", performance(run, execution))
    for number, compiled in enumerate(run.compiled):
        if not compiled.folder and compiled.result is not None:
            compiled.folder = str(_write_compile(folder / f"compile_{number}_{compiled.name}", compiled))


def _write_compile(folder: Path, compiled: Compiled) -> Path:
    from wse_sim.report import tables
    from wse_sim.serialize import save

    assert compiled.result is not None
    text = [tables.summary_text(compiled.result), *on_top_lines(compiled)]
    extra = [dataclasses.asdict(item) for item in compiled.on_top]
    with together(folder) as part:
        save(compiled.graph, part, "graph")
        (part / "summary.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
        _json(part / "summary.json", {**tables.as_json(compiled.result), "on_top": extra})
    return folder


def on_top_lines(compiled: Compiled) -> list[str]:
    """Return a line for each kernel on top of the simulated step."""
    lines = []
    for item in compiled.on_top:
        size = ", ".join(f"{name} {value:,}" for name, value in item.dims.items())
        how = "".join(f", {name} {value}" for name, value in item.attrs.items())
        place = f"{item.rows} x {item.cols} cores" if item.where == "wafer" else item.where
        lines.append(
            f"on top: {item.name:<22} {1e3 * item.seconds:.4g} ms  ({item.family}: {size}{how}; {place})"
        )
    return lines


def _json(path: Path, data: object) -> None:
    write_whole(path, json.dumps(data, indent=2, default=str) + "\n")


def record(run: runtime.Run) -> dict[str, Any]:
    """Return the settings of the run: those with an effect, those without."""
    options, settings = run.options, run.settings
    with_effect = {
        key: getattr(settings, key)
        for key in (
            "half_dtype", "precision_level", "mixed_precision", "micro_batch_size", "retrace_every_iteration", "num_csx",
            "num_workers_per_csx", "max_act_per_csx", "max_wgt_servers", "transfer_processes", "checkpoint_steps", "mode", "density",
        )
    }  # fmt: skip
    chosen = {
        key: getattr(options, key)
        for key in ("wafer", "cluster", "systems", "mode", "numerics", "jitter", "seed")
    }
    return {
        "backend": run.backend.name if run.backend is not None else None,
        "options": chosen,
        "with_effect": with_effect,
        "without_effect": settings.without_effect,
        "compiles": [
            {
                "name": c.name,
                "mode": c.mode,
                "step_s": c.step_s,
                "on_top_s": sum(c.on_top_s.values()),
                "binding": c.binding,
                "batch": c.batch,
                "training": c.training,
            }
            for c in run.compiled
        ],
    }


def performance(run: runtime.Run, execution: ExecutionRole) -> dict[str, Any]:
    """Return the rates in wafer time, in the keys of trainers, and ours."""
    tracker = execution.profiler.rate_tracker
    rate = run.total_samples / run.clock_s if run.clock_s else 0.0
    return {
        "total_samples": run.total_samples,
        "total_time": run.clock_s,
        "rate": tracker.rate if not callable(tracker.rate) else tracker.rate(),
        "global_rate": tracker.global_rate if not callable(tracker.global_rate) else tracker.global_rate(),
        "samples_per_sec": rate,
        "steps": run.global_step,
        "wafer_seconds": run.clock_s,
        "client_seconds": run.client_s,
        "input_bound_seconds": sum(c.input_bound_s for c in run.compiled),
    }


def finish(run: runtime.Run, status: int) -> None:
    """End the script: write the summary, and the report if it is requested.

    The report of an interrupted script has only its first steps, so it does not replace an earlier report.
    """
    if run.backend is None or not run.backend.is_csx or not run.compiled:
        return
    if run.options.metrics:
        from wse_sim.cstorch import counters

        runtime.note(counters.metrics_report())
    where = ""
    if run.options.report is not None and any(c.result is not None for c in run.compiled):
        folder = Path(run.options.report)
        if status == INTERRUPTED and (folder / PAGE).exists():
            runtime.note(f"interrupted: the earlier report in {folder} stays")
        else:
            where = f"; report {_report(run, folder)}"
    if not run.executes:
        return
    _say_input(run)
    seconds = time.perf_counter() - run.client_start_s
    if run.global_step:
        rate = run.total_samples / run.clock_s if run.clock_s else 0.0
        runtime.note(
            f"done: {run.global_step} steps, wafer {run.clock_s:.4g} s, {rate:.4g} samples/s; client {seconds:.1f} s{where}"
        )


def _say_input(run: runtime.Run) -> None:
    """Report whether the script's loader was too slow for the wafer, and by how much."""
    waited = sum(c.input_bound_s for c in run.compiled)
    if waited <= 0 or not run.clock_s:
        return
    ideal = run.clock_s - waited
    factor = run.clock_s / ideal if ideal > 0 else float("inf")
    runtime.note(
        f"bound by input workers: the script's loader delivers {run.total_samples / run.clock_s:.4g} samples/s, the wafer takes "
        f"{run.total_samples / ideal if ideal > 0 else 0.0:.4g}; {factor:.3g} times as many workers would suffice "
        f"(num_workers_per_csx={max(2, -(-int(factor * run.settings.num_workers_per_csx * 1000) // 1000))})"
    )


def _report(run: runtime.Run, folder: Path) -> Path:
    """Return the page, maps and traces of every compile, and the loss against wafer time."""
    claim_folder(folder, "--report")
    with together(folder) as part:
        _write_report(run, part)
    return folder / PAGE


def _write_report(run: runtime.Run, folder: Path) -> None:
    from wse_sim.report import heatmap, html, trace
    from wse_sim.serialize import save

    first = True
    page = folder / PAGE
    for number, compiled in enumerate(run.compiled):
        if compiled.result is None:
            continue
        place = folder if first else folder / f"compile_{number}_{compiled.name}"
        save(compiled.result, place, "result")
        html.write_report(compiled.result, place)
        heatmap.draw_compute(compiled.result, place)
        trace.write_trace(compiled.result, place / "timeline.pftrace")
        first = False
    _json(folder / "run.json", record(run))
    if run.losses:
        _loss_page(run, folder, page)


def _loss_page(run: runtime.Run, folder: Path, page: Path) -> None:
    """Write ``loss.csv`` and a section of the page that shows the loss against wafer time."""
    lines = ["step,wafer_s,loss", *(f"{step},{seconds:.9g},{loss:.9g}" for step, seconds, loss in run.losses)]
    (folder / "loss.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", _curve(run.losses) + "</body>", 1), encoding="utf-8")


def _curve(points: list[tuple[int, float, float]]) -> str:
    """Return the losses that closures fetched, as an inline picture."""
    width, height, edge = 720.0, 240.0, 40.0
    times, losses = [p[1] for p in points], [p[2] for p in points]
    low, high = min(losses), max(losses)
    span_t, span_l = (times[-1] - times[0]) or 1.0, (high - low) or 1.0
    marks = " ".join(
        f"{edge + (t - times[0]) / span_t * (width - 2 * edge):.1f},{height - edge - (v - low) / span_l * (height - 2 * edge):.1f}"
        for t, v in zip(times, losses, strict=True)
    )
    return (
        '<section id="loss"><h2>Loss against wafer time</h2>'
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="loss against wafer time">'
        f'<polyline fill="none" stroke="currentColor" stroke-width="1.5" points="{marks}"/>'
        f'<text x="{edge}" y="{height - 12}" font-size="12">{times[0]:.4g} s</text>'
        f'<text x="{width - 2 * edge}" y="{height - 12}" font-size="12">{times[-1]:.4g} s</text>'
        f'<text x="2" y="{edge}" font-size="12">{high:.4g}</text><text x="2" y="{height - edge}" font-size="12">{low:.4g}</text>'
        "</svg></section>"
    )
