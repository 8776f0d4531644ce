"""The pipeline from a model to a result, as a visible list of steps.

    model -> KernelGraph      load_model / lower      read, capture, clean up, classify, find repeats
    graph -> Plan             compile                 size, place, route (pipelined); phases (streaming)
    plan  -> Result           simulate                discrete events in SimPy
    result -> pictures        wse_sim.report          tables, heat maps, traces, one HTML page

Data flows one way; every step can be called alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.checkpoint import Checkpoints
from wse_sim.engine.result import Result
from wse_sim.errors import ModelError
from wse_sim.frontend import load_model, lower
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.modes import load_result, simulate
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.steps import StreamingChoice, compile_streaming
from wse_sim.timing import Timed, run_timed, simulate_fabric

Mode = Literal["pipelined", "weight-streaming", "auto"]
MODES = ("pipelined", "weight-streaming", "auto")
PHASES = ("training", "inference")
Progress = Callable[[str], None]

__all__ = [
    "Infeasible",
    "PipelinedPlan",
    "Result",
    "RunOptions",
    "Timed",
    "WeightStreamingPlan",
    "compare",
    "compile",
    "load_cluster",
    "load_model",
    "load_result",
    "load_wafer",
    "lower",
    "run",
    "run_both",
    "simulate",
]


@dataclass(frozen=True)
class RunOptions:
    """What a run asks for; the defaults are those of the command line."""

    mode: str = "auto"
    phase: str = "training"
    batch: int = 112
    seq: int | None = None
    wafer: Wafer | str = "wse2"
    cluster: Cluster | str = "default"
    systems: int = 1
    optimizer: str = "adamw"
    precision: str = "mixed"
    streaming: StreamingChoice = field(default_factory=StreamingChoice)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    timing: str = "model"
    cache: Path | str | None = None  # folder of fabric measurements; "none" keeps nothing, None: the user's
    jitter: float = 0.0  # relative spread of an input worker's time per sample
    seed: int = 0
    checkpoints: Checkpoints | None = None

    @property
    def simulation(self) -> dict[str, Any]:
        """The options that go to the simulation."""
        return {"jitter": self.jitter, "seed": self.seed, "checkpoints": self.checkpoints}

    def check(self) -> None:
        """Reject impossible requests.

        Raises
        ------
        ModelError
            One sentence: value, limit, remedy.
        """
        if self.mode not in MODES:
            raise ModelError(f"mode '{self.mode}' is unknown; use one of {', '.join(MODES)}")
        if self.phase not in PHASES:
            raise ModelError(f"phase '{self.phase}' is unknown; use one of {', '.join(PHASES)}")
        if self.timing not in ("model", "fabric"):
            raise ModelError(f"timing '{self.timing}' is unknown; use model or fabric")
        if self.batch < 1:
            raise ModelError(f"batch {self.batch} is not positive; ask for at least one sample")
        if self.systems < 1:
            raise ModelError(f"{self.systems} systems are impossible; ask for at least one")
        if self.seq is not None and self.seq < 1:
            raise ModelError(f"sequence length {self.seq} is not positive; ask for at least one token")


def compile(  # noqa: A001  (the word of the field)
    graph: KernelGraph,
    wafer: Wafer | str = "wse2",
    *,
    mode: str = "pipelined",
    batch: int = 1,
    systems: int = 1,
    cluster: Cluster | str = "default",
    streaming: StreamingChoice | None = None,
) -> Plan | Infeasible:
    """Compile a kernel graph for one mode.

    Raises
    ------
    ModelError
        If mode, batch or systems are impossible.
    """
    wafer = load_wafer(wafer) if isinstance(wafer, str) else wafer
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    if mode == "pipelined":
        if systems != 1:
            return Infeasible(
                mode="pipelined",
                model=graph.name,
                binding="systems",
                need=float(systems),
                limit=1.0,
                unit="systems",
                where="a pipeline",
                remedy="pipelined execution uses one wafer; use weight streaming for several systems",
            )
        recompute = streaming.recompute if streaming is not None else None
        return compile_pipelined(graph, wafer, cluster, batch=batch, recompute=recompute)
    if mode == "weight-streaming":
        return compile_streaming(graph, wafer, cluster, batch=batch, systems=systems, choice=streaming)
    raise ModelError(f"mode '{mode}' is unknown; use pipelined or weight-streaming")


def _silent(_: str) -> None:
    return None


def read(model: Any, options: RunOptions) -> KernelGraph:
    """Read a model (name, path, factory, or a graph that is passed through)."""
    if isinstance(model, KernelGraph):
        return model
    return load_model(
        model,
        seq=options.seq,
        training=options.phase == "training",
        optimizer=options.optimizer,
        precision=options.precision,
        **options.model_options,
    )


def run(
    model: Any, options: RunOptions | None = None, *, progress: Progress = _silent, **changes: Any
) -> Result | Infeasible:
    """Run one model: read, compile, simulate.

    `changes` are fields of :class:`RunOptions`.  Mode "auto" takes the faster of the two modes.

    Raises
    ------
    WseError
        If the model or an option is at fault; a model that does not fit is a result.
    """
    options = _options(options, changes)
    if options.mode == "auto":
        return _faster(compare(model, options, progress=progress))
    progress("capture")
    graph = read(model, options)
    progress("compile")
    plan = compile(
        graph,
        options.wafer,
        mode=options.mode,
        batch=options.batch,
        systems=options.systems,
        cluster=options.cluster,
        streaming=options.streaming,
    )
    if isinstance(plan, Infeasible):
        return plan
    progress("simulate")
    return _simulate(plan, options, progress)


def _simulate(plan: Plan, options: RunOptions, progress: Progress, *, trace: bool = True) -> Result:
    """Simulate with formulas, or with the ratios that fabric programs measured."""
    if options.timing == "model":
        return simulate(plan, trace=trace, **options.simulation)
    result, _ = simulate_fabric(
        plan, cache=options.cache, measuring=progress, trace=trace, **options.simulation
    )
    return result


def run_both(
    model: Any, options: RunOptions | None = None, *, progress: Progress = _silent, **changes: Any
) -> Timed | Infeasible:
    """One model by formulas and by fabric programs, on the same plan; `report` says where they differ.

    Raises
    ------
    WseError
        As :func:`run`.
    """
    options = _options(options, {**changes, "timing": "model"})
    result = run(model, options, progress=progress)
    if isinstance(result, Infeasible):
        return result
    progress("kernels on the fabric")
    return run_timed(result.plan, model=result, cache=options.cache, measuring=progress, **options.simulation)


def compare(
    model: Any,
    options: RunOptions | None = None,
    *,
    progress: Progress = _silent,
    trace: bool = True,
    **changes: Any,
) -> tuple[Result | Infeasible, ...]:
    """Both modes of one model side by side; a mode that does not fit is a row that says what binds."""
    options = _options(options, changes)
    progress("capture")
    graph = read(model, options)
    out: list[Result | Infeasible] = []
    for mode in ("pipelined", "weight-streaming"):
        progress(f"compile {mode}")
        plan = compile(
            graph,
            options.wafer,
            mode=mode,
            batch=options.batch,
            systems=options.systems,
            cluster=options.cluster,
            streaming=options.streaming,
        )
        if not isinstance(plan, Infeasible):
            progress(f"simulate {mode}")
            out.append(_simulate(plan, options, progress, trace=trace))
        else:
            out.append(plan)
    return tuple(out)


def _options(options: RunOptions | None, changes: dict[str, Any]) -> RunOptions:
    import dataclasses

    chosen = dataclasses.replace(options or RunOptions(), **changes)
    chosen.check()
    return chosen


def _faster(rows: tuple[Result | Infeasible, ...]) -> Result | Infeasible:
    feasible = [row for row in rows if isinstance(row, Result)]
    return max(feasible, key=lambda row: row.samples_per_s) if feasible else rows[-1]
