"""Messages: why a core stopped, who waits for what, and printed text."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image

Array = npt.NDArray[Any]
PORTS = "NESW"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A forbidden operation of a core: column, row, cycle, sentence, ``file:line``; file, line and column where they are known."""

    x: int
    y: int
    cycle: int
    text: str
    where: str
    place: tuple[str, int, int] | None = None

    def __str__(self) -> str:
        """The sentence with place and time."""
        return f"core ({self.x}, {self.y}) at cycle {self.cycle}, {self.where}: {self.text}"


@dataclasses.dataclass(frozen=True)
class WaitingCore:
    """Something that cannot continue: a main thread, a microthread, an output queue, a router queue, or a command that was not released."""

    x: int
    y: int
    what: str
    color: int = -1
    queue: int = -1
    where: str = ""

    def __str__(self) -> str:
        """One clause."""
        place = f" at {self.where}" if self.where else ""
        return f"core ({self.x}, {self.y}){place} {self.what}"


def why_fault(m: S.Machine, image: Image) -> Fault:
    """The fault of the first core that has one."""
    c = int(np.flatnonzero(m.core[:, S.FAULT])[0])
    y, x = divmod(c, image.cols)
    kind, a, b = (int(m.core[c, k]) for k in (S.FAULT, S.FAULT_A, S.FAULT_B))
    pc = int(m.core[c, S.FAULT_PC]) or int(m.core[c, S.PC])
    words = int(m.sets[S.WORDS])
    if kind == S.F_BOUNDS:
        return _placed(
            Fault(x, y, int(m.size[S.CLOCK]), _beyond(m, image, c, a, b), image.where(pc)), image, pc
        )
    text = {
        S.F_ADDRESS: f"address {a} is outside the memory of the program, words 0 to {words - 1}",
        S.F_DIVISION: "an integer is divided by 0",
        S.F_ASSERT: f"assertion failed: {image.asserts[a] if 0 <= a < len(image.asserts) else a}",
        S.F_CALLS: f"calls are nested deeper than {int(m.sets[S.CALLS])}",
        S.F_REGISTERS: f"functions need more than the {int(m.sets[S.REGISTERS])} registers of the image",
        S.F_THREAD: f"microthread {a} does not exist; use 0 to 7",
        S.F_OPERAND: f"operand {a} of a vector operation holds no DSD",
        S.F_TWO_INPUTS: f"color {a} receives words from two directions in one cycle, which the router leaves undefined",
        S.F_NO_QUEUE: f"no {'output' if b else 'input'} queue is bound to color {a}; initialize one",
        S.F_CONFIG: f"configuration register {a} is not modelled; use the functions of tile_config",
        S.F_OPCODE: "the code holds no such opcode",
    }.get(kind, f"fault {kind}")
    if kind == S.F_TWO_INPUTS:
        return Fault(x, y, int(m.size[S.CLOCK]), text, "its router")
    return _placed(Fault(x, y, int(m.size[S.CLOCK]), text, image.where(pc)), image, pc)


def _placed(fault: Fault, image: Image, pc: int) -> Fault:
    """The fault with the place of its row of code."""
    place = image.place(pc)
    return fault if place is None else dataclasses.replace(fault, place=place[:3])


def _beyond(m: S.Machine, image: Image, c: int, first: int, beyond: int) -> str:
    """Return which variable a vector operation overruns, and where."""
    cls = int(m.core[c, S.CLASS])
    held = image.classes[cls].symbols[int(m.owner[cls, first]) - 1]
    other = int(m.owner[cls, beyond])
    name = f", in '{image.classes[cls].symbols[other - 1].name}'" if other else ""
    return (
        f"a vector operation begins in '{held.name}' at word {first} and reaches word {beyond}{name}; '{held.name}' is words "
        f"{held.address} to {held.address + held.words - 1}: its descriptor is longer than the array, or begins too far in it"
    )


def what_classes_do(m: S.Machine, image: Image) -> list[str]:
    """One clause for the cores of a class that do the same: how many (one by its place), the task, the line."""
    groups: dict[tuple[bool, int, str, str], list[int]] = {}
    core = m.core
    for c in np.flatnonzero(core[:, S.MODE] != S.NO_PROGRAM):
        k, task, mode = int(core[c, S.CLASS]), int(core[c, S.TASK]), int(core[c, S.MODE])
        names = {t.id: f"task '{t.name}'" for t in image.classes[k].tasks}
        waits = [t for t in range(1, S.N_THREADS) if (int(core[c, S.LIVE]) >> t) & 1]
        entries = {t.id: t.entry for t in image.classes[k].tasks}
        pc = entries.get(task, int(core[c, S.PC])) if mode in (S.IDLE, S.ENDING) else int(core[c, S.PC])
        rests = mode in (S.IDLE, S.HALTED) and not int(core[c, S.ACTIVE]) & ~int(core[c, S.BLOCKED])
        if not rests:
            what = names.get(task, "a command of the host" if task == 64 else "a handler")
            groups.setdefault((False, k, f"in {what}", image.where(pc)), []).append(int(c))
        elif waits:
            place = image.where(int(m.threads[waits[0], c, S.T_PC]))
            groups.setdefault((False, k, f"in microthread {waits[0] - 1}", place), []).append(int(c))
        else:
            groups.setdefault((True, k, "at rest", ""), []).append(int(c))
    found = []
    for (_, k, what, where), cores in sorted(groups.items(), key=lambda g: (g[0][:2], g[1][0])):
        y, x = divmod(cores[0], image.cols)
        many = f"{len(cores)} cores, first ({x}, {y})" if len(cores) > 1 else f"core ({x}, {y})"
        name = image.classes[k].name.partition(":")[2] or image.classes[k].name
        found.append(f"{many} of {name} {what}" + (f" at {where}" if where else ""))
    return found


def who_waits(m: S.Machine, image: Image) -> list[WaitingCore]:
    """All waits of the present cycle."""
    found: list[WaitingCore] = []
    core = m.core

    def add(c: int, what: str, color: int = -1, queue: int = -1, where: str = "") -> None:
        found.append(WaitingCore(int(c) % image.cols, int(c) // image.cols, what, color, queue, where))

    for c in np.flatnonzero(core[:, S.ARMED]):
        doing = (
            "has not begun its command" if core[c, S.COMMAND] >= 0 else "did not unblock the command stream"
        )
        add(
            int(c),
            doing,
            where="" if core[c, S.MODE] in (S.IDLE, S.ENDING) else image.where(int(core[c, S.PC])),
        )
    for k in range(S.N_THREADS):
        for c in np.flatnonzero(m.threads[k, :, S.T_OP] > 0):
            what, color, queue = _thread_wait(m, int(c), k)
            add(int(c), what, color, queue, image.where(int(m.threads[k, c, S.T_PC])))
    for c in np.flatnonzero(core[:, S.MODE] == S.LAUNCH):
        if core[c, S.LEFT] == 0:
            add(int(c), "waits for a microthread that is in use", where=image.where(int(core[c, S.PC])))
    for q, c in zip(*np.nonzero(m.oq_count), strict=True):
        head = int(m.oq_head[q, c])
        slot = int(m.oq_meta[q, c, head]) & 63
        color = int(m.color_of[slot])
        why = "the host takes no more" if m.host_slot[slot] else _router_reason(m, image, slot, int(c), 4)
        add(
            c, f"has {int(m.oq_count[q, c])} words of color {color} in output queue {q}: {why}", color, int(q)
        )
    n = image.n_cores
    counts = m.q_count.reshape(-1, n, 5)
    for slot, c, port in zip(*np.nonzero(counts), strict=True):
        color = int(m.color_of[slot])
        came = "from its core" if port == 4 else f"from {PORTS[port]}"
        add(
            c,
            f"holds {int(counts[slot, c, port])} words of color {color} that came {came}: {_router_reason(m, image, int(slot), int(c), int(port))}",
            color,
        )
    for q, c in zip(*np.nonzero(m.iq_count), strict=True):
        color = int(m.color_of[int(m.iq_meta[q, c, m.iq_head[q, c]]) & 63])
        add(
            c,
            f"has {int(m.iq_count[q, c])} words of color {color} in input queue {q} that nothing reads",
            color,
            int(q),
        )
    return found


def _thread_wait(m: S.Machine, c: int, k: int) -> tuple[str, int, int]:
    th = m.threads[k, c]
    who = "waits" if k == 0 else f"(microthread {k - 1}) waits"
    for place in range(1, 3):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        if th[o + S.P_FORM] == S.INPUT:
            q, slot = int(th[o + S.P_QUEUE]), int(th[o + S.P_SLOT])
            color = int(m.color_of[slot]) if slot >= 0 else -1
            if m.iq_count[q, c] == 0:
                bound = (
                    ""
                    if slot < 0 or m.color_queue[c, slot] == q
                    else ", and no word can come: the color is bound to another queue or none"
                )
                return f"{who} for a word of color {color} in input queue {q}{bound}", color, q
        if th[o + S.P_FORM] == S.FIFO and m.fifo[c, int(th[o + S.P_ROW]), 1] == 0:
            return f"{who} for a word in FIFO {int(th[o + S.P_ROW])}", -1, -1
    o = S.OPERAND0
    if th[o + S.P_FORM] == S.OUTPUT:
        slot = int(th[o + S.P_SLOT])
        return (
            f"{who} for room in output queue {int(th[o + S.P_QUEUE])}",
            int(m.color_of[slot]),
            int(th[o + S.P_QUEUE]),
        )
    if th[o + S.P_FORM] == S.FIFO:
        return f"{who} for room in FIFO {int(th[o + S.P_ROW])}", -1, -1
    return f"{who} for the issue slot", -1, -1


def _router_reason(m: S.Machine, image: Image, slot: int, c: int, port: int) -> str:
    """Return why a word at input `port` of a router does not move."""
    n = image.n_cores
    rs = slot * n + c
    state = int(m.rstate[rs])
    pair = int(m.route[rs * 4 + (state & 3)])
    if state & S.TORN:
        return "the color is torn down here"
    if pair == 0:
        return "the router has no route for it"
    if not (pair >> port) & 1:
        return "the router does not receive from there in its present switch position"
    if (pair >> 9) & 1:
        q = int(m.color_queue[c, slot])
        if q < 0:
            return "no input queue of the core is bound to it"
        if m.iq_count[q, c] >= m.in_depth[q]:
            return f"input queue {q} of the core is full"
    return "the next link is full"


_DIGITS = {"X": "04X", "Y": "08X", "B": "016b", "C": "032b"}


def format_print(image: Image, row: int, values: tuple[int, ...]) -> str:
    """Text of a print record."""
    if not 0 <= row < len(image.prints):
        return ""
    text, kinds = image.prints[row]
    return text.format(*(value_text(image, kind, value) for kind, value in zip(kinds, values, strict=False)))


def value_text(image: Image, kind: str, value: int) -> str:
    """One value by its kind: d u x f h s c b; X, Y hexadecimal and B, C binary digits of 16 and 32 bits."""
    if kind in _DIGITS:
        return format(value & 0xFFFFFFFF, _DIGITS[kind])
    if kind == "x":
        return f"{value & 0xFFFFFFFF:x}"
    if kind == "f":
        return f"{float(np.uint32(value & 0xFFFFFFFF).view(np.float32)):.6g}"
    if kind == "h":
        return f"{float(np.uint16(value & 0xFFFF).view(np.float16)):.6g}"
    if kind == "c":
        return chr(value & 0xFF)
    if kind == "b":
        return "true" if value else "false"
    if kind == "s":
        return image.prints[value][0] if 0 <= value < len(image.prints) else ""
    return str(value if kind == "d" else value & 0xFFFFFFFFFFFFFFFF)


def describe(opcode: int) -> str:
    """Name of an opcode."""
    return O.Op(opcode & 255).name


def lines_profiled(m: S.Machine, image: Image) -> list[dict[str, Any]]:
    """Cycles and executions of every source line of every class, most cycles first."""
    rows: dict[tuple[int, str, int, str], list[int]] = {}
    for k in range(m.profile.shape[0]):
        counted = m.profile[k]
        for pc in np.flatnonzero(counted[:, 1] | counted[:, 0]):
            where = int(image.source[pc])
            file, line, _, function = (
                image.positions[where] if 0 <= where < len(image.positions) else ("", 0, 0, "")
            )
            entry = rows.setdefault((k, file, line, function), [0, 0])
            entry[0] += int(counted[pc, 0])
            entry[1] = max(entry[1], int(counted[pc, 1]))
    table = [
        {
            "class": image.classes[k].name,
            "file": file,
            "line": line,
            "function": function,
            "cycles": value[0],
            "executions": value[1],
        }
        for (k, file, line, function), value in rows.items()
    ]
    return sorted(table, key=lambda row: (-row["cycles"], row["class"], row["file"], row["line"]))
