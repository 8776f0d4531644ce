"""Bytecode of one function under construction, and the run-time operands that its rows name.

Registers are numbered within the window of the function. `next` is the first free one. Temporaries are above
the named variables and are freed at the end of their statement; the window of a callee begins at `next`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from wse_sim.csl import types as ty
from wse_sim.csl.values import Cell, Operand
from wse_sim.fabric.vm.opcodes import COST_CLASSES, Op

if TYPE_CHECKING:
    from wse_sim.csl.modules import Scope

INT32 = range(-(1 << 31), 1 << 31)
COST = {name: i for i, name in enumerate(COST_CLASSES)}
JUMPS = frozenset(
    int(o)
    for o in (
        Op.JMP,
        Op.JZ,
        Op.JNZ,
        Op.JEQ,
        Op.JNE,
        Op.JLT,
        Op.JLE,
        Op.JEQI,
        Op.JNEI,
        Op.JLTI,
        Op.JLEI,
        Op.JGTI,
        Op.JGEI,
    )
)
# Opcodes whose operand a is not a result register.
NO_RESULT = JUMPS | frozenset(
    int(o)
    for o in (
        *(Op.NOP, Op.CALL, Op.CALLR, Op.RET, Op.END, Op.ST_16, Op.ST_32, Op.ST_64, Op.STX_16, Op.STX_32),
        *(Op.DSR_LOAD, Op.DSR_BASE, Op.VEC, Op.ACT, Op.BLOCK, Op.UNBLOCK, Op.SYS, Op.FMA),
    )
)


@final
class Run(Operand):
    """Value in a register; `linear` marks a loop counter, or a sum or product of one with known numbers."""

    __slots__ = ("at", "linear", "reg", "type")

    def __init__(self, type_: ty.Type, reg: int, at: int, *, linear: bool = False) -> None:
        self.type, self.reg, self.at, self.linear = type_, reg, at, linear


@final
class Local(Operand):
    """Variable in a register."""

    __slots__ = ("at", "mutable", "name", "reg", "type")

    def __init__(self, name: str, type_: ty.Type, reg: int, mutable: bool, at: int) -> None:
        self.name, self.type, self.reg, self.mutable, self.at = name, type_, reg, mutable, at


@final
class Agg(Operand):
    """Structure whose fields are operands."""

    __slots__ = ("at", "items", "type")

    def __init__(self, type_: ty.Type, items: Sequence[Operand], at: int) -> None:
        self.type, self.items, self.at = type_, items, at


@final
class Mem(Operand):
    """Place in memory: the address of `root` + r[base] + offset + scale * r[index], in words.

    `bit` is the first bit of a packed structure's field that shares a word, else -1.
    """

    __slots__ = ("at", "base", "bit", "index", "mutable", "offset", "root", "scale", "type")

    def __init__(
        self,
        type_: ty.Type,
        at: int,
        root: Cell | None = None,
        base: int | None = None,
        offset: int = 0,
        index: int | None = None,
        scale: int = 1,
        mutable: bool = True,
        bit: int = -1,
    ) -> None:
        self.type, self.at, self.root, self.base, self.offset = type_, at, root, base, offset
        self.index, self.scale, self.mutable, self.bit = index, scale, mutable, bit


@final
class RunRange(Operand):
    """Range with a bound that is known only at run time."""

    __slots__ = ("at", "element", "start", "step", "stop", "type")

    def __init__(self, element: ty.Type, start: Operand, stop: Operand, step: Operand, at: int) -> None:
        self.type, self.element, self.start, self.stop, self.step, self.at = (
            ty.RANGE,
            element,
            start,
            stop,
            step,
            at,
        )


class FrameCell(Cell):
    """Local variable in memory; the linker fixes its address, so a function with such variables can call
    itself only as a tail call."""

    __slots__ = ("frame",)
    frame: Code


@dataclass
class SeenName:
    """Name in a function's source that has a run-time place, and the rows in which it is visible."""

    name: str
    entry: Run | Local | FrameCell
    first: int
    end: int = 0


@dataclass(eq=False)
class Code:
    """Rows (op, a, b, c) of a function, each with its cost class and position; the linker fills in
    `fixes`."""

    name: str
    rows: list[list[int]] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    fixes: list[tuple[int, str, Any]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    frame: list[FrameCell] = field(default_factory=list)
    callees: list[tuple[Code, int]] = field(default_factory=list)
    next: int = 0
    window: int = 0
    barrier: int = 0
    unrolled: dict[int, int] = field(
        default_factory=dict
    )  # first row of an unrolled loop -> rows that its further rounds add
    plain: set[int] = field(default_factory=set)  # rows that call without arguments and results
    known: set[int] = field(default_factory=set)  # rows that call with arguments known at compile time
    direct: set[int] = field(default_factory=set)  # rows with an address that only the next row uses
    cyclic: bool = False  # calls itself, perhaps through others
    done: bool = False
    entry: int = -1
    key: object = None
    seen: dict[int, SeenName] = field(default_factory=dict)  # run-time names by the identity of their entry

    # ---- registers
    def alloc(self, n: int = 1) -> int:
        """Allocate `n` consecutive registers and return the first."""
        reg = self.next
        self.next += n
        self.window = max(self.window, self.next)
        return reg

    def reserve(self, start: int, n: int) -> None:
        """Hold exactly the `n` registers from `start` on."""
        self.next = start + n
        self.window = max(self.window, self.next)

    def release(self, mark: int) -> None:
        """Free the registers from `mark` on."""
        self.next = mark

    # ---- rows
    def emit(self, op: Op, a: int, b: int, c: int, cost: str, at: int) -> int:
        """Append a row and return its number."""
        self.rows.append([int(op), a, b, c])
        self.costs.append(COST[cost])
        self.places.append(at)
        return len(self.rows) - 1

    def fix(self, kind: str, payload: object) -> None:
        """Let the linker fill in the last row."""
        self.fixes.append((len(self.rows) - 1, kind, payload))

    def see(self, scope: Scope, first: int) -> None:
        """Record that the names of a block and of the blocks around it are visible from row `first` to the
        last row."""
        known: set[str] = set()
        around: Scope | None = scope
        while around is not None:
            for name, entry in around.names.items():
                if name not in known and isinstance(entry, (Run, Local, FrameCell)):
                    seen = self.seen.setdefault(id(entry), SeenName(name, entry, first))
                    seen.first, seen.end = min(seen.first, first), len(self.rows)
                known.add(name)
            around = around.parent

    # ---- labels
    def label(self) -> int:
        """Create a label and return its number."""
        self.labels.append(-1)
        return len(self.labels) - 1

    def bind(self, label: int) -> None:
        """Place a label at the next row."""
        self.labels[label] = len(self.rows)
        self.barrier = len(self.rows)

    def jump(self, op: Op, a: int, b: int, label: int, at: int) -> None:
        """Append a jump to a label, unless it cannot be reached."""
        cost = "jump" if op == Op.JMP else "branch"
        if (
            op == Op.JMP
            and self.rows
            and len(self.rows) > self.barrier
            and self.rows[-1][0] in (Op.RET, Op.JMP)
        ):
            return  # not reachable
        self.emit(op, a, b, label, cost, at)

    def finish(self) -> None:
        """Replace labels by rows of this function.

        A jump to the next row costs nothing. A recursive call without arguments and result becomes a jump if
        only the return follows it.
        """
        for i, row in enumerate(self.rows):
            if row[0] in JUMPS:
                row[3] = self.labels[row[3]]
                if row[0] == Op.JMP and row[3] == i + 1:
                    self.costs[i] = COST["free"]
        for k, (i, kind, payload) in enumerate(self.fixes):
            if kind == "call" and (payload.cyclic or not payload.done):
                self.cyclic = True
                if i in self.plain and self.ends(i + 1):
                    self.rows[i] = [int(Op.JMP), 0, 0, 0]
                    self.costs[i] = COST["jump"]
                    self.fixes[k] = (i, "tail", payload)
        self.done = True

    def ends(self, i: int) -> bool:
        """Return whether only the return follows from row `i` on."""
        for _ in range(len(self.rows)):
            if self.rows[i][0] != Op.JMP:
                break
            i = self.rows[i][3]
        return self.rows[i][0] == Op.RET

    def makes_dsd(self, reg: int) -> bool:
        """Return whether the last row changed a descriptor into register `reg`."""
        changes = (Op.DSD_BASE, Op.DSD_ADD, Op.DSD_LEN, Op.DSD_STRIDE)
        return len(self.rows) > self.barrier and self.rows[-1][0] in changes and self.rows[-1][1] == reg

    # ---- peephole
    def retarget(self, reg: int, target: int, mark: int) -> bool:
        """Let the last row write `target` instead of the temporary `reg`, and return whether that was
        possible.

        Only a `reg` of at least `mark` is a temporary.
        """
        if reg < mark or not self.rows or len(self.rows) <= self.barrier:
            return False
        row = self.rows[-1]
        if row[0] in NO_RESULT or row[1] != reg:
            return False
        row[1] = target
        return True
