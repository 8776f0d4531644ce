"""The plan of weight streaming: the phases of one step in order, each one kernel on the whole wafer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wse_sim.compiler.plan import CoreMemory, DisplayedPlan
from wse_sim.graph import KernelGraph, Phase
from wse_sim.hardware import Cluster, Wafer
from wse_sim.serialize import saved

STREAMED_WEIGHT_BYTES = 2  # weights and gradients cross the wafer's edge in a 16-bit type


def on_rectangle(wafer: Wafer, rectangle: tuple[int, int] | None) -> Wafer:
    """Return the wafer with a program rectangle of at most `rectangle` (rows, columns); unchanged for
    None."""
    if rectangle is None:
        return wafer
    rows, cols = min(rectangle[0], wafer.program_rows), min(rectangle[1], wafer.program_cols)
    return wafer.model_copy(update={"program_rows": rows, "program_cols": cols})


@saved
@dataclass(frozen=True)
class StreamedPhase:
    """One kernel on the whole wafer for one micro-batch.

    Its time is ``max(compute_cycles / clock, I/O of edge_weight_bytes and edge_gradient_bytes + way_cycles /
    clock, floor_s)`` plus the spill traffic, which is not overlapped.  A column receives its part of a round
    of weights in whole words, so `filled` times the bytes cross the edge. After the last weights have crossed
    it, they need `way_cycles` more: over the wafer, and with their sums through the lane. The first gradients
    need as long before they cross it. `ahead_bytes` of weights wait between the edge and the cores when the
    phase starts, if the edge was free before.
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
    output_elements: int = 0  # elements of the results of all products with streamed weights
    filled: float = 1.0
    way_cycles: float = 0.0
    ahead_bytes: float = 0.0

    @property
    def edge_weight_bytes(self) -> float:
        """Bytes of weights over the edge of the wafer."""
        return self.filled * self.weight_bytes

    @property
    def edge_gradient_bytes(self) -> float:
        """Bytes of gradients over the edge of the wafer."""
        return self.filled * self.gradient_bytes


@saved
@dataclass(frozen=True, repr=False)
class WeightStreamingPlan(DisplayedPlan):
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
    result_bytes_per_sample: float = 0.0  # that go back to the host
    rectangle: tuple[int, int] | None = (
        None  # rows and columns of cores that kernels use; None: all that programs may use
    )
    mode: str = "weight-streaming"

    @property
    def used(self) -> Wafer:
        """The wafer, with the rectangle of cores that kernels use as its program rectangle."""
        return on_rectangle(self.wafer, self.rectangle)

    @property
    def weights_rest(self) -> bool:
        """False: weights are stored in MemoryX and streamed over the wafer."""
        return False
