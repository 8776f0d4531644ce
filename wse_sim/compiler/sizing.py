"""Sizing of the pipeline: every stage gets the fewest cores with which it keeps the pace T.

Symbols: T is the cycles per sample of the slowest stage; A_i(T) the fewest cores of stage i with time <= T
and memory within the SRAM of its cores; eta the fraction of a region's cores that compute
(`pipeline_efficiency`).

The time of a stage is the sum of its forward, input gradient and weight gradient kernels for one sample,
which share the region's cores. It does not include `idle`: samples follow each other without a gap, so the
fill of a rectangle delays the first row (:attr:`Stage.latency_cycles`) but takes no issue slot. The memory of
a core contains weights with gradient and optimizer state, buffers and code, and a part of what is spread over
the region: the activations of all samples in flight and the samples that wait in streams
(:mod:`wse_sim.compiler.sample_buffers`).

With R replicas every stage exists R times, so R times the fewest cores must fit on the wafer.

Weights are updated once in n samples. A sizer for n (:meth:`Sizer.amortised`) counts ``update / n`` in the
time of a stage, so that a stage with a long update gets more cores if the batch is short.

In rounds all forward passes precede all backward passes, so a sample takes the slowest forward pass plus the slowest
backward pass. A sizer for rounds (:meth:`Sizer.in_rounds`) gives forward passes a fraction phi of T: the time of a stage
is ``max(forward / phi, backward / (1 - phi))``, so that T bounds that sum.

This is one file, because a sizer is one object: its tables of times and memory answer every query about a
stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.block_recompute import BlockRecompute
from wse_sim.compiler.compute_columns import ComputeColumns
from wse_sim.compiler.pins import pinned_size
from wse_sim.compiler.pricing import FloatArray, Prices, geometric
from wse_sim.compiler.sample_buffers import bytes_at_cut, samples_in_flight, stream_bytes
from wse_sim.compiler.scores import works_out_again
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.family import Cost, Count, Flow, Lay, Number


@dataclass
class Group:
    """A forward kernel with its gradient kernels and its update, before it becomes a stage with a region."""

    name: str
    forward: Kernel
    wafer: Wafer
    backward: list[Kernel] = field(default_factory=list)
    update: list[Kernel] = field(default_factory=list)
    is_trained: bool = False  # the graph has gradients

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels of the stage."""
        return [self.forward, *self.backward, *self.update]

    @cached_property
    def flow(self) -> Flow:
        """How a sample flows through the forward kernel."""
        return family(self.forward.family).flow(self.forward.dims, self.forward.attrs)

    @cached_property
    def lay(self) -> Lay:
        """Layout of the forward kernel on the cores of its region."""
        return family(self.forward.family).lay(self.forward.dims, self.forward.attrs)

    def moving_bytes(self, rows: Count, cols: Count) -> Number:
        """Return the SRAM bytes of the fullest core that is set aside, its code included, for `rows` x `cols`
        compute cores.

        Returns 0 if the kernel stores nothing on these cores.
        """
        kernel, tiling = self.forward, Tiling(rows, cols, "stationary")
        store = family(kernel.family).store_bytes(kernel.dims, tiling, self.wafer, kernel.attrs)
        return store + self.wafer.kernel_code_bytes * (np.asarray(store) > 0)

    @property
    def least_rows(self) -> int:
        """Smallest number of rows of the region.

        A layer that trains with its inputs over the rows has an additional row without inputs, which finishes
        its outputs.
        """
        lay = self.lay
        return max(lay.least_rows, 2 if self.backward and lay.takes_over == "rows" else 1)

    @property
    def least_cols(self) -> int:
        """Smallest number of compute columns of the region."""
        return self.lay.least_cols

    def rows_of_inputs(self, rows: Count) -> Count:
        """Return how many of a region's `rows` hold inputs and weights: all except those that finish outputs or stay
        free, at least one.
        """
        apart: Count = self.lay.rows_without_inputs
        if self.lay.in_turn:
            apart = apart + np.equal(rows, self.wafer.rows)
        return np.maximum(1, np.asarray(rows) - apart) if np.any(apart) else rows

    @property
    def only_passes_gradients_on(self) -> bool:
        """Whether this is a trained sum or difference in 32-bit words, through which gradients only pass."""
        attrs = self.forward.attrs
        is_sum = bool(attrs.get("in_words")) and {*str(attrs.get("ops", "")).split(",")} <= {"add", "sub"}
        return is_sum and self.is_trained and all(kernel.attrs.get("between") for kernel in self.backward)

    @property
    def has_input_gradient(self) -> bool:
        """Whether a kernel of the forward kernel's family computes the gradient of the inputs."""
        own = self.forward.family
        return any(one.phase is Phase.INPUT_GRADIENT and one.family == own for one in self.backward)

    @property
    def rows_per_sample(self) -> int:
        """Number of rows in which a sample flows through the stage."""
        return max(1, int(self.flow.rows)) if self.flow.rows else self.wafer.rows_without_rhythm

    @property
    def is_barrier(self) -> bool:
        """Whether the first row leaves only after the last one has arrived."""
        return self.flow.is_barrier


def make_groups(graph: KernelGraph, wafer: Wafer) -> list[Group]:
    """Return the groups of a graph, one per forward kernel, in dataflow order."""
    groups: dict[str, Group] = {}
    for kernel in graph.kernels:
        if kernel.phase is Phase.FORWARD:
            groups[kernel.name] = Group(kernel.name, kernel, wafer, is_trained=graph.training)
    owner = {name: group.name for group in groups.values() for name in group.forward.parameters}
    for kernel in graph.kernels:
        if kernel.phase in (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT):
            groups[kernel.forward].backward.append(kernel)
        elif kernel.phase is Phase.UPDATE:
            names = [owner[p] for p in kernel.parameters if p in owner]
            if kernel.forward in groups or names:
                groups[kernel.forward if kernel.forward in groups else names[0]].update.append(kernel)
    return list(groups.values())


@dataclass(frozen=True, eq=False)
class Shapes:
    """Rectangles of compute cores (n,): `rows` x `cols`, integer arrays that broadcast against each other.

    On a grid, with rows (h, 1) and columns (1, w), the terms of a formula that depend on one side are
    computed once per side and not once per rectangle.
    """

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]

    @classmethod
    def grid(cls, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> Shapes:
        """Return all pairs of `rows` (h,) and `cols` (w,), row by row."""
        return cls(rows[:, None], cols[None, :])

    @classmethod
    def one(cls, rows: int, cols: int) -> Shapes:
        """Return a single rectangle."""
        return cls(np.array([rows]), np.array([cols]))

    @cached_property
    def key(self) -> Hashable:
        """Key that is equal for equal rectangles in the same representation."""
        return self.rows.shape, self.cols.shape, self.rows.tobytes(), self.cols.tobytes()

    def spread(self, values: Number) -> FloatArray:
        """Return `values`, which broadcast over the rectangles, as an array (n,) with one value per
        rectangle.

        A scalar is not copied.
        """
        whole = np.broadcast_shapes(self.rows.shape, self.cols.shape)
        found = np.asarray(values, float)
        if found.ndim == 0:
            return np.broadcast_to(found, int(np.prod(whole)))
        return np.ascontiguousarray(np.broadcast_to(found, whole)).ravel()


@dataclass(frozen=True)
class Candidates:
    """Candidate shapes of one stage, compute rows x cols, with time and memory: flat arrays of equal length."""

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    time: NDArray[np.float64]  # cycles per sample, with a part of the update if it is counted
    memory: NDArray[np.float64]  # bytes of the fullest core, without samples spread over the region
    held: float  # bytes of samples, in flight and in streams, to spread over the region
    fill: NDArray[np.float64]  # cycles from the first operand to the first result, forward

    def need(self, columns: ComputeColumns) -> NDArray[np.float64]:
        """Return the bytes of the fullest core (n,); samples are spread over the whole region."""
        return self.memory + self.held / (self.rows * columns.region_cols(self.cols))

    def area(self, columns: ComputeColumns) -> NDArray[np.float64]:
        """Return the compute cores (n,) for which the shapes count (:meth:`ComputeColumns.weight`)."""
        return self.rows * self.cols * columns.weight(self.cols)


@dataclass(frozen=True)
class Fronts:
    """The different candidates of all groups.

    `of_group` (groups,) is the position of each group's candidates among them. `fronts` are, for each of them, its
    times in ascending order and the fewest cores within SRAM for each of these.
    """

    shapes: list[Candidates]
    of_group: NDArray[np.int64]
    fronts: list[tuple[FloatArray, FloatArray]]


@dataclass(frozen=True)
class ShapePrices:
    """Cycles and bytes of a stage on shapes of compute rows x cols, arrays (n,)."""

    forward: FloatArray  # cycles of a sample
    backward: FloatArray
    update: FloatArray  # cycles of a batch
    fill: FloatArray  # cycles from the first operand to the first result, forward
    memory: FloatArray  # bytes of a core, without samples in flight and in streams
    gradient_fill: FloatArray  # cycles from the first gradient to the first that leaves

    def at(self, index: int) -> tuple[float, ...]:
        """Return the six numbers of one shape."""
        parts = self.forward, self.backward, self.update, self.fill, self.memory, self.gradient_fill
        return tuple(float(part[index]) for part in parts)

    def time(self, update_samples: float | None, forward_fraction: float | None = None) -> FloatArray:
        """Return the cycles per sample (n,), with a part of the update if `update_samples` is a number, in rounds if
        `forward_fraction` is one."""
        time = self.forward + self.backward
        if forward_fraction is not None:
            time = np.maximum(self.forward / forward_fraction, self.backward / (1 - forward_fraction))
        return time if update_samples is None else time + self.update / update_samples


@lru_cache(maxsize=16)
def _pairs(rows: tuple[int, ...], cols: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and the columns of all shapes of a grid, cached for all stages."""
    return np.repeat(rows, len(cols)), np.tile(np.array(cols), len(rows))


class Sizer:
    """Candidate shapes of all stages, with prices that equal stages share."""

    def __init__(
        self,
        graph: KernelGraph,
        wafer: Wafer,
        prices: Prices,
        replicas: int = 1,
        again: BlockRecompute | None = None,
    ) -> None:
        self.graph = graph
        self.again = again or BlockRecompute()
        self.wafer = wafer
        self.prices = prices
        self.replicas = replicas
        self.update_samples: float | None = None  # samples per update; None: updates are not counted
        self.forward_fraction: float | None = (
            None  # of the time of a sample in rounds; None: passes alternate
        )
        self.groups = make_groups(graph, wafer)
        index = {name: g.name for g in self.groups for name in (k.name for k in g.kernels)}
        forward = {g.name for g in self.groups}
        self.edges = sorted(
            {
                (a, b)
                for a, b, _ in graph.edges()
                if a in forward and b in forward and index.get(a) and index.get(b)
            }
        )
        self.in_flight = samples_in_flight(self.groups, self.edges, graph.training)
        inner = self.again.inner_edges(self.edges)
        self._in_block = samples_in_flight(self.groups, inner, graph.training)
        self._in_streams = stream_bytes(graph, self.groups, self.edges)
        self._cache: dict[object, Candidates] = {}
        self.tables: dict[tuple[Hashable, ...], object] = {}  # tables that placers derive from the prices
        self._kinds: dict[str, Hashable] = {}
        self._front_of: Fronts | None = None
        self.columns = ComputeColumns.of_plan(graph, wafer)

    @property
    def copies(self) -> list[Group]:
        """The groups of all replicas, one replica after the other."""
        return self.groups * self.replicas

    @property
    def copy_edges(self) -> list[tuple[int, int]]:
        """Edges as pairs of positions in :attr:`copies`."""
        index = {group.name: i for i, group in enumerate(self.groups)}
        count = len(self.groups)
        return [
            (index[a] + r * count, index[b] + r * count) for r in range(self.replicas) for a, b in self.edges
        ]

    def with_wafer(self, wafer: Wafer) -> Sizer:
        """Return a sizer of the same stages on a wafer with equal constants and other defects; prices are
        reused.
        """
        other = Sizer(self.graph, wafer, self.prices, self.replicas, self.again)
        other.update_samples, other.forward_fraction = self.update_samples, self.forward_fraction
        other._cache, other.tables = self._cache, self.tables
        self._share_samples(other)
        return other

    def priced_on(self, wafer: Wafer) -> Sizer:
        """Return a sizer of the same stages on a wafer with other constants, numbers or arrays.

        The samples in flight stay the same.
        """
        other = copy(self)
        other.wafer, other.prices = wafer, Prices(wafer, self.prices.options)
        other.groups = make_groups(self.graph, wafer)
        other.update_samples, other._front_of = None, None
        other._cache, other.tables, other._kinds = {}, {}, {}
        other.columns = ComputeColumns.of_plan(self.graph, wafer)
        return other

    def part(self, graph: KernelGraph) -> Sizer:
        """Return a sizer of those stages that are in `graph`; prices are reused.

        Samples in flight and in streams are those of the whole model, plus those that wait at cuts between
        wafers.
        """
        other = Sizer(graph, self.wafer, self.prices, self.replicas, self.again)
        other._cache, other.tables = self._cache, self.tables
        names = [group.name for group in other.groups]
        other.in_flight = {name: self.in_flight[name] for name in names}
        other._in_block = {name: self._in_block[name] for name in names}
        cut = bytes_at_cut(self.graph, self.groups, self.edges, frozenset(names))
        other._in_streams = {name: self._in_streams[name] + cut[name] for name in names}
        return other

    def _share_samples(self, other: Sizer) -> None:
        """Copy the samples in flight and in streams to another sizer of these stages."""
        other.in_flight, other._in_block = self.in_flight, self._in_block
        other._in_streams = self._in_streams

    def holding(self, fraction: float, most: int) -> Sizer:
        """Return a sizer with room for a fraction of the samples in flight that keep the pace.

        Each stage keeps at least one sample and at most `most`, the samples of a batch. In inference the same
        sizer is returned.
        """
        if not self.graph.training:
            return self
        other = copy(self)
        other.in_flight = {
            name: max(1, min(ceil(fraction * count), most)) for name, count in self.in_flight.items()
        }
        other._kinds = {}
        other._front_of = None
        return other

    def amortised(self, samples: float) -> Sizer:
        """Return a sizer of the same stages whose times include an update amortized over `samples` samples;
        prices are reused.
        """
        other = Sizer(self.graph, self.wafer, self.prices, self.replicas, self.again)
        other.update_samples, other.forward_fraction = samples, self.forward_fraction
        other.tables = self.tables
        self._share_samples(other)
        return other

    def in_rounds(self, forward_fraction: float | None) -> Sizer:
        """Return a sizer of the same stages for rounds, with that fraction of a sample's time for its forward pass; None
        lets passes alternate. Prices are reused."""
        other = copy(self)
        other.forward_fraction = forward_fraction
        other._cache, other._front_of = {}, None
        return other

    def times(self, prices: ShapePrices) -> FloatArray:
        """Return the cycles per sample (n,) that the sizer compares."""
        return prices.time(self.update_samples, self.forward_fraction)

    def shape_prices(self, group: Group, shapes: Shapes) -> ShapePrices:
        """Return the prices of many shapes of a stage, cached for equal stages.

        The prices of the single kernels are not cached.
        """
        signatures = tuple(kernel.signature for kernel in group.kernels)
        key = signatures, self.again.runs_again(group.name), shapes.key
        found: ShapePrices | None = self.prices.of_shapes.get(key)
        if found is None:
            prices, rows, cols = Prices(self.wafer, self.prices.options), shapes.rows, shapes.cols
            forward, backward, (fill, gradient_fill) = self._costs(prices, group, rows, cols)
            parts = (
                forward.total,
                backward.total,
                self._update_cycles(prices, group, rows, cols),
                fill,
                self._memory(prices, group, rows, cols),
                gradient_fill,
            )
            found = self.prices.of_shapes[key] = ShapePrices(*(shapes.spread(part) for part in parts))
        return found

    def _memory(self, prices: Prices, group: Group, rows: Count, cols: Count) -> Number:
        """Return the bytes of the fullest core, whether it computes or is set aside; infinite if the shape
        has too few rows or columns.
        """
        inner = group.rows_of_inputs(rows)
        held = prices.footprint(group.forward, inner, cols, "stationary").total_bytes
        held = np.maximum(held, group.moving_bytes(rows, cols))
        for sides, least in ((rows, group.least_rows), (cols, group.least_cols)):
            held = np.where(np.asarray(sides) < least, np.inf, held) if least > 1 else held
        return held

    def stage_cost(self, group: Group, rows: Count, cols: Count) -> tuple[Cost, Cost]:
        """Return the forward and the backward cost of one sample in steady state, without idle cycles."""
        return self._costs(self.prices, group, rows, cols)[:2]

    def _costs(
        self, prices: Prices, group: Group, rows: Count, cols: Count
    ) -> tuple[Cost, Cost, tuple[Number, Number]]:
        """Return the forward and the backward cost without idle cycles, and the fill of both passes: the idle cycles of
        the forward kernel and of the gradient of its operands, if that states any."""
        rows = group.rows_of_inputs(rows)
        forward = prices.cost(group.forward, rows, cols, "stationary")
        backward, gradient_fill = Cost(), 0.0 * np.asarray(forward.idle)
        for kernel in group.backward:
            cost = prices.cost(kernel, rows, cols, "stationary")
            backward = backward + cost
            if kernel.phase is Phase.INPUT_GRADIENT:
                gradient_fill = np.maximum(gradient_fill, cost.idle)
            if works_out_again(kernel):
                # The kernel's price includes the recomputed scores; the softmax elements are added here.
                backward = backward + Cost(special=forward.special)
        if group.only_passes_gradients_on:
            passed = dataclasses.replace(group.forward, phase=Phase.INPUT_GRADIENT)
            backward = prices.cost(passed, rows, cols, "stationary")
        if self.again.runs_again(group.name):
            backward = backward + forward
        fills = forward.idle, np.where(gradient_fill > 0, gradient_fill, forward.idle)
        return dataclasses.replace(forward, idle=0.0), dataclasses.replace(backward, idle=0.0), fills

    def latency_cycles(self, group: Group, rows: int, cols: int) -> tuple[float, float]:
        """Return the fill: the cycles from the first operand to the first result, forward and of gradients."""
        there, back = self._costs(self.prices, group, rows, cols)[2]
        return float(np.asarray(there)), float(np.asarray(back))

    def rows_of_core(self, group: Group, rows: int, cols: int) -> int:
        """Return the rows of a sample that pass one after the other: if different cores have rows, those of one core. Programs
        of inference send them while they work on the next sample, so together."""
        kernel, count = group.forward, group.rows_per_sample
        if not group.flow.parallel or count == 1:
            return count
        if not self.graph.training:
            return 1
        if parts := family(kernel.family).parts_of_core(
            kernel.dims, Tiling(rows, cols, "stationary"), kernel.attrs
        ):
            return parts
        alone = dataclasses.replace(kernel, dims=frozen({**kernel.dims, "rows": 1}))
        one, whole = (self.prices.cost(each, rows, cols, "stationary").total for each in (alone, kernel))
        return max(1, round(float(np.asarray(whole)) / float(np.asarray(one))))

    def update_cycles(self, group: Group, rows: Count, cols: Count) -> FloatArray:
        """Return the cycles of the weight update at the end of a batch."""
        return self._update_cycles(self.prices, group, rows, cols)

    def _update_cycles(self, prices: Prices, group: Group, rows: Count, cols: Count) -> FloatArray:
        rows = group.rows_of_inputs(rows)
        costs = [prices.cost(kernel, rows, cols, "stationary").total for kernel in group.update]
        return np.asarray(sum(np.asarray(cost, float) for cost in costs), float)

    def activation_bytes(self, group: Group) -> float:
        """Return the bytes of activations that the stage stores for all samples in flight; 0 in inference."""
        if not self.graph.training:
            return 0.0
        name, saved = group.name, group.forward.saved_bytes
        if not self.again.runs_again(name):
            return float(saved * self.in_flight[name])
        return saved * self._in_block[name] + self.again.held_bytes.get(name, 0.0) * self.in_flight[name]

    def stream_bytes(self, group: Group) -> float:
        """Return the bytes of samples that wait for the stage in its streams: activations to read, gradients
        of its results.
        """
        return self._in_streams[group.name]

    def held_bytes(self, group: Group) -> float:
        """Return the bytes spread over the cores of a region: activations of samples in flight and samples in
        streams.
        """
        return self.activation_bytes(group) + self.stream_bytes(group)

    def sample_bytes(self, group: Group) -> float:
        """Return the bytes of activations that the stage stores for one more sample in flight."""
        if not self.graph.training:
            return 0.0
        if self.again.runs_again(group.name):
            return self.again.held_bytes.get(group.name, 0.0)
        return float(group.forward.saved_bytes)

    def kind(self, group: Group) -> Hashable:
        """Return a key that is equal for stages with equal kernels, samples and passes, which cost the same."""
        found = self._kinds.get(group.name)
        if found is None:
            signatures = tuple(kernel.signature for kernel in group.kernels)
            held = self.activation_bytes(group), self.stream_bytes(group)
            found = signatures, held, self.again.runs_again(group.name)
            self._kinds[group.name] = found
        return found

    def candidates(self, group: Group) -> Candidates:
        """Return the candidate shapes of the stage, cached for equal stages."""
        key = self.kind(group)
        found = self._cache.get(key)
        if found is None:
            found = self._price(group)
            self._cache[key] = found
        return found

    def _price(self, group: Group) -> Candidates:
        """Return the priced candidates of a stage: a grid of side lengths, or its pinned rectangle."""
        side_r = geometric(self.wafer.program_rows)
        side_c = geometric(int(self.columns.of(self.wafer.program_cols)))
        pin = pinned_size(group.forward)
        if pin is not None:
            side_r, side_c = np.array([pin[0]]), self.columns.of([pin[1]])
        found = self.shape_prices(group, Shapes.grid(side_r, side_c))
        rows, cols = _pairs(tuple(side_r.tolist()), tuple(side_c.tolist()))
        return Candidates(
            rows,
            cols,
            self.times(found),
            found.memory,
            self.held_bytes(group),
            found.fill,
        )

    def least_by_width(self, group: Group, pace_cycles: float) -> FloatArray:
        """Return the fewest compute cores (w,) with which a stage keeps the pace on each of many numbers of compute columns;
        infinite if it cannot. The stage may have other prices than those of the sizer."""
        most = int(self.columns.of(self.wafer.program_cols))
        rows, cols = geometric(self.wafer.program_rows), geometric(most, 1.02)
        prices, cores = self.shape_prices(group, Shapes.grid(rows, cols)), np.outer(rows, cols).ravel()
        held = prices.memory + self.held_bytes(group) / np.outer(rows, self.columns.region_cols(cols)).ravel()
        keeps = (held <= self.wafer.sram_usable_bytes) & (self.times(prices) <= pace_cycles)
        area: FloatArray = np.where(keeps, 1.0 * cores, np.inf).reshape(rows.size, cols.size).min(axis=0)
        return area

    def least_cores(self, pace_cycles: float) -> NDArray[np.float64] | None:
        """Return the fewest compute cores (groups,) with which each stage keeps the pace; None if a stage
        cannot.
        """
        out, found = [], self._fronts()
        for time, cores in found.fronts:
            last = int(np.searchsorted(time, pace_cycles, side="right")) - 1
            if last < 0:
                return None
            out.append(float(cores[last]))
        return np.array(out)[found.of_group]

    def _fronts(self) -> Fronts:
        """Return the different candidates of the groups with their fronts."""
        if self._front_of is None:
            found = [self.candidates(group) for group in self.groups]
            shapes = list({id(one): one for one in found}.values())
            position = {id(one): index for index, one in enumerate(shapes)}
            of_group = np.array([position[id(one)] for one in found], np.int64)
            limit, fronts = float(self.wafer.sram_usable_bytes), []
            for one in shapes:
                good = one.need(self.columns) <= limit
                order = np.argsort(one.time[good], kind="stable")
                area = one.area(self.columns)[good][order]
                fronts.append((one.time[good][order], np.minimum.accumulate(area)))
            self._front_of = Fronts(shapes, of_group, fronts)
        return self._front_of

    def pace_for(self, compute_cores: float) -> float | None:
        """Return the shortest pace T at which all stages together need at most `compute_cores`, within 0.05
        %.

        Returns None if they need more at any pace.
        """
        # Shapes that a kernel cannot have take forever.
        times = [shapes.time[np.isfinite(shapes.time)] for shapes in self._fronts().shapes]
        slow = max(float(time.max(initial=1.0)) for time in times)
        if not self._within(slow, compute_cores):
            return None
        low, high = 1.0, slow
        while high / low > 1.0005:
            middle = (low * high) ** 0.5
            if self._within(middle, compute_cores):
                high = middle
            else:
                low = middle
        return high

    def _within(self, pace: float, compute_cores: float) -> bool:
        """Return whether all stages of all replicas keep a pace with at most `compute_cores` cores."""
        cores = self.least_cores(pace)
        return cores is not None and self.replicas * float(cores.sum()) <= compute_cores

    def latency_targets(
        self, compute_cores: float, slowest_cycles: float = np.inf, fill_weight: float = 0.0
    ) -> FloatArray | None:
        """Return the cycles (groups,) that minimize the sum of the stages' times; None if nothing fits.

        Every stage uses the shape with the least ``time + fill_weight * fill + price * cores`` among those no
        slower than `slowest_cycles`. The price of a core is bisected until the cores suffice. For time = work
        / cores this gives cores ~ sqrt(work).
        """
        limit = float(self.wafer.sram_usable_bytes)
        shapes, of_group = self._fronts().shapes, self._fronts().of_group
        tables = []
        for one in shapes:
            good = (one.need(self.columns) <= limit) & (one.time <= slowest_cycles)
            if not good.any():
                return None
            area = one.area(self.columns)
            tables.append((one.time[good], (one.time + fill_weight * one.fill)[good], area[good]))
        counts = np.bincount(of_group, minlength=len(shapes))
        low, high = 1e-9, 1e9
        best = None
        while high / low > 1.01:
            price = (low * high) ** 0.5
            picks = [int(np.argmin(merit + price * area)) for _, merit, area in tables]
            chosen = np.array([table[0][pick] for table, pick in zip(tables, picks, strict=True)])
            times = chosen[of_group]
            cores = float(sum(n * t[2][pick] for n, t, pick in zip(counts, tables, picks, strict=True)))
            if self.replicas * cores <= compute_cores:
                high, best = price, times
            else:
                low = price
        return best

    def too_large(self) -> list[tuple[Group, float]]:
        """Return the stages that exceed SRAM on their best shapes, with their bytes per core."""
        limit = float(self.wafer.sram_usable_bytes)
        found = []
        for group in self.groups:
            shapes = self.candidates(group)
            if (least := float(shapes.need(self.columns).min())) > limit:
                found.append((group, least))
        return found

    def worst_memory(self) -> tuple[Group, float] | None:
        """Return the stage of :meth:`too_large` with the most bytes; None if every stage fits."""
        return max(self.too_large(), key=lambda misfit: misfit[1], default=None)

    def memory_bound_fraction(self, pace_cycles: float) -> float:
        """Return the fraction of the cores that stages need for memory rather than for the pace."""
        limit = float(self.wafer.sram_usable_bytes)
        memory_driven = total = 0.0
        for group in self.groups:
            shapes = self.candidates(group)
            area = shapes.area(self.columns)
            fast = shapes.time <= pace_cycles
            both = fast & (shapes.need(self.columns) <= limit)
            if not both.any():
                continue  # only a shape between the candidates holds it, so its memory is unknown
            least = float(area[both].min())
            memory_driven += least - float(area[fast].min())
            total += least
        return memory_driven / total if total else 0.0
