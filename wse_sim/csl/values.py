"""Compile-time values, which consist of a type and data.

Data by type: numbers and handles `int` or `float` (f32 and f16 already rounded), bool `bool`, strings `str`,
types `Type`, arrays a flat row-major `list` of data, named structures a `list` of data by field, anonymous
structures a `dict` of values (keys are names, or 0, 1, .. without names), pointers `Ref`, functions
`Function`, modules `Instance`, DSDs `Dsd`, DSRs `Dsr`, FIFOs `Fifo`, ranges `Range`, void `None`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import NOWHERE, CslError
from wse_sim.fabric.vm.semantics import F32, HALVES, round_f32


class Operand:
    """Result of an expression: a value known at compile time, or (in run-time code) a register or a place."""

    __slots__ = ()
    type: ty.Type
    at: int  # position; compile-time values and places have none

    @property
    def data(self) -> Any:
        """Data of a compile-time value; other operands raise :class:`CslError`."""
        raise CslError(
            getattr(self, "at", NOWHERE),
            "this must be known at compile time but is known only at run time",
        )


class CommandLineText(str):
    """Text of a `--params` parameter, whose type is that of its declaration or, without one, that of the
    literal."""

    __slots__ = ()


@final
class Value(Operand):
    """Value known at compile time."""

    __slots__ = ("data", "type")
    data: Any

    def __init__(self, type_: ty.Type, data: object) -> None:
        self.type = type_
        self.data = data

    def __repr__(self) -> str:
        return f"Value({self.type}, {self.data!r})"


VOID_VALUE = Value(ty.VOID, None)
TRUE, FALSE = Value(ty.BOOL, True), Value(ty.BOOL, False)


class Cell:
    """Variable: its type, its data at compile time, and whether it may change."""

    __slots__ = ("at", "data", "mutable", "name", "type")

    data: Any  # in the form of a value's data

    def __init__(self, name: str, type_: ty.Type, data: object, mutable: bool, at: int) -> None:
        self.name, self.type, self.data, self.mutable, self.at = name, type_, data, mutable, at


@final
class Ref(Operand):
    """Place inside a cell: a path of indices (of an array's element, flat, or of a field)."""

    __slots__ = ("path", "root", "type")

    def __init__(self, root: Cell, path: tuple[int, ...], type_: ty.Type) -> None:
        self.root, self.path, self.type = root, path, type_

    def key(self) -> tuple[int, tuple[int, ...]]:
        """Return a key that identifies the place."""
        return (id(self.root), self.path)

    def nested(self) -> Iterator[tuple[ty.Type, int]]:
        """Yield the objects that contain the place, from the cell inwards: type, and words from the start of
        the cell."""
        start, t = 0, self.root.type
        yield t, 0
        for step in self.path:
            if isinstance(t, ty.ArrayType):
                t = t.element
                start += step * 16 * t.words
            elif isinstance(t, ty.StructType):
                start += t.start(step)
                t = t.fields[step][1]
            yield t, start // 16

    def bit(self) -> int:
        """Return the first bit of the place inside its word, or -1 if the place consists of whole words."""
        start, is_loose, t = 0, False, self.root.type
        for step in self.path:
            if isinstance(t, ty.ArrayType):
                t = t.element
            elif isinstance(t, ty.StructType):
                start, is_loose = start + t.start(step), is_loose or t.shifts[step] >= 0
                t = t.fields[step][1]
        return start % 16 if is_loose else -1

    def words(self) -> int:
        """Return the distance of the place from the start of the cell, in words."""
        *_, (_, at) = self.nested()
        return at


@dataclass(eq=False)
class Function:
    """Function or task of one module instance."""

    node: tree.Function
    instance: Instance
    type: ty.FnType | None = None

    @property
    def name(self) -> str:
        return self.node.name


Entry = Operand | Cell | Function  # objects that a name may refer to


class Global(Cell):
    """Global `const`, `var` or `param` of a module instance, which is evaluated when it is first needed."""

    __slots__ = ("align", "decl", "instance", "kind", "order", "state")
    UNSEEN, BUSY, READY = range(3)

    def __init__(self, decl: tree.Declaration, instance: Instance, order: tuple[int, int]) -> None:
        super().__init__(decl.name, None, None, decl.kind == "var", decl.at)  # type: ignore[arg-type]
        self.decl, self.instance, self.kind, self.order = decl, instance, decl.kind, order
        self.state = Global.UNSEEN
        self.align = 0


class Instance:
    """Instance of a file, created by one import."""

    def __init__(
        self, path: str, file: tree.File, params: dict[str, Value], library: bool, serial: int
    ) -> None:
        self.path, self.file, self.params, self.library, self.serial = path, file, params, library, serial
        self.imported_at = NOWHERE
        self.members: dict[str, Global | Function] = {}
        self.comptime: list[tree.Comptime] = []
        self.layout: tree.Layout | None = None
        for k, item in enumerate(file.items):
            if isinstance(item, tree.Comptime):
                self.comptime.append(item)
            elif isinstance(item, tree.Layout):
                if self.layout is not None:
                    raise CslError(item.at, "a second layout block; a file has at most one")
                self.layout = item
            elif isinstance(item, (tree.Declaration, tree.Function)):
                if item.name in self.members:
                    raise CslError(item.at, f"'{item.name}' is declared twice in this file")
                if isinstance(item, tree.Declaration):
                    self.members[item.name] = Global(item, self, (serial, k))
                else:
                    self.members[item.name] = Function(item, self)

    def unknown_params(self) -> list[str]:
        """Return the names passed to the import that are not a `param` of the file."""
        known = {n for n, g in self.members.items() if isinstance(g, Global) and g.kind == "param"}
        return [n for n in self.params if n not in known]


@dataclass(frozen=True)
class Range:
    """Range of integers from `start` to `stop` (not included)."""

    element: ty.Type
    start: int
    stop: int
    step: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop, self.step))

    def __len__(self) -> int:
        return len(range(self.start, self.stop, self.step))


@dataclass(frozen=True)
class Dsr:
    """Register of one DSR file."""

    file: str
    id: int


@dataclass(frozen=True)
class Dsd:
    """Descriptor known at compile time; lengths and strides are in elements.

    `ref` is the memory at element 0 (plus `offset` words), and `shape` the extents and jumps of a
    multi-dimensional descriptor, innermost first.
    """

    kind: str
    ref: Ref | None = None
    offset: int = 0
    length: int = 0
    stride: int = 1
    shape: tuple[tuple[int, int], ...] = ()
    color: int | None = None
    queue: int | None = None
    fields: tuple[tuple[str, int], ...] = ()
    element: ty.Type | None = None


@dataclass(eq=False)
class Fifo:
    """FIFO with its buffer and its options."""

    buffer: Ref
    options: dict[str, Value] = field(default_factory=dict)
    at: int = 0
    name: str = ""


def round_float(t: ty.Type, x: float) -> float:
    """Return the value of type `t` nearest to `x`, as a double."""
    if t is ty.F32:
        return round_f32(x)
    return float_of_bits(t, float_bits(t, x)) if isinstance(t, ty.FloatType) else x


def float_bits(t: ty.FloatType, x: float) -> int:
    """Return the raw bits of a float type's value nearest to `x`; bf16 and cb16 are rounded from f32, because
    the machine has no double."""
    return F32.encode(x) if t is ty.F32 else HALVES[t.name].encode(x if t is ty.F16 else round_f32(x))


def float_of_bits(t: ty.FloatType, bits: int) -> float:
    """Return the number that raw bits of a float type represent."""
    return (F32 if t is ty.F32 else HALVES[t.name]).decode(bits)


def register_form(t: ty.Type, data: float) -> int:
    """Return a scalar as in a register: an integer, or the raw bits of a float."""
    return float_bits(t, data) if isinstance(t, ty.FloatType) else int(data)


def to_bits(t: ty.Type, data: float) -> int:
    """Return the bit pattern of a scalar, as an unsigned number."""
    value = register_form(t, data)
    return value & ((1 << (t.words * 16)) - 1) if value < 0 else value


def from_bits(t: ty.Type, bits: int) -> int | float | bool:
    """Convert a bit pattern to a scalar."""
    if isinstance(t, ty.FloatType):
        return float_of_bits(t, bits)
    if t is ty.BOOL:
        return bool(bits & 1)
    if isinstance(t, ty.IntType):
        return t.wrap(bits)
    return bits


def words_of(t: ty.Type, data: object) -> list[int] | None:
    """Return the 16-bit words of a value, low word first; None if they are not known, as for unions and
    addresses."""
    if isinstance(data, Iterable) and (
        isinstance(t, ty.ArrayType) or (isinstance(t, ty.StructType) and t.kind == "struct")
    ):
        bits = 0
        for k, item in enumerate(data):
            inner, start = (
                (t.element, 16 * k * t.element.words)
                if isinstance(t, ty.ArrayType)
                else (t.fields[k][1], t.start(k))
            )
            part = words_of(inner, item)
            if part is None:
                return None
            bits |= number_of(part, ty.bits_of(inner) if is_packed(t) else 16 * inner.words) << start
    elif isinstance(data, (int, float)):
        bits = to_bits(t, data)
    else:
        return None
    return [(bits >> (16 * k)) & 0xFFFF for k in range(t.words)]


def is_packed(t: ty.Type) -> bool:
    """Return whether a type is a packed structure."""
    return isinstance(t, ty.StructType) and t.layout == "packed"


def number_of(words: Iterable[int], bits: int) -> int:
    """Return the `bits` low bits of words, low word first, as an unsigned number."""
    return sum(int(w) << (16 * k) for k, w in enumerate(words)) & ((1 << bits) - 1)


def from_words(t: ty.Type, words: list[int]) -> object:
    """Convert 16-bit words to a value: the inverse of :func:`words_of`."""
    if isinstance(t, ty.ArrayType):
        n = t.element.words
        return [from_words(t.element, words[k * n : (k + 1) * n]) for k in range(t.count)]
    if isinstance(t, ty.StructType):
        number = number_of(words, 16 * len(words))
        parts = ((f, number >> t.start(k)) for k, (_, f) in enumerate(t.fields))
        return [from_words(f, [(n >> (16 * k)) & 0xFFFF for k in range(f.words)]) for f, n in parts]
    return from_bits(t, number_of(words, ty.bits_of(t)))


def zero(t: ty.Type) -> object:
    """Return the data of a variable without an initial value: zero."""
    if isinstance(t, ty.ArrayType):
        if isinstance(t.element, (ty.ArrayType, ty.StructType)):
            return [zero(t.element) for _ in range(t.count)]
        return [zero(t.element)] * t.count
    if isinstance(t, ty.StructType):
        return [zero(f) for _, f in t.fields]
    if isinstance(t, ty.FloatType) or t is ty.COMPTIME_FLOAT:
        return 0.0
    if t is ty.BOOL:
        return False
    if t is ty.COMPTIME_STRING:
        return ""
    if t is ty.COMPTIME_STRUCT:
        return {}
    if isinstance(t, ty.DsdType):
        return Dsd(t.name)
    return 0


def is_zero(data: object) -> bool:
    """Return whether data are zero in every field and element.

    >>> is_zero([0, [0.0, False]]), is_zero([0, 1])
    (True, False)
    """
    return all(map(is_zero, data)) if isinstance(data, list) else not data


T = TypeVar("T")


def copy(data: T) -> T:
    """Copy the data of an array or structure; return other data unchanged."""
    if isinstance(data, list):
        return [copy(x) if isinstance(x, list) else x for x in data]  # type: ignore[return-value]
    return dict(data) if isinstance(data, dict) else data  # type: ignore[return-value]


def show(value: Operand) -> str:
    """Return a value as text for messages."""
    if not isinstance(value, Value):
        return f"a run-time {value.type}"
    if isinstance(value.data, (Function, Ref)) or hasattr(value.data, "members"):
        return f"{value.type}"
    if isinstance(value.data, dict):
        inside = ", ".join(
            f".{k} = {show(v)}" if isinstance(k, str) else show(v) for k, v in value.data.items()
        )
        return f".{{ {inside} }}"
    if isinstance(value.data, bool):
        return "true" if value.data else "false"
    if isinstance(value.data, str):
        return f'"{value.data}"' if value.type is ty.COMPTIME_STRING else value.data
    return f"{value.data}"
