"""The plan of a pipeline over several systems: one pipelined plan per wafer, and the cuts between them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from wse_sim.compiler.plan import CoreMemory, DisplayedPlan, Region, Stage, Stream
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.serialize import saved
from wse_sim.units import s_to_cycles

LINK = "system link"
"""Family of the stages that represent the lines between two systems."""
UNBOUNDED = 1 << 30


@saved
@dataclass(frozen=True)
class Crossing:
    """A tensor that leaves a wafer at a cut, with the stage names at its ends; "" at another cut."""

    tensor: str
    producer: str  # the stage that makes it, "" if it arrived over the previous cut
    consumers: tuple[str, ...]  # its readers on the next wafer
    goes_on: bool  # whether a later wafer reads it too
    bytes_per_sample: float
    backward_bytes_per_sample: float
    hops: tuple[
        int, ...
    ]  # hops of its routes: from the producer to the edge, then from the edge to each reader
    room: tuple[int, ...]  # samples that wait on these routes


@saved
@dataclass(frozen=True)
class Cut:
    """The cut between two wafers of the chain: the tensors that cross it."""

    crossings: tuple[Crossing, ...]
    rows_per_sample: int  # rows in which the tensors stream: those of the coarsest producer

    @property
    def bytes_per_sample(self) -> float:
        """Activations that continue to the next wafer."""
        return sum(item.bytes_per_sample for item in self.crossings)

    @property
    def backward_bytes_per_sample(self) -> float:
        """Gradients that return."""
        return sum(item.backward_bytes_per_sample for item in self.crossings)


@saved
@dataclass(frozen=True, repr=False)
class PipelinedSystemsPlan(DisplayedPlan):
    """Consecutive blocks on each of several equal wafers, which a chain of lines connects."""

    graph: KernelGraph  # stated for one sample
    wafer: Wafer
    cluster: Cluster
    batch: int
    systems: int
    parts: tuple[PipelinedPlan, ...]  # one per wafer in use, in the order of the chain
    cuts: tuple[Cut, ...]  # between them
    tied_bytes: tuple[
        tuple[str, float, int], ...
    ] = ()  # (stage that updates, bytes of the weight, wafers between)
    notes: tuple[str, ...] = ()
    result_bytes_per_sample: float = 0.0  # that go back to the host
    mode: str = "pipelined-systems"

    @property
    def weights_rest(self) -> bool:
        """Every wafer keeps the weights of its blocks."""
        return True

    @cached_property
    def line(self) -> PipelinedPlan:
        """The whole chain as one pipeline: one stage per region, and one for the lines at each cut.

        Regions of different wafers overlap; the links are those of the slowest wafer.
        """
        stages: list[Stage] = []
        streams: list[Stream] = []
        for number, part in enumerate(self.parts):
            stages += [self._with_tied(stage) for stage in part.stages]
            streams += part.streams
            if number < len(self.cuts):
                stages.append(self.link_stage(number))
                streams += self._ways(number)
        shown = self.parts[self.slowest]
        return dataclasses.replace(
            shown,
            graph=self.graph,
            batch=self.batch,
            stages=tuple(stages),
            streams=tuple(streams),
            input_bytes_per_sample=float(self.graph.input_bytes),
            result_bytes_per_sample=self.result_bytes_per_sample,
            in_flight=max(stage.in_flight for part in self.parts for stage in part.stages),
            notes=self.notes,
            host_streams=(),
        )

    @property
    def slowest(self) -> int:
        """Number of the wafer with the slowest stage or the busiest link; pictures show it."""
        paces = [part.sample_cycles for part in self.parts]
        return paces.index(max(paces))

    def link_stage(self, number: int) -> Stage:
        """Return the stage of the lines between wafers `number` and `number + 1`: bytes over I/O rate, plus a
        hop."""
        cut, clock = self.cuts[number], self.wafer.clock_hz
        forward = s_to_cycles(cut.bytes_per_sample / self.wafer.io_bytes_per_s, clock)
        backward = s_to_cycles(cut.backward_bytes_per_sample / self.wafer.io_bytes_per_s, clock)
        return Stage(
            name=link_name(number),
            family=LINK,
            layer="",
            kernels=(),
            region=Region(0, 0, 0, 0, 0),
            forward_cycles=forward,
            backward_cycles=backward,
            update_cycles=0.0,
            forward_parts=frozen(fabric=forward),
            backward_parts=frozen(fabric=backward) if self.graph.training else frozen(),
            rows_per_sample=cut.rows_per_sample,
            barrier=False,
            in_flight=UNBOUNDED,
            memory=CoreMemory(),
            flops_per_sample=0,
            latency_cycles=s_to_cycles(self.cluster.swarmx_hop_s, clock),
        )

    def _ways(self, number: int) -> list[Stream]:
        """Return the streams from producers to the line, from the line to readers, and from line to line for
        tensors that go further."""
        link = link_name(number)
        out = []
        for item in self.cuts[number].crossings:
            producer = item.producer or link_name(number - 1)
            ends = [(producer, link), *((link, reader) for reader in item.consumers)]
            for (a, b), hops, room in zip(ends, item.hops, item.room, strict=True):
                out.append(
                    Stream(
                        tensor=item.tensor,
                        producer=a,
                        consumer=b,
                        bytes_per_sample=item.bytes_per_sample,
                        backward_bytes_per_sample=item.backward_bytes_per_sample,
                        route=(),
                        hops=hops,
                        width=1,
                        color=-1,
                        capacity_samples=room,
                    )
                )
        return out

    def _with_tied(self, stage: Stage) -> Stage:
        """Return the stage with the update of weights that several wafers store: gradients to one wafer,
        weights back, once per step."""
        more = 0.0
        for name, size, between in self.tied_bytes:
            if name == stage.name:
                each = size / self.wafer.io_bytes_per_s + between * self.cluster.swarmx_hop_s
                more += 2 * s_to_cycles(each, self.wafer.clock_hz)
        return dataclasses.replace(stage, update_cycles=stage.update_cycles + more) if more else stage


def link_name(number: int) -> str:
    """Return the name of the stage of a cut."""
    return f"{LINK} {number + 1}-{number + 2}"
