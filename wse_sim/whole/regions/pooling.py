"""Pooling: channels over a line of cores, each of which keeps its channels of a whole image.

Symbols: an image of H x W pixels, windows of r lines and s columns, stride z, T pixels of the result; P cores in a line,
e channels on each, whole words::

    inlet > words of a pixel, some to every core in turn >     core: lines under a window to one, then its columns    > out in turn

A window is taken apart: its r lines are made one (a vector of W e elements for every line of the result), then its s columns
(one vector for the whole result, of which every z-th pixel leaves).  Averages are summed in fp32 and scaled as they leave.
The next image comes in while one is worked on::

    per sample    H W e / 2 received + T e / 2 sent + sum over instructions of (o + elements / rate)
    inlet         H W (words of a pixel + 1 control word, none with one core)

Lines around an image are left out; columns around are at rest beside the lines, as zeros or as the least number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.families.pool2d import Pool2dAttributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet, Ports, RegionKind, refused
from wse_sim.whole.regions.turns import advance_of, alternate, deal, route_senders, route_takers
from wse_sim.whole.regions.windows import Windows

RECEIVE = 1  # microthread
LEAST = -65504.0  # of fp16
IMAGE, LINES, RESULT = "image", "lines", "result"  # buffers of a core
BANKS = {IMAGE: 2, LINES: 0, RESULT: 2}
SIXTEEN, THIRTY_TWO = 1, 2  # 16-bit words of an element
NOWHERE = ("", 0)


@dataclass(frozen=True)
class Step:
    """An instruction: from `reads` (buffer, first element) to one place, `turns` times.

    One read is moved, two are combined.  `apart` are elements from turn to turn of the target and of what is read.
    """

    turns: int
    to: tuple[str, int]
    reads: tuple[tuple[str, int], ...]
    length: int
    stride: int = 1
    apart: tuple[int, int] = (0, 0)


class Pooling(RegionKind):
    """Maximum or mean of windows."""

    family = "pool2d"
    title = "pooling"
    own_colors = 1

    def __init__(self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> None:
        self.windows = Windows.of(kernel)
        super().__init__(graph, kernel, stage, wafer)

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """An image is one row."""
        return 1

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """One image, whole windows, an even number of channels."""
        attrs = Pool2dAttributes.of(kernel.attrs)
        if attrs.uneven:
            raise refused(
                kernel,
                "has windows that are cut off, dilated or of several sizes",
                "use padding without ceil_mode, and averages that count it",
            )
        if int(kernel.dims["c"]) % PAIR:
            raise refused(
                kernel,
                f"has {int(kernel.dims['c'])} channels, and words hold {PAIR}",
                "use an even number of channels",
            )

    def extent(self) -> tuple[int, int]:
        """A column of cores, or a row where the region is wider than high."""
        words = self.windows.channels // PAIR
        most = max(self.region.rows, self.compute_cols)
        self.words = ceil_div(words, min(words, most))
        cores = int(ceil_div(words, self.words))
        return (cores, 1) if cores <= self.region.rows else (1, cores)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """All cores, the first channels' first."""
        down = self.height > 1
        return tuple(
            (self.top + i * down, self.left + i * (not down)) for i in range(max(self.height, self.cols))
        )

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Beside the first core."""
        return (Inlet(self.kernel.inputs[0], (self.top, self.left - 1)),)

    @property
    def is_max(self) -> bool:
        """Whether it is the maximum, else the mean."""
        return Pool2dAttributes.of(self.kernel.attrs).kind == "max"

    @property
    def pitch(self) -> int:
        """Pixels from line to line, with those around."""
        columns = self.windows.columns
        wide = max(
            columns.size + columns.around, columns.first(columns.results - 1) + columns.around + columns.taps
        )
        return int(ceil_div(wide, PAIR)) * PAIR

    def words_of(self, core: int) -> int:
        """Words of a pixel that a core keeps."""
        return min(self.words, self.windows.channels // PAIR - core * self.words)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """The inlet, and a class for every kind of turn and number of channels."""
        cells, feed, lines, columns = self.senders, ports.own[0], self.windows.lines, self.windows.columns
        inlet = b.core_class(f"{self.name} inlet")
        with inlet.loop(samples), inlet.loop(lines.size), inlet.loop(columns.size):
            words = [self.words_of(i) for i in range(len(cells))]
            deal(inlet, feed, [[(fabric_in(ports.inward[0]), PAIR * count)] for count in words], len(cells))
        b.place(inlet, self.inlets[0].cell)
        route_takers(b, feed, self.inlets[0].cell, cells, 0, "E")
        route_senders(b, ports.outward, cells, ports.towards)
        kinds = [(self.words_of(i), advance_of(i, len(cells))) for i in range(len(cells))]
        where, held = (self.rows, self.columns), PAIR * self.words
        dtype = "fp16" if self.is_max else "fp32"
        sizes = {LINES: lines.results * self.pitch * held, RESULT: lines.results * self.pitch * held}
        own = {
            key: b.buffer(f"{self.name}.{key}", size, dtype, where, bank=BANKS[key])
            for key, size in sizes.items()
        }
        images = [
            b.buffer(f"{self.name}.{IMAGE}{turn}", self._pixels * held, "fp16", where, bank=BANKS[IMAGE])
            for turn in (0, 1)
        ]
        for kind in dict.fromkeys(kinds):
            core = b.core_class(f"{self.name} {kind[0]} {kind[1] or ''}")
            self._core(core, (feed, ports.outward), (images, own), samples, kind)
            for cell, other in zip(cells, kinds, strict=True):
                if other == kind:
                    b.place(core, cell)

    @property
    def _pixels(self) -> int:
        return self.windows.lines.size * self.windows.columns.size

    def _core(
        self,
        core: CoreClass,
        colors: tuple[int, int],
        buffers: tuple[list[Buffer], dict[str, Buffer]],
        samples: int,
        kind: tuple[int, str | None],
    ) -> None:
        (feed, outward), (images, own), (words, advance) = colors, buffers, kind
        each = PAIR * words

        def receive(turn: int) -> None:
            target = images[turn].dsd(0, self._pixels * each)
            core.mov(target, fabric_in(feed), dtype="fp16", start="none", thread=RECEIVE, priority="high")

        def work(turn: int) -> None:
            for step in self.steps(each):
                self._emit(core, step, {**own, IMAGE: images[turn]})
            lines, columns = self.windows.lines, self.windows.columns
            name = self._last_buffer
            with core.loop(lines.results), core.loop(columns.results):
                out = own[name].dsd(0, each, step=columns.stride * each, outer_step=self.pitch * each)
                if self.is_max:
                    core.mov(fabric_out(outward, advance), out, dtype="fp16", start="none")
                else:
                    part = scalar(1.0 / (lines.taps * columns.taps))
                    core.mul(fabric_out(outward, advance), out, part, dtype="fp16", start="none")

        alternate(core, samples, receive, work, (RECEIVE,))

    @property
    def _last_buffer(self) -> str:
        return RESULT if self.windows.columns.taps > 1 else LINES

    def steps(self, each: int) -> list[Step]:
        """The instructions of a core with `each` channels: lines of windows, then their columns; the faster of two ways each."""
        lines, columns, pitch = self.windows.lines, self.windows.columns, self.pitch * each
        row, margin = columns.size * each, columns.around * each
        out: list[Step] = []
        for place, count in lines.spans():
            apart = (pitch, lines.stride * row)
            taps = [tap for tap in range(lines.taps) if 0 <= lines.first(place) + tap < lines.size]
            met = [(IMAGE, (lines.first(place) + tap) * row) for tap in taps]
            out += self._combined(
                (LINES, place * pitch + margin), met, Step(count, NOWHERE, (), row, apart=apart)
            )
        if columns.taps == 1:
            return out
        # All columns at once, those between windows too; or a channel after the other with whole lines in a row.
        whole = Step(1, NOWHERE, (), lines.results * pitch - (columns.taps - 1) * each)
        met = [(LINES, tap * each) for tap in range(columns.taps)]
        at_once = self._combined((RESULT, 0), met, whole)
        if self.pitch != columns.stride * columns.results:
            return out + at_once
        pixels = lines.results * columns.results
        channel = Step(each, NOWHERE, (), pixels, columns.stride * each, (1, 1))
        one_by_one = self._combined((RESULT, 0), met, channel)
        return out + min(at_once, one_by_one, key=lambda steps: sum(map(self._cycles, steps)))

    def _combined(self, to: tuple[str, int], met: list[tuple[str, int]], like: Step) -> list[Step]:
        """Several places made one: the first moved, or the first two combined where that is faster."""
        moved = [
            replace(like, to=to, reads=(met[0],)),
            *(replace(like, to=to, reads=(to, one)) for one in met[1:]),
        ]
        direct = [replace(like, to=to, reads=tuple(met[:2])), *moved[2:]]
        return min(moved, direct, key=lambda steps: sum(map(self._cycles, steps)))

    def _emit(self, core: CoreClass, step: Step, buffers: Mapping[str, Buffer]) -> None:
        dtype = "fp16" if self.is_max else "fp32"

        def operand(place: tuple[str, int]) -> Operand:
            apart = step.apart[0 if place[0] == step.to[0] else 1]
            return buffers[place[0]].dsd(place[1], step.length, step.stride, step=apart)

        with core.loop(step.turns):
            if len(step.reads) == 1:
                core.mov(operand(step.to), operand(step.reads[0]), dtype=dtype)
            elif self.is_max:
                core.max(operand(step.to), *map(operand, step.reads), dtype=dtype)
            else:
                core.add(operand(step.to), *map(operand, step.reads), dtype=dtype)

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """What lies beside the lines of a maximum."""
        if not self.is_max:
            return {}
        size = self.windows.lines.results * self.pitch * PAIR * self.words
        return {f"{self.name}.{LINES}": np.full((self.height, self.cols, size), LEAST, np.float32)}

    def issued_cycles(self) -> float:
        """As the module says, of the first core, which has the most channels."""
        each = PAIR * self.words
        t = self.windows.lines.results * self.windows.columns.results
        return float((self._pixels + t) * self.words + sum(self._cycles(step) for step in self.steps(each)))

    def _cycles(self, step: Step) -> float:
        """Start and elements of an instruction, all turns; two reads from equal banks take twice as long."""
        wafer, wide = self.wafer, SIXTEEN if self.is_max else THIRTY_TWO
        start = ceil(wafer.vector_start_cycles)
        if len(step.reads) == 1:
            rate = wafer.mov_fp16_per_cycle if self.is_max else wafer.mov_fp32_per_cycle
            return step.turns * (start + ceil(step.length / rate))
        rate = wafer.max_fp16_per_cycle if self.is_max else wafer.add_fp32_memory_per_cycle
        period = wafer.sram_banks // 2 if self.is_max else wafer.fp32_bank_period_words
        words = {IMAGE: SIXTEEN, LINES: wide, RESULT: wide}
        first, second = ((BANKS[name] + words[name] * at) % period for name, at in step.reads)
        return step.turns * (start + ceil(step.length / rate) * (1 + (first == second)))
