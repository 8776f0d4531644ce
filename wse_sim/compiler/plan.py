"""Plans: where every kernel runs and when; or why the model does not fit.

Symbols: a *stage* (pipelined) is one forward kernel with its gradient kernels and its update on one
region; a *phase* (weight streaming) is one kernel on the whole wafer for one micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.serialize import saved

CAUSES = ("compute", "special", "fabric", "ramp", "startup", "idle")
"""Causes of cycles, as in :class:`wse_sim.kernels.contract.family.Cost`."""


@saved
@dataclass(frozen=True)
class Region:
    """A rectangle of cores; its `compute_cores` run the kernel, the others move data in and out."""

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
        """(row, col) of the middle."""
        return self.row + (self.rows - 1) / 2, self.col + (self.cols - 1) / 2

    def holds(self, row: int, col: int) -> bool:
        """Whether a core lies in the rectangle."""
        return self.row <= row < self.row + self.rows and self.col <= col < self.col + self.cols

    def overlaps(self, other: Region) -> bool:
        """Whether the two rectangles share a core."""
        return (
            self.row < other.row + other.rows
            and other.row < self.row + self.rows
            and self.col < other.col + other.cols
            and other.col < self.col + self.cols
        )


@saved
@dataclass(frozen=True)
class CoreMemory:
    """Bytes of SRAM of the fullest core of a region (or of the wafer)."""

    weights_bytes: float = 0.0
    activations_bytes: float = 0.0
    buffers_bytes: float = 0.0
    code_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Sum of the parts."""
        return self.weights_bytes + self.activations_bytes + self.buffers_bytes + self.code_bytes


@saved
@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline on its region; times are cycles per sample.

    `forward_parts` and `backward_parts` split the cycles by cause (:data:`CAUSES`).  A `barrier` stage
    contracts over the rows of a sample (attention): it cannot emit before it has read all of it.
    Others emit the first of their `rows_per_sample` rows after one row's time.
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
    latency_cycles: float = 0.0  # fill of the rectangle, before the first row comes out

    @property
    def cycles_per_sample(self) -> float:
        """Cycles that one sample occupies the region, forward and backward."""
        return self.forward_cycles + self.backward_cycles


@saved
@dataclass(frozen=True)
class Stream:
    """A tensor between two stages; gradients run back along the same route.

    `route` lists the corners (row, col) of a rectilinear path; streams of one tensor share the trunk of
    its tree, where its bytes cross a link once.  `color` carries the tensor, ``color + 1`` its gradient.
    `capacity_samples` bounds how many samples the consumer's buffers take before the producer stalls.
    """

    tensor: str
    producer: str
    consumer: str
    bytes_per_sample: float
    backward_bytes_per_sample: float
    route: tuple[tuple[int, int], ...]
    hops: int
    width: int  # links side by side that carry the stream
    color: int
    capacity_samples: int = 2


@saved
@dataclass(frozen=True)
class PipelinedPlan:
    """Every kernel on its region, every tensor on its links."""

    graph: KernelGraph  # stated for one sample
    wafer: Wafer
    cluster: Cluster
    batch: int
    replicas: int
    stages: tuple[Stage, ...]
    streams: tuple[Stream, ...]
    link_bytes_per_sample: NDArray[np.float32]  # (rows, cols, 4), directions N, E, S, W
    input_bytes_per_sample: float
    in_flight: int
    binding: str  # what sets the pace: "cores", "sram" or "links"
    # Least pace at which the stages' least areas, with the cores that move data, sum to the living cores.
    lower_bound_cycles: float
    notes: tuple[str, ...] = ()
    mode: str = "pipelined"
    host_streams: tuple[Stream, ...] = ()  # from and to the edge; one end is called "host"
    placer: str = "shelves"

    @property
    def pace_cycles(self) -> float:
        """Cycles per sample of the slowest stage."""
        return max(stage.cycles_per_sample for stage in self.stages)

    @property
    def link_cycles(self) -> float:
        """Cycles per sample that the busiest link of the fabric is taken."""
        load = float(self.link_bytes_per_sample.max()) if self.link_bytes_per_sample.size else 0.0
        return load / self.wafer.link_bytes_per_cycle * self.wafer.wavelet_cycles

    @property
    def sample_cycles(self) -> float:
        """Cycles between two samples of a replica: the slowest stage or the busiest link."""
        return max(self.pace_cycles, self.link_cycles)


@saved
@dataclass(frozen=True)
class StreamedPhase:
    """One kernel on the whole wafer for one micro-batch.

    Its time is ``max(compute_cycles / clock, I/O of weight_bytes and gradient_bytes, floor_s)`` plus the
    spill traffic, which is not overlapped.
    """

    name: str
    kernel: str
    family: str
    layer: str
    phase: Phase
    recompute: bool
    compute_cycles: float
    parts: Mapping[str, float]
    weight_bytes: float
    gradient_bytes: float
    spill_bytes: float
    floor_s: float
    flops: int


@saved
@dataclass(frozen=True)
class WeightStreamingPlan:
    """The phases of one step in order, per micro-batch, and how the batch is shared."""

    graph: KernelGraph  # stated for one micro-batch
    wafer: Wafer
    cluster: Cluster
    systems: int
    batch: int
    batch_per_system: int
    micro_batch: int
    micro_batches: int
    lanes: int
    recompute: str  # "none", "attention" or "full"
    phases: tuple[StreamedPhase, ...]
    memory: CoreMemory
    spilled_bytes: float
    optimizer_bytes_per_parameter: float
    weight_density: float = 1.0
    notes: tuple[str, ...] = ()
    mode: str = "weight-streaming"


@saved
@dataclass(frozen=True)
class Infeasible:
    """A model that does not fit: what binds, how much it needs, how much there is."""

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
        """Never: this is the answer for a model that does not fit."""
        return False

    @property
    def message(self) -> str:
        """One sentence."""
        ratio = self.need / self.limit if self.limit else float("inf")
        return (
            f"{self.model} does not fit {self.mode}: {self.binding} of {self.where} needs {_si(self.need, self.unit)}, "
            f"the limit is {_si(self.limit, self.unit)} ({ratio:.3g} times too much); {self.remedy}"
        )


def _si(value: float, unit: str) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{'B' if unit == 'bytes' else unit}"
    return f"{value:.4g} {'B' if unit == 'bytes' else unit}"


Plan = PipelinedPlan | WeightStreamingPlan
