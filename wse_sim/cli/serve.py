"""``wse-sim serve``: simulates requests to a resident decoder; latencies, goodput, and the rate or the wafers that
goals need.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wse_sim.cli.common import Screen, print_json, progress, say_without_effect, unused
from wse_sim.cli.serve_output import as_text, heading
from wse_sim.declarations import command
from wse_sim.options import Real, Whole, option
from wse_sim.serving.base import ServingError
from wse_sim.serving.options import ServingOptions

if TYPE_CHECKING:
    from wse_sim.service.serving_run import ServiceAnswer
    from wse_sim.serving.curve import CurvePoint

MOST_WINDOW_S = 1e8
DRAWN = ("rate", "arrivals", "input", "output", "seed")
OF_PLANS = (
    "wafer", "cluster", "clock", "systems", "grid", "grid_cols", "emit_turns", "dollars_per_wafer_hour", "weights_bits", "experts", "expert_layout",
)  # fmt: skip


class ServeCommand(ServingOptions):
    """Options of serving, and those that only its command has."""

    emit_turns: Path | None = option(None, "Write the table of turns, for --turns.", writes="file")
    out: Path | None = option(
        None, "Folder for the result, requests, series, a picture and a page.", writes="folder"
    )
    no_curves: bool = option(False, "Skip the runs at other loads that the page of --out shows.")
    trace_window: str | None = option(
        None, "Window A:B in seconds to write as a timeline into --out (reference engine)."
    )
    listen: str | None = option(
        None, "PORT or HOST:PORT: answer requests of OpenAI clients there (default host: 127.0.0.1)."
    )
    time_scale: Real = option(
        1.0,
        "With --listen: wall-clock seconds per simulated second; 0: as fast as the host can.",
        ge=0,
        le=10**6,
    )
    max_queue: Whole = option(
        1024,
        "With --listen: maximum number of waiting requests; more are refused.",
        unit="requests",
        ge=1,
        le=10**6,
    )
    max_body: Whole = option(
        4 * 2**20, "With --listen: maximum size of a request body.", unit="bytes", ge=1, le=2**31
    )


@command
def serve_command(
    model: Annotated[str, typer.Argument(help="A decoder as for generate; none with --turns.")],
    options: ServeCommand,
    screen: Screen,
) -> None:
    """Simulate a service: latencies and throughput of requests, goodput, and the rate or the wafers that goals need."""
    from wse_sim.cli.serve_files import write_files
    from wse_sim.report.serving_page import ServingPage
    from wse_sim.service.data import as_data
    from wse_sim.service.serving_run import Unserved, answer_of, curve_for
    from wse_sim.serving.metrics import read_goals

    say_without_effect(_idle(options), screen.strict)
    _window(options)
    if options.listen is not None:
        return _listen(model, options, screen)
    with progress(screen.quiet) as say:
        answer = answer_of(model, options, say, keeps=True)
    if isinstance(answer, Unserved):
        print(answer.message)
        raise typer.Exit(1)
    if options.emit_turns is not None:
        answer.deployed.replica.table.save(options.emit_turns)
    goals = None if options.goodput is None else read_goals(options.goodput)
    label = ""
    curve: tuple[CurvePoint, ...] = ()
    is_cut = answer.serving.is_cut
    if options.out is not None and not options.no_curves and not is_cut:
        with progress(screen.quiet) as say:
            say("serve at other loads")
            label, curve = curve_for(options, answer)
    data = as_data(model, options, answer, goals, curve)
    if options.out is not None:
        title = heading(model, options, answer)
        page = ServingPage(
            title, _load_words(options), answer.serving, data, answer.deployed.plan, goals, curve, label
        )
        write_files(options.out, page, None if is_cut else _trace(options, answer, title))
    if screen.as_json:
        print_json(data)
    else:
        print(as_text(model, options, answer, data))
    if is_cut:
        raise KeyboardInterrupt
    return None


OF_ENDPOINT = ("time_scale", "max_queue", "max_body")
OF_RUNS = (
    "workload", "requests", "rate", "scale_rate", "arrivals", "input", "engine", "goodput", "search",
    "attain", "out", "no_curves", "trace_window", "dollars_per_wafer_hour",
)  # fmt: skip


def _listen(model: str, options: ServeCommand, screen: Screen) -> None:
    """Answer requests of clients until an interrupt."""
    from wse_sim.endpoint.server import EndpointChoice, check_installed, listening, serve_http
    from wse_sim.service.serving_run import NO_MODEL, Unserved, replica_for

    check_installed()
    if (model == NO_MODEL) != (options.turns is not None):
        raise ServingError("give a model, or none with --turns FILE, not both")
    with listening(str(options.listen)) as place:
        with progress(screen.quiet) as say:
            found = replica_for(model, options, None, options.systems, say)
        if isinstance(found, Unserved):
            print(found.message)
            raise typer.Exit(1)
        if options.emit_turns is not None:
            found.replica.table.save(options.emit_turns)
        host, port = place.getsockname()[:2]
        wafers = found.systems * options.replicas
        address = f"[{host}]" if ":" in host else host
        print(f"{model} on {wafers} wafer{'s' * (wafers > 1)}: http://{address}:{port}/v1", flush=True)
        limits = EndpointChoice(
            max_queue=options.max_queue, max_body_bytes=options.max_body, time_scale=options.time_scale,
            output_law=options.output, seed=options.seed, router=options.router,
        )  # fmt: skip
        serve_http(model, found.replica, options.replicas, place, limits)


def _load_words(options: ServeCommand) -> str:
    """Return the load in words."""
    if not options.draws_arrivals:
        return f"requests of {options.workload}" + (
            f", {options.scale_rate:g} times as fast" if options.scale_rate != 1 else ""
        )
    if options.arrivals.startswith(("users:", "ramp:")):
        came = options.arrivals
    elif options.rate is None:
        came = "all at once"
    else:
        came = f"{options.rate:g} requests/s, {options.arrivals}"
    if options.workload is not None:
        return f"{came}; lengths of {options.workload}"
    return f"{came}; prompts {options.input}, answers {options.output} tokens"


def _window(options: ServeCommand) -> tuple[float, float] | None:
    """Return the window of the timeline, in seconds.

    Raises
    ------
    ServingError
        If it is not one.
    """
    if options.trace_window is None:
        return None
    found = []
    for part in options.trace_window.split(":"):
        try:
            found.append(float(part) if part.isascii() and "_" not in part else math.nan)
        except ValueError:
            found.append(math.nan)
    if len(found) != 2 or not 0 <= found[0] < found[1] < MOST_WINDOW_S:
        raise ServingError(
            f"--trace-window {options.trace_window[:60]} is not a window; give A:B in seconds with A below B, e.g. 0:0.05"
        )
    return found[0], found[1]


def _trace(options: ServeCommand, answer: ServiceAnswer, title: str) -> bytes | None:
    from wse_sim.report.serving_trace import perfetto_of, trace_of

    window = _window(options)
    if window is None:
        return None
    serving, plan = answer.serving, answer.deployed.plan
    trace = trace_of(serving.load, serving.replica, serving.replicas, window, options.router)
    names = [f"region {n}" for n in range(serving.replica.table.regions)]
    if plan is not None:
        names = [f"wafer {item.wafer}: {item.name}" for item in plan.regions]
    return perfetto_of(trace, title, names)


def _idle(options: ServeCommand) -> list[str]:
    if options.listen is not None:
        return unused(options, OF_RUNS, "with --listen: clients send the requests")
    idle = unused(options, OF_ENDPOINT, "without --listen")
    idle += [] if options.out is not None else unused(options, ("no_curves", "trace_window"), "without --out")
    if not options.draws_arrivals:
        idle += unused(options, DRAWN, "with --workload: the file defines the requests")
    elif options.workload is not None:
        idle += unused(options, ("input", "output"), "with --workload: the file defines the lengths")
        idle += unused(options, ("scale_rate",), "with --workload: the file has no times")
    else:
        alike = ("scale_rate", "prefix_caching", "policy")
        idle += unused(options, alike, "without --workload: drawn prompts share no prefix and no priority")
    if options.prefill is None:
        idle += unused(options, ("handover",), "without --prefill")
    if options.replicas == 1 and options.search != "wafers":
        idle += unused(options, ("router",), "with one replica")
    if options.admission == "reserve":
        idle += unused(options, ("preemption",), "with --admission reserve: no request is preempted")
    if options.turns is not None:
        idle += unused(options, OF_PLANS, "with --turns: the table gives the cost of turns")
    if options.arrivals.startswith(("users:", "ramp:")):
        idle += unused(options, ("rate",), f"with --arrivals {options.arrivals}")
    if options.goodput is None or options.search == "none":
        idle += unused(options, ("attain", "max_wafers"), "without --goodput and --search")
    return idle
