"""Types of CSL. Types are interned: equal types are one object, so `is` compares them.

Sizes are 16-bit words of memory: 1 for numbers up to 16 bits, pointers and handles, 2 for 32-bit numbers, 4
for 64-bit numbers and DSDs. Values of two or more words begin at an even word.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cache

from wse_sim.units import counted

_serial = itertools.count()


class Type:
    """Base class of all types; `words` is 0 for types that exist only at compile time."""

    name: str = "?"
    words: int = 0
    runtime: bool = True

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name

    @property
    def align(self) -> int:
        return 2 if self.words > 1 else 1


class Simple(Type):
    """Type without parts: bool, void, and types that exist only at compile time."""

    def __init__(self, name: str, words: int = 0, runtime: bool = False) -> None:
        self.name, self.words, self.runtime = name, words, runtime


class IntType(Type):
    """Integer type of 1 to 64 bits."""

    def __init__(self, signed: bool, bits: int) -> None:
        self.signed, self.bits = signed, bits
        self.name = f"{'i' if signed else 'u'}{bits}"
        self.words = 1 if bits <= 16 else 2 if bits <= 32 else 4
        self.low = -(1 << (bits - 1)) if signed else 0
        self.high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
        self.mask = (1 << bits) - 1

    def wrap(self, value: int) -> int:
        """Return the number of this type that has the same low bits as `value`."""
        value &= self.mask
        return value - self.mask - 1 if value > self.high else value


class FloatType(Type):
    """Floating-point type of 16 or 32 bits."""

    def __init__(self, name: str, bits: int) -> None:
        self.name, self.bits = name, bits
        self.words = bits // 16


class HandleType(Type):
    """Type of a color, a queue, a task id or a microthread id, which is stored as a u16."""

    words = 1

    def __init__(self, name: str) -> None:
        self.name = name


class DsdType(Type):
    """Type of a data structure descriptor, which is stored as one 64-bit word."""

    words = 4

    def __init__(self, name: str) -> None:
        self.name = name


class DsrType(Type):
    """Type of a register of one DSR file, which exists only at compile time."""

    runtime = False

    def __init__(self, name: str) -> None:
        self.name = name


class PointerType(Type):
    """Pointer to one object, or to `many` in a row (`[*]T`)."""

    words = 1

    def __init__(self, target: Type, const: bool, many: bool) -> None:
        self.target, self.const, self.many = target, const, many
        self.name = f"{'[*]' if many else '*'}{'const ' if const else ''}{target}"
        self.runtime = True


class ArrayType(Type):
    """Array type with a shape and an element type."""

    def __init__(self, shape: tuple[int, ...], element: Type) -> None:
        self.shape, self.element = shape, element
        self.count = 1
        for n in shape:
            self.count *= n
        self.words = self.count * element.words
        self.name = f"[{', '.join(map(str, shape))}]{element}"
        self.runtime = element.runtime

    @property
    def align(self) -> int:
        return 2  # arrays begin at 32-bit words


def bits_of(t: Type) -> int:
    """Return the number of bits that a value occupies in a packed structure.

    >>> bits_of(int_type(False, 12)), bits_of(BOOL), bits_of(F32)
    (12, 1, 32)
    """
    if isinstance(t, StructType) and t.layout == "packed":
        return t.total_bits
    if isinstance(t, EnumType):
        return bits_of(t.base)
    return 1 if t is BOOL else t.bits if isinstance(t, IntType) else 16 * t.words


@dataclass(eq=False)
class StructType(Type):
    """Structure or union type: one per place in the source and per evaluation with different field types."""

    fields: list[tuple[str, Type]]
    kind: str = "struct"
    layout: str = ""
    label: str = ""
    offsets: list[int] = field(default_factory=list)
    shifts: list[int] = field(
        default_factory=list
    )  # first bit of a field inside its word; -1 for whole words
    total_bits: int = 0  # width of a packed structure
    is_tuple: bool = False  # whether fields have no names and are read by number

    def __post_init__(self) -> None:
        self.name = self.label or f"{self.kind}#{next(_serial)}"
        self.runtime = all(t.runtime for _, t in self.fields)
        self.index = {n: i for i, (n, _) in enumerate(self.fields)}
        self.offsets, self.shifts = [], []
        if self.layout == "packed":
            self.pack()
            return
        end = 0
        widest = 1
        for _, t in self.fields:
            widest = max(widest, t.align)
            at = 0 if self.kind == "union" else -(-end // t.align) * t.align
            self.offsets.append(at)
            end = max(end, at + t.words)
        self.words = -(-end // widest) * widest
        self.shifts = [-1] * len(self.fields)

    def pack(self) -> None:
        """Place the fields in one integer without gaps, the first field in its lowest bits."""
        start = 0
        for _, t in self.fields:
            bits = bits_of(t)
            self.offsets.append(start // 16)
            self.shifts.append(start % 16 if start % 16 or bits % 16 else -1)
            self.total_bits = max(self.total_bits, start + bits)
            start += 0 if self.kind == "union" else bits
        self.words = -(-self.total_bits // 16)

    @property
    def is_loose(self) -> bool:
        """Whether a field shares a word with another one, or begins or ends inside a word."""
        return any(s >= 0 for s in self.shifts)

    def start(self, place: int) -> int:
        """Return the first bit of a field."""
        return 16 * self.offsets[place] + max(self.shifts[place], 0)

    __repr__ = Type.__repr__
    __str__ = Type.__str__


@dataclass(eq=False)
class EnumType(Type):
    """Enum type: named values of an integer type."""

    base: Type
    names: dict[str, int]
    label: str = ""

    def __post_init__(self) -> None:
        self.name = self.label or f"enum#{next(_serial)}"
        self.words = self.base.words

    __repr__ = Type.__repr__
    __str__ = Type.__str__


class FnType(Type):
    """Type of a function or task; a parameter type of None represents `anytype`."""

    runtime = False

    def __init__(self, kind: str, params: tuple[Type | None, ...], result: Type | None) -> None:
        self.kind, self.params, self.result = kind, params, result
        inside = ", ".join("anytype" if p is None else str(p) for p in params)
        self.name = f"{kind}({inside}){result}"


BOOL = Simple("bool", 1, True)
VOID = Simple("void", 0, True)
COMPTIME_INT = Simple("comptime_int")
COMPTIME_FLOAT = Simple("comptime_float")
COMPTIME_STRING = Simple("comptime_string")
COMPTIME_STRUCT = Simple("comptime_struct")
TYPE = Simple("type")
MODULE = Simple("imported_module")
DIRECTION = Simple("direction")
RANGE = Simple("range")
FIFO = Simple("fifo")
ANYOPAQUE = Simple("anyopaque")  # target of an untyped pointer


@cache
def int_type(signed: bool, bits: int) -> IntType:
    """Return the integer type of a signedness and width."""
    return IntType(signed, bits)


I16, U16, I32, U32 = (int_type(s, b) for b in (16, 32) for s in (True, False))
I8, U8, I64, U64 = (int_type(s, b) for b in (8, 64) for s in (True, False))
F16 = FloatType("f16", 16)
BF16 = FloatType("bf16", 16)
CB16 = FloatType("cb16", 16)
HALVES = (F16, BF16, CB16)
F32 = FloatType("f32", 32)
HANDLES = {
    n: HandleType(n)
    for n in (
        "color",
        "input_queue",
        "output_queue",
        "data_task_id",
        "local_task_id",
        "control_task_id",
        "ut_id",
    )
}
COLOR, INPUT_QUEUE, OUTPUT_QUEUE, DATA_TASK_ID, LOCAL_TASK_ID, CONTROL_TASK_ID, UT_ID = HANDLES.values()
MEM1D, MEM4D, FABIN, FABOUT, CIRCBUF = (
    DsdType(n) for n in ("mem1d_dsd", "mem4d_dsd", "fabin_dsd", "fabout_dsd", "circbuf_dsd")
)
DSRS = {
    n: DsrType(n)
    for n in ("dsr_dest", "dsr_src0", "dsr_src1", "dsr_fifo_dest", "dsr_fifo_src1", "xdsr", "sr")
}

NAMED: dict[str, Type] = {
    t.name: t
    for t in (
        *(
            BOOL,
            VOID,
            COMPTIME_INT,
            COMPTIME_FLOAT,
            COMPTIME_STRING,
            COMPTIME_STRUCT,
            TYPE,
            MODULE,
            DIRECTION,
            RANGE,
            ANYOPAQUE,
        ),
        *(F16, BF16, CB16, F32, MEM1D, MEM4D, FABIN, FABOUT, CIRCBUF, *HANDLES.values(), *DSRS.values()),
    )
}


@cache
def pointer(target: Type, const: bool = False, many: bool = False) -> PointerType:
    """Return the pointer type with this target."""
    return PointerType(target, const, many)


@cache
def array(shape: tuple[int, ...], element: Type) -> ArrayType:
    """Return the array type of a shape and an element type."""
    return ArrayType(shape, element)


@cache
def function(kind: str, params: tuple[Type | None, ...], result: Type | None) -> FnType:
    """Return the type of a function or task."""
    return FnType(kind, params, result)


def named_type(name: str) -> Type | None:
    """Return the built-in type with a name, or None."""
    found = NAMED.get(name)
    if found is None and name[:1] in ("i", "u") and name[1:2] != "0":
        bits = counted(name[1:])
        if bits is not None and 1 <= bits <= 64:
            return int_type(name[0] == "i", bits)
    return found


def is_number(t: Type) -> bool:
    """Return whether a type is a number type."""
    return isinstance(t, (IntType, FloatType)) or t is COMPTIME_INT or t is COMPTIME_FLOAT


def is_int(t: Type) -> bool:
    """Return whether a type is an integer type."""
    return isinstance(t, IntType) or t is COMPTIME_INT


def is_float(t: Type) -> bool:
    """Return whether a type is a floating-point type."""
    return isinstance(t, FloatType) or t is COMPTIME_FLOAT
