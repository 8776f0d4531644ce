"""Cores of elementwise work and where they are: a serpentine, an inlet and stores per operand; its operators.

Both passes use it: :mod:`wse_sim.whole.regions.pointwise` and :mod:`wse_sim.whole.trained.pointwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import ceil, prod
from typing import Self

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Command, Fn
from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.chains import BINARY, FUNCTIONS, MAPPED, ops_of
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    IMAGE_AXES,
    PAIR,
    Floats,
    Inlet,
    PlacedKernel,
    bundle_elements,
    is_image,
    part_of,
    refused,
    rows_in_turn,
    token_words,
)
from wse_sim.whole.regions.shared_color import advance_of, cable, place_kinds, route_all, route_takers
from wse_sim.whole.regions.stores import LAST_SLOTS, write_stores
from wse_sim.whole.regions.turns import RELAY_SLOTS

STORES = 3  # cores in which an early operand waits at most
CORE_SLOTS = 1  # samples that cores take in ahead
FP16_BYTES = 2
MOST_OPERANDS = 5  # from regions: each has a microthread, and one sends
ORDERED = ("sub", "div")
Taken = tuple[str, int | float]


class PointwisePlace(PlacedKernel):
    """Operators on the elements of operands, over all cores of the region."""

    family = "elementwise"
    title = "elementwise work"

    @property
    def takes_whole(self) -> bool:
        """Whether a slow function is applied: the last core then begins with the last words."""
        return not SPECIAL_FUNCTIONS.isdisjoint(self.operators)

    def make_room(self) -> None:
        """Make room for the inlets."""
        columns = ceil(len(self.kernel.inputs) / self.region.rows)
        if (missing := columns - (self.left - self.region.col)) > 0:
            if missing >= self.compute_cols:
                raise refused(
                    self.kernel, f"has {len(self.kernel.inputs)} operands in a region of {self.region.cols} columns and one row",
                    "use more cores",
                )  # fmt: skip
            self._move_columns(missing)

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample; an image is one row."""
        if is_image(graph, kernel.outputs[0]):
            return 1
        return prod(graph.tensors[kernel.outputs[0]].shape[:-1]) // graph.samples

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check that all operators have programs, and that each has its operand, in the shape of the result."""
        ops = operators_of(kernel)
        for op in ops:
            if op not in (*BINARY, *MAPPED, *FUNCTIONS):
                known = ", ".join((*BINARY, *MAPPED, *FUNCTIONS))
                raise refused(
                    kernel,
                    f"does '{','.join(ops)}', but '{op}' is not a single operator on the result of those before it",
                    f"a whole model on the fabric does {known}, one after another",
                )
        result = graph.tensors[kernel.outputs[0]]
        takes = len({*taken_by(kernel)}) if kernel.access.steps else 1 + sum(op in BINARY for op in ops)
        given = len(kernel.inputs) + len(kernel.parameters)
        if rereads(kernel) and (graph.training or "div" in ops):
            what = "trains" if graph.training else "divides"
            raise refused(
                kernel,
                f"does '{','.join(ops)}', which reads one tensor twice and {what}",
                "use ReLU, GELU or SiLU (a leaky ReLU and hardswish have programs in inference)",
            )
        if takes != given or not kernel.inputs or len(kernel.inputs) > MOST_OPERANDS:
            raise refused(
                kernel,
                f"does '{','.join(ops)}' with {given} tensors, but takes {takes}, of which 1 to {MOST_OPERANDS} must not be parameters",
                "give each operator its own tensor, and take no power beyond a square",
            )
        is_told = bool(kernel.access.steps) and "div" not in ops
        if set(ops) & set(ORDERED) and (len(ops) > 1 or kernel.parameters) and not is_told:
            raise refused(
                kernel,
                f"does '{','.join(ops)}', but the order of its operands is unknown",
                "make a difference or a quotient of two results a layer of its own",
            )
        is_told = not kernel.parameters or len(ops) == 1 or bool(kernel.access.order or kernel.access.steps)
        bends_first = (
            bool(kernel.access.order) and kernel.access.order[0] not in kernel.inputs and ops[0] not in BINARY
        )
        if not is_told or bends_first or taken_by(kernel)[0] != kernel.inputs[0]:
            raise refused(
                kernel,
                f"does '{','.join(ops)}', but which of them reads a parameter is unknown",
                "separate the operators by a layer",
            )
        for name in kernel.inputs:
            same_order = is_image(graph, name) == is_image(graph, result.name)
            is_whole = graph.tensors[name].shape == result.shape
            if not (is_whole or (has_one_pixel(graph, kernel, name) and "div" not in ops)) or not same_order:
                raise refused(
                    kernel,
                    f"reads '{name}' of shape {graph.tensors[name].shape} for a result of shape {result.shape}",
                    "give operands the shape of the result, without views or broadcasts",
                )

    # ---- where it lies -----------------------------------------------------------------------------------------------

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators in order."""
        return operators_of(self.kernel)

    @property
    def others(self) -> tuple[Taken, ...]:
        """Second operands of the operators: the index of an "operand" or "parameter", or a "number" itself."""
        inputs, parameters = self.kernel.inputs, self.kernel.parameters

        def one(taken: str | float) -> Taken:
            if isinstance(taken, float):
                return "number", taken
            return (
                ("operand", inputs.index(taken))
                if taken in inputs
                else ("parameter", parameters.index(taken))
            )

        return tuple(one(taken) for taken in met_by(self.kernel))

    @property
    def elements(self) -> int:
        """Elements of a sample, or of a bundle of it, in whole words."""
        whole = self.graph.tensors[self.kernel.outputs[0]].elements // self.graph.samples
        whole += self.tokens * self.filling
        if self.share == 1:
            return whole
        return whole // self.token_words * len(part_of(self.token_words, self.band, self.share))

    @property
    def filling(self) -> int:
        """Zeros that pad a token to whole words: 1 if a dense layer has an odd number of features."""
        shape = self.graph.tensors[self.kernel.outputs[0]].shape
        return shape[-1] % PAIR if len(shape) < IMAGE_AXES else 0

    def extent(self) -> tuple[int, int]:
        """Return the rows and full columns of the serpentine."""
        cores, rows = self._cores(), rows_in_turn(self.region, self.wafer)
        return min(cores, rows), ceil(cores / rows)

    def _cores(self) -> int:
        return ceil_div(self.elements // self.laps, self.each)

    laps = 1
    """Parts of a sample that go around the cores one after the other."""

    @property
    def most_cores(self) -> int:
        """Cores that the region has for the work."""
        return rows_in_turn(self.region, self.wafer) * self.compute_cols

    @property
    def each(self) -> int:
        """Elements of every core but the last, of a lap."""
        return self.unit * ceil_div(self.elements // self.laps, self.unit * self.most_cores)

    @property
    def unit(self) -> int:
        """Elements that stay together on a core: a word, or a pixel where all pixels meet one of an operand."""
        return self.pixel if self.shared else PAIR

    @property
    def pixel(self) -> int:
        """Elements of a pixel, or of a bundle of it."""
        return PAIR * len(part_of(self.token_words, self.band, self.share))

    @property
    def shared(self) -> tuple[str, ...]:
        """Operands with one pixel, which every core holds."""
        return shared_operands(self.graph, self.kernel)

    def count_in(self, tensor: str, count: int) -> int:
        """Return the elements of an operand that a core with `count` elements of the result receives."""
        return self.pixel if tensor in self.shared else count

    @property
    def rest(self) -> int:
        """Elements of the last core, of a lap."""
        return self.elements // self.laps - (self._cores() - 1) * self.each

    def count_of(self, position: int) -> int:
        """Return the elements of the core at a position of the serpentine."""
        return self.rest if position == self._cores() - 1 else self.each

    @property
    def snake(self) -> tuple[Cell, ...]:
        """Cells of the serpentine: down the first column, up the second, and so on."""
        rows, cores = rows_in_turn(self.region, self.wafer), self._cores()
        return cable(self.top, self.left, rows, 1, 0, int(ceil_div(cores, rows)))[0][:cores]

    @property
    def stores(self) -> dict[str, tuple[Cell, ...]]:
        """By operand, the core that deals it out, and further stores that buffer it; the last one is its
        inlet."""
        names, cells = self.kernel.inputs, self._moving_cells()
        room = max(0, len(cells) - len(names))
        out: dict[str, tuple[Cell, ...]] = {}
        at = 0
        for name in names:
            more = min(self.most_stores(name) - 1, room) if self.waits(name) else 0
            room -= more
            out[name] = cells[at : at + 1 + more]
            at += 1 + more
        return out

    def _moving_cells(self) -> tuple[Cell, ...]:
        """Return the moving cells as a serpentine of neighbours: down the nearest column, up the next."""
        rows = range(self.top, self.top + self.region.rows)
        columns = range(self.left - 1, self.region.col - 1, -1)
        return tuple(
            (row, col) for i, col in enumerate(columns) for row in (rows if i % 2 == 0 else reversed(rows))
        )

    def waits(self, tensor: str) -> bool:
        """Return whether an operand arrives earlier than another one; inputs of the model never wait."""
        if self.graph.tensors[tensor].kind is TensorKind.INPUT:
            return False
        return self.kernels_before(tensor) > 0

    @property
    def alike(self) -> Hashable:
        """Operands wait for those that have more kernels before them."""
        waits = tuple(self.waits(name) and self.kernels_before(name) for name in self.kernel.inputs)
        return super().alike, waits

    def kernels_before(self, tensor: str) -> int:
        """Return by how many kernels the longest path to any operand exceeds that to this one."""
        depths = {name: depth_of(self.graph, name) for name in self.kernel.inputs}
        return max(depths.values()) - depths[tensor]

    def most_stores(self, tensor: str) -> int:
        """Return the largest number of stores for an early operand: each further one delays it by a sample."""
        return min(STORES, 1 + self.kernels_before(tensor) // 2)

    def held_samples(self, tensor: str) -> int | None:
        """Return the samples in the stores of an early operand, of the band with the fewest, and on the cores, which receive one
        sample ahead."""
        if not self.waits(tensor):
            return None
        stored = (band.relay_slots * (len(band.stores[tensor]) - 1) for band in self.bands)
        return CORE_SLOTS + LAST_SLOTS + min(stored)

    @property
    def relay_slots(self) -> int:
        """Samples in a store that forwards them: two if a core has no room for three."""
        room = self.wafer.sram_usable_bytes - self.wafer.kernel_code_bytes
        return RELAY_SLOTS if RELAY_SLOTS * FP16_BYTES * self.elements <= room else LAST_SLOTS

    def ahead_cycles(self) -> float:
        """Return the cycles to receive all operands but the last."""
        return sum(self.count_in(name, self.each) for name in self.kernel.inputs[:-1]) / PAIR

    band = 0
    share = 1
    """The number of bundles (`share`), and which of them this band has."""

    # ---- bundles -----------------------------------------------------------------------------------------------------

    @property
    def tied(self) -> tuple[str, ...]:
        """All operands and the result have the same number of bundles."""
        return (*dict.fromkeys(self.kernel.inputs), self.kernel.outputs[0])

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles for which every band has a word of a token or pixel, and enough rows for
        inlets and stores; a number that shares words with the next token is not split."""
        most = rows_in_turn(self.region, self.wafer) // self.least_rows
        if self.elements % (PAIR * self.token_words):
            return (1,)
        return range(1, max(1, min(most, self.token_words)) + 1)

    @property
    def token_words(self) -> int:
        """Words of a token, or of a pixel."""
        return token_words(self.graph, self.kernel.outputs[0])

    @property
    def bands(self) -> tuple[Self, ...]:
        """One region per bundle, each with its rows."""
        if self.result_bundles == 1:
            return (self,)
        rows, out = rows_in_turn(self.region, self.wafer) // self.result_bundles, []
        for number in range(self.result_bundles):
            band = copy(self)
            band.bundles, band.band, band.share = {}, number, self.result_bundles
            band.top = self.top + number * rows
            band.region = replace(
                self.region, row=band.top, rows=rows, compute_cores=rows * self.compute_cols
            )
            band.name = f"{self.name} band {number}"
            band.height, band.cols = band.extent()
            out.append(band)
        return tuple(out)

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """The inlets, band by band."""
        return tuple(
            Inlet(name, cells[-1], band.band) for band in self.bands for name, cells in band.stores.items()
        )

    @property
    def senders(self) -> tuple[Cell, ...]:
        """All cores, band by band."""
        return tuple(cell for band in self.bands for cell in band.snake)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cores of a band."""
        return self.bands[bundle].snake

    @property
    def least_rows(self) -> int:
        """Least rows of a band: one for each of its inlets and stores."""
        waiting = sum(self.waits(operand) for operand in self.kernel.inputs)
        return len(self.kernel.inputs) + (STORES - 1) * waiting

    @property
    def own_colors(self) -> int:
        """One color per operand, and two between stores."""
        return len(self.kernel.inputs) + 2 * any(len(cells) > 1 for cells in self.stores.values())

    def write_cores(self, b: Builder, write: Callable[[CoreClass, str | None, int], None]) -> None:
        """Write the cores of the serpentine; `write` writes one, from the switch command of its last word and the number of its
        elements."""
        count = len(self.snake)
        kinds = {cell: (advance_of(i, count), self.count_of(i)) for i, cell in enumerate(self.snake)}
        place_kinds(b, kinds, self.name, lambda core, kind: write(core, *kind))

    # ---- inlets ------------------------------------------------------------------------------------------------------

    def take_in(
        self, b: Builder, name: str, color: int, feed: int, links: Sequence[int], samples: int
    ) -> None:
        """Write the cores that receive an operand on `color` and deal it out on `feed`; stores pass samples
        on by `links`."""
        cells, size = self.stores[name], self.count_in(name, self.elements)

        def deal(core: CoreClass, source: int | Buffer) -> None:
            if name in self.shared:
                part = fabric_in(source) if isinstance(source, int) else source.dsd()
                core.mov(fabric_out(feed), part, length=size, dtype="fp16", start="none")
            else:
                self.deal(core, feed, source)

        if self.waits(name):
            colors = [*(links[i % 2] for i in range(len(cells) - 1)), color]
            write_stores(b, f"{self.name} {name}", cells, colors, size, self.relay_slots, samples, deal)
        else:
            inlet = b.core_class(f"{self.name} inlet of {name}")
            with inlet.loop(samples):
                deal(inlet, color)
            b.place(inlet, cells[0])
        if name in self.shared:
            route_all(b, feed, cells[0], self.snake)
        else:
            self.route_feed(b, feed, cells[0])

    def route_feed(self, b: Builder, feed: int, cell: Cell) -> None:
        """Route the elements from the core that deals them out to the serpentine."""
        route_takers(b, feed, cell, self.snake)

    def deal(self, core: CoreClass, feed: int, source: int | Buffer) -> None:
        """Deal a sample, or a lap of it, to the cores in sequence, from a color as it arrives or from a buffer."""

        def send(first: int, count: int, step: int, advance: str | None) -> None:
            part = (
                fabric_in(source)
                if isinstance(source, int)
                else source.dsd(first * self.each, count, step=step)
            )
            core.mov(fabric_out(feed, advance), part, length=count, dtype="fp16", start="none")

        last = len(self.snake) - 1
        if last:
            with core.loop(last):
                send(0, self.each, self.each, "path")
        send(last, self.rest, 0, None)
        if last:
            core.control(feed, Command.RESET, start="none")

    # ---- values ------------------------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return every core's part of the parameters, broadcast to the elements of a sample."""
        return {
            f"{self.name}.parameter{i}": self.parts(self.held_values(i, weights[name]))
            for i, name in enumerate(self.kernel.parameters)
        }

    def held_values(self, number: int, parameter: Floats) -> Floats:
        """Return parameter `number` as the cores hold it: as it is."""
        return parameter

    def parts(self, parameter: Floats) -> Floats:
        """Return a parameter as (rows, columns, e) of the cores, in stream order."""
        shape = self.graph.tensors[self.kernel.outputs[0]].shape[1:]
        whole = np.broadcast_to(np.asarray(parameter, np.float32), (1, *shape)).reshape(-1)
        rows = np.pad(whole.reshape(self.tokens, -1), ((0, 0), (0, self.filling)))
        own = bundle_elements(self.graph, self.kernel.outputs[0], rows.shape[1], self.band, self.share)
        whole = rows[:, own].reshape(-1)
        found = np.zeros((self.height, self.cols, self.each), np.float32)
        for i, (row, col) in enumerate(self.snake):
            part = whole[i * self.each :][: self.count_of(i)]
            found[row - self.top, col - self.left, : len(part)] = part
        return found


def has_one_pixel(graph: KernelGraph, kernel: Kernel, tensor: str) -> bool:
    """Return whether an operand has one pixel, with which all pixels of an image are combined; only in inference."""
    result, shape = graph.tensors[kernel.outputs[0]].shape, graph.tensors[tensor].shape
    is_one = len(result) == IMAGE_AXES and shape == (*result[:2], 1, 1) and shape != result
    return is_one and not graph.training


def shared_operands(graph: KernelGraph, kernel: Kernel) -> tuple[str, ...]:
    """Return the operands of elementwise work that have one pixel, of an image of several."""
    return tuple(name for name in kernel.inputs if has_one_pixel(graph, kernel, name))


def operators_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the operators of an elementwise kernel in order."""
    if kernel.access.steps:
        return tuple(op for op, _ in kernel.access.steps[1:])
    return tuple(ops_of(str(kernel.attrs["function" if kernel.family == "activation" else "ops"])))


def taken_by(kernel: Kernel) -> tuple[str, ...]:
    """Return the tensors in the order in which the operators read them, starting with the first value."""
    if kernel.access.steps:
        return tuple(taken for _, taken in kernel.access.steps if isinstance(taken, str) and taken)
    if not kernel.access.order:
        return (*kernel.inputs, *kernel.parameters)
    first, second, *rest = kernel.access.order
    # The operands of the first operator may change places: a difference stands alone.
    return (first, second, *rest) if first in kernel.inputs else (second, first, *rest)


def rereads(kernel: Kernel) -> bool:
    """Return whether operators read a tensor several times."""
    taken = taken_by(kernel)
    return len({*taken}) < len(taken)


def met_by(kernel: Kernel) -> tuple[str | float, ...]:
    """Return tensors and numbers in the order in which the operators read them, without the first value."""
    if kernel.access.steps:
        return tuple(taken for _, taken in kernel.access.steps[1:] if taken != "")
    return taken_by(kernel)[1:]


def numbers_in(kernel: Kernel) -> tuple[int, ...]:
    """Return the positions of the operators that take a number."""
    return tuple(i for i, (_, taken) in enumerate(kernel.access.steps[1:]) if isinstance(taken, float))


def depth_of(graph: KernelGraph, tensor: str) -> int:
    """Return the number of kernels on the longest path from an input of the model to a tensor."""
    return graph.remembered("depths", lambda: _depths(graph)).get(tensor, 0)


def _depths(graph: KernelGraph) -> dict[str, int]:
    """Return the depths of all tensors that a kernel makes."""
    depths: dict[str, int] = {}
    for kernel in graph.kernels:
        here = 1 + max((depths.get(name, 0) for name in kernel.inputs), default=0)
        depths |= dict.fromkeys(kernel.outputs, here)
    return depths


def emit_operators(
    core: CoreClass,
    operators: tuple[str, ...],
    to: Operand,
    value: Operand,
    others: Sequence[Operand],
    wafer: Wafer,
) -> None:
    """Write the operators from `value` to `to`; each binary operator reads the next of `others`."""
    special, selected = (
        round(1000 * cycles) for cycles in (wafer.special_element_cycles, 1 / wafer.max_fp16_per_cycle)
    )
    x, rest = value, iter(others)
    for op in operators:
        if op == "div":
            other = next(rest)
            core.map(Fn.RECIPROCAL, other, other, dtype="fp16", period=special)
            core.mul(to, x, other, dtype="fp16", start="loaded")
        elif op in BINARY:
            getattr(core, op)(to, x, next(rest), dtype="fp16")
        elif op in SPECIAL_FUNCTIONS:
            core.map(Fn[op.upper()], to, x, dtype="fp16", period=special)
        elif op == "relu":
            core.max(to, x, scalar(0.0), dtype="fp16")
        elif op == "square":
            core.mul(to, x, x, dtype="fp16")
        elif op == "copy":
            core.mov(to, x, dtype="fp16")
        else:
            fn = {"abs": Fn.ABS, "neg": Fn.NEGATE}[op]
            core.map(fn, to, x, dtype="fp16", period=selected)
        x = to
