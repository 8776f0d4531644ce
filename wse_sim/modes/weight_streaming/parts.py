"""Time of a step on parts of the wafer, without their plans, for the comparison in :mod:`rectangle`.

A plan has an object per phase; a comparison needs one number per phase. So the phases of a part are columns,
gathered from one price per kind of kernel, and several parts are priced in one pass. The seconds equal those
of the plans, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.pricing import Prices, parts_of
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.modes.weight_streaming.graph_facts import (
    bytes_spilled,
    facts_of,
    graph_kept,
    least_recompute,
    need_of,
    way_cycles,
    whole_words,
    work_of,
)
from wse_sim.modes.weight_streaming.lanes import LaneTable, chosen_lanes, lane_table, left_bytes
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan, on_rectangle
from wse_sim.modes.weight_streaming.plan_draws import ahead_column, is_thinned, spill_column
from wse_sim.modes.weight_streaming.rectangle import FREE_INPUT, Rectangle, free_seconds
from wse_sim.modes.weight_streaming.recurrence import FloatArray, PhaseColumns, step_seconds

Attempt = Callable[[Rectangle], WeightStreamingPlan | Infeasible]


class PartTimes:
    """Seconds of a step of `plan`'s micro-batch on rectangles; `graph` is the compiled graph, `attempt` makes
    a plan."""

    def __init__(
        self, graph: KernelGraph, plan: WeightStreamingPlan, options: StreamingChoice, attempt: Attempt
    ) -> None:
        self.plan, self.options, self.attempt = plan, options, attempt
        self.stated = graph.with_samples(plan.micro_batch)
        self.once = work_of(self.stated, "none")
        self.prices = Prices(plan.wafer, {"training": self.stated.training})
        self.kept = graph_kept(self.stated, plan.recompute)
        self.facts = facts_of(self.kept, plan.recompute)
        self.columns = PhaseColumns.of(plan)
        self.is_gradient = np.array([fact.item.kernel.phase is Phase.WEIGHT_GRADIENT for fact in self.facts])
        self.has_words = np.array([fact.elements > 0 for fact in self.facts])
        self.kinds, self.kind_of = self._kinds()

    def seconds(self, rectangles: Sequence[Rectangle]) -> Iterator[float]:
        """Yield the seconds for each rectangle, infinite if the model does not fit; all are priced at the
        first request.

        No rectangle may be larger than that of the plan's wafer.
        """
        table = lane_table(self.once, self.prices, self.plan.wafer, rectangles)
        for number, rectangle in enumerate(rectangles):
            yield self._seconds(table, number, rectangle)

    def _kinds(self) -> tuple[list[tuple[Kernel, bool]], NDArray[np.int64]]:
        """Return kernels of equal cost, each with whether zeros are left out, and the kind of every phase."""
        numbers: dict[object, int] = {}
        kinds: list[tuple[Kernel, bool]] = []
        of_phase = []
        for fact in self.facts:
            kernel, thinned = fact.item.kernel, is_thinned(self.plan, fact)
            key = (kernel.signature, thinned)
            if key not in numbers:
                numbers[key] = len(kinds)
                kinds.append((kernel, thinned))
            of_phase.append(numbers[key])
        return kinds, np.array(of_phase, np.int64)

    def _seconds(self, table: LaneTable, number: int, rectangle: Rectangle) -> float:
        plan, options = self.plan, self.options
        wafer, need = on_rectangle(plan.wafer, rectangle), need_of(self.stated).largest_kernel
        is_least = plan.micro_batch == 1 or options.micro_batch is not None
        lanes = options.lanes or chosen_lanes(
            table.by_time(number), self.once, self.prices, wafer, need, is_least=is_least
        )
        if lanes > wafer.program_cols:  # as stated by the user
            return inf
        capacity = left_bytes(self.once, self.prices, wafer, lanes)
        if need > capacity:
            return inf
        recompute = options.recompute or least_recompute(self.stated, capacity)
        if recompute != plan.recompute:  # other phases: its own plan
            tried = self.attempt(rectangle)
            return inf if isinstance(tried, Infeasible) else free_seconds(tried)
        held = need_of(self.kept)
        spilled = bytes_spilled(held.block_inputs if recompute == "full" else held.kept, held, capacity)
        if spilled > plan.cluster.activation_server_bytes:
            return inf
        of = self.columns
        ways = [way_cycles(wafer, lanes, is_gradient=gradient) for gradient in (False, True)]
        filled = self._filled(wafer.program_cols // lanes)
        columns = of.changed(
            compute_cycles=self._cycles(table, number, rectangle, lanes),
            edge_weight_bytes=filled * of.weight_bytes,
            edge_gradient_bytes=filled * of.gradient_bytes,
            way_cycles=np.where(self.has_words, np.where(self.is_gradient, ways[1], ways[0]), 0.0),
            ahead_bytes=ahead_column(self.facts, wafer, lanes),
            spill_bytes=spill_column(self.kept, self.facts, spilled),
        )
        return step_seconds(plan, FREE_INPUT, columns=columns, wafer=wafer)

    def _cycles(self, table: LaneTable, number: int, rectangle: Rectangle, lanes: int) -> FloatArray:
        """Return the cycles of every phase, (phases,)."""
        found = []
        for kernel, thinned in self.kinds:
            parts = table.cycles(kernel, number, lanes)
            if parts is None:
                parts = parts_of(self.prices.cost(kernel, *rectangle, "streamed", lanes))
            if thinned:
                parts["compute"] *= self.plan.weight_density
            found.append(sum(parts.values()))
        return np.array(found)[self.kind_of]

    def _filled(self, columns: int) -> FloatArray:
        """Return the ratio of bytes in whole words to bytes, (phases,); a weight that is sent with its index
        needs no padding."""
        if self.plan.weight_density != 1:
            return np.ones(len(self.facts))
        each = np.array([whole_words(kernel, columns) for kernel, _ in self.kinds])
        return np.where(self.has_words, each[self.kind_of], 1.0)
