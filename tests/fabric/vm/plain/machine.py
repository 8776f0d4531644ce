"""Cores and straight channels between them, stepped together."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fabric.vm.plain.core import Core, Word, replaced
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.vm import semantics as M
from wse_sim.fabric.vm.arithmetic import operation_table
from wse_sim.fabric.vm.build import memory_words, priced_code
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.opcodes import HALF_FORMATS, VECTOR_OPS, DsdField, DsdKind, Op
from wse_sim.hardware.wafer import load_wafer

RAMP = 16
STEP = {1: (-1, 0), 2: (0, 1), 4: (1, 0), 8: (0, -1)}  # mask of a port: rows and columns to the neighbour


class Queue:
    """A queue of a router: a word may leave `latency` cycles after it was sent, its cell is free as long after it left."""

    def __init__(self, latency: int, cells: int) -> None:
        self.latency, self.cells = latency, cells * latency
        self.words: deque[tuple[int, Word]] = deque()
        self.left: deque[int] = deque()
        self.free_milli = 0  # the link behind it, 1/1000 cycle

    def has_room(self, t: int) -> bool:
        while self.left and self.left[0] + self.latency <= t:
            self.left.popleft()
        return len(self.words) + len(self.left) < self.cells

    def push(self, word: Word, t: int) -> None:
        self.words.append((t + self.latency, word))

    def ready(self, t: int) -> bool:
        """Return whether a word may leave: it has come, and the link is free within this cycle."""
        return bool(self.words) and self.words[0][0] <= t and self.free_milli <= 1000 * t

    def pop(self, t: int, word_milli: int) -> Word:
        self.left.append(t)
        self.free_milli = max(self.free_milli, 1000 * t - 999) + word_milli
        return self.words.popleft()[1]


class Machine:
    """An image on a wafer; every color has one sender and one receiver, and no two share a link."""

    def __init__(self, image: Image) -> None:
        wafer = load_wafer(image.arch)
        plain = FabricConfig.from_wafer(wafer)
        sums = (round(1000 / wafer.csl_add_fp32_memory_per_cycle), *plain.add_memory_milli[1:])
        self.image, self.config = image, dataclasses.replace(plain, add_memory_milli=sums)
        self.is_wse3, self.costs = image.arch == "wse3", wafer.scalar_costs()
        self.words = memory_words(image)
        code, late = priced_code(image, self.costs)
        rows = code.reshape(-1, 4)
        self.code = [[int(op) & 255, int(a), int(b), int(c)] for op, a, b, c in rows]
        self.price, self.late = (rows[:, 0] >> 8).tolist(), late.tolist()
        table = operation_table(self.config, HALF_FORMATS.index(image.half))
        self.rates = {
            name: [int(row[k]) for k in (5, 6, 8, 7)] for name, row in zip(VECTOR_OPS, table, strict=True)
        }
        self.met_nan = False
        half = M.HALVES[image.half]
        self.operations = {
            op: self.noting(
                fn,
                M.F32
                if Op(op).name[0] in "FIUP" or op == Op.H2F
                else half
                if Op(op).name[0] == "H" or op == Op.F2H
                else None,
            )
            for op, fn in M.scalar_operations(image.half).items()
        }
        self.elements = {
            name: self.noting(fn, (M.F32 if name.endswith("s") else half) if "f" in name else None)
            for name, fn in M.vector_operations(image.half).items()
        }
        self.bank_period = {
            1: 1 << 20,
            2: wafer.csl_bank_period_words,
        }  # vectors of 16-bit elements never collide
        self.output_depth = [n + self.config.ring_delay_cycles for n in wafer.output_queue_wavelets]
        depths = [*self.config.input_queue_wavelets, *[self.config.default_input_wavelets] * 8]
        self.input_depth = depths[:8]
        self.cores = [Core(self, c, int(k)) for c, k in enumerate(image.core_class)]
        self.channels = self.paths()
        self.t = 0

    def noting(self, fn: Callable[..., int], form: M.Format | None) -> Callable[..., int]:
        """An operation that notes whether its result is not a number."""
        if form is None:
            return fn

        def noted(*values: int) -> int:
            result = fn(*values)
            self.met_nan = self.met_nan or math.isnan(form.decode(result))
            return result

        return noted

    # ---- DSD values

    def stride(self, dsd: int) -> int:
        """Return the elements between two of a vector; 1 of a shape."""
        if dsd & 15 == DsdKind.CIRCBUF:
            return int(self.image.rings[dsd >> 36 & 0xFFFF][2])
        return M.signed(dsd >> 36, 16) if dsd & 15 == DsdKind.MEM1D else 1

    def field(self, dsd: int, field: DsdField) -> int:
        """Return a field of a DSD value."""
        kind, length = dsd & 15, dsd >> 20 & 0xFFFF
        if field in (DsdField.LENGTH, DsdField.TOTAL):
            row = self.image.shapes[length] if kind == DsdKind.MEM4D else None
            return length if row is None else int(np.prod(row[1 : 1 + row[0]]))
        return {
            DsdField.KIND: kind, DsdField.BASE: dsd >> 4 & 0xFFFF, DsdField.STRIDE: M.signed(dsd >> 36, 16), DsdField.COLOR: dsd >> 4 & 31,
        }.get(field, dsd >> 9 & 15)  # fmt: skip

    def element_address(self, dsd: int, n: int, width: int) -> int:
        """Word address of element `n`."""
        kind, base = dsd & 15, dsd >> 4 & 0xFFFF
        if kind == DsdKind.CIRCBUF:
            first, size, stride = (int(v) for v in self.image.rings[dsd >> 36 & 0xFFFF])
            return first + (base - first + width * n * stride) % size
        if kind == DsdKind.MEM4D:
            row = self.image.shapes[dsd >> 20 & 0xFFFF].tolist()
            for k in range(
                row[0]
            ):  # each step in a dimension is its jump; one that wraps passes on to the next
                turns, n = n, n // row[1 + k]
                base += width * row[5 + k] * (turns - n)
            return int(base)
        return base + width * n * M.signed(dsd >> 36, 16)

    def rebased(self, dsd: int, address: int) -> int:
        """Return a DSD value at another address."""
        return replaced(dsd, 4, address)

    # ---- channels

    def paths(self) -> dict[int, tuple[int, int, list[Queue]]]:
        """By color: first core, last core, the queues between them."""
        found = {}
        for color, rows in enumerate(np.asarray(self.image.config)):
            routes = {
                c: self.image.configs[row - 1].positions[0] for c, row in enumerate(rows.tolist()) if row
            }
            first = [c for c, (rx, _) in routes.items() if rx == RAMP]
            if not first:
                continue
            here, queues, port = first[0], [Queue(1, self.config.router_queue_wavelets)], RAMP
            while routes[here][1] != RAMP:
                came, port = port, routes[here][1]
                turns = came != RAMP and came != port
                here += STEP[port][0] * self.image.cols + STEP[port][1]
                latency = self.config.hop_cycles + (self.config.turn_cycles if turns else 0)
                queues.append(Queue(latency, self.config.router_queue_wavelets))
            found[color] = (first[0], here, queues)
        return found

    def cycle(self) -> bool:
        """One cycle; whether anything moved or is on its way."""
        t, moved = self.t, False
        for color, (_, last, queues) in self.channels.items():
            for queue, onward in zip(queues, [*queues[1:], None], strict=True):
                if not queue.ready(t):
                    moved = moved or bool(queue.words)
                    continue
                core = self.cores[last]
                if onward is None:
                    number = core.queue_of.get(color, -1)
                    if number >= 0 and len(core.inputs[number]) < self.input_depth[number]:
                        word = queue.pop(t, self.config.wavelet_milli)
                        word.time = t
                        core.inputs[number].append(word)
                        moved = True
                elif onward.has_room(t):
                    onward.push(queue.pop(t, self.config.wavelet_milli), t)
                    moved = True
        for core in self.cores:
            moved = self.send(core, t) or moved
        for core in self.cores:
            core.did = core.cycle(t)
            core.counted[core.did] += 1
            moved = moved or core.did == "busy"
        self.t += 1
        return moved

    def send(self, core: Core, t: int) -> bool:
        """One word of the output queues, which take turns, enters the router; whether one did or waits for the clock."""
        waits = False
        for turn in range(len(core.outputs)):
            number = (core.queue_turn + turn) % len(core.outputs)
            words = core.outputs[number]
            if words and words[0].time + self.config.ring_delay_cycles > t:
                waits = True
            elif words and (queue := self.channels[words[0].color][2][0]).has_room(t):
                queue.push(words.popleft(), t)
                core.queue_turn = (number + 1) % len(core.outputs)
                return True
        return waits

    def run(self, limit: int) -> int:
        """Until nothing moves for a while; the cycle in which the last thing happened, plus 1."""
        last = 0
        while self.t < limit and self.t - last < 64:
            if self.cycle():
                last = self.t
        for core in self.cores:  # who waits now waits on
            core.counted[core.did] += limit - self.t
        return last if self.t < limit else limit

    def launch(self, core: int, entry: int, arguments: tuple[int, ...] = ()) -> None:
        """A command of the host."""
        self.cores[core].command, self.cores[core].is_armed = (entry, arguments), True

    def counters(self) -> dict[str, Any]:
        """Per core, as a session has them."""
        names = {"busy": "busy", "stalled_in": "input", "stalled_out": "output", "sent": "sent", "received": "received", "opcodes": "opcodes"}  # fmt: skip
        return {name: [core.counted[key] for core in self.cores] for name, key in names.items()}
