"""Random programs whose channels are straight: scalar code of every opcode, vectors of every operation, tasks, microthreads, control wavelets."""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from tests.fabric.vm.assembler import RAMP, Assembly, E, N, S, W, fabin, fabout, line
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import semantics as M
from wse_sim.fabric.vm.image import CONTROL, DATA, LOCAL, dsd
from wse_sim.fabric.vm.opcodes import DsdKind, Form, Op, Sys

STEP = {E: (0, 1, W), W: (0, -1, E), S: (1, 0, N), N: (-1, 0, S)}
COSTS = {"LD": "load16", "ST": "store16", "J": "branch", "DIV": "div16", "MUL": "mul16", "F": "f32_add", "H": "f16_add", "CALL": "call", "RET": "return", "END": "task_end"}  # fmt: skip
SHAPES = [
    (2, 2, 3, 0, 0, 1, 5, 0, 0),
    (4, 2, 2, 2, 1, -1, 3, 2, 0),
    (1, 6, 1, 1, 1, 2, 0, 0, 0),
]  # dimensions, extents, jumps
FREE = range(200, 420)  # words that vectors use


class Program:
    """One image and what the host calls: function ``main`` of every core."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.arch = rng.choice(["wse2", "wse2", "wse3"])
        rows, cols = rng.choice([(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)])
        self.a = Assembly(rows, cols, self.arch)
        self.a.extra["half"] = rng.choice(["f16", "f16", "bf16", "cb16"])
        self.a.extra["shapes"] = np.array(SHAPES, np.int32)
        self.a.extra["rings"] = np.array([(440, 16, 1), (460, 24, 2), (440, 16, -1)], np.int32)
        self.sends: dict[int, list[tuple[int, int]]] = {}
        self.takes: dict[int, tuple[int, int]] = {}
        used: set[tuple[int, int]] = set()
        for color in rng.sample([0, 1, 2, 3, 5, 9], rng.randint(0, 4)):
            self.channel(color, used)
        self.labels = 0
        for core in range(rows * cols):
            Body(self, core).add()
        image = self.a.image()
        names = {op: next((c for p, c in COSTS.items() if Op(op).name.startswith(p)), "alu16") for op in Op}
        image.cost_class[:] = [O.COST_CLASSES.index(names[op]) for op in image.code[:, 0]]
        self.image = image

    def channel(self, color: int, used: set[tuple[int, int]]) -> None:
        """One or two hops over links that no other color uses, to a core to which no other color comes."""
        rng, a = self.rng, self.a
        here = rng.randrange(a.rows * a.cols)
        cores, ports = [here], []
        for _ in range(rng.randint(1, 3)):
            port = rng.choice(list(STEP))
            r, c = here // a.cols + STEP[port][0], here % a.cols + STEP[port][1]
            if 0 <= r < a.rows and 0 <= c < a.cols and r * a.cols + c not in cores:
                here = r * a.cols + c
                cores.append(here)
                ports.append(port)
        links = {*zip(cores[:-1], ports, strict=True), (here, RAMP)}
        if not ports or links & used or here in self.takes:
            return
        used |= links
        came = RAMP
        for core, port in zip(cores, [*ports, RAMP], strict=True):
            a.route(core, color, (came, port))
            came = STEP[port][2] if port != RAMP else RAMP
        words = rng.randint(1, 14)
        self.sends.setdefault(cores[0], []).append((color, words))
        self.takes[here] = (color, words)


class Body:
    """Code of one core; registers 8 to 15 hold numbers, 0 to 5 operands of vectors, 16 on those of functions."""

    def __init__(self, program: Program, core: int) -> None:
        self.p, self.rng, self.a, self.core = program, program.rng, program.a, core
        self.constants: list[int] = []
        self.local = [9 + i for i in range(self.rng.randint(0, 3))]
        self.threads = list(range(8))

    def label(self) -> str:
        self.p.labels += 1
        return f"l{self.p.labels}"

    def constant(self, register: int, value: int) -> str:
        self.constants.append(value)
        return f"LDK {register} 0 {len(self.constants) - 1}"

    def number(self) -> int:
        rng = self.rng
        return rng.choice([rng.randint(-5, 20), rng.randint(-40000, 70000), rng.getrandbits(63), M.F32.encode(rng.uniform(-9, 9)), 0x3C00 + rng.randint(0, 2000)])  # fmt: skip

    def scalar(self, most: int = 10) -> list[str]:
        """Arithmetic on registers 8 to 15, memory 20 to 60, branches and loops with an end."""
        rng, rows = self.rng, []
        tables = [M.BINARY, M.BINARY, M.IMMEDIATE, M.FLOATS, M.half_floats(self.a.extra["half"]), M.DIVISIONS]
        for _ in range(rng.randint(0, most)):
            a, b, c = (rng.randint(8, 15) for _ in range(3))
            kind = rng.randint(0, 9)
            if kind < 4:
                op = rng.choice(list(rng.choice(tables)))
                if op == Op.MATH:
                    c = rng.randrange(len(M.NAMES))
                elif op in M.IMMEDIATE:
                    c = (
                        rng.randint(1, 64)
                        if op in (Op.WRAPS, Op.WRAPU)
                        else rng.choice([0, 1, 5, 17, 40, -3, 1000])
                    )
                elif op in M.DIVISIONS:
                    rows += [f"ORI {c} {c} 1"]
                    if not Op(op).name.endswith("64"):  # operands of the canonical form of the type
                        wrap = f"WRAP_{Op(op).name[-3:]}"
                        rows += [f"{wrap} {b} {b}", f"{wrap} {c} {c}"]
                rows.append(f"{Op(op).name} {a} {b} {c}")
            elif kind == 4:
                rows.append(self.constant(a, self.number()))
            elif kind == 5:
                rows.append("LDI 7 0 20")
                rows.append(f"{Op(rng.choice([*M.LOADS, *M.STORES])).name} {a} 7 {rng.randint(0, 30)}")
                if "X_" in rows[-1]:
                    rows[-1:] = [f"LDI 6 0 {rng.randint(0, 15)}", " ".join([*rows[-1].split()[:3], "6"])]
            elif kind == 6:
                fn = rng.choice([Sys.TSC_VALUE, Sys.TSC_ENABLE, Sys.TSC_DISABLE, Sys.RANDOM16, Sys.X_COORD, Sys.Y_COORD, Sys.OQ_EMPTY, Sys.IQ_EMPTY, Sys.IS_ACTIVE])  # fmt: skip
                rows += [f"LDI 6 0 {rng.randint(0, 5)}", f"SYS {a} 6 {int(fn)}"]
            elif kind == 7:
                again = self.label()
                rows += [f"ANDI {a} {b} 3", f"ADDI_I16 {a} {a} 1", f"{again}:"]
                rows += [f"XOR {c if c != a else 6} {b} {c}", f"ADDI_I16 {a} {a} -1", f"JNZ {a} 0 {again}"]
            elif kind == 8:
                after, jump = self.label(), rng.choice([*M.JUMPS, *M.JUMPS_IMMEDIATE])
                rows += [f"{Op(jump).name} {a} {b} {after}", f"MULI_I32 {a} {b} 3", f"{after}:"]
            else:
                rows += [f"MOV 16 {b}", f"CALL 16 0 leaf{self.core}", f"MOV {a} 16"]
        return rows

    def memory_dsd(self, width: int, n: int) -> int:
        """Return a descriptor of memory with room for `n` elements."""
        rng = self.rng
        kind = rng.randint(0, 7)
        if kind == 0:
            return dsd(DsdKind.MEM4D, base=rng.randint(240, 300), length=rng.randrange(len(SHAPES)))
        if kind == 1:
            ring = rng.randrange(3)
            return dsd(
                DsdKind.CIRCBUF, base=(440, 460, 440)[ring] + 4 * rng.randint(0, 2), length=n, stride=ring
            )
        return line(
            rng.randint(240, 340),
            n,
            rng.choice([1, 1, 1, 2, 0, -1, 4]),
            wavelet_index=int(rng.random() < 0.1),
        )

    def vector(self) -> list[str]:
        """Return an operation on memory alone."""
        rng, rows = self.rng, []
        name = rng.choice(O.VECTOR_OPS)
        n, row = rng.randint(1, 9), []
        unary = {"mov", "pop", "clz", "ctz", "fmo", "fne", "fab", "fno", "fh2", "fs2", "xp1"}
        places = 2 if name[:3] in unary else 4 if "mac" in name else 3
        forms = [Form.NONE] * 4
        first = self.constant
        for place in range(places):
            forms[place] = rng.choice([Form.DSD, Form.DSD, Form.DSD, Form.POINTER] if place == 0 else [Form.DSD, Form.DSD, Form.SCALAR, Form.POINTER])  # fmt: skip
            if place == 3:
                forms[place] = Form.SCALAR  # the language has values here, no pointers
            value = self.memory_dsd(1, n)
            if place == 1 and forms[0] == forms[1] == Form.DSD and rng.random() < 0.3:
                value = row[0]
            if forms[place] == Form.POINTER:
                value = rng.randint(220, 239)
            elif forms[place] == Form.SCALAR:
                value = self.number()
            row.append(value)
            rows.append(first(place, value))
        options = {}
        if rng.random() < 0.35:
            options |= {"async": 1, "priority": rng.randint(0, 3), "thread": rng.choice([0, 1, 2, 7])}
            if self.local and rng.random() < 0.5:
                options[rng.choice(["activate", "unblock"])] = rng.choice(self.local)
        if rng.random() < 0.1:
            rows.append("LDI 5 0 3")
            options["index"] = 5
        if (
            rng.random() < 0.3 and forms[0] == Form.DSD
        ):  # through a register, whose address may stay where it ends
            number = rng.choice([0, 1, 65, 130])
            load = self.a.load(number >> 6, number & 63, save_address=int(rng.random() < 0.5))
            rows += [f"DSR_LOAD 0 0 {load}", *(["NOP"] * rng.randint(0, 8))]
            forms[0], options["dsr0"] = Form.DSR, number
            if rng.random() < 0.3 and row[0] & 15 != DsdKind.CIRCBUF:
                rows += ["LDI 6 0 250", f"DSR_BASE 0 6 {number}"]
            if rng.random() < 0.5:
                issue = self.a.issue(name, *forms, **options)
                rows += [f"VEC {rng.choice([-1, 6])} 0 {issue}", f"DSR_GET 14 0 {number}"]
        rows.append(f"VEC {rng.choice([-1, 6])} 0 {self.a.issue(name, *forms, **options)}")
        return rows

    def change_dsd(self) -> list[str]:
        """Return the descriptors in registers: fields changed and read, addresses of elements."""
        rng = self.rng
        rows = [self.constant(0, self.memory_dsd(1, 5)), f"LDI 1 0 {rng.choice([1, 2, 3, -1])}"]
        op = rng.choice(
            ["DSD_BASE", "DSD_ADD", "DSD_LEN", "DSD_STRIDE", "DSD_GET", "DSD_ADDR16", "DSD_ADDR32"]
        )
        return [*rows, f"{op} {rng.randint(8, 15)} 0 {1 if op != 'DSD_GET' else rng.randint(0, 6)}"]

    def fabric(self, op: str, forms: list[Form], values: list[int], *, thread: int = -1) -> list[str]:
        """Return an operation with a channel."""
        rng = self.rng
        rows = [self.constant(k, value) for k, value in enumerate(values)]
        options: dict[str, int] = {}
        if rng.random() < 0.6:
            options |= {"async": 1, "priority": rng.choice([0, 0, 1, 2, 3])}
            if self.a.arch == "wse3":
                options["thread"] = self.threads.pop()
            if self.local and rng.random() < 0.5:
                options[rng.choice(["activate", "unblock"])] = rng.choice(self.local)
        if rng.random() < 0.2:
            options["on_control"] = rng.choice([O.OnControl.TERMINATE, O.OnControl.ACTIVATE]) if self.local else O.OnControl.TERMINATE  # fmt: skip
            options["control_task"] = self.local[0] if self.local else -1
        return [*rows, f"VEC {rng.choice([-1, 6])} 0 {self.a.issue(op, *forms, **options)}"]

    def receive(self, color: int, words: int, queue: int) -> list[str]:
        """Take the words of a channel into memory."""
        rng = self.rng
        n = max(1, words + rng.choice([0, 0, 0, -1, 1]))
        simd = rng.choice([0, 0, 1, 2, 3])
        source = fabin(color, queue, O.ENDLESS if rng.random() < 0.05 else n, simd=simd)
        two = rng.random() < 0.4
        name = rng.choice(["add16", "faddh", "xor16"] if simd else ["add32", "fadds", "faddhs", "sub16"]) if two else rng.choice(["mov16", "fmovh"] if simd else ["mov32", "mov16"])  # fmt: skip
        forms, values = [Form.DSD, Form.DSD], [line(FREE[0], n), source]
        if two:
            swap = rng.random() < 0.5 or name == "faddhs"
            other = line(300, n, rng.choice([1, 1, 0]))
            forms, values = [Form.DSD] * 3, [values[0], *((other, source) if swap else (source, other))]
            if rng.random() < 0.2:
                values[0] = other
        return self.fabric(name, forms, values)

    def send(self, color: int, words: int, queue: int) -> list[str]:
        """Return the words of memory, or a scalar, into a channel; perhaps a control wavelet behind them."""
        rng = self.rng
        simd = rng.choice([0, 0, 0, 1, 2])
        if self.p.arch == "wse3":  # the color of the queue counts, whichever the descriptor names
            color = rng.choice([color, color, O.NO_COLOR, rng.randint(0, 23)])
        to = fabout(color, queue, words, simd=simd, wavelet_index=int(not simd and rng.random() < 0.2))
        name = rng.choice(["mov16", "add16"] if simd else ["mov32", "mov16", "fadds"])
        values = [
            to,
            *(line(FREE[0] + 100, words, rng.choice([1, 1, 2])) for _ in range(1 if "mov" in name else 2)),
        ]
        rows = self.fabric(name, [Form.DSD] * len(values), values)
        if rng.random() < 0.4:
            word = rng.choice([40, 63]) << 16 | rng.randint(0, 99)
            values = [fabout(color, queue, 1, control=1), word]
            rows += [self.constant(0, values[0]), self.constant(1, word)]
            rows.append(f"VEC -1 0 {self.a.issue('mov32', Form.DSD, Form.SCALAR)}")
        return rows

    def add(self) -> None:
        """Put the class into the assembly."""
        rng, p = self.rng, self.p
        inputs: list[tuple[int, int]] = []
        outputs: list[tuple[int, int]] = []
        tasks: list[tuple[int, str, str]] = []
        blocked: list[int] = []
        parts = [self.scalar()]
        if self.core in p.takes:
            color, words = p.takes[self.core]
            queue = rng.choice([2, 3, 7])
            inputs.append((queue, color))
            if rng.random() < 0.45:
                tasks.append((queue if p.arch == "wse3" else color, DATA, f"data{self.core}"))
                if rng.random() < 0.15:
                    blocked.append(tasks[0][0])
            else:
                parts.append(self.receive(color, words, queue))
        for k, (color, words) in enumerate(p.sends.get(self.core, [])):
            outputs.append((k, color))
            parts.append(self.send(color, words, k))
        parts += [self.vector() for _ in range(rng.randint(0, 4))] + [self.change_dsd() for _ in range(rng.randint(0, 2))]  # fmt: skip
        parts += [self.scalar() for _ in range(rng.randint(1, 3))]
        if self.local and rng.random() < 0.6:
            parts.append(
                [f"LDI 0 0 {rng.choice(self.local)}", f"{rng.choice(['ACT', 'BLOCK', 'UNBLOCK'])} 0 0 0"]
            )
        rng.shuffle(parts)
        text = ["main:", *(row for part in parts for row in part), "SYS -1 0 14", "RET"]
        for number in self.local:
            text += [
                f"task{self.core}_{number}:",
                *self.scalar(5),
                *(self.vector() if rng.random() < 0.3 else []),
            ]
            if rng.random() < 0.3:  # once
                end = self.label()
                text += ["LDI 7 0 62", "LD_U16 8 7 0", f"JNZ 8 0 {end}", "ADDI_U16 8 8 1", "ST_16 8 7 0", f"LDI 0 0 {rng.choice(self.local)}", "ACT 0 0 0", f"{end}:"]  # fmt: skip
            text.append("END")
            tasks.append((number, LOCAL, f"task{self.core}_{number}"))
            if rng.random() < 0.2:
                blocked.append(number)
        if tasks and tasks[0][1] == DATA:
            text += [f"data{self.core}:", "MOV 13 0", *self.scalar(6), "LDI 7 0 18", "LD_U32 8 7 0", "ADD_U32 8 8 13", "ST_32 8 7 0"]  # fmt: skip
            if rng.random() < 0.3:
                text += [f"LDI 1 0 {tasks[0][0]}", "BLOCK 0 1 0"]
            text.append("END")
        if rng.random() < 0.5:
            text += [f"control{self.core}:", "ANDI 12 0 0xFFFF", *self.scalar(4), "END"]
            tasks.append((40, CONTROL, f"control{self.core}"))
        text += [
            f"leaf{self.core}:",
            "ADDI_I64 0 0 7",
            f"{rng.choice(['MUL_I64', 'XOR', 'SUB_U32'])} 0 0 0",
            "RET",
        ]
        high = (
            rng.sample([number for number, _, _ in tasks], rng.randint(0, len(tasks)))
            if rng.random() < 0.2
            else []
        )
        values = np.array(
            [self.rng.choice([0x3C00, 0x4000, 0xBC00, 17, 40000, 3]) for _ in range(260)], np.uint16
        )
        wired = {"input_colors": tuple(inputs), "output_colors": tuple(outputs)} if p.arch == "wse3" else {"reads": tuple((c, q) for q, c in inputs)}  # fmt: skip
        self.a.add(
            "\n".join(text), cores=[self.core], tasks=tasks, blocked=tuple(blocked), constants=tuple(self.constants),
            active=tuple(rng.sample(self.local, rng.randint(0, len(self.local)))), memory=((200, values), (20, values[:50])), data_words=640,
            registers=64, dsrs=4, main_priority=rng.choice([0, 0, 0, 1, 2, 3]), **wired,
        )  # fmt: skip
        if high:
            last = self.a.classes[-1]
            rows = tuple(dataclasses.replace(task, high_priority=task.id in high) for task in last.tasks)
            self.a.classes[-1] = dataclasses.replace(last, tasks=rows)
