"""Simulates a program: its kernel graph, plan and result, and the time that each step takes on the wafer.

Symbols: r the simulated result, b samples of a batch, i samples/s of the input, c bytes of a checkpoint,
s bytes/s of storage::

    t(step) = max(r.step_s, b / i) + (c / s on checkpoint steps, or what of it does not overlap) + (fill on the first step)

One result per compile: steps of a compiled program are alike.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.cstorch import checkpoint, faults, runtime
from wse_sim.cstorch.compiled import Compiled
from wse_sim.cstorch.levels import with_levels
from wse_sim.cstorch.on_top import on_top
from wse_sim.cstorch.program import StepProgram
from wse_sim.cstorch.tape import TapeModule
from wse_sim.cstorch.tensors import WaferTensor
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.graph.optimizers import optimizer_of
from wse_sim.hardware import Cluster, load_cluster
from wse_sim.modes import mode_of, streaming
from wse_sim.report.text import percent

if TYPE_CHECKING:
    from wse_sim.cstorch.record import Recorder
    from wse_sim.cstorch.roles import ExecutionRole
    from wse_sim.cstorch.tape import TracedCall
    from wse_sim.engine.result import Result

WEIGHT_SERVERS = 24
"""Weight servers for which a cluster's MemoryX rates are stated."""


def compile_program(run: runtime.Run, program: StepProgram, trace_s: float) -> Compiled:
    """Lower, compile and simulate a captured step, and report the result.

    Raises
    ------
    DoesNotFitError
        With the bottleneck, need and limit.
    ModelError, ProgramError
        If the program has no kernels.
    """
    batch = run.execution.batch_samples if run.execution is not None else 1
    training = is_training(program)
    parameters = [
        t for t in program.inputs if isinstance(t, WaferTensor) and t._role == "state" and t.requires_grad
    ]
    elements = sum(p.numel() for p in parameters)
    runtime.note(
        f"captured {program.name}: {program.operators} operators, {len(parameters)} parameters "
        f"({elements / 1e6:.2f} M), {len(program.written)} state tensors, batch {batch}    {trace_s:.1f} s"
    )
    for line in program.notes:
        runtime.note(line)
    run.state_name = "compiling"
    start = time.perf_counter()
    with runtime.span("lower", program.name, "LowerTime"):
        graph = lowered(run, program, batch, training)
    for line in graph.notes:
        if line.startswith("without a rule"):
            runtime.note(line)
    if run.backend is not None and run.backend.validate_only:
        compiled = Compiled(program.name, graph, None, batch, training, 0.0, 0.0)
        run.compiled.append(compiled)
        _say_kernels(graph)
        return compiled
    with runtime.span("simulate", program.name, "SimulateTime"):
        result, input_rate = simulated(run, graph, batch)
    seconds = time.perf_counter() - start
    runtime.timed("CompileTime", seconds)
    if isinstance(result, Infeasible):
        raise faults.DoesNotFitError(
            f"{program.name} does not fit ({result.mode}): {result.binding} binds, needs {result.need:,.4g} {result.unit} "
            f"of {result.limit:,.4g} in {result.where}; {result.remedy}"
        )
    runtime.count("CerebrasCompileTimeMs", int(1000 * seconds))
    runtime.count("CerebrasSystemEstSamples", int(result.samples_per_s))
    optimizer = optimizer_of(graph)
    per_parameter = 4 if optimizer is None else optimizer.checkpoint_bytes
    compiled = Compiled(
        program.name, graph, result, batch, training, float(graph.parameters * per_parameter), input_rate
    )
    compiled.on_top = on_top(program, result) if training else []
    run.compiled.append(compiled)
    wafer = runtime.options().wafer
    runtime.note(
        f"{result.mode.replace('-', ' ')} on {result.systems} x {wafer}: {1e3 * result.step_s:.4g} ms/step, "
        f"{result.samples_per_s:.4g} samples/s, {100 * result.compute_utilization:.1f} % compute, "
        f"bound by {result.binding}, precision {precision_name(run.settings)}    {seconds:.1f} s"
    )
    if compiled.on_top:
        shown = ", ".join(f"{item.name} {1e3 * item.seconds:.3g} ms" for item in compiled.on_top)
        runtime.note(f"on top of the step: {shown}")
    if run.backend is not None and run.backend.compile_only:
        _say_plan(compiled, result, graph)
    return compiled


def is_training(program: StepProgram) -> bool:
    """Return whether the step runs a backward pass."""
    return program.recorder.has_backward


# -- lowering -----------------------------------------------------------------------------------------
def lowered(run: runtime.Run, program: StepProgram, batch: int, training: bool) -> KernelGraph:
    """Return the kernel graph of the captured forward pass, with gradients and update where it trains."""
    recorder = program.recorder
    tape = recorder.tape
    roots = [_unscaled(recorder, r) for r in tape.roots or tape.inner_roots]

    def storage(tensor: torch.Tensor) -> int:
        return recorder.fake_of(tensor).untyped_storage()._cdata

    tape.roots = roots
    calls = tape.needed(tape.calls, storage)
    if not calls:
        raise faults.program_error(
            f"{program.name} computes nothing from a compiled model; call the model in the step and return its loss",
            where="",
        )
    try:
        graph, calls = _lowered_calls(run, program, calls, batch, training)
    except ModelError as fault:
        # What torch does not capture as a whole call was recorded operator by operator all the same.
        parts = tape.needed(tape.operators, storage)
        try:
            graph, calls = _lowered_calls(run, program, parts, batch, training, whole=False)
        except ModelError:
            raise fault from None
        runtime.note(f"{program.name} is lowered operator by operator, because {str(fault).rstrip('.')}")
    graph = with_levels(graph, calls, precision_name(run.settings))
    return _with_pins(run, graph)


def _lowered_calls(
    run: runtime.Run,
    program: StepProgram,
    calls: list[TracedCall],
    batch: int,
    training: bool,
    whole: bool = True,
) -> tuple[KernelGraph, list[TracedCall]]:
    """Return the kernel graph of calls, and the calls with the names of modules that its layers have."""
    from wse_sim.frontend.calls import lower_calls

    recorder = program.recorder
    names, calls = _of_models_at_work(run, calls)
    batch_tensors = [t for t in recorder.batch if any(t is leaf for c in calls for leaf in _leaves(c))]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with torch._C.DisableTorchFunction(), runtime.internal():
        module = TapeModule(calls, recorder.tape.roots, batch_tensors, names, mode, whole)
        with mode:
            stand_ins = [_stand_in(t) for t in batch_tensors]
        graph = lower_calls(
            module,
            tuple(stand_ins),
            name=program.name,
            samples=batch,
            training=training,
            optimizer=optimizer_name(program),
            precision=precision_name(run.settings),
        )
    return graph, calls


def _with_pins(run: runtime.Run, graph: KernelGraph) -> KernelGraph:
    """Return the graph with the pins and shardings that the script set on modules of its compiled models."""
    from wse_sim.frontend.hints import marked_pins, pin_kernels

    at_work = {k.layer for k in graph.kernels}
    pins = []
    for title, (model, _) in zip(run.titles(), run.modules, strict=True):
        is_named = any(_within(layer, title) for layer in at_work) and len(run.modules) > 1
        for found in marked_pins(model):
            pin = found.model_copy(update={"module": f"{title}.{found.module}"}) if is_named else found
            if any(_within(layer, pin.module) for layer in at_work):
                pins.append(pin)
    return pin_kernels(graph, *pins) if pins else graph


def _within(path: str, owner: str) -> bool:
    return path == owner or path.startswith(f"{owner}.")


def _of_models_at_work(run: runtime.Run, calls: list[TracedCall]) -> tuple[dict[int, str], list[TracedCall]]:
    """Return the names of parameters, and the calls; where one of several compiled models is at work, without its name
    before them.
    """
    names = run.names()
    if len(run.modules) < 2:
        return names, calls
    used = {c.module for c in calls} | {
        names[id(leaf)] for c in calls for leaf in _leaves(c) if id(leaf) in names
    }
    at_work = [title for title in run.titles() if any(_within(path, title) for path in used)]
    if len(at_work) != 1:
        return names, calls
    (title,) = at_work

    def plain(path: str) -> str:
        return path.removeprefix(title).removeprefix(".") if _within(path, title) else path

    return (
        {key: plain(name) for key, name in names.items()},
        [dataclasses.replace(c, module=plain(c.module)) for c in calls],
    )


def _leaves(call: TracedCall) -> list[Any]:
    return torch.utils._pytree.tree_leaves((call.args, call.kwargs))


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    dtype = {
        torch.int32: torch.int64,
        torch.int16: torch.int64,
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
    }
    return torch.empty(tuple(tensor.shape), dtype=dtype.get(tensor.dtype, tensor.dtype), device="cpu")


_SCALINGS = frozenset({"mul", "__mul__", "__rmul__", "multiply", "div", "__truediv__", "true_divide", "mul_"})


def _unscaled(recorder: Recorder, root: torch.Tensor) -> torch.Tensor:
    """Return the loss before its scale: multiplied by a state tensor of one element it is still the loss."""
    marked = recorder.scaled.get(id(root))
    if marked is not None:
        return marked
    for call in reversed(recorder.tape.calls):
        if call.out is root:
            if getattr(call.func, "__name__", "") in _SCALINGS:
                made = [
                    a
                    for a in call.args
                    if isinstance(a, WaferTensor) and a._role == "trace" and a._const is None
                ]
                if len(made) == 1 and made[0].shape == root.shape:
                    return made[0]
            break
    return root


def optimizer_name(program: StepProgram) -> str:
    """Return the algorithm with as many moments per parameter as the step keeps, by counting its state."""
    parameters = {id(t): t for t in program.written if isinstance(t, WaferTensor) and t.requires_grad}
    elements = sum(t.numel() for t in parameters.values())
    shapes = {tuple(t.shape) for t in parameters.values()}
    others = sum(
        t.numel()
        for t in program.written
        if id(t) not in parameters and t.is_floating_point() and tuple(t.shape) in shapes and t.numel() > 1
    )
    moments = round(others / elements) if elements else 0
    return {0: "sgd", 1: "momentum"}.get(moments, "adamw")


def precision_name(settings: runtime.Settings) -> str:
    """Return the project's name of the script's precision."""
    if not settings.mixed_precision:
        return "fp32"
    half = {"float16": "fp16", "bfloat16": "bf16", "cbfloat16": "cbfloat16"}[settings.half_dtype]
    return f"{half}:{settings.precision_level}"


# -- simulation ---------------------------------------------------------------------------------------
def cluster_of(run: runtime.Run) -> Cluster:
    """Return the cluster with the script's counts of workers and servers."""
    cluster = load_cluster(run.options.cluster)
    settings = run.settings
    changes: dict[str, Any] = {}
    if settings.num_workers_per_csx != 1:
        changes["input_workers_per_system"] = cluster.input_workers_per_system * settings.num_workers_per_csx
    if settings.max_act_per_csx != 1:
        changes["activation_server_bytes_per_s"] = (
            cluster.activation_server_bytes_per_s * settings.max_act_per_csx
        )
        changes["activation_server_bytes"] = cluster.activation_server_bytes * settings.max_act_per_csx
    if settings.max_wgt_servers != WEIGHT_SERVERS:
        fraction = settings.max_wgt_servers / WEIGHT_SERVERS
        changes["memoryx_bytes_per_s"] = cluster.memoryx_bytes_per_s * min(fraction, 1.0)
        changes["memoryx_update_bytes_per_s"] = cluster.memoryx_update_bytes_per_s * fraction
    return cluster.derive(**changes) if changes else cluster


def simulated(run: runtime.Run, graph: KernelGraph, batch: int) -> tuple[Any, float]:
    """Return (result or infeasibility, samples/s of the input path)."""
    options, settings = run.options, run.settings
    systems = options.systems or settings.num_csx
    mode = options.mode or settings.mode or "auto"
    if systems > 1 and mode == "auto":
        mode = streaming().name
    if batch % systems:
        raise faults.program_error(
            f"batch {batch} does not divide among {systems} systems; make it a multiple of {systems}",
            where="",
        )
    cluster = cluster_of(run)
    asked: dict[str, Any] = {
        "mode": mode, "batch": batch, "wafer": options.wafer, "cluster": cluster, "systems": systems,
        "phase": "training" if graph.training else "inference", "seed": options.seed,
    }  # fmt: skip
    chosen = api.RunOptions(**asked, **_streaming(run, batch // systems))
    result = api.run(graph, chosen)
    return result, cluster.worker_samples_per_s * cluster.input_workers_per_system * systems


def _streaming(run: runtime.Run, batch: int) -> dict[str, Any]:
    """Return the options of weight streaming that the script settles."""
    settings = run.settings
    micro = settings.micro_batch_size
    chosen: dict[str, Any] = {}
    if isinstance(micro, int):
        if batch % micro:
            raise faults.program_error(
                f"micro_batch_size={micro} does not divide the batch of {batch} per system; use a divisor",
                where="",
            )
        chosen["micro_batch"] = micro
    elif micro == "disable":
        chosen["micro_batch"] = batch
    elif micro == "explore" or isinstance(micro, dict):
        chosen["choose_micro_batch"] = "search"
    if settings.density:
        chosen["density"] = min(1.0, max(1e-6, statistics.fmean(settings.density.values())))
    return chosen


# -- clock --------------------------------------------------------------------------------------------
def step_seconds(run: runtime.Run, execution: ExecutionRole) -> tuple[float, float]:
    """Return (seconds of this step on the wafer, of which seconds that the loader made it wait)."""
    compiled = execution.compiled
    assert compiled is not None
    seconds = compiled.step_s
    if run.options.jitter:
        draw = random.Random(f"{run.options.seed}:{run.global_step}")
        seconds *= max(0.0, 1.0 + run.options.jitter * draw.gauss(0.0, 1.0))
    waited = 0.0
    if run.options.measure_input:
        rate = measured_rate(run)
        if rate and execution.batch_samples / rate > seconds:
            waited = execution.batch_samples / rate - seconds
            seconds += waited
    if compiled.training and execution.is_checkpoint_step:
        seconds += checkpoint_seconds(run, execution, compiled)
    if compiled.steps == 0:
        seconds += fill_seconds(compiled)
    return seconds, waited


def checkpoint_seconds(run: runtime.Run, execution: ExecutionRole, compiled: Compiled) -> float:
    """Return the seconds that a checkpoint adds to its step.

    A synchronous write takes ``c / s``. With asynchronous writes, the state first leaves through MemoryX (the
    copy stops the step), and the write is hidden by the steps until the next checkpoint.
    """
    write_s = compiled.checkpoint_bytes / run.options.storage_bytes_per_s
    if not run.options.async_checkpoints or compiled.result is None:
        return write_s
    every = execution.checkpoint_steps
    steps = every if isinstance(every, int) else 1
    copy_s = compiled.checkpoint_bytes / float(compiled.result.plan.cluster.memoryx_bytes_per_s)
    if execution.on_final_iteration:
        return write_s  # nothing is left to hide behind
    return checkpoint.exposed_seconds(write_s, steps * compiled.step_s, min(copy_s, write_s))


def fill_seconds(compiled: Compiled) -> float:
    """Return the extra seconds of the first step: the pipeline's fill, or the first pass of weights over the edge."""
    result = compiled.result
    if result is None:
        return 0.0
    if mode_of(result.plan).weights_rest:
        per_sample = 1.0 / result.samples_per_s
        return per_sample * min(len(compiled.graph.kernels), compiled.batch)
    return 2.0 * compiled.graph.parameters / float(result.plan.cluster.memoryx_bytes_per_s)


def measured_rate(run: runtime.Run) -> float:
    """Samples/s that the script's own loader delivers: median of the last batches, times the workers."""
    waits = [w for w in run.measured_input if w > 0]
    if not waits or run.execution is None:
        return 0.0
    systems = run.options.systems or run.settings.num_csx
    return run.execution.batch_samples / statistics.median(waits) * run.settings.num_workers_per_csx * systems


def advance(run: runtime.Run, execution: ExecutionRole) -> None:
    """Advance the wafer's clock by one step."""
    compiled = execution.compiled
    if compiled is None or compiled.result is None:
        return
    seconds, waited = step_seconds(run, execution)
    if run.capturing:
        run.wafer_steps.append((run.global_step, run.clock_s, seconds, run.compiled.index(compiled)))
    compiled.steps += 1
    compiled.input_bound_s += waited
    run.clock_s += seconds
    runtime.timed("WaferStepTime", seconds)
    every = run.options.log_steps or max(1, (execution.num_steps or 100) // 10)
    if run.options.progress and run.global_step % every == 0:
        tracker = execution.profiler.rate_tracker
        runtime.note(
            f"step {run.global_step} | wafer {run.clock_s:.4g} s | client {time.perf_counter() - run.client_start_s:.1f} s | "
            f"Rate={tracker.rate:.2f} samples/sec, GlobalRate={tracker.global_rate:.2f} samples/sec"
        )


# -- lines --------------------------------------------------------------------------------------------
def _say_plan(compiled: Compiled, result: Result, graph: KernelGraph) -> None:
    """Print five lines on a compile, and the bottleneck; the step time includes additional times of the run."""
    rate = result.samples_per_s * result.step_s / compiled.step_s
    runtime.note(
        f"predicted rate: {rate:.6g} samples/s (compute {result.compute_samples_per_s:.6g}, input {result.transmission_samples_per_s:.6g})"
    )
    runtime.note(
        f"active cores: {percent(result.active_pe_fraction)}; compute utilization {percent(result.compute_utilization)}; MFU {percent(result.mfu)}"
    )
    runtime.note(f"step: {1e3 * compiled.step_s:.6g} ms of batch {result.batch} on {result.systems} systems")
    runtime.note(
        f"parameters: {graph.parameters:,}; kernels {len(graph.kernels)}; {result.flops_per_step:.4g} FLOP per step"
    )
    shown = ", ".join(
        f"{k} {1e3 * v:.4g} ms" for k, v in sorted(result.bindings.items(), key=lambda kv: -kv[1])[:4]
    )
    runtime.note(f"binds: {result.binding} ({shown}); nothing was executed")


def _say_kernels(graph: KernelGraph) -> None:
    """Log the table of matched kernels."""
    counts: dict[tuple[str, str], int] = {}
    for kernel in graph.kernels:
        key = (kernel.family, str(kernel.phase))
        counts[key] = counts.get(key, 0) + 1
    runtime.note(
        f"matched {len(graph.kernels)} kernels for {graph.parameters:,} parameters; nothing was compiled or executed"
    )
    for (family, phase), number in sorted(counts.items()):
        runtime.note(f"  {family:<16} {phase:<16} {number:>5}")
