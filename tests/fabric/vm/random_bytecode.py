"""Random programs of register cores: scalar code, vector operations, tasks, microthreads and streams that may or may not fit together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fabric.vm.assembler import RAMP, Assembly, E, N, S, W, fabin, fabout, line
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import CONTROL, DATA, LOCAL, dsd
from wse_sim.fabric.vm.opcodes import Form
from wse_sim.fabric.vm.session import Session

STEP = {E: (0, 1, W), W: (0, -1, E), S: (1, 0, N), N: (-1, 0, S)}


SHAPES = [(1, 2), (1, 4), (2, 2), (2, 3), (3, 3)]


class RandomProgram:
    """One program; `launched` lists the cores whose function ``main`` the host calls."""

    def __init__(self, seed: int, shapes: Sequence[tuple[int, int]] = SHAPES) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.arch = rng.choice(["wse2", "wse2", "wse3"])
        rows, cols = rng.choice(shapes)
        self.a = Assembly(rows, cols, self.arch)
        self.sends: dict[int, list[tuple[int, int]]] = {c: [] for c in range(rows * cols)}
        self.takes: dict[int, list[tuple[int, int]]] = {c: [] for c in range(rows * cols)}
        for color in rng.sample([0, 1, 2, 3, 5, 9], rng.randint(1, 5)):
            self.path(color)
        if rng.random() < 0.4:
            self.a.filters.append(
                [
                    O.FilterKind.COUNTER,
                    0,
                    0,
                    rng.randint(1, 3),
                    0,
                    rng.randint(0, 2),
                    0,
                    1,
                    rng.randint(0, 1),
                    0,
                ]
            )
        for core in range(rows * cols):
            self.core(core)

    def path(self, color: int) -> None:
        """A walk over distinct cores; words enter at its first, are copied to some on the way, and end at its last."""
        rng, cols = self.rng, self.a.cols
        here = rng.randrange(self.a.rows * cols)
        seen, steps = [here], []
        for _ in range(rng.randint(1, 6)):
            choices = []
            for port, (dr, dc, _) in STEP.items():
                r, c = here // cols + dr, here % cols + dc
                if 0 <= r < self.a.rows and 0 <= c < cols and r * cols + c not in seen:
                    choices.append((port, r * cols + c))
            if not choices:
                break
            port, here = rng.choice(choices)
            steps.append(port)
            seen.append(here)
        if not steps:
            return
        words = rng.randint(1, 12)
        came = RAMP
        for i, core in enumerate(seen):
            last = i == len(seen) - 1
            out = RAMP if last else steps[i] | (RAMP if i and rng.random() < 0.3 else 0)
            options = {}
            positions = [(came, out)]
            if not last and rng.random() < 0.25:
                positions.append((came, steps[i]))
                options = {"ring": rng.random() < 0.5, "pop": rng.randint(0, 3)}
            if out & RAMP and rng.random() < 0.15 and self.a.filters:
                options["filter"] = 0
            self.a.route(core, color, *positions, **options)
            if i == 0:
                self.sends[core].append((color, words))
            if out & RAMP:
                self.takes[core].append((color, words))
            if not last:
                came = STEP[steps[i]][2]

    def scalar(self) -> list[str]:
        """Return a few rows of arithmetic on registers 8 to 15 and memory 20 to 40."""
        rng, rows = self.rng, []
        for _ in range(rng.randint(0, 12)):
            a, b, c = (rng.randint(8, 15) for _ in range(3))
            kind = rng.randint(0, 5)
            if kind == 0:
                rows.append(f"LDI {a} 0 {rng.randint(-1000, 1000)}")
            elif kind == 1:
                rows.append(
                    f"{rng.choice(['ADD_I16', 'MUL_U32', 'SUB_U16', 'XOR', 'FADD', 'HMUL', 'SHL_U16', 'LT'])} {a} {b} {c}"
                )
            elif kind == 2:
                rows += [
                    "LDI 7 0 20",
                    f"{rng.choice(['LD_I16', 'LD_U32', 'ST_16', 'ST_32'])} {a} 7 {rng.randint(0, 18)}",
                ]
            elif kind == 3:
                rows.append(f"SYS {a} 0 {rng.choice([4, 5, 8, 9])}")
            elif kind == 4:
                rows += [f"ANDI {a} {b} 3", f"ADDI_I16 {a} {a} 1", f"l{rng.randrange(10**9)}:"]
                rows += [f"ADDI_I16 {a} {a} -1", f"JNZ {a} 0 {rows[-1][:-1]}"]
            else:
                rows.append("NOP\n" * rng.randint(1, 20))
        return rows

    def core(self, core: int) -> None:
        """Its own class for a core: main starts its operations, tasks and data tasks do more."""
        rng, a = self.rng, self.a
        text: list[str] = ["main:"]
        constants: list[int] = []
        tasks, blocked = [], []
        reads, inputs, outputs = [], [], []
        queues = [2, 3, 4, 5, 6, 7]
        rng.shuffle(queues)
        n_tasks = rng.randint(0, 2)
        tail = ["SYS -1 0 14", "RET"]
        local = [9 + i for i in range(n_tasks)]
        threads = list(range(8))

        def operation(op: str, dest: int, source: int, extra: int | None = None) -> None:
            first = len(constants)
            constants.extend([dest, source] + ([extra] if extra is not None else []))
            options = {}
            if rng.random() < 0.5:
                options["async"] = 1
                if local and rng.random() < 0.6:
                    options[rng.choice(["activate", "unblock"])] = rng.choice(local)
                if rng.random() < 0.4:
                    options["priority"] = rng.randint(1, 3)
                if self.arch == "wse3" and threads:
                    options["thread"] = threads.pop()
            if rng.random() < 0.2:
                options["on_control"] = int(O.OnControl.TERMINATE)
            issue = a.issue(op, Form.DSD, Form.DSD, Form.DSD if extra is not None else Form.NONE, **options)
            for i in range(len(constants) - first):
                text.append(f"LDK {i} 0 {first + i}")
            text.append(f"VEC 6 0 {issue}")

        for color, words in self.takes[core]:
            if not queues:
                break
            queue = queues.pop()
            if self.arch == "wse3":
                inputs.append((queue, color))
            elif rng.random() < 0.9:
                reads.append((color, queue))
            if rng.random() < 0.4:
                number = queue if self.arch == "wse3" else color
                if all(task[0] != number for task in tasks):
                    tasks.append((number, DATA, f"data{color}"))
                    if rng.random() < 0.2:
                        blocked.append(number)
            else:
                text += self.scalar()
                n = max(1, words + rng.choice([0, 0, 0, -1, 1]))
                if rng.random() < 0.3:
                    operation("add32", line(200 + 40 * color, n), fabin(color, queue, n), line(100, n))
                else:
                    operation(
                        rng.choice(["mov32", "mov16"]), line(200 + 40 * color, n), fabin(color, queue, n)
                    )
        out_queues = [0, 1, 2, 3, 4, 5]
        for color, words in self.sends[core]:
            queue = rng.choice(out_queues)
            out_queues.remove(queue)
            outputs.append((queue, color))
            if self.arch == "wse3":  # the color of the queue counts, whichever the descriptor names
                color = rng.choice([color, color, O.NO_COLOR, rng.randint(0, 23)])
            text += self.scalar()
            operation("mov32", fabout(color, queue, words, advance=int(rng.random() < 0.2)), line(100, words))
            if rng.random() < 0.4:
                first = len(constants)
                word = (
                    rng.randint(0, 3 if rng.random() < 0.1 else 2) << 22
                    | rng.choice([40, 63]) << 16
                    | int(rng.random() < 0.5) << 24
                    | rng.randint(0, 99)
                )
                constants.extend([fabout(color, queue, 1, control=1), word])
                issue = a.issue("mov32", Form.DSD, Form.SCALAR)
                text += [f"LDK 0 0 {first}", f"LDK 1 0 {first + 1}", f"VEC -1 0 {issue}"]
        if rng.random() < 0.5:
            first = len(constants)
            constants.extend(
                [
                    line(40, 6, rng.choice([1, 2, -1])),
                    line(50, 6),
                    dsd(O.DsdKind.MEM1D, base=60, length=6, stride=rng.choice([0, 1])),
                ]
            )
            issue = a.issue(rng.choice(["fadds", "add16", "fmulh"]), Form.DSD, Form.DSD, Form.DSD)
            text += [f"LDK 0 0 {first}", f"LDK 1 0 {first + 1}", f"LDK 2 0 {first + 2}", f"VEC 5 0 {issue}"]
        text += [*self.scalar(), *tail]
        for number in local:
            text += [
                f"task{number}:",
                *self.scalar(),
                "LDI 7 0 16",
                "LD_U16 8 7 0",
                "ADDI_U16 8 8 1",
                "ST_16 8 7 0",
            ]
            if rng.random() < 0.3:
                text += [
                    f"LDI 0 0 {rng.choice(local)}",
                    "LD_U16 9 7 1",
                    "JNZ 9 0 end" + str(number),
                    "ST_16 8 7 1",
                    "ACT 0 0 0",
                    f"end{number}:",
                ]
            text.append("END")
            tasks.append((number, LOCAL, f"task{number}"))
            if rng.random() < 0.2:
                blocked.append(number)
        for number, kind, label in list(tasks):
            if kind == DATA:
                text += [
                    f"{label}:",
                    *self.scalar(),
                    "LDI 7 0 18",
                    "LD_U32 8 7 0",
                    "ADD_U32 8 8 0",
                    "ST_32 8 7 0",
                ]
                if rng.random() < 0.3:
                    text += [f"LDI 1 0 {number}", "BLOCK 0 1 0"]
                text.append("END")
        if rng.random() < 0.5:
            text += ["ctrl:", *self.scalar(), "END"]
            tasks.append((40, CONTROL, "ctrl"))
        torn = []
        if rng.random() < 0.3:
            text += ["torn:", "SYS -1 0 24", "END"]
            torn = [(color, "torn") for color in (0, 1, 2, 3, 5, 9)]
        memory = ((100, np.arange(1, 60, dtype=np.uint16)), (20, np.arange(7, 80, 1, dtype=np.uint16)))
        kwargs = (
            {"input_colors": tuple(inputs), "output_colors": tuple(outputs)}
            if self.arch == "wse3"
            else {"reads": tuple(reads)}
        )
        a.add(
            "\n".join(text),
            cores=[core],
            tasks=tasks,
            blocked=tuple(blocked),
            constants=tuple(constants),
            memory=memory,
            data_words=640,
            teardown=torn,
            **kwargs,
        )

    def run(
        self,
        executor: str,
        *,
        words: Callable[[Session], None] | None = None,
        pieces: int = 0,
        **options: Any,
    ) -> dict[str, object]:
        """Everything that two executors must agree on.

        ``words`` sends some from the host; the first ``pieces`` calls of advance last 1, 2, .. cycles.
        """
        s = self.a.session(executor, strict=False, **options)
        for core in range(self.a.rows * self.a.cols):
            s.launch(core % self.a.cols, core // self.a.cols, 1, 1, "main")
        if words:
            words(s)
        for piece in range(pieces):
            s.advance(cycles=piece + 1)
        outcome = s.advance("commands", cycles=4000)
        last = s.advance(cycles=4000)
        m = s.machine
        found: dict[str, object] = {
            "reason": outcome.reason, "cycle": outcome.cycle, "last": last.reason, "end": last.cycle, "fault": str(last.fault),
            "memory": m.memory.tobytes(), "waits": [str(w) for w in s.status()], "warnings": s.warnings,
        }  # fmt: skip
        if last.reason != "fault":
            found |= {name: values.tolist() for name, values in s.counters().items()}
        return found
