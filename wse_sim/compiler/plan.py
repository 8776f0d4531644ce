"""Common parts of the plans of all modes: regions, stages, streams, memory, and the answer for a model that
does not fit.

A *stage* is one forward kernel with its gradient kernels and its update on one region. The plan of a mode is
in the folder of that mode (:mod:`wse_sim.modes`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from wse_sim.compressed_pickle import Compressed
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.serialize import saved
from wse_sim.view_registry import Displayed

CAUSES = ("compute", "special", "fabric", "ramp", "startup", "idle", "stalled_input", "stalled_output")
"""Causes of cycles, as in :class:`wse_sim.kernels.contract.family.Cost`."""


def stalls_of(parts: Mapping[str, float]) -> tuple[float, float]:
    """Return the cycles stalled on input and those stalled on output, from cycles by cause."""
    return parts.get("stalled_input", 0.0), parts.get("stalled_output", 0.0)


@saved
@dataclass(frozen=True)
class Region:
    """A rectangle of cores. `compute_cores` of them run the kernel; the others are set aside.

    Example
    -------
    >>> region = Region(row=0, col=10, rows=4, cols=8, compute_cores=23)
    >>> region.cores
    32
    """

    row: int
    col: int
    rows: int
    cols: int
    compute_cores: int

    @property
    def cores(self) -> int:
        """All cores of the rectangle."""
        return self.rows * self.cols

    @property
    def center(self) -> tuple[float, float]:
        """The middle as (row, col); halves occur where a side is even."""
        return self.row + (self.rows - 1) / 2, self.col + (self.cols - 1) / 2

    def holds(self, row: int, col: int) -> bool:
        """Return whether a core is in the rectangle."""
        return self.row <= row < self.row + self.rows and self.col <= col < self.col + self.cols

    def overlaps(self, other: Region) -> bool:
        """Return whether the two rectangles have a core in common."""
        return (
            self.row < other.row + other.rows
            and other.row < self.row + self.rows
            and self.col < other.col + other.cols
            and other.col < self.col + self.cols
        )


@saved
@dataclass(frozen=True)
class CoreMemory:
    """Bytes of SRAM of the fullest core of a region (or of the wafer).

    Example
    -------
    >>> CoreMemory(weights_bytes=16_384.0, activations_bytes=8192.0).total_bytes
    24576.0
    """

    weights_bytes: float = 0.0
    activations_bytes: float = 0.0
    buffers_bytes: float = 0.0
    code_bytes: float = 0.0
    streams_bytes: float = 0.0  # of samples that wait in streams between regions

    @property
    def total_bytes(self) -> float:
        """Sum of the parts."""
        own = self.weights_bytes + self.activations_bytes + self.buffers_bytes + self.code_bytes
        return own + self.streams_bytes


@saved
@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline on its region.

    `forward_cycles` and `backward_cycles` are per sample, `update_cycles` are per batch. `forward_parts` and
    `backward_parts` split the cycles by cause (:data:`CAUSES`). A `barrier` stage contracts over the rows of
    a sample (attention): it emits nothing before it has read all rows. Other stages emit the first of their
    `rows_per_sample` rows after one row's time. In a `parallel` stage different cores have rows, or parts of them;
    `rows_per_sample` are those of one core. If several cores take whole samples in `rotation`, the cycles are
    those of the region per sample, and one sample takes `rotation` times as many on its core.
    """

    name: str
    family: str
    layer: str
    kernels: tuple[str, ...]
    region: Region
    forward_cycles: float
    backward_cycles: float
    update_cycles: float
    forward_parts: Mapping[str, float]
    backward_parts: Mapping[str, float]
    rows_per_sample: int
    barrier: bool
    in_flight: int
    memory: CoreMemory
    flops_per_sample: int
    replica: int = 0
    latency_cycles: float = 0.0  # fill of the rectangle, before the first row leaves
    gradient_latency_cycles: float | None = None  # fill in the backward pass; None: as forward
    rotation: int = 1  # samples that the region works on at one time
    parallel: bool = False

    @property
    def cycles_per_sample(self) -> float:
        """Cycles that one sample occupies the region, forward and backward."""
        return self.forward_cycles + self.backward_cycles

    def fill_cycles(self, *, backward: bool) -> float:
        """Fill of the rectangle in a pass: cycles from its first operand to its first result, beyond those of a row."""
        if backward and self.gradient_latency_cycles is not None:
            return self.gradient_latency_cycles
        return self.latency_cycles

    def first_cycles(self, pass_cycles: float, row_cycles: float, fill_cycles: float) -> float:
        """Return the cycles from the start of a pass of `pass_cycles` to its first result; `row_cycles` and `fill_cycles` are those of
        :meth:`row_cycles` and :meth:`fill_cycles`. Cores with different rows send as they finish; the first is next to the inlet,
        without the fill. Behind a barrier all finish together."""
        if self.parallel:
            return row_cycles + self.barrier * fill_cycles
        return pass_cycles / self.rows_per_sample + fill_cycles

    def row_cycles(self, *, backward: bool) -> float:
        """Cycles from the arrival of the last row to its results, without fill: those of one row, or of its core's work."""
        cycles = self.backward_cycles if backward else self.forward_cycles
        waiting = self.backward_stalls if backward else self.forward_stalls
        return (self.rotation * cycles - self.parallel * sum(waiting)) / self.rows_per_sample

    @property
    def forward_stalls(self) -> tuple[float, float]:
        """Cycles of a forward pass in which the cores are stalled on input and on output."""
        return stalls_of(self.forward_parts)

    @property
    def backward_stalls(self) -> tuple[float, float]:
        """Cycles of a backward pass in which the cores are stalled on input and on output."""
        return stalls_of(self.backward_parts)


@saved
@dataclass(frozen=True)
class Stream:
    """A tensor that moves between two stages; its gradient returns along the same route.

    `route` lists the corners (row, col) of a rectilinear path. Streams of one tensor share the trunk of its
    tree, where its bytes cross a link once. `color` carries the tensor, ``color + 1`` its gradient. The
    producer stalls when the consumer is `capacity_samples` samples behind. The links and the producer's
    rectangle hold `on_way_samples` of these samples; the others wait in the consumer's SRAM (gradients in the
    producer's).
    """

    tensor: str
    producer: str
    consumer: str
    bytes_per_sample: float
    backward_bytes_per_sample: float
    route: tuple[tuple[int, int], ...]
    hops: int
    width: int  # parallel links that carry the stream
    color: int
    capacity_samples: int = 2
    on_way_samples: int = 0
    laid_cycles: tuple[float, float] | None = (
        None  # of a wavelet to the consumer and back, if a program has fixed the route
    )

    def travel_cycles(self, wafer: Wafer, *, backward: bool = False) -> float:
        """Return the cycles that a wavelet takes from producer to consumer, or a gradient back: hops, turns
        and die edges.
        """
        if self.laid_cycles is not None:
            return self.laid_cycles[backward]
        straight = sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(self.route))
        # Around defects a stream has more hops than the distances between its corners.
        return wafer.travel_cycles(self.route) + (self.hops - straight) * wafer.hop_cycles


def waiting_bytes(streams: Iterable[Stream]) -> dict[str, float]:
    """Return, for each stage, the most bytes of samples that wait in its SRAM: activations with their reader,
    gradients with their producer.
    """
    held: dict[str, float] = defaultdict(float)
    for stream in streams:
        samples = stream.capacity_samples - stream.on_way_samples
        for stage, size in (
            (stream.consumer, stream.bytes_per_sample),
            (stream.producer, stream.backward_bytes_per_sample),
        ):
            held[stage] += samples * size
    return held


@saved
@dataclass(frozen=True, repr=False)
class Infeasible(Displayed):
    """The answer for a model that does not fit: the bottleneck, the amount that the model needs and the
    limit.

    Example
    -------
    >>> import wse_sim
    >>> misfit = wse_sim.run("gpt3-13b", mode="pipelined")
    >>> misfit.need > misfit.limit, misfit.remedy
    (True, 'use weight streaming or a smaller model')
    """

    mode: str
    model: str
    binding: str
    need: float
    limit: float
    unit: str
    where: str
    remedy: str
    facts: Mapping[str, float] = field(default_factory=frozen)

    @property
    def feasible(self) -> bool:
        """Always False: this is the answer for a model that does not fit."""
        return False

    @property
    def brief(self) -> str:
        """The same text as :attr:`message`."""
        return self.message

    @property
    def message(self) -> str:
        """One sentence with the bottleneck, the need, the limit and the remedy."""
        if not math.isfinite(self.need):
            need = f"needs more {self.unit} than there can be"
        else:
            need = f"needs {_si(self.need, self.unit, self.limit)}"
        limit = _si(self.limit, self.unit, self.need)
        return (
            f"{self.model} does not fit {self.mode}: {self.binding} of {self.where} {need}, "
            f"the limit is {limit}{self._excess}; {self.remedy}"
        )

    @property
    def _excess(self) -> str:
        """Text that states by how much the need exceeds the limit; "" if a ratio makes no sense."""
        if not math.isfinite(self.need) or self.limit <= 0 or self.need <= self.limit:
            return ""
        ratio = self.need / self.limit
        return f" ({ratio:.3g} times as much)" if ratio >= 1.005 else " (a little too much)"


def _si(value: float, unit: str, other: float = 0.0) -> str:
    """Format a number with its unit: integers in full, bytes and large numbers with a prefix.

    A value that nearly equals `other` gets ten digits, so that the two differ in print.
    """
    if unit != "bytes" and float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f} {unit}"
    if other and value != other and abs(value / other - 1) < 1e-3:
        return f"{value:,.10g} {unit}"
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{'B' if unit == 'bytes' else unit}"
    return f"{value:.4g} {'B' if unit == 'bytes' else unit}"


class DisplayedPlan(Compressed, Displayed):
    """Base class of the plans of all modes, with their one-line description."""

    graph: KernelGraph
    wafer: Wafer
    batch: int
    mode: str

    @property
    def brief(self) -> str:
        """Model, mode, machine and batch."""
        wafers = getattr(self, "systems", 1)
        return (
            f"{self.graph.name}, {self.mode}, {'training' if self.graph.training else 'inference'}, "
            f"batch {self.batch:,}, {f'{wafers} x ' if wafers > 1 else ''}{self.wafer.name}"
        )


class Plan(Protocol):
    """Attributes that the plans of all modes share."""

    @property
    def mode(self) -> str:
        """Name of the mode that made the plan."""
        ...

    @property
    def graph(self) -> KernelGraph:
        """The kernel graph that the plan runs."""
        ...

    @property
    def wafer(self) -> Wafer:
        """The wafer that the plan runs on."""
        ...

    @property
    def cluster(self) -> Cluster:
        """The cluster around the wafer."""
        ...

    @property
    def batch(self) -> int:
        """Samples per step, over all systems."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on assumptions and choices, for readers of the numbers."""
        ...

    @property
    def weights_rest(self) -> bool:
        """Whether weights stay on the wafer from step to step."""
        ...
