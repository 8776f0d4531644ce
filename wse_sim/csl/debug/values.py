"""Values of variables by type (numbers, arrays, structures, enums, pointers, descriptors), and expressions
over them."""

from __future__ import annotations

import ast
import dataclasses
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

from wse_sim.csl.debug.lines import DebugError
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.half_floats import bits_cb16
from wse_sim.fabric.vm.image import FieldPlace, Image

Datum: TypeAlias = "bool | int | float | str | list[Datum] | dict[str, Datum]"
_ARRAY = re.compile(r"\[([\d, ]+)\](.+)", re.DOTALL)
_POINTER = re.compile(r"(?:\[\*\]|\*)(?:const )?(.+)", re.DOTALL)
_INTEGER = re.compile(r"([iu])(\d{1,2})")
MOST_ELEMENTS = 4096
_DEREF = "__DEREF"
_DSD = ("mem1d_dsd", "mem4d_dsd", "fabin_dsd", "fabout_dsd", "circbuf_dsd")


class Types:
    """Sizes and values of an image's types, which are identified by their spelling."""

    def __init__(self, image: Image) -> None:
        self.structures = {name: (kind, fields) for name, kind, fields in image.structures}
        self.half = image.half

    def array(self, name: str) -> tuple[tuple[int, ...], str] | None:
        """Return shape and element type of an array type, or None for other types."""
        match = _ARRAY.fullmatch(name)
        return (tuple(int(n) for n in match[1].split(",")), match[2]) if match else None

    def target(self, name: str) -> str | None:
        """Return the target type of a pointer type, or None for other types."""
        match = _POINTER.fullmatch(name)
        return match[1] if match else None

    def fields(self, name: str) -> Sequence[FieldPlace]:
        """Return the fields of a structure or union; empty for other types."""
        kind, fields = self.structures.get(name, ("", ()))
        return fields if kind in ("struct", "union", "packed") else ()

    def words(self, name: str) -> int:
        """Return the size of a type in 16-bit words."""
        shape = self.array(name)
        if shape is not None:
            return int(np.prod(shape[0], dtype=np.int64)) * self.words(shape[1])
        integer = _INTEGER.fullmatch(name)
        if integer is not None:
            bits = int(integer[2])
            return 1 if bits <= 16 else 2 if bits <= 32 else 4
        if name == "f32":
            return 2
        if name in _DSD:
            return 4
        kind, fields = self.structures.get(name, ("", ()))
        if kind == "enum" and fields:
            return self.words(fields[0].type)
        wide = kind != "packed" and any(self.words(f.type) > 1 for f in fields)
        end = max((f.at + self.extent(f.type, f.first, f.bits) for f in fields), default=1)
        return -(-end // 2) * 2 if wide else end

    def extent(self, name: str, first: int, bits: int) -> int:
        """Return the number of 16-bit words that a value occupies.

        If `first` is not -1, the value is a bit field: `bits` bits that begin at bit `first` of the first
        word.
        """
        return self.words(name) if first < 0 else -(-(first + bits) // 16)

    def of_words(self, name: str, words: Sequence[int], first: int = -1, bits: int = 0) -> Datum:
        """Convert words of memory to a value of a type; if `first` is not -1, the value is the `bits` bits
        from bit `first`."""
        if first >= 0:
            number = sum(int(w) << (16 * k) for k, w in enumerate(words)) >> first & ((1 << bits) - 1)
            return self.of_words(name, [number >> (16 * k) & 0xFFFF for k in range(self.words(name))])
        shape = self.array(name)
        if shape is not None:
            return self._elements(shape[0], shape[1], words)
        if self.fields(name):
            return {
                f.name: self.of_words(
                    f.type, words[f.at : f.at + self.extent(f.type, f.first, f.bits)], f.first, f.bits
                )
                for f in self.fields(name)
            }
        return self.of_bits(name, sum(int(w) << (16 * k) for k, w in enumerate(words)))

    def _elements(self, shape: tuple[int, ...], element: str, words: Sequence[int]) -> Datum:
        each = self.words(element)
        step = each * int(np.prod(shape[1:], dtype=np.int64))
        if len(shape) > 1:
            return [
                self._elements(shape[1:], element, words[k * step : (k + 1) * step]) for k in range(shape[0])
            ]
        n = min(shape[0], len(words) // each)
        return [self.of_words(element, words[k * each : (k + 1) * each]) for k in range(n)]

    def of_bits(self, name: str, bits: int) -> Datum:
        """Convert bits to the value of a scalar type."""
        integer = _INTEGER.fullmatch(name)
        if integer is not None:
            width = int(integer[2])
            value = bits & ((1 << width) - 1)
            return value - (1 << width) if integer[1] == "i" and value >> (width - 1) else value
        if name == "f32":
            return float(np.array(bits & 0xFFFFFFFF, np.uint32).view(np.float32))
        if name in ("f16", "bf16", "cb16"):
            return half_number(name, bits & 0xFFFF)
        if name == "bool":
            return bool(bits & 1)
        if name in _DSD:
            return self._descriptor(bits)
        kind, fields = self.structures.get(name, ("", ()))
        if kind == "enum" and fields:
            number = self.of_bits(fields[0].type, bits)
            return next((f".{case.name}" for case in fields if case.at == number), f"{number}")
        return bits & 0xFFFF

    def _descriptor(self, bits: int) -> Datum:
        def field(low: int, width: int) -> int:
            return bits >> low & ((1 << width) - 1)

        kind = O.DsdKind(field(*O.DSD_KIND)).name.lower()
        found: dict[str, Datum] = {"kind": kind, "length": field(*O.DSD_LENGTH)}
        if kind.startswith("fab"):
            return found | {"color": field(*O.DSD_COLOR), "queue": field(*O.DSD_QUEUE)}
        return found | {"address": field(*O.DSD_BASE), "stride": field(*O.DSD_STRIDE)}


def half_number(name: str, bits: int) -> float:
    """Convert the bits of a 16-bit floating-point type to a number.

    >>> half_number("f16", 0x3C00), half_number("bf16", 0x3F80), half_number("cb16", 0x5400)
    (1.0, 1.0, 1.0)
    """
    if name == "f16":
        return float(np.array(bits, np.uint16).view(np.float16))
    if name == "bf16":
        return float(np.array(bits << 16, np.uint32).view(np.float32))
    return float(bits_cb16(bits))


def shown(value: Datum) -> str:
    """Format a value as text: nine significant digits for floats, and at most 200 elements of an array."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        inside = [shown(item) for item in value[:200]]
        return "[" + ", ".join(inside) + (f", ... {len(value)} in all" if len(value) > 200 else "") + "]"
    if isinstance(value, dict):
        return ".{ " + ", ".join(f".{key} = {shown(item)}" for key, item in value.items()) + " }"
    return str(value)


@dataclasses.dataclass(frozen=True)
class ValuePlace:
    """Variable or a part of one: its type and its place, a word address or (if the address is -1) the bits of
    a register.

    A field of a packed structure that shares words has `width` bits from bit `first` of its first word; other
    places have a `first` of -1.
    """

    name: str
    type: str
    address: int
    bits: int = 0
    first: int = -1
    width: int = 0


_BINARY: Mapping[type[ast.operator], Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[..., float]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


class Expression:
    """Evaluator of expressions over variables: names, fields, elements, slices, numbers, arithmetic,
    comparisons, `and`, `or`, `not`."""

    def __init__(
        self, types: Types, name: Callable[[str], ValuePlace], read: Callable[[int, int], Sequence[int]]
    ) -> None:
        self.types, self.name, self.read = types, name, read

    def place(self, text: str) -> ValuePlace | None:
        """Return the variable, or the part of one, that a text names; None for other expressions."""
        node = self._parsed(text)
        return self._place(node) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) else None

    def value(self, text: str) -> Datum:
        """Evaluate an expression.

        Raises
        ------
        DebugError
            If it is not such an expression, or a variable, field or element does not exist.
        """
        try:
            return self._value(self._parsed(text))
        except (TypeError, ZeroDivisionError, OverflowError) as fault:
            raise DebugError(f"'{text}' cannot be computed: {fault}") from None

    def of_place(self, place: ValuePlace) -> Datum:
        """Return the value of a variable or a part of one."""
        if place.address < 0:
            return self.types.of_bits(place.type, place.bits)
        words = self.types.extent(place.type, place.first, place.width)
        return self.types.of_words(place.type, self.read(place.address, words), place.first, place.width)

    def _parsed(self, text: str) -> ast.expr:
        spelled = re.sub(r"#(\d+)\.", r"__HASH\1__", text.strip()).replace(".*", _DEREF)
        try:
            return ast.parse(spelled, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise DebugError(
                f"'{text.strip()[:60]}' is not an expression; use names, .fields, [elements], [a:b], .*, numbers and operators"
            ) from None

    def _place(self, node: ast.expr) -> ValuePlace | None:
        """Return the place of a name, a field or an element; None for other expressions."""
        if isinstance(node, ast.Name):
            name = node.id.removesuffix(_DEREF)
            found = self.name(re.sub(r"__HASH(\d+)__", r"#\1.", name))
            return self._target(found) if name != node.id else found
        if isinstance(node, ast.Attribute):
            base, field = self._place(node.value), node.attr.removesuffix(_DEREF)
            if base is None:
                raise DebugError("a slice has no fields; name one element")
            if self.types.target(base.type) is not None:
                base = self._target(base)
            for f in self.types.fields(base.type):
                if f.name == field and base.address >= 0:
                    found = self._field(base, f)
                    return self._target(found) if field != node.attr else found
            known = ", ".join(f.name for f in self.types.fields(base.type)) or "none"
            raise DebugError(
                f"{base.name} of type '{base.type}' has no field '{field}'; its fields are {known}"
            )
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            base = self._place(node.value)
            if base is None:
                raise DebugError("a slice has no element; write one index")
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return self._element(base, [self._whole(item) for item in items])
        return None

    def _field(self, base: ValuePlace, field: FieldPlace) -> ValuePlace:
        """Return the place of a field; inside a field that shares words, the place is counted in bits."""
        name, at, first, width = f"{base.name}.{field.name}", field.at, field.first, field.bits
        if base.first >= 0:
            width = width or 16 * self.types.words(field.type)
            words, first = divmod(base.first + 16 * at + max(first, 0), 16)
            at = words
        return ValuePlace(name, field.type, base.address + at, first=first, width=width)

    def _whole(self, node: ast.expr | None, default: int = 0) -> int:
        value = default if node is None else self._value(node)
        if isinstance(value, bool) or not isinstance(value, int):
            raise DebugError(f"an index is {shown(value)}; it must be an integer")
        return value

    def _target(self, place: ValuePlace) -> ValuePlace:
        target, address = self.types.target(place.type), self.of_place(place)
        if target is None or not isinstance(address, int):
            raise DebugError(f"{place.name} of type '{place.type}' is not a pointer")
        return ValuePlace(f"{place.name}.*", target, address)

    def _element(self, base: ValuePlace, index: list[int]) -> ValuePlace:
        shape = self.types.array(base.type)
        if shape is None:
            target = self._target(base)
            within = self.types.array(target.type)
            if within is not None and not base.type.startswith("[*]"):
                return self._element(target, index)
            at = target.address + index[0] * self.types.words(target.type)
            return ValuePlace(f"{base.name}[{index[0]}]", target.type, at)
        if len(index) != len(shape[0]) or any(not 0 <= i < n for i, n in zip(index, shape[0], strict=True)):
            raise DebugError(f"{base.name} of type '{base.type}' has no element {index}")
        flat = int(np.ravel_multi_index(index, shape[0]))
        name = f"{base.name}[{', '.join(map(str, index))}]"
        return ValuePlace(name, shape[1], base.address + flat * self.types.words(shape[1]))

    def _slice(self, base: ast.expr, part: ast.Slice) -> Datum:
        place = self._place(base)
        shape = None if place is None else self.types.array(place.type)
        end = shape[0][0] if shape is not None and len(shape[0]) == 1 else -1
        if place is None or (shape is None and self.types.target(place.type) is None) or (shape and end < 0):
            raise DebugError("only arrays of one dimension and pointers have slices")
        if end < 0 and part.upper is None:
            raise DebugError(f"{place.name} is a pointer; a slice of it needs an end")
        first, last = self._whole(part.lower), self._whole(part.upper, end)
        last = min(last, end) if end >= 0 else last
        if not 0 <= first <= last or last - first > MOST_ELEMENTS:
            raise DebugError(
                f"elements {first} to {last} are requested; use at most {MOST_ELEMENTS}, counted from 0"
            )
        return [self.of_place(self._element(place, [i])) for i in range(first, last)]

    def _value(self, node: ast.expr) -> Datum:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            return node.value
        if isinstance(node, ast.Name) and node.id in ("true", "false"):
            return node.id == "true"
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return self._slice(node.value, node.slice)
        place = self._place(node)
        if place is not None:
            return self.of_place(place)
        if isinstance(node, ast.UnaryOp):
            inner = cast("float", self._value(node.operand))
            return (
                not inner
                if isinstance(node.op, ast.Not)
                else -inner
                if isinstance(node.op, ast.USub)
                else inner
            )
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            result: Datum = _BINARY[type(node.op)](self._value(node.left), self._value(node.right))
            return result
        if isinstance(node, ast.BoolOp):
            values = (self._value(item) for item in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARED for op in node.ops):
            sides = [self._value(item) for item in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(_COMPARED[type(op)](a, b) for op, a, b in pairs)
        raise DebugError(
            "this is not an expression over variables; use names, fields, elements, numbers, operators"
        )
