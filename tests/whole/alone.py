"""Runs one region that trains, alone on its fabric: host streams at all its ports, and the same kernel in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wse_sim.compiler.coloring import HOST_COLORS
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.count import issued_cycles
from wse_sim.fabric.result import FabricResult
from wse_sim.fabric.run import run_program
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.coverage import forward_kernel
from wse_sim.whole.paths import BACK, Cell, Grid, direction
from wse_sim.whole.regions.contract import PAIR, bundle_elements, part_of, stream_order, token_words
from wse_sim.whole.run import stepped
from wse_sim.whole.trained import Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trees import Way, found_way

Floats = np.ndarray
EPS = 2.0**-11  # half a unit in the last place of fp16, relative
Op = Callable[..., torch.Tensor]
"""The kernel in PyTorch: operands (samples, T, features) in the order of the inlets, then parameters in their order."""


@dataclass
class Alone:
    """The results of a batch, by tensor and by parameter; gradients of parameters are sums over the batch."""

    region: TrainedKind
    output: Floats  # (samples, T, N)
    operand_gradients: dict[str, Floats]
    gradients: dict[str, Floats]
    weights: dict[str, Floats]
    fabric: FabricResult


def region_alone(
    kind: type[TrainedKind], plan: PipelinedPlan, stage: str, needs: Sequence[str] | None = None
) -> TrainedKind:
    """Return the region of a stage of a plan; by default all of its operands need gradients."""
    kernel = forward_kernel(plan, stage)
    kind.check(plan.graph, kernel)
    wanted = frozenset(kernel.inputs if needs is None else needs)
    place = next(one for one in plan.stages if one.name == stage)
    return kind(plan.graph, kernel, place, plan.wafer, wanted)


class _Bench:
    """A fabric with the region, and the routes between its ports and the edges."""

    def __init__(self, region: TrainedKind, samples: int, come: tuple[int, int] | None = None) -> None:
        self.region, self.samples, wafer = region, samples, region.wafer
        self.come = come or (samples, samples)  # samples of operands and of gradients that the host sends
        self.config = FabricConfig.from_wafer(wafer)
        self.b, self.grid = Builder(wafer.rows, wafer.cols, self.config), Grid(wafer.rows, wafer.cols)
        self.rows, self.cols = wafer.rows, wafer.cols
        last = wafer.colors - HOST_COLORS
        self.own = list(range(last - region.own_colors, last))
        self.colors = list(range(last - region.own_colors))
        self.used: list[int] = []
        self.edges: set[Cell] = set()

    def _edge(self, near: Cell, closed: Sequence[Cell] = ()) -> Cell:
        taken = self.edges | set(closed)
        free = [(r, c) for r in range(self.rows) for c in (0, self.cols - 1) if (r, c) not in taken]
        cell = min(free, key=lambda one: abs(one[0] - near[0]) + abs(one[1] - near[1]))
        self.edges.add(cell)
        return cell

    def _side(self, cell: Cell) -> str:
        return "W" if cell[1] == 0 else "E"

    def _way(self, source: Cell, sinks: Sequence[Cell], senders: Sequence[Cell]) -> Way:
        colors = self.colors or self.used
        way = found_way(self.grid, source, sinks, senders, lambda _: 1.0, colors)
        assert way is not None, f"no way from {source} to {sinks}"
        # Its own color, or that of a route elsewhere, for every port: nothing but the region can stop it.
        colors.remove(way.color)
        self.used.append(way.color)
        return way

    def inward(self, name: str, tensor: str, sinks: Sequence[Cell], come: int, bundle: int = 0) -> int:
        """Return a stream of the host to cells which all hear it, of that many samples."""
        edge = self._edge(sinks[0])
        way = self._way(edge, sinks, [])
        self.b.route(way.color, edge, rx=self._side(edge), tx=way.ports(edge))
        for cell, parent in way.parents.items():
            self.b.route(way.color, cell, rx=BACK[direction(parent, cell)], tx=way.ports(cell))
        words = come * self._words(tensor, bundle) // self.samples
        self.b.host_in(name, way.color, words, edge[0], self._side(edge))
        return way.color

    def outward(self, name: str, tensor: str, senders: Sequence[Cell], bundle: int = 0) -> tuple[int, str]:
        """Return a stream to the host: its color, and the ports of the outlet."""
        edge = self._edge(senders[0], senders)
        way = self._way(senders[0], [edge], senders)

        def ports(cell: Cell) -> str:
            return way.ports(cell).replace("R", self._side(edge))

        for cell, parent in way.parents.items():
            self.b.route(way.color, cell, rx=BACK[direction(parent, cell)], tx=ports(cell))
        self.b.host_out(name, way.color, self._words(tensor, bundle), edge[0], self._side(edge))
        return way.color, ports(senders[0])

    def _words(self, tensor: str, bundle: int) -> int:
        words = self.samples * int(np.prod(self.region.graph.tensors[tensor].shape)) // PAIR
        if (of := self.region.bundles.get(tensor, 1)) == 1:
            return words
        of_token = token_words(self.region.graph, tensor)
        return words // of_token * len(part_of(of_token, bundle, of))


@dataclass
class _Laid:
    """A region between its host streams, and its values as words."""

    region: TrainedKind
    bench: _Bench
    come: tuple[int, int]
    samples: int

    def inputs(
        self, operands: Mapping[str, Floats], gradient: Floats, weights: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """Return the buffers of a run."""
        region, (before, back) = self.region, self.come
        inputs = dict(region.values(weights))
        for inlet in region.inlets:
            values = self._part(inlet.tensor, inlet.bundle, operands[inlet.tensor][:before])
            inputs[f"in {inlet.tensor} {inlet.bundle}"] = self._packed(inlet.tensor, values)
        result = region.kernel.outputs[0]
        for bundle in range(region.bundles.get(result, 1)):
            values = self._part(result, bundle, gradient[:back])
            inputs[f"in gradient {bundle}"] = self._packed(result, values)
        return inputs

    def _part(self, tensor: str, bundle: int, values: Floats) -> Floats:
        """Return the features of a bundle, of (..., features)."""
        if (of := self.region.bundles.get(tensor, 1)) == 1:
            return values
        return values[..., bundle_elements(self.region.graph, tensor, values.shape[-1], bundle, of)]

    def read(self, found: FabricResult, name: str, tensor: str) -> Floats:
        """Return what arrived of a tensor, (samples, elements)."""
        of, shape = self.region.bundles.get(tensor, 1), self.region.graph.tensors[tensor].shape
        features = PAIR * token_words(self.region.graph, tensor)
        parts = [self.unpacked(tensor, found.read(f"{name} {bundle}")) for bundle in range(of)]
        if of == 1:
            return parts[0]
        whole = np.zeros((self.samples, int(np.prod(shape)) // features, features), np.float32)
        for bundle, part in enumerate(parts):
            elements = bundle_elements(self.region.graph, tensor, features, bundle, of)
            whole[..., elements] = part.reshape(self.samples, -1, len(elements))
        return whole.reshape(self.samples, -1)

    def _packed(self, tensor: str, values: Floats) -> Floats:
        order = stream_order(self.region.graph, tensor)
        flat = np.asarray(values, np.float16).reshape(len(values), -1)
        flat = flat if order is None else flat[:, order]
        return np.ascontiguousarray(flat).reshape(-1).view(np.float32)[None, None]

    def unpacked(self, tensor: str, words: Floats) -> Floats:
        """Return (samples, elements)."""
        order = stream_order(self.region.graph, tensor)
        flat = np.ascontiguousarray(words.reshape(-1)).view(np.float16).reshape(self.samples, -1)
        flat = flat if order is None else flat[:, np.argsort(order)]
        return flat.astype(np.float32)

    def gradients(self, found: FabricResult) -> dict[str, Floats]:
        """Return the gradients of the operands, (samples, elements)."""
        return {
            tensor: self.read(found, f"gradient {tensor}", tensor) for tensor in self.region.gradient_order
        }


def _laid(region: TrainedKind, samples: int, in_flight: int, rate: float, come: tuple[int, int]) -> _Laid:
    """Return the region with streams of the host, which sends `come` samples of the operands and of gradients."""
    result = region.kernel.outputs[0]
    bench = _Bench(region, samples, come)
    cells: dict[tuple[str, int], list[Cell]] = {}
    for inlet in region.inlets:
        cells.setdefault((inlet.tensor, inlet.bundle), []).append(inlet.cell)
    inward = {
        (tensor, bundle): bench.inward(f"in {tensor} {bundle}", tensor, sinks, come[0], bundle)
        for (tensor, bundle), sinks in cells.items()
    }
    arriving = [
        bench.inward(f"in gradient {bundle}", result, [cell], come[1], bundle)
        for bundle, cell in enumerate(region.gradient_inlets)
    ]
    leaving = {
        tensor: [
            bench.outward(
                f"gradient {tensor} {bundle}", tensor, region.gradient_senders(tensor, bundle), bundle
            )
            for bundle in range(region.bundles.get(tensor, 1))
        ]
        for tensor in region.gradient_order
    }
    results = [
        bench.outward(f"out {bundle}", result, region.bundle_senders(bundle), bundle)
        for bundle in range(region.bundles.get(result, 1))
    ]
    ports = TrainedPorts(
        inward=[inward[inlet.tensor, inlet.bundle] for inlet in region.inlets],
        own=bench.own,
        results=results,
        arriving=arriving,
        leaving=leaving,
    )
    rows = samples * region.tokens
    region.build_batch(bench.b, ports, Batch(samples, in_flight, -rate / rows))
    placed = {(r, c - 1) for r, c in np.argwhere(bench.b._class_of > 0) if 0 < c <= bench.cols}
    beside = {cell for cell in placed if not _computes(region, cell)}
    assert beside <= region.moving, f"programs on {sorted(beside - region.moving)}, which moving leaves out"
    return _Laid(region, bench, come, samples)


def run_alone(
    region: TrainedKind,
    operands: Mapping[str, Floats],
    gradient: Floats,
    weights: Mapping[str, Floats],
    *,
    in_flight: int,
    rate: float = 0.5,
) -> Alone:
    """Return a batch: operands (samples, ...) by tensor, the gradient of the result (samples, ...), parameters by name."""
    samples, result = len(gradient), region.kernel.outputs[0]
    laid = _laid(region, samples, in_flight, rate, (samples, samples))
    found = stepped(laid.bench.b.build(), laid.bench.config, laid.inputs(operands, gradient, weights))
    assert found.words_left == 0
    gradients, updated = region.read({name: found.read(name) for name in region.reads})
    return Alone(
        region,
        laid.read(found, "out", result).reshape(gradient.shape),
        {tensor: value.reshape(operands[tensor].shape) for tensor, value in laid.gradients(found).items()},
        gradients,
        updated,
        found,
    )


def counted(region: TrainedKind, samples: int, in_flight: int) -> Floats:
    """Return the cycles (rows, cols) that the region's compute cores issue in a batch and its update, counted from the
    program.
    """
    laid = _laid(region, samples, in_flight, 0.5, (samples, samples))
    return issued_cycles(laid.bench.b.build(), laid.bench.config)[region.rows, region.columns]


def issued_by_core(region: TrainedKind) -> Floats:
    """Return the cycles (rows, cols) of one sample forward and backward, which it adds to a batch."""
    return counted(region, 2, 1) - counted(region, 1, 1)


def issued(region: TrainedKind) -> float:
    """Return the cycles of the busiest core."""
    return float(issued_by_core(region).max())


def first_sample_alone(
    region: TrainedKind,
    operands: Mapping[str, Floats],
    gradient: Floats,
    weights: Mapping[str, Floats],
    come: tuple[int, int],
) -> tuple[Floats, dict[str, Floats]]:
    """Send only `come` samples of operands and of gradients of a batch; return result and gradients, zero where none
    left.
    """
    samples = len(gradient)
    laid = _laid(region, samples, samples, 0.0, come)
    inputs = laid.inputs(operands, gradient, weights)
    found = run_program(laid.bench.b.build(), laid.bench.config, executor="wavelet", inputs=inputs)
    assert found.deadlock is not None, "the batch ended, though some of it never came"
    return laid.read(found, "out", region.kernel.outputs[0]), laid.gradients(found)


def _computes(region: TrainedKind, cell: Cell) -> bool:
    (row, col), left = cell, region.left
    return region.top <= row <= region.last and left <= col < left + region.cols


def check_alone(
    region: TrainedKind,
    op: Op,
    operands: Mapping[str, Floats],
    gradient: Floats,
    weights: Mapping[str, Floats],
    *,
    in_flight: int,
    rate: float = 0.5,
    roundings: int = 4,
) -> Alone:
    """Run it, and compare all values with autograd: each within `roundings` of fp16 of the largest of its tensor."""
    run = run_alone(region, operands, gradient, weights, in_flight=in_flight, rate=rate)
    given = {
        name: torch.tensor(np.float16(value)).float().requires_grad_() for name, value in operands.items()
    }
    held = {
        name: torch.tensor(np.float32(weights[name])).requires_grad_() for name in region.kernel.parameters
    }
    output = op(*(given[tensor] for tensor in region.operands), *held.values())
    output.backward(torch.tensor(np.float16(gradient)).float())

    def near(found: Floats, wanted: torch.Tensor, what: str) -> None:
        truth = wanted.detach().numpy()
        worst = np.abs(found.reshape(truth.shape) - truth).max() / np.abs(truth).max()
        assert worst < roundings * EPS, (
            f"{what} off by {worst / EPS:.1f} roundings of the largest, limit {roundings}"
        )

    # Counted from the program and by the executor, core by core.
    assert (run.fabric.busy[region.rows, region.columns] == counted(region, len(gradient), in_flight)).all()
    near(run.output, output, "output")
    for tensor in region.gradient_order:
        near(run.operand_gradients[tensor], given[tensor].grad, f"gradient of '{tensor}'")
    factor = rate / (len(gradient) * region.tokens)
    for name, parameter in held.items():
        near(run.gradients[name], parameter.grad, f"gradient of '{name}'")
        moved = factor * parameter.grad
        near(
            run.weights[name] - np.float32(weights[name]).reshape(run.weights[name].shape),
            -moved,
            f"update of '{name}'",
        )
    return run
