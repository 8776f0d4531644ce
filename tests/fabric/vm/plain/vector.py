"""Vector operations of a core: operands, length, cost, and what one step of an issue cycle moves."""

from __future__ import annotations

import dataclasses
from typing import Any

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.opcodes import DsdKind, Form, OnControl

NOTHING, MEMORY, IN, OUT, VALUE = "nothing", "memory", "in", "out", "value"
FABRIC = (DsdKind.FABIN, DsdKind.FABOUT)
MIXED = {"fscales": (2, 2, 1), "faddhs": (2, 2, 1), "fmachs": (2, 2, 1), "fh2s": (2, 1, 1), "fs2h": (1, 2, 1), "fs2xp16": (1, 2, 1), "xp162fs": (2, 1, 1)}  # fmt: skip


@dataclasses.dataclass
class Operand:
    """Where elements come from or go to; of memory the addresses are those of elements 0, 1, ..."""

    form: str = NOTHING
    value: int = 0  # a scalar, or the DSD value
    width: int = 1  # words of an element
    dsr: int = -1
    color: int = -1
    queue: int = -1
    base: int = 0
    is_pointer: bool = False
    at: int = 0  # elements that were read or written


@dataclasses.dataclass
class Thread:
    """A vector operation at work; the operands are destination, source 0, source 1, scalar."""

    number: int
    name: str
    operands: list[Operand]
    activate: int = -1
    unblock: int = -1
    on_control: int = 0
    control_task: int = -1
    priority: int = 0
    index: int = -1
    rest: int | None = 0  # elements; None: without end
    cost_milli: int = 1000
    collides: bool = False
    saved_milli: int = 999
    left: int = 0  # cycles of the step at work
    done: int = 0
    carry: int = 0
    is_done: bool = False
    stays: bool = False  # behind its last element it waits for a control wavelet

    @property
    def only_result(self) -> int | None:
        """Address of the one element that it wrote."""
        d = self.operands[0]
        return d.base if self.done == 1 and d.form == MEMORY else None


def widths(name: str) -> tuple[int, int, int, int]:
    """Return the words of an element of destination, sources and scalar."""
    wide = 2 if name.endswith("32") or (name[0] == "f" and name.endswith("s")) else 1
    return (*MIXED.get(name, (wide, wide, wide)), 2 if name == "fmacs" else 1)


def dsd_of(core: Any, issue: list[int], place: int, first: int) -> int:
    """DSD value of an operand; 0 of a scalar or a pointer."""
    form = issue[O.V_DEST + place]
    if form == Form.DSR:
        return int(core.dsr.get(issue[O.V_DSR0 + place], 0))
    return int(core.get(first + place)) if form == Form.DSD else 0


def load_row(core: Any, issue: list[int], place: int) -> list[int] | None:
    """How the DSR of an operand was loaded."""
    row = core.load_of.get(issue[O.V_DSR0 + place], -1) if issue[O.V_DEST + place] == Form.DSR else -1
    return core.m.image.dsr_loads[row].tolist() if row >= 0 else None


def is_async(core: Any, issue: list[int]) -> bool:
    """Return whether the operation runs on a microthread."""
    rows = [load_row(core, issue, place) for place in range(4)]
    return bool(issue[O.V_ASYNC]) or any(row[O.L_ASYNC] for row in rows if row)


def surveyed(core: Any, row: int, first: int) -> tuple[int, int, set[int], bool]:
    """What the operation loads and reads.

    DSDs that it loads itself (a destination that is source 0 as well once), how many of them have several dimensions, where
    its sources in memory begin, and whether it touches memory alone and is synchronous.
    """
    issue = core.m.image.vector_issues[row].tolist()
    forms = issue[O.V_DEST : O.V_DEST + 4]
    values = [dsd_of(core, issue, place, first) for place in range(4)]
    loaded = [value for value, form in zip(values, forms, strict=True) if form == Form.DSD]
    if forms[0] == forms[1] == Form.DSD and values[0] == values[1]:
        loaded.pop(0)
    shapes = sum(value & 15 == DsdKind.MEM4D for value in loaded)
    described = [
        value for value, form in zip(values[1:], forms[1:], strict=True) if form in (Form.DSD, Form.DSR)
    ]
    reads = {value >> 4 & 0xFFFF for value in described if value & 15 not in FABRIC}
    kinds = {value & 15 for value, form in zip(values, forms, strict=True) if form in (Form.DSD, Form.DSR)}
    return len(loaded), shapes, reads, not is_async(core, issue) and not kinds & set(FABRIC)


def option(core: Any, value: int, first: int) -> int:
    """Return an id of an issue row: itself, a register or a constant of the class."""
    if value >= O.USE_CONSTANT:
        return int(core.cls.constants[value - O.USE_CONSTANT])
    return int(core.get(first + value - O.USE_REGISTER)) if value >= O.USE_REGISTER else value


def begin(core: Any, row: int, first: int) -> tuple[int, Thread | None, bool]:
    """Number and record of the thread that is to run an issue (None: it is busy), and whether the operation touches memory alone."""
    issue = core.m.image.vector_issues[row].tolist()
    found = Thread(0, O.VECTOR_OPS[issue[O.V_OP]], [])
    found.activate, found.unblock, thread = (option(core, issue[k], first) for k in (O.V_ACTIVATE, O.V_UNBLOCK, O.V_THREAD))  # fmt: skip
    found.on_control, found.control_task = issue[O.V_ON_CONTROL], option(core, issue[O.V_CONTROL_TASK], first)
    found.priority = issue[O.V_PRIORITY]
    by_output = by_input = -1
    by_dsd = 0
    for place in range(3):
        if issue[O.V_DEST + place] == Form.NONE:
            continue
        value = dsd_of(core, issue, place, first)
        if value & 15 in FABRIC:
            by_dsd = max(by_dsd, value >> 13 & 3)
            if value & 15 == DsdKind.FABOUT:
                by_output = value >> 9 & 15 if by_output < 0 else by_output
            elif by_input < 0:
                by_input = value >> 9 & 7
        if load := load_row(core, issue, place):
            found.activate = option(core, load[O.L_ACTIVATE], first) if found.activate < 0 else found.activate
            found.unblock = option(core, load[O.L_UNBLOCK], first) if found.unblock < 0 else found.unblock
            thread = option(core, load[O.L_THREAD], first) if thread < 0 else thread
            found.priority = load[O.L_PRIORITY] or found.priority
            if load[O.L_ON_CONTROL]:
                found.on_control, found.control_task = load[O.L_ON_CONTROL], option(core, load[O.L_CONTROL_TASK], first)  # fmt: skip
    found.priority = found.priority or by_dsd
    if is_async(core, issue):
        thread = thread if thread >= 0 else by_output if by_output >= 0 else by_input
        found.number = 1 + max(thread, 0)
    if found.number in core.threads:
        return found.number, None, False
    found.index = core.get(first + issue[O.V_INDEX]) & 0xFFFF if issue[O.V_INDEX] >= 0 else -1
    has_fabric = resolve(core, found, issue, first)
    return found.number, found, not has_fabric


def resolve(core: Any, thread: Thread, issue: list[int], first: int) -> bool:
    """Operands, length and cost; whether one is of the fabric."""
    lengths: dict[int, int] = {}
    endless = False
    for place, width in enumerate(widths(thread.name)):
        form, given = issue[O.V_DEST + place], core.get(first + place) if issue[O.V_DEST + place] else 0
        x = Operand(width=width)
        thread.operands.append(x)
        if form == Form.SCALAR:
            x.form, x.value = VALUE, given & ((1 << 16 * width) - 1)
        elif form == Form.POINTER:
            x.form, x.base, x.is_pointer = MEMORY, given & 0xFFFF, True
        elif form in (Form.DSD, Form.DSR):
            x.value = dsd_of(core, issue, place, first)
            x.dsr = issue[O.V_DSR0 + place] if form == Form.DSR else -1
            n = core.m.field(x.value, O.DsdField.TOTAL)
            if x.value & 15 in FABRIC:
                x.form = IN if x.value & 15 == DsdKind.FABIN else OUT
                x.color, x.queue = x.value >> 4 & 31, x.value >> 9 & 15
                if x.form == IN and x.color != O.NO_COLOR:
                    core.queue_of.setdefault(x.color, x.queue)  # bound by the operation that names both
                if n == O.ENDLESS:
                    endless, n = True, 0
            else:
                x.form, x.base = MEMORY, x.value >> 4 & 0xFFFF
                if x.value >> 53 & 1 and thread.index >= 0:
                    x.base = (x.base + thread.index) & 0xFFFF
            if place < 3:
                lengths[place] = n
    order = [lengths[place] for place in (1, 2, 0) if place in lengths]
    thread.rest = next((n for n in order if n), 0) if lengths else 1
    if thread.operands[0].form == MEMORY and lengths.get(0) and thread.rest:
        thread.stays = thread.rest > lengths[0] and thread.on_control != 0
        thread.rest = min(thread.rest, lengths[0])
    if endless and not thread.rest:
        thread.rest = None
    price(core, thread)
    d, a, b = thread.operands[:3]
    if (
        issue[O.V_DEST] == Form.POINTER
        and issue[O.V_SRC0] == Form.SCALAR
        and b.form != NOTHING
        and thread.rest
        and d.width == a.width
    ):
        core.store(
            d.base, d.width, a.value
        )  # a reduction: the first element meets source 0, the others the result so far
        thread.operands[1] = dataclasses.replace(d)
    return any(x.form in (IN, OUT) for x in thread.operands)


def price(core: Any, thread: Thread) -> None:
    """1/1000 cycle of an element: more for two vectors of memory as sources, and for reads that meet in one bank."""
    plain, two, colliding = core.m.rates[thread.name][:3]
    banks: list[int] = []
    for x in thread.operands[1:]:
        if x.form != MEMORY or x.is_pointer or core.m.stride(x.value) == 0:
            continue
        is_line = x.value & 15 == DsdKind.MEM1D
        if is_line and x.width == 2 and 2 * core.m.stride(x.value) % 8 == 0:
            thread.collides = True
        bank = x.base % core.m.bank_period[x.width]
        thread.collides = thread.collides or (len(banks) == 1 and banks[0] == bank)
        banks.append(bank)
    thread.cost_milli = colliding if thread.collides else two if len(banks) > 1 else plain


def address(core: Any, x: Operand) -> int:
    """Word address of the next element of an operand in memory."""
    if x.is_pointer:
        return x.base
    return int(core.m.element_address(x.value & ~(0xFFFF << 4) | x.base << 4, x.at, x.width))


def element(core: Any, thread: Thread, values: list[int]) -> int:
    """Return the result for source 0, source 1, scalar."""
    result = core.m.elements[thread.name](*values)
    if thread.name == "addc16":
        result += thread.carry
        thread.carry, result = result >> 16, result & 0xFFFF
    return int(result)


def local(core: Any, x: Operand) -> int:
    """The next element of a source that is not of the fabric."""
    if x.form != MEMORY:
        return x.value
    found = core.load(address(core, x), x.width)
    x.at += 1
    return int(found)


def run_at_once(core: Any, thread: Thread) -> int:
    """All elements of an operation on memory alone; its cycles."""
    n = thread.rest or 0
    d = thread.operands[0]
    for _ in range(n):
        result = element(core, thread, [local(core, x) for x in thread.operands[1:]])
        core.store(address(core, d), d.width, result)
        d.at += 1
    thread.done = n
    width = core.m.rates[thread.name][3]
    if width == 1:
        return -(-n * thread.cost_milli // 1000)
    return min(n, 2 if thread.collides else 1) + -(-max(n - width, 0) * thread.cost_milli // 1000)


def finish_addresses(core: Any, thread: Thread) -> None:
    """DSRs that keep their address stand behind the last element."""
    for x in thread.operands[:3]:
        row = core.load_of.get(x.dsr, -1)
        if x.dsr >= 0 and x.form == MEMORY and row >= 0 and core.m.image.dsr_loads[row][O.L_SAVE_ADDRESS]:
            core.dsr[x.dsr] = core.m.rebased(core.dsr[x.dsr], address(core, x))


def step(core: Any, thread: Thread, t: int) -> str:
    """One issue cycle: "busy", or what the operation waits for; sets `is_done`."""
    from tests.fabric.vm.plain.core import BUSY, INPUT, OUTPUT, Word

    if thread.left:
        thread.left -= 1
        thread.is_done = thread.left == 0 and thread.rest == 0 and not thread.stays
        return BUSY
    if thread.rest == 0 and not thread.stays:
        thread.is_done = True
        return BUSY
    rest = 1 << 30 if thread.rest is None else thread.rest
    d = thread.operands[0]
    simd = max(x.value >> 54 & 3 if x.form in (IN, OUT) else 0 for x in thread.operands)
    per_word, words = 2 if simd else 1, 2 if simd >= 2 and rest > 2 else 1
    sources = [x for x in thread.operands[1:3] if x.form == IN]
    why = BUSY
    for x in sources:
        there = core.visible(x.queue, t)
        if there and x.color != O.NO_COLOR and there[0].color != x.color:
            there = []  # a word of another color heads the queue
        elif there and there[0].is_control and why == BUSY:
            task = core.tasks.get(there[0].bits >> 16 & 63)
            if not thread.on_control and task is not None and task.kind == "control":
                there = []  # the task takes it
            elif thread.on_control:  # without an action it is an element as any other
                if thread.rest != 0:  # a full operation leaves it to the next one
                    core.take(x.queue)
                if thread.on_control == OnControl.ACTIVATE:
                    core.active.add(thread.control_task)
                elif thread.on_control == OnControl.UNBLOCK:
                    core.blocked.discard(thread.control_task)
                thread.is_done = True
                return BUSY
        if simd == O.Simd.SIMD_32_OR_64 and len(there) == 1:
            words = 1
        if len(there) < words:
            why = INPUT
    if why != BUSY:
        return why
    if thread.rest == 0:  # a data word follows, no control wavelet
        thread.is_done = True
        return BUSY
    if d.form == OUT:
        free = core.m.output_depth[d.queue] - len(core.outputs[d.queue])
        words = 1 if simd == O.Simd.SIMD_32_OR_64 and free == 1 else words
        if free < words:
            return OUTPUT
    n = min(rest, per_word * words)
    out = 0
    taken: dict[int, int] = {}
    for i in range(n):
        half = i % per_word
        if half == 0:
            taken = {id(x): core.take(x.queue).bits for x in sources}
        values = [
            (taken[id(x)] if x.width == 2 else taken[id(x)] >> (16 * half) & 0xFFFF) if x.form == IN else local(core, x)
            for x in thread.operands[1:]
        ]  # fmt: skip
        result = element(core, thread, values)
        if d.form == MEMORY:
            core.store(address(core, d), d.width, result)
            d.at += 1
            continue
        out = result if d.width == 2 else out | result << (16 * half)
        if d.width == 1 and d.value >> 53 & 1 and thread.index >= 0 and not simd:
            out |= thread.index << 16
        if half == per_word - 1 or i == n - 1:
            is_of_queue = core.m.is_wse3 or d.color == O.NO_COLOR
            color = core.output_color.get(d.queue, d.color) if is_of_queue else d.color
            core.outputs[d.queue].append(Word(out, color, bool(d.value >> 52 & 1), t))
            core.counted["sent"] += 1
            out = 0
    cost = thread.saved_milli + thread.cost_milli * n
    cycles = max(1, cost // 1000)
    thread.saved_milli, thread.left = max(0, cost - 1000 * cycles), cycles - 1
    thread.done += n
    if thread.rest is not None:
        thread.rest -= n
        thread.is_done = thread.rest == 0 and cycles == 1 and not thread.stays
    return BUSY
