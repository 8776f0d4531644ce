"""Core classes: short lists of instructions and tasks, written with one method per instruction.

One file, because it is one class with a method for each instruction.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.program import BufferInfo, Fn, Kind, Op, TaskKind

_DTYPES = {"fp32": P.Dtype.FP32, "fp16": P.Dtype.FP16, "mixed": P.Dtype.MIXED}
_STARTS = {"code": P.Start.CODE, "loaded": P.Start.LOADED, "none": P.Start.NONE}
_WIRES = {"fp32": P.Wire.FP32, "fp16": P.Wire.FP16, "fp16x2": P.Wire.FP16X2, "fp16x4": P.Wire.FP16X4}
_PRIORITIES = {"high": 0, "medium": 1, "low": 2}
_ADVANCES = {None: 0, "local": 1, "path": 2}


@dataclasses.dataclass(frozen=True)
class Operand:
    """A DSD: memory, fabric queue, immediate scalar or the wavelet of a data task."""

    kind: Kind
    name: str = ""  # buffer
    color: int = -1
    offset: int = 0
    length: int | None = None
    stride: int = 1
    step: int = 0
    outer_step: int = 0
    advance: str | None = None
    value: float = 0.0


NOTHING = Operand(Kind.NONE)
WAVELET = Operand(Kind.WAVELET)


@dataclasses.dataclass(frozen=True)
class Param:
    """Index of a per-core integer; see :meth:`wse_sim.fabric.format.builder.Builder.param`."""

    index: int


def memory(
    name: str, size: int, offset: int, length: int | None, stride: int, step: int, outer_step: int
) -> Operand:
    """Return a memory DSD over buffer `name` of `size` elements; the length defaults to the remaining
    elements."""
    if length is None:
        length = size - offset if stride == 0 else max(0, -(-(size - offset) // abs(stride)))
    last = offset + (length - 1) * stride
    if length and not (0 <= offset < size and 0 <= last < size):
        raise ProgramError(
            f"buffer '{name}': DSD of {length} elements from {offset} with stride {stride} reaches element {last} "
            f"of {size}; shorten it"
        )
    return Operand(Kind.MEMORY, name, -1, offset, length, stride, step, outer_step)


def fabric_in(color: int) -> Operand:
    """Return an operand that reads the core's input queue of `color`."""
    return Operand(Kind.FABRIC, color=color)


def fabric_out(color: int, advance: str | None = None) -> Operand:
    """The core's output to `color`; `advance` ("local", "path") lets the last wavelet advance switches."""
    return Operand(Kind.FABRIC, color=color, advance=advance)


def scalar(value: float) -> Operand:
    """Return an immediate scalar operand (fp32)."""
    return Operand(Kind.SCALAR, value=value)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of one class, by its place in the class."""

    index: int


@dataclasses.dataclass
class _TaskRow:
    kind: TaskKind
    key: int  # color or control id
    active: bool
    blocked: bool
    high: bool
    block: int


class Travel(TypedDict, total=False):
    """Data type of the elements of an instruction, and their transport format."""

    dtype: str
    wire: str | None


class Issue(Travel, total=False):
    """How a vector instruction is issued.

    `length` defaults to that of the memory operands. `wire` is the transport format of elements ("fp32",
    "fp16", "fp16x2"; default by dtype: fp16 packs two; "fp16x4" moves two such words per step). `thread` 1..8
    runs it as a microthread whose completion may activate or unblock a task. `period` (1/1000 cycle per
    element) overrides the rate.
    """

    length: int | Param | None
    start: str
    thread: int
    priority: str
    activate: Task | None
    unblock: Task | None
    terminate_on_control: bool
    period: int


class VectorOptions(Issue, total=False):
    """Keywords of any vector instruction: those of :class:`Issue`, and what one operation alone has.

    ``inner``, ``dst_stride`` and ``b_stride`` are of vectors of an FMACV, ``fn`` is the function of a MAP or how an FMACV takes them.
    """

    inner: int
    dst_stride: int
    b_stride: int
    fn: Fn | P.Each


class CoreClass:
    """A class of cores: instructions of the main program, then tasks."""

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self._blocks: list[list[list[int]]] = [[]]
        self._operands: list[tuple[list[int], int, Operand]] = []
        self._tasks: list[_TaskRow] = []
        self._current = 0
        self._level = 0
        self._reads: set[int] = set()
        self._writes: set[int] = set()

    # ---- control of the main thread --------------------------------------------------------

    def _row(self, op: Op, n: int | Param = 0, **fields: int) -> list[int]:
        row = [0] * P.N_FIELDS
        row[P.OP], row[P.LEVEL], row[P.N_PARAM] = int(op), self._level, -1
        if isinstance(n, Param):
            row[P.N_PARAM] = n.index
        elif n < 0:
            raise ProgramError(f"class '{self.name}': {op.name} of length {n}; lengths are at least 0")
        else:
            row[P.N] = int(n)
        for key, value in fields.items():
            row[getattr(P, key)] = int(value)
        self._blocks[self._current].append(row)
        return row

    def busy(self, cycles: int | Param) -> None:
        """Scalar code of `cycles` cycles."""
        self._row(Op.BUSY, cycles)

    @contextlib.contextmanager
    def loop(self, turns: int | Param) -> Iterator[None]:
        """Loop `turns` times (0 is allowed), nested up to 4 deep; the loop itself costs no cycles, add BUSY
        to charge them."""
        if self._level == P.MAX_LOOP_DEPTH:
            raise ProgramError(
                f"class '{self.name}': loops nested deeper than {P.MAX_LOOP_DEPTH}; use a task"
            )
        block = self._blocks[self._current]
        head = self._row(Op.LOOP, turns)
        start = len(block) - 1
        self._level += 1
        yield
        self._level -= 1
        head[P.TARGET] = len(block)
        self._row(Op.ENDLOOP, TARGET=start)

    def halt(self) -> None:
        """Stop this core."""
        self._row(Op.HALT)

    def activate(self, task: Task) -> None:
        """Activate a local task."""
        self._row(Op.ACTIVATE, TARGET=task.index)

    def block(self, task: Task) -> None:
        """Block a task."""
        self._row(Op.BLOCK, TARGET=task.index)

    def unblock(self, task: Task) -> None:
        """Unblock a task."""
        self._row(Op.UNBLOCK, TARGET=task.index)

    def join(self, thread: int) -> None:
        """Wait until microthread `thread` (1..8) is idle."""
        self._row(Op.JOIN, THREAD=thread)

    # ---- tasks -------------------------------------------------------------------------------

    def local_task(self, *, active: bool = False, blocked: bool = False, high: bool = False) -> Task:
        """A task that runs when activated and not blocked."""
        return self._task(TaskKind.LOCAL, 0, active, blocked, high)

    def data_task(self, color: int, *, blocked: bool = False, high: bool = False) -> Task:
        """A task that runs once for every data wavelet of `color`; operand WAVELET is its word."""
        self._reads.add(color)
        return self._task(TaskKind.DATA, color, False, blocked, high)

    def control_task(self, task_id: int, *, blocked: bool = False, high: bool = False) -> Task:
        """A task that runs when a control wavelet with `task_id` (0..62) heads an input queue."""
        if not 0 <= task_id < P.NO_TASK:
            raise ProgramError(f"class '{self.name}': control task id {task_id}; use 0..{P.NO_TASK - 1}")
        return self._task(TaskKind.CONTROL, task_id, False, blocked, high)

    def _task(self, kind: TaskKind, key: int, active: bool, blocked: bool, high: bool) -> Task:
        if len(self._tasks) == P.MAX_TASKS:
            raise ProgramError(f"class '{self.name}': more than {P.MAX_TASKS} tasks; split the class")
        self._blocks.append([])
        self._tasks.append(_TaskRow(kind, key, active, blocked, high, len(self._blocks) - 1))
        return Task(len(self._tasks) - 1)

    @contextlib.contextmanager
    def body(self, task: Task) -> Iterator[None]:
        """Context manager: instructions written inside it belong to `task`."""
        previous, level = self._current, self._level
        self._current, self._level = self._tasks[task.index].block, 0
        yield
        self._current, self._level = previous, level

    # ---- vector instructions -------------------------------------------------------------------

    def control(
        self,
        color: int,
        *commands: P.Command,
        task_id: int = P.NO_TASK,
        ignore: bool = True,
        start: str = "code",
    ) -> None:
        """Send a control wavelet of up to 8 `commands`; with `ignore` no core sees it (else it meets a task or DSD)."""
        if len(commands) > 8:
            raise ProgramError(
                f"class '{self.name}': {len(commands)} commands in a control wavelet, limit 8; send two"
            )
        payload = sum(int(command) << (2 * i) for i, command in enumerate(commands)) | (task_id << 16)
        payload |= (0xFF if ignore else 0) << 24
        row = self._row(Op.CONTROL, 1, START=_STARTS[start], IMM=payload)
        self._put(row, P.D, fabric_out(color), writes=True)

    def mov(self, dst: Operand, a: Operand, **options: Unpack[Issue]) -> None:
        """d = a: memory or fabric to memory or fabric."""
        self.vector(Op.MOV, dst, a, **options)

    def add(self, dst: Operand, a: Operand, b: Operand, **options: Unpack[Issue]) -> None:
        """d = a + b; stride 0 of `dst` (equal to one operand) accumulates."""
        self.vector(Op.ADD, dst, a, b, **options)

    def sub(self, dst: Operand, a: Operand, b: Operand, **options: Unpack[Issue]) -> None:
        """d = a - b."""
        self.vector(Op.SUB, dst, a, b, **options)

    def mul(self, dst: Operand, a: Operand, b: Operand, **options: Unpack[Issue]) -> None:
        """d = a * b."""
        self.vector(Op.MUL, dst, a, b, **options)

    def max(self, dst: Operand, a: Operand, b: Operand, **options: Unpack[Issue]) -> None:
        """d = max(a, b)."""
        self.vector(Op.MAX, dst, a, b, **options)

    def min(self, dst: Operand, a: Operand, b: Operand, **options: Unpack[Issue]) -> None:
        """d = min(a, b)."""
        self.vector(Op.MIN, dst, a, b, **options)

    def fmac(self, dst: Operand, a: Operand, b: Operand, s: Operand, **options: Unpack[Issue]) -> None:
        """d = a + b * s with a scalar (or vector) s."""
        self.vector(Op.FMAC, dst, a, b, s, **options)

    def mac(self, dst: Operand, a: Operand, b: Operand, **options: Unpack[Issue]) -> None:
        """d = d + a * b; a dot product with stride 0 of `dst`."""
        self.vector(Op.MAC, dst, a, b, **options)

    def map(self, fn: Fn, dst: Operand, a: Operand, **options: Unpack[Issue]) -> None:
        """d = fn(a), one scalar function call per element."""
        self.vector(Op.MAP, dst, a, fn=fn, **options)

    def fmac_vectors(
        self,
        dst: Operand,
        a: Operand,
        b: Operand,
        inner: int,
        *,
        dst_stride: int = 0,
        b_stride: int = 0,
        triggered: bool = False,
        fresh: bool = False,
        indexed: bool = False,
        **options: Unpack[Issue],
    ) -> None:
        """For each element a_j: d[j dst_stride + i] += a_j b[j b_stride + i], i < inner: a map around an FMAC.

        Every element costs the map's element cost (0 if `triggered` by data) plus its FMAC of `inner` elements.
        `fresh` and `indexed`: see :class:`wse_sim.fabric.format.program.Each`.
        """
        if inner < 1:
            raise ProgramError(f"class '{self.name}': inner length {inner} of an FMAC; use at least 1")
        self.vector(
            Op.FMACV,
            dst,
            a,
            b,
            inner=inner,
            dst_stride=dst_stride,
            b_stride=b_stride,
            fn=P.Each(P.Each.TRIGGERED * triggered | P.Each.FRESH * fresh | P.Each.INDEXED * indexed),
            **options,
        )

    def vector(
        self,
        op: Op,
        dst: Operand,
        a: Operand,
        b: Operand = NOTHING,
        s: Operand = NOTHING,
        **how: Unpack[VectorOptions],
    ) -> None:
        """Add any vector instruction; `how` are the fields of :class:`VectorOptions`."""
        for key in how:
            if key not in VectorOptions.__annotations__:
                known = ", ".join(VectorOptions.__annotations__)
                raise ProgramError(f"class '{self.name}': a vector instruction has no '{key}'; use {known}")
        dtype, start, priority = (
            how.get("dtype", "fp32"),
            how.get("start", "code"),
            how.get("priority", "low"),
        )
        for table, key in ((_DTYPES, dtype), (_STARTS, start), (_PRIORITIES, priority)):
            if key not in table:
                raise ProgramError(f"class '{self.name}': '{key}' is unknown; use one of {', '.join(table)}")
        length = how.get("length")
        if length is None:
            length = self._length(op, dst, a, b)
        wire = how.get("wire") or ("fp16x2" if dtype == "fp16" else "fp32")
        activate, unblock = how.get("activate"), how.get("unblock")
        done = activate or unblock
        row = self._row(
            op, length, DTYPE=_DTYPES[dtype], START=_STARTS[start], THREAD=how.get("thread", 0),
            PRIORITY=_PRIORITIES[priority], WIRE=_WIRES[wire], FN=int(how.get("fn", Fn.EXP)), M=how.get("inner", 0),
            D_OUTER=how.get("dst_stride", 0), B_OUTER=how.get("b_stride", 0), PERIOD=how.get("period", 0),
            DONE_KIND=0 if done is None else (1 if activate else 2), DONE_TASK=0 if done is None else done.index,
            ADVANCE=_ADVANCES[dst.advance], ON_CONTROL=how.get("terminate_on_control", False),
        )  # fmt: skip
        scalars = [x.value for x in (a, b, s) if x.kind == Kind.SCALAR]
        if len(scalars) > 1:
            raise ProgramError(
                f"class '{self.name}': {op.name} with two immediate scalars; keep one in memory"
            )
        if scalars:
            row[P.IMM] = int(np.float32(scalars[0]).view(np.uint32))
        self._put(row, P.D, dst, writes=True)
        for place, operand in ((P.A, a), (P.B, b), (P.S, s)):
            self._put(row, place, operand, writes=False)

    def _length(self, op: Op, dst: Operand, a: Operand, b: Operand) -> int:
        operands = [a] if op == Op.FMACV else [dst, a, b]
        lengths = {
            x.length for x in operands if x.kind == Kind.MEMORY and x.stride != 0 and x.length is not None
        }
        if len(lengths) != 1:
            raise ProgramError(
                f"class '{self.name}': {op.name} over operands of lengths {sorted(lengths)}; give length="
            )
        return lengths.pop()

    def _put(self, row: list[int], place: int, operand: Operand, *, writes: bool) -> None:
        if operand.kind == Kind.NONE:
            return
        row[place + P.KIND] = int(operand.kind)
        row[place + P.OFFSET], row[place + P.STRIDE] = operand.offset, operand.stride
        row[place + P.STEP], row[place + P.OUTER_STEP] = operand.step, operand.outer_step
        self._operands.append((row, place, operand))
        if operand.kind == Kind.FABRIC:
            (self._writes if writes else self._reads).add(operand.color)

    # ---- for the builder -------------------------------------------------------------------------

    def colors(self) -> set[int]:
        """Colors that instructions or data tasks use."""
        return self._reads | self._writes

    def assemble(
        self, slot_of: dict[int, int], buffers: dict[str, BufferInfo]
    ) -> tuple[npt.NDArray[np.int64], list[list[int]], int]:
        """Code (n, N_FIELDS), task rows with entries relative to the class, and the entry of the main program."""
        for row, place, operand in self._operands:
            if operand.kind == Kind.FABRIC:
                row[place + P.BUF] = slot_of[operand.color]
            elif operand.kind == Kind.MEMORY:
                if operand.name not in buffers:
                    raise ProgramError(
                        f"class '{self.name}': buffer '{operand.name}' belongs to another builder"
                    )
                row[place + P.BUF] = buffers[operand.name].index
        code: list[list[int]] = []
        starts = []
        order = sorted(range(len(self._tasks)), key=lambda i: (not self._tasks[i].high, i))
        rank = {task: place for place, task in enumerate(order)}
        for i, block in enumerate(self._blocks):
            starts.append(len(code))
            end = Op.TASK_END if i > 0 or self._tasks else Op.HALT
            tail = [0] * P.N_FIELDS
            tail[P.OP], tail[P.N_PARAM] = int(end), -1
            for source in [*block, tail]:
                row = list(source)
                if row[P.OP] in (Op.LOOP, Op.ENDLOOP):
                    row[P.TARGET] += starts[-1]
                elif row[P.OP] in (Op.ACTIVATE, Op.BLOCK, Op.UNBLOCK):
                    row[P.TARGET] = rank[row[P.TARGET]]
                if row[P.DONE_KIND]:
                    row[P.DONE_TASK] = rank[row[P.DONE_TASK]]
                code.append(row)
        rows = []
        for i in order:
            task = self._tasks[i]
            key = slot_of[task.key] if task.kind == TaskKind.DATA else task.key
            rows.append([int(task.kind), key, starts[task.block], int(task.active), int(task.blocked)])
        return np.array(code, np.int64), rows, 0
