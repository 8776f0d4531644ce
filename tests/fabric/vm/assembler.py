"""A tiny assembler: lines of ``OP a b c`` and ``label:`` to an image, so that tests read as programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import COLORS, ColorConfig, CoreClass, Image, Symbol, Task, dsd
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

N, E, S, W, RAMP = 1, 2, 4, 8, 16
VOP = {name: i for i, name in enumerate(O.VECTOR_OPS)}


class Assembly:
    """Code of several classes in one pool, with constants, issues and routes collected on the way."""

    def __init__(self, rows: int = 1, cols: int = 1, arch: str = "wse2") -> None:
        self.rows, self.cols, self.arch = rows, cols, arch
        self.code: list[list[int]] = []
        self.issues: list[list[int]] = []
        self.loads: list[list[int]] = []
        self.classes: list[CoreClass] = []
        self.core_class = np.full(rows * cols, -1, np.int32)
        self.configs: list[ColorConfig] = []
        self.config = np.zeros((COLORS, rows * cols), np.uint16)
        self.filters: list[list[int]] = []
        self.extra: dict[str, Any] = {}

    def issue(self, op: str, dest: int, src0: int = 0, src1: int = 0, src2: int = 0, **options: int) -> int:
        """Return a vector issue row; options by the name of their column without ``V_``, in lower case."""
        row = [0] * O.VECTOR_FIELDS
        row[: O.V_SRC2 + 1] = [VOP[op], int(dest), int(src0), int(src1), int(src2)]
        for name in (
            "ACTIVATE",
            "UNBLOCK",
            "CONTROL_TASK",
            "THREAD",
            "INDEX",
            "DSR0",
            "DSR1",
            "DSR2",
            "DSR3",
        ):
            row[getattr(O, f"V_{name}")] = -1
        for name, value in options.items():
            row[getattr(O, f"V_{name.upper()}")] = int(value)
        self.issues.append(row)
        return len(self.issues) - 1

    def load(self, file: int, number: int, **options: int) -> int:
        """Return a DSR load row."""
        row = [0] * O.LOAD_FIELDS
        row[:2] = [file, number]
        for name in ("ACTIVATE", "UNBLOCK", "THREAD", "CONTROL_TASK"):
            row[getattr(O, f"L_{name}")] = -1
        for name, value in options.items():
            row[getattr(O, f"L_{name.upper()}")] = int(value)
        self.loads.append(row)
        return len(self.loads) - 1

    def add(
        self,
        text: str,
        cores: Sequence[int] | None = None,
        tasks: Sequence[tuple[int, str, str]] = (),
        **fields: Any,
    ) -> None:
        """A class: its code, its cores (all), tasks (id, kind, label); every label is an exported function too."""
        labels: dict[str, int] = {}
        rows: list[list[str]] = []
        for line in text.strip().splitlines():
            words = line.split("#")[0].split()
            if words and words[0].endswith(":"):
                labels[words[0][:-1]] = len(self.code) + len(rows)
            elif words:
                rows.append([*words, *["0"] * (4 - len(words))])
        for words in rows:
            self.code.append([O.Op[words[0]], *[labels[w] if w in labels else int(w, 0) for w in words[1:4]]])
        symbols = tuple(Symbol(name, "function", pc) for name, pc in labels.items())
        fields.setdefault("data_words", 4096)
        task_rows = tuple(Task(number, kind, labels[label], label) for number, kind, label in tasks)
        for key in ("teardown", "empty_handlers"):
            fields[key] = tuple((number, labels[label]) for number, label in fields.get(key, ()))
        self.classes.append(
            CoreClass(f"class{len(self.classes)}", tasks=task_rows, symbols=symbols, **fields)
        )
        self.core_class[list(range(self.rows * self.cols)) if cores is None else list(cores)] = (
            len(self.classes) - 1
        )

    def route(self, core: int, color: int, *positions: tuple[int, int], **options: Any) -> None:
        """Routes (rx, tx) of the switch positions of one color at one core."""
        self.configs.append(ColorConfig(tuple(positions), **options))
        self.config[color, core] = len(self.configs)

    def image(self) -> Image:
        """Return the image; every row of code is a source line of its own, and costs one cycle."""
        n = len(self.code)
        return Image(
            self.arch, self.rows, self.cols, self.core_class, tuple(self.classes), np.array(self.code, np.int32).reshape(n, 4),
            np.full(n, O.COST_CLASSES.index("alu16"), np.uint8), np.arange(n, dtype=np.int32), tuple(("pe.csl", i + 1, 1, "f") for i in range(n)),
            np.array(self.issues, np.int32).reshape(-1, O.VECTOR_FIELDS), np.array(self.loads, np.int32).reshape(-1, O.LOAD_FIELDS),
            configs=tuple(self.configs), config=self.config, filters=np.array(self.filters, np.int64).reshape(-1, O.FILTER_FIELDS), **self.extra,
        )  # fmt: skip

    def session(self, executor: str = "fast", **options: Any) -> Session:
        """Return a session on the wafer of the generation."""
        return Session(self.image(), load_wafer(self.arch), executor=executor, **options)


def line(base: int, length: int, stride: int = 1, **fields: int) -> int:
    """DSD of a straight vector."""
    return dsd(O.DsdKind.MEM1D, base=base, length=length, stride=stride, **fields)


def fabin(color: int, queue: int, length: int, **fields: int) -> int:
    """DSD of words that come in."""
    return dsd(O.DsdKind.FABIN, color=color, queue=queue, length=length, **fields)


def fabout(color: int, queue: int, length: int, **fields: int) -> int:
    """DSD of words that go out."""
    return dsd(O.DsdKind.FABOUT, color=color, queue=queue, length=length, **fields)
