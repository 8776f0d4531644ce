"""Results of a run, with all data for pictures and reports.

Fractions of a core's time add up to one: busy + stalled on input + stalled on output + idle = 1 for every row
of :attr:`Result.kernels` and every core of the maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import CoreMemory, Plan, Region, Stream
from wse_sim.compressed_pickle import Compressed
from wse_sim.engine.bounds import Interval
from wse_sim.graph.kernel_graph import frozen
from wse_sim.serialize import same, save, saved
from wse_sim.view_registry import Displayed, view

if TYPE_CHECKING:
    import pandas


@saved
@dataclass(frozen=True)
class KernelUse:
    """How one kernel (pipelined: one region; weight streaming: one family of phases) spent the step.

    Times are per step and per system; `utilization` is arithmetic cycles over region time; `parts` splits the
    busy time by cause (seconds); `bound_fraction` is the roofline bound over the actual time and `bound` the
    resource of that bound ("compute", "sram", "fabric", "io", "launch").

    Example
    -------
    >>> import wse_sim
    >>> use = wse_sim.run("fc-mnist", mode="pipelined", batch=256).kernels[0]
    >>> use.busy_s + use.stalled_input_s + use.stalled_output_s + use.idle_s > 0, 0 <= use.utilization <= 1
    (True, True)
    """

    name: str
    family: str
    layer: str
    phase: str
    count: int
    cores: int
    busy_s: float
    stalled_input_s: float
    stalled_output_s: float
    idle_s: float
    flops: float
    utilization: float
    bound: str
    bound_fraction: float
    parts: Mapping[str, float]
    memory: CoreMemory
    region: Region | None = None
    block: str = ""  # name that equal kernels of all repeated blocks share; "" if no other kernel equals it
    replica: int = 0  # copy of the model that it belongs to


@saved
@dataclass(frozen=True)
class QueueUse:
    """Largest queue in front of one region, over all simulated samples of a pipelined run.

    A sample waits in a stream from the start of its pass in the producer to its start in the reader, which
    the stream's capacity bounds. `samples` and `capacity` are those of the fullest stream into the region,
    activations or gradients; `bytes` is the largest total over all streams at one time.

    Example
    -------
    >>> QueueUse("fc.1", samples=3, capacity=4, bytes=3072.0).capacity
    4
    """

    name: str
    samples: int
    capacity: int
    bytes: float


@saved
@dataclass(frozen=True)
class Slice:
    """A span on a track of the timeline; slices of one track never overlap partially.

    Example
    -------
    >>> Slice("fc.1", "sample 7", "compute", start_s=1e-5, duration_s=2e-6).category
    'compute'
    """

    track: str
    name: str
    category: str  # compute, activations, weights, gradients, spill, input, update, sync, stall
    start_s: float
    duration_s: float
    bytes: float = 0.0
    flow: int = -1  # slices of equal flow >= 0 are connected in time order
    direction: str = ""  # "forward" or "backward", where there are two
    role: str = ""  # what it is without the number of its sample; "" if that is its name
    sample: int = -1  # number of its sample, micro-batch or token


@saved
@dataclass(frozen=True)
class Area:
    """A rectangle of cores with the same use of time, on one track of the timeline."""

    name: str
    region: Region
    track: str
    times_s: tuple[float, float, float, float]  # busy, stalled on input, stalled on output, idle
    memory: CoreMemory
    kernel: int = -1  # index into the result's kernels; -1 if all of them run here one after the other
    queue_samples: int = 0  # most samples that waited in a stream into it

    @property
    def fractions(self) -> tuple[float, float, float, float]:
        """The times as fractions of their sum; all idle if there was no time."""
        total = sum(self.times_s)
        busy, stalled_input, stalled_output, idle = self.times_s
        if not total:
            return 0.0, 0.0, 0.0, 1.0
        return busy / total, stalled_input / total, stalled_output / total, idle / total


@saved
@dataclass(frozen=True)
class Track:
    """A row of the timeline: the activity of an area, or of a resource outside the cores."""

    name: str
    area: int = -1  # index into the result's areas; -1 for a resource


INPUT_RESOURCES = ("input_workers", "wafer_io", "results_io")
"""Bottlenecks of the host: input of samples, output of results."""


@saved
@dataclass(frozen=True, repr=False)
class Result(Compressed, Displayed):
    """Result of one simulated training step (or inference batch).

    Rates are samples per second over all systems. `compute_samples_per_s` is the rate with unlimited input,
    `transmission_samples_per_s` the rate of the input path; the result is the smaller one, and at most what
    the busiest link of the wafer carries. `binding` names the bottleneck of the step and `bindings` gives the
    step time if each resource were the only one.

    Example
    -------
    >>> import wse_sim
    >>> result = wse_sim.run("fc-mnist", mode="pipelined", batch=256)
    >>> result.binding, result.samples_per_s == min(result.compute_samples_per_s, result.transmission_samples_per_s)
    ('input_workers', True)
    >>> max(result.kernels, key=lambda use: use.busy_s).bound
    'compute'
    """

    model: str
    mode: str
    phase: str  # training, inference
    systems: int
    batch: int
    samples_per_s: float
    compute_samples_per_s: float
    transmission_samples_per_s: float
    active_pe_fraction: float
    compute_utilization: float
    step_s: float
    mfu: float
    binding: str
    bindings: Mapping[str, float]  # resource -> seconds of the step that it alone would need
    kernels: tuple[KernelUse, ...]
    timeline: tuple[Slice, ...]
    link_wavelets: NDArray[np.float32]  # (rows, cols, 4) wavelets per step and system; N, E, S, W
    conservation: Mapping[str, float]  # bytes sent and received by name, must agree in pairs
    plan: Plan
    flops_per_step: float
    events: int  # discrete events processed
    extrapolated_samples: int  # samples added by the steady-state rule, not simulated
    counters: Mapping[str, tuple[tuple[float, float], ...]] = field(
        default_factory=frozen
    )  # name -> (time_s, value)
    notes: tuple[str, ...] = ()
    feasible: bool = True
    areas: tuple[Area, ...] = ()
    tracks: tuple[Track, ...] = ()  # of the timeline: areas in the order of the plan, then resources by name
    facts: tuple[tuple[str, str], ...] = ()  # facts of the plan from the mode
    streams: tuple[Stream, ...] = ()  # tensors that travel between areas on fixed routes
    figures: Mapping[str, float] = field(
        default_factory=frozen
    )  # further numbers of the mode, units in the names
    queues: tuple[QueueUse, ...] = ()  # one per area that streams lead to
    intervals: Mapping[str, Interval] = field(default_factory=frozen)  # if they were requested, by name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and same(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def brief(self) -> str:
        """Return model, mode, rate and bottleneck in one line."""
        wafers = f"{self.systems} x " if self.systems > 1 else ""
        rate = f"{self.samples_per_s:,.0f}" if self.samples_per_s >= 1000 else f"{self.samples_per_s:.4g}"
        return (
            f"{self.model}, {self.mode}, {self.phase}, batch {self.batch:,}, {wafers}{self.plan.wafer.name}: "
            f"{rate} samples/s, bound by {self.binding}"
        )

    @property
    def compute_binding(self) -> str:
        """Bottleneck of the compute rate, without resources of the input path; "" if none is known."""
        own = {name: time_s for name, time_s in self.bindings.items() if name not in INPUT_RESOURCES}
        return max(own, key=lambda name: own[name], default="")

    def core_map(self, quantity: str) -> NDArray[np.float32]:
        """Return a (rows, cols) map of the fabric.

        `quantity` is one of :data:`QUANTITIES`: fractions of time (busy, stalled_input, stalled_output,
        idle; they add up to 1 on every core), ``sram`` (bytes per core), ``kernel`` (index into
        :attr:`kernels`, -1 where no kernel runs), ``queue`` (most samples that waited in a stream into the
        core's region), ``link_n`` .. ``link_w`` (wavelets per step).

        Raises
        ------
        ValueError
            If there is no such quantity.
        """
        if quantity in LINK_QUANTITIES:
            return self.link_wavelets[:, :, LINK_QUANTITIES.index(quantity)]
        if quantity not in QUANTITIES:
            raise ValueError(f"quantity '{quantity}' is unknown; use one of {', '.join(QUANTITIES)}")
        rows, cols = self.link_wavelets.shape[:2]
        fill = {"idle": 1.0, "kernel": -1.0}.get(quantity, 0.0)
        out = np.full((rows, cols), fill, np.float32)
        for area in self.areas:
            place = area.region
            view = out[place.row : place.row + place.rows, place.col : place.col + place.cols]
            view[:] = _value(area, quantity)
        return out

    # Views of the report, in the words of torch.profiler; a view is loaded when it is used.

    def summary(self) -> str:
        """Return a plain-text summary of 80 columns: the five headline lines, the bottleneck, kernels by time."""
        return str(view("summary")(self))

    def table(self, sort_by: str = "time", row_limit: int = 20) -> str:
        """Return the kernels as text; equal kernels of repeated blocks are one row."""
        return str(view("table")(self, sort_by, row_limit))

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the kernels as a pandas data frame."""
        return view("to_dataframe")(self)

    def heatmap(
        self, quantity: str = "busy", time: tuple[float, float] | None = None, ax: object = None
    ) -> Any:
        """Return a matplotlib figure of :meth:`core_map`; `time` is a window in seconds."""
        return view("heatmap")(self, quantity, ax=ax, time=time)

    def breakdown(self) -> Any:
        """Return the four breakdowns of Holistic Trace Analysis: temporal, idle by cause, kernels,
        overlap."""
        return view("breakdown")(self)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as Chrome JSON (``.json``) or Perfetto protobuf (any other suffix)."""
        view("trace")(self, path)

    def save(self, folder: str | Path) -> Path:
        """Write ``result.json`` and ``result.npz``; :func:`wse_sim.modes.load_result` reads them back equal."""
        save(self, Path(folder), "result")
        return Path(folder)


def areas_of(kernels: Sequence[KernelUse], queues: Sequence[QueueUse] = ()) -> tuple[Area, ...]:
    """Return the areas of kernels that own regions, each with a track of the same name."""
    waiting = {queue.name: queue.samples for queue in queues}
    return tuple(
        Area(
            name=use.name,
            region=use.region,
            track=use.name,
            times_s=(use.busy_s, use.stalled_input_s, use.stalled_output_s, use.idle_s),
            memory=use.memory,
            kernel=index,
            queue_samples=waiting.get(use.name, 0),
        )
        for index, use in enumerate(kernels)
        if use.region is not None
    )


def tracks_of(timeline: Iterable[Slice], areas: Sequence[Area]) -> tuple[Track, ...]:
    """Return the tracks that a timeline uses: those of areas in order, then the others by name."""
    present = {item.track for item in timeline}
    own = [Track(area.track, index) for index, area in enumerate(areas) if area.track in present]
    return (*own, *(Track(name) for name in sorted(present - {track.name for track in own})))


def _value(area: Area, quantity: str) -> float:
    if quantity in FRACTIONS:
        return area.fractions[FRACTIONS.index(quantity)]
    if quantity == "sram":
        return area.memory.total_bytes
    return float(area.kernel if quantity == "kernel" else area.queue_samples)


LINK_QUANTITIES = ("link_n", "link_e", "link_s", "link_w")
FRACTIONS = ("busy", "stalled_input", "stalled_output", "idle")
QUANTITIES = (*FRACTIONS, "sram", "kernel", "queue", *LINK_QUANTITIES)
