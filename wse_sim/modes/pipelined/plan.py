"""The plan of the pipelined mode: every kernel on its region, every tensor on its links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import DisplayedPlan, Stage, Stream
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Cluster, Wafer
from wse_sim.serialize import saved


@saved
@dataclass(frozen=True, repr=False)
class PipelinedPlan(DisplayedPlan):
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
    binding: str  # limit of the pace: "cores", "sram" or "links"
    # Smallest pace at which the least areas of the stages, including cores set aside, fit on the working
    # cores.
    lower_bound_cycles: float
    notes: tuple[str, ...] = ()
    result_bytes_per_sample: float = 0.0  # that go back to the host
    mode: str = "pipelined"
    host_streams: tuple[Stream, ...] = ()  # from and to the edge; one end is called "host"
    placer: str = "shelves"
    round_samples: int = (
        0  # forward passes of that many samples before their backward passes; 0: both alternate
    )

    @property
    def weights_rest(self) -> bool:
        """True: weights, gradients and optimizer state stay in the regions."""
        return True

    @property
    def pace_cycles(self) -> float:
        """Cycles per sample of the slowest stage."""
        return max(stage.cycles_per_sample for stage in self.stages)

    @property
    def link_cycles(self) -> float:
        """Cycles per sample that the busiest link of the fabric is occupied."""
        load = float(self.link_bytes_per_sample.max()) if self.link_bytes_per_sample.size else 0.0
        return load / self.wafer.link_bytes_per_cycle * self.wafer.wavelet_cycles

    @property
    def sample_cycles(self) -> float:
        """Cycles between two samples of a replica: the slowest stage or the busiest link."""
        return max(self.pace_cycles, self.link_cycles)
