"""The pipeline from a model to a result, as a visible list of steps.

    model -> KernelGraph      load_model / lower      read, capture, clean up, classify, find repeats
    graph -> Plan             compile                 size, place, route (pipelined); phases (streaming)
    plan  -> Result           simulate                discrete events in SimPy
    result -> pictures        wse_sim.report          tables, heat maps, traces, one HTML page

Data flows one way; every step can be called alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from wse_sim import result_cache, serialize
from wse_sim.compiler.defects import usable_cores
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.checkpoint import Checkpoints
from wse_sim.engine.result import Result
from wse_sim.errors import ModelError
from wse_sim.frontend import Model, load_model, lower
from wse_sim.graph import KernelGraph, frozen
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.kernels import check_graph
from wse_sim.kernels.contract.registry import REGISTRY
from wse_sim.keywords import RunKeywords, shows_options
from wse_sim.modes import (
    Mode,
    System,
    competing,
    load_result,
    mode_named,
    mode_names,
    on_systems,
    option_names,
    options_of,
    resting,
    simulate,
)
from wse_sim.modes.pipelined.options import PipelinedOptions
from wse_sim.options import RunOptions
from wse_sim.timing import Timed, run_timed, simulate_fabric
from wse_sim.timings import spent
from wse_sim.view_registry import Displayed

Progress = Callable[[str], None]
Inputs = object
"""Example arguments of a module: a tensor, a tuple or list of arguments, or a mapping of names to them."""

__all__ = [
    "Infeasible",
    "Result",
    "RunOptions",
    "Timed",
    "compare",
    "compile",
    "load_cluster",
    "load_model",
    "load_result",
    "load_wafer",
    "lower",
    "plan_of",
    "run",
    "run_both",
    "simulate",
]


class Comparison(tuple["Result | Infeasible", ...], Displayed):
    """Answers side by side, one for each mode: a tuple that a prompt shows in lines and a notebook as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<Comparison of no modes>"


AUTO = "auto"
POWER_LIMITED = "power-limited"
RESTING = resting().name


def _shared(options: RunOptions) -> dict[str, Any]:
    """Options that several modes have; what is left at its default is the mode's own choice."""
    fields = RunOptions.model_fields
    values = {name: getattr(options, name) for name in RunOptions.of_modes}
    return {name: value for name, value in values.items() if value != fields[name].default}


def _simulation(options: RunOptions) -> dict[str, Any]:
    """Keyword arguments of a simulation that come from the options."""
    steps, rate = options.checkpoint_steps, 1e9 * options.checkpoint_gbytes_per_s
    checkpoints = None if steps is None else Checkpoints(steps, rate)
    return {
        "jitter": options.jitter, "skew": options.skew, "seed": options.seed, "checkpoints": checkpoints,
    }  # fmt: skip


def compile(  # noqa: A001  (the word of the field)
    model: Model,
    inputs: Inputs | Wafer | str = None,
    wafer: Wafer | str = "wse2",
    *,
    mode: str = RESTING,
    batch: int = 1,
    systems: int = 1,
    cluster: Cluster | str = "default",
    phase: str = "training",
    **options: object,
) -> Plan | Infeasible:
    """Compile a kernel graph, or a model as :func:`load_model` takes it, for one mode.

    The second argument may be the wafer.  `phase` says how a model that is no graph yet is read.

    Example
    -------
    >>> compile("fc-mnist", "wse3", mode="pipelined", batch=256)
    <PipelinedPlan fc-mnist, pipelined, training, batch 256, wse3>

    Raises
    ------
    ModelError
        If mode, batch, phase or systems are impossible, or the model is at fault.
    """
    if isinstance(inputs, Wafer | str):
        wafer, inputs = inputs, None
    wafer = load_wafer(wafer)
    graph = (
        model
        if isinstance(model, KernelGraph)
        else read(_with_inputs(model, inputs), _options(None, {"phase": phase}))
    )
    cluster = load_cluster(cluster)
    check_graph(graph)
    chosen = mode_named(mode)
    if not usable_cores(wafer):
        return Infeasible(
            mode=chosen.name,
            model=graph.name,
            binding="cores",
            need=1.0,
            limit=0.0,
            unit="working cores",
            where="any plan",
            remedy=f"wafer {wafer.name} has only dead cores; remove some of dead_rows and dead_cores",
        )
    system, fixed = System(wafer, cluster, systems), options_of(chosen, {**options, "batch": batch})
    if not isinstance(fixed, PipelinedOptions):
        return chosen.compile(graph, system, fixed)
    from wse_sim.whole.prices import plan_with

    def compiler(
        one: KernelGraph, schedule: str | None = fixed.schedule, recompute: str | None = fixed.recompute
    ) -> Plan | Infeasible:
        return chosen.compile(one, system, fixed.replace(schedule=schedule, recompute=recompute))

    samples = -(-batch // (fixed.replicas or 1))
    return plan_with(fixed.prices, graph, wafer, compiler, fixed.schedule, samples)


def plan_of(graph: KernelGraph, options: RunOptions, mode: str | None = None) -> Plan | Infeasible:
    """:func:`compile` with what the options state; `mode` instead of theirs where modes are compared.

    Where modes are compared, each reads those of the shared options that it has; a mode that is named must have all
    that are given.

    Example
    -------
    >>> from wse_sim import RunOptions
    >>> options = RunOptions(mode="weight-streaming", batch=64)
    >>> plan_of(read("fc-mnist", options), options)
    <WeightStreamingPlan fc-mnist, weight-streaming, training, batch 64, wse2>

    Raises
    ------
    ModelError
        If the named mode lacks an option that is given, or as :func:`compile`.
    """
    asked = _shared(options)
    if mode is not None:
        known = option_names(mode_named(mode))
        asked = {name: value for name, value in asked.items() if name in known}
    wafer = load_wafer(options.wafer)
    return _kept_plan(
        graph,
        wafer.under_power_limit() if options.clock == POWER_LIMITED else wafer,
        load_cluster(options.cluster),
        mode=mode or on_systems(options.mode, options.systems),
        batch=options.batch,
        systems=options.systems,
        **{**asked, **options.mode_options},
    )


def _with_clock(result: Result, options: RunOptions) -> Result:
    """The result with a note on the clock, where another than the nominal one applied: instead of which, how it is known."""
    if options.clock != POWER_LIMITED:
        return result
    wafer = load_wafer(options.wafer)
    evidence = wafer.provenance["power_limited_clock_hz"].evidence
    note = (
        f"power-limited clock: {wafer.power_limited_clock_hz / 1e6:,.4g} MHz instead of {wafer.clock_hz / 1e6:,.4g} MHz "
        f"(evidence: {evidence}; 'wse-sim show wafer {wafer.name}' has the source); constants that were fitted to rates, "
        "pipeline_efficiency above all, may already include a part of it"
    )
    return dataclasses.replace(result, notes=(*result.notes, note))


def _kept_plan(graph: KernelGraph, wafer: Wafer, cluster: Cluster, **options: Any) -> Plan | Infeasible:
    """:func:`compile`, or the plan that it gave for the same graph, machine and options with the same sources."""
    own = (*(type(item) for item in REGISTRY.values()), type(mode_named(options["mode"])))
    if not result_cache.is_used() or not result_cache.are_own(own):
        return compile(graph, wafer, cluster=cluster, **options)
    arrays: dict[str, Any] = {}
    described = [serialize.encode(item, arrays) for item in (graph, wafer, cluster)]
    if arrays:
        described.append({name: array.tolist() for name, array in arrays.items()})
    key = result_cache.named(
        [described, options, result_cache.versions("wse-sim", "numpy", "scipy", "ortools")]
    )
    folder = result_cache.folder_of("plans", result_cache.sources("wse_sim"))
    found: Plan | Infeasible | None = result_cache.get(folder, key)
    if found is None:
        found = compile(graph, wafer, cluster=cluster, **options)
        result_cache.put(folder, key, found)
    return found


def _silent(_: str) -> None:
    return None


def _trained(options: RunOptions) -> dict[str, Any]:
    """Keyword arguments that state which parameters train; empty unless the phase is training."""
    if options.phase != "training":
        return {}
    return {"train": options.train, "lora": options.lora} | (
        {"lora_on": options.lora_on} if options.lora_on is not None else {}
    )


def read(model: Model, options: RunOptions) -> KernelGraph:
    """Read a model, as :func:`load_model` takes it; a graph is passed through.

    Example
    -------
    >>> from wse_sim import RunOptions
    >>> graph = read("fc-mnist", RunOptions(phase="inference"))
    >>> f"{graph.parameters:,} parameters"
    '62,710 parameters'
    """
    if isinstance(model, KernelGraph):
        if options.phase == "training" and (options.train is not None or options.lora is not None):
            raise ModelError(
                "a kernel graph already has its gradients; choose what trains when the model is loaded"
            )
        return model
    return load_model(
        model,
        seq=options.seq,
        training=options.phase == "training",
        optimizer=options.optimizer,
        precision=options.precision,
        **_trained(options),
        **options.model_options,
    )


def _with_inputs(model: Model, inputs: Inputs) -> Model:
    """A model combined with its example arguments, if they are given separately."""
    return model if inputs is None else (model, inputs)


def _asked(
    model: Model, inputs: Inputs | RunOptions, options: RunOptions | None, changes: dict[str, Any]
) -> tuple[Model, RunOptions]:
    """The model and the options of a call, whose second argument is either."""
    if isinstance(inputs, RunOptions):
        inputs, options = None, inputs
    return _with_inputs(model, inputs), _options(options, changes)


@shows_options
def run(
    model: Model,
    inputs: Inputs | RunOptions = None,
    options: RunOptions | None = None,
    *,
    progress: Progress = _silent,
    trace: bool = True,
    **changes: Unpack[RunKeywords],
) -> Result | Infeasible:
    """Run one model: read, compile, simulate.

    `model` is whatever :func:`load_model` takes; with a module of torch, `inputs` are its example arguments, else the second
    argument may be the options.  `changes` are fields of :class:`RunOptions`.  Mode "auto" takes the faster of the two modes.  Without `trace` no
    timeline is kept.

    Example
    -------
    >>> result = run("fc-mnist", mode="pipelined", batch=256)
    >>> result
    <Result fc-mnist, pipelined, training, batch 256, wse2: 141,000 samples/s, bound by input_workers>
    >>> small = run("gpt3-13b", mode="pipelined")
    >>> small.binding, f"{small.need / small.limit:.1f} times what there is"
    ('SRAM', '6.9 times what there is')

    Raises
    ------
    WseError
        If the model or an option is at fault; a model that does not fit is a result.
    """
    model, options = _asked(model, inputs, options, {**changes})
    if options.mode == AUTO:
        offered = tuple(mode for mode in competing(options.systems) if mode.is_offered)
        return _faster(_compared(model, options, offered, progress, trace=trace))
    progress("capture")
    with spent("read the model"):
        graph = read(model, options)
    progress("compile")
    with spent("compile"):
        plan = plan_of(graph, options)
    if isinstance(plan, Infeasible):
        return plan
    progress("simulate")
    with spent("simulate"):
        result = _simulate(plan, options, progress, trace=trace)
    return bounded(result, graph, options, progress)


def bounded(result: Result, graph: KernelGraph, options: RunOptions, progress: Progress = _silent) -> Result:
    """The result with the intervals that the options request."""
    if options.interval is None:
        return result
    from wse_sim import uncertainty

    progress("price draws of the constants")

    def again(wafer: Wafer, cluster: Cluster) -> Plan | Infeasible:
        # The clock of a wafer that is drawn is the one that applied.
        drawn = options.replace(wafer=wafer, cluster=cluster, clock="nominal")
        return plan_of(graph, drawn, result.mode)

    found = uncertainty.result_intervals(
        result,
        options.interval,
        workers=options.interval_workers,
        again=again if options.interval_replans else None,
    )
    return dataclasses.replace(result, intervals=frozen(found))


def _simulate(plan: Plan, options: RunOptions, progress: Progress, *, trace: bool = True) -> Result:
    """Simulate with formulas, or with the ratios that fabric programs measured."""
    if options.timing == "model":
        result = simulate(plan, trace=trace, **_simulation(options))
    else:
        result, _ = simulate_fabric(
            plan, cache=options.cache, measuring=progress, trace=trace, **_simulation(options)
        )
    return _with_clock(result, options)


@shows_options
def run_both(
    model: Model,
    inputs: Inputs | RunOptions = None,
    options: RunOptions | None = None,
    *,
    progress: Progress = _silent,
    **changes: Unpack[RunKeywords],
) -> Timed | Infeasible:
    """One model by formulas and by fabric programs, on the same plan; `report` says where they differ.

    Example
    -------
    >>> both = run_both("fc-mnist", mode="weight-streaming", batch=8)
    >>> 0.9 < both.fabric.samples_per_s / both.model.samples_per_s < 1.1
    True

    Raises
    ------
    WseError
        As :func:`run`.
    """
    model, options = _asked(model, inputs, options, {**changes, "timing": "model"})
    result = run(model, options, progress=progress)
    if isinstance(result, Infeasible):
        return result
    progress("kernels on the fabric")
    timed = run_timed(
        result.plan, model=result, cache=options.cache, measuring=progress, **_simulation(options)
    )
    return dataclasses.replace(timed, fabric=_with_clock(timed.fabric, options))


@shows_options
def compare(
    model: Model,
    inputs: Inputs | RunOptions = None,
    options: RunOptions | None = None,
    *,
    progress: Progress = _silent,
    trace: bool = True,
    **changes: Unpack[RunKeywords],
) -> Comparison:
    """Both modes of one model side by side; a mode that does not fit is a row that states the bottleneck.

    Example
    -------
    >>> for row in compare("fc-mnist", batch=64):
    ...     print(row.mode, round(row.samples_per_s, -3))
    pipelined 141000.0
    weight-streaming 7000.0
    """
    model, options = _asked(model, inputs, options, {**changes})
    return _compared(model, options, competing(options.systems), progress, trace=trace)


def _compared(
    model: Model, options: RunOptions, modes: Sequence[Mode], progress: Progress, *, trace: bool
) -> Comparison:
    progress("capture")
    with spent("read the model"):
        graph = read(model, options)
    out: list[Result | Infeasible] = []
    for mode in modes:
        progress(f"compile {mode.name}")
        with spent(f"compile {mode.name}"):
            plan = plan_of(graph, options, mode.name)
        if isinstance(plan, Infeasible):
            out.append(plan)
            continue
        progress(f"simulate {mode.name}")
        with spent(f"simulate {mode.name}"):
            result = _simulate(plan, options, progress, trace=trace)
        out.append(bounded(result, graph, options, progress))
    return Comparison(out)


def _options(options: RunOptions | None, changes: dict[str, Any]) -> RunOptions:
    chosen = (options or RunOptions()).replace(**changes)
    if chosen.mode not in (AUTO, *mode_names()) and ":" not in chosen.mode:
        raise ModelError(f"mode '{chosen.mode}' is unknown; use one of {', '.join((*mode_names(), AUTO))}")
    load_wafer(chosen.wafer)  # before the model: a wrong name costs no capture
    load_cluster(chosen.cluster)
    return chosen


def _faster(rows: Comparison) -> Result | Infeasible:
    """The answer with the highest rate, with a note on what the other modes reach."""
    feasible = [row for row in rows if isinstance(row, Result)]
    if not feasible:
        return rows[-1]
    best = max(feasible, key=lambda row: row.samples_per_s)
    others = "; ".join(
        f"{row.mode} reaches {row.samples_per_s:,.0f} samples/s" if isinstance(row, Result) else row.message
        for row in rows
        if row is not best
    )
    return (
        dataclasses.replace(best, notes=(*best.notes, f"mode auto chose {best.mode}: {others}"))
        if others
        else best
    )
