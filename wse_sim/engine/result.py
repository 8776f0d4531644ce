"""Results: what happened in a run, with everything that pictures and reports are made from.

Shares of a core's time add up to one: busy + stalled on input + stalled on output + idle = 1 for every
row of :attr:`Result.kernels` and every core of the maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import CoreMemory, Plan, Region
from wse_sim.graph.kernel_graph import frozen
from wse_sim.serialize import same, save, saved


@saved
@dataclass(frozen=True)
class KernelUse:
    """How one kernel (pipelined: one region; weight streaming: one family of phases) spent the step.

    Times are per step and per system; `utilization` is arithmetic cycles over region time; `parts`
    splits the busy time by cause (seconds); `bound_share` is the roofline bound over the time taken and
    `bound` what makes that bound ("compute", "sram", "fabric", "io", "launch").
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
    bound_share: float
    parts: Mapping[str, float]
    memory: CoreMemory
    region: Region | None = None


@saved
@dataclass(frozen=True)
class QueueUse:
    """What waited in front of one region at most, over all simulated samples of a pipelined run.

    A sample waits in a stream from the start of its pass in the producer to its start in the reader, which
    is what the stream's capacity bounds.  `samples` and `capacity` are those of the fullest stream into the
    region, activations or gradients; `bytes` the most that waited in all of them at one time.
    """

    name: str
    samples: int
    capacity: int
    bytes: float


@saved
@dataclass(frozen=True)
class Slice:
    """A span on a track of the timeline; slices of one track never overlap partially."""

    track: str
    name: str
    category: str  # compute, activations, weights, gradients, spill, input, update, sync, stall
    start_s: float
    duration_s: float
    bytes: float = 0.0
    flow: int = -1  # slices of equal flow >= 0 are connected in time order


@saved
@dataclass(frozen=True)
class Result:
    """What one simulated training step (or inference batch) did.

    Rates are samples per second over all systems.  `compute_samples_per_s` is the rate if input were
    free, `transmission_samples_per_s` the rate the input path allows; the rate is the smaller.
    `binding` names what binds the step and `bindings` the step time if each resource were alone.
    """

    model: str
    mode: str
    phase: str  # training, inference
    systems: int
    batch: int
    samples_per_s: float
    compute_samples_per_s: float
    transmission_samples_per_s: float
    active_pe_share: float
    compute_utilization: float
    step_s: float
    mfu: float
    binding: str
    bindings: Mapping[str, float]  # resource -> seconds of the step that it alone would take
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
    # Weight streaming: every core of the program rectangle spends the step alike; no kernel has a region.
    core_region: Region | None = None
    core_shares: tuple[float, float, float, float] | None = None  # busy, stalled_input, stalled_output, idle
    core_memory: CoreMemory | None = None
    queues: tuple[QueueUse, ...] = ()  # pipelined: one per region

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and same(self, other)

    __hash__ = None  # type: ignore[assignment]

    def core_map(self, quantity: str) -> NDArray[np.float32]:
        """A (rows, cols) map of the fabric.

        `quantity` is one of :data:`QUANTITIES`: shares of time (busy, stalled_input, stalled_output,
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
        if self.core_region is not None:
            area = self.core_region
            view = out[area.row : area.row + area.rows, area.col : area.col + area.cols]
            view[:] = self._shared_value(quantity, fill)
        waiting = {queue.name: float(queue.samples) for queue in self.queues}
        for index, use in enumerate(self.kernels):
            if use.region is None:
                continue
            area = use.region
            view = out[area.row : area.row + area.rows, area.col : area.col + area.cols]
            view[:] = waiting.get(use.name, 0.0) if quantity == "queue" else self._value(index, use, quantity)
        return out

    def _shared_value(self, quantity: str, otherwise: float) -> float:
        if quantity == "sram":
            return self.core_memory.total_bytes if self.core_memory is not None else 0.0
        if self.core_shares is None or quantity not in SHARES:
            return otherwise
        return self.core_shares[SHARES.index(quantity)]

    def _value(self, index: int, use: KernelUse, quantity: str) -> float:
        if quantity == "kernel":
            return float(index)
        if quantity == "sram":
            return use.memory.total_bytes
        times = {
            "busy": use.busy_s,
            "stalled_input": use.stalled_input_s,
            "stalled_output": use.stalled_output_s,
            "idle": use.idle_s,
        }
        total = sum(times.values())
        return times[quantity] / total if total else float(quantity == "idle")

    # Convenience methods, named as in torch.profiler; each imports wse_sim.report when it is called.

    def summary(self) -> str:
        """The five lines, what binds, kernels by time: plain text of 80 columns."""
        from wse_sim.report.tables import summary_text

        return summary_text(self)

    def table(self, sort_by: str = "time", row_limit: int = 20) -> str:
        """Kernels as text; equal kernels of repeated blocks are one row."""
        from wse_sim.report.tables import table

        return table(self, sort_by, row_limit)

    def to_dataframe(self) -> Any:
        """Kernels as a pandas data frame."""
        from wse_sim.report.data import to_dataframe

        return to_dataframe(self)

    def heatmap(self, quantity: str = "busy", time: tuple[float, float] | None = None, ax: Any = None) -> Any:
        """A matplotlib figure of :meth:`core_map`; `time` is a window in seconds."""
        from wse_sim.report.heatmap import draw_map

        return draw_map(self, quantity, ax=ax, time=time)

    def breakdown(self) -> Any:
        """Temporal, idle by cause, kernels, overlap: the four breakdowns of Holistic Trace Analysis."""
        from wse_sim.report.hta import breakdown

        return breakdown(self)

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as Chrome JSON (``.json``) or Perfetto protobuf (any other suffix)."""
        from wse_sim.report.trace import write_trace

        write_trace(self, path)

    def save(self, folder: str | Path) -> Path:
        """Write ``result.json`` and ``result.npz``; :func:`wse_sim.modes.load_result` reads them back equal."""
        save(self, Path(folder), "result")
        return Path(folder)


LINK_QUANTITIES = ("link_n", "link_e", "link_s", "link_w")
SHARES = ("busy", "stalled_input", "stalled_output", "idle")
QUANTITIES = (*SHARES, "sram", "kernel", "queue", *LINK_QUANTITIES)
