"""Conversion of a class's variables to 16-bit words of memory, with the addresses of the objects to which
they point."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from wse_sim.csl import types as ty
from wse_sim.csl.builtins_dsd import choice
from wse_sim.csl.builtins_tasks import task_number
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Evaluator
from wse_sim.csl.values import Cell, Dsd, Fifo, Ref, Value, is_zero, number_of, to_bits
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import Fifo as ImageFifo
from wse_sim.fabric.vm.image import dsd
from wse_sim.fabric.vm.opcodes import DsdKind

Array = npt.NDArray[Any]
KINDS = {
    "mem1d_dsd": DsdKind.MEM1D,
    "mem4d_dsd": DsdKind.MEM4D,
    "fabin_dsd": DsdKind.FABIN,
    "fabout_dsd": DsdKind.FABOUT,
    "circbuf_dsd": DsdKind.CIRCBUF,
}

Row = TypeVar("Row", bound=Hashable)


class ConstantPool(Generic[Row]):
    """Pool of rows, in which equal rows are stored once."""

    def __init__(self) -> None:
        self.rows: dict[Row, int] = {}

    def add(self, row: Row) -> int:
        """Return the index of a row, and add it if it is new."""
        return self.rows.setdefault(row, len(self.rows))

    def table(self, width: int, dtype: npt.DTypeLike = np.int32) -> Array:
        """Return all rows as an array of this width."""
        return np.array(list(self.rows), dtype).reshape(len(self.rows), width)


class DataWords:
    """Converter of data to words, used when every variable and FIFO has its address.

    Parameters
    ----------
    evaluator
        Evaluates the options of FIFOs.
    shapes, rings
        Pools of the image for descriptors of several dimensions and circular buffers.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        shapes: ConstantPool[tuple[int, ...]],
        rings: ConstantPool[tuple[int, ...]],
    ) -> None:
        self.evaluator, self.shapes, self.rings = evaluator, shapes, rings
        self.addresses: dict[int, int] = {}
        self.fifo_rows: dict[int, int] = {}

    def words(self, t: ty.Type, data: Any) -> Array:
        """Return data of type `t` as 16-bit words."""
        if isinstance(t, ty.ArrayType):
            return self.array_words(t, data)
        if isinstance(t, ty.StructType):
            if t.is_loose:
                parts = (
                    (k, f, self.words(f, x)) for k, ((_, f), x) in enumerate(zip(t.fields, data, strict=True))
                )
                bits = sum(number_of(words, ty.bits_of(f)) << t.start(k) for k, f, words in parts)
                return np.array([(bits >> (16 * k)) & 0xFFFF for k in range(t.words)], np.uint16)
            found = np.zeros(t.words, np.uint16)
            for (_, f), at, x in zip(t.fields, t.offsets, data, strict=True):
                if f.words and (t.kind == "struct" or not is_zero(x)):
                    found[at : at + f.words] = self.words(f, x)
            return found
        value = self.number(t, data)
        return np.array([(value >> (16 * k)) & 0xFFFF for k in range(t.words)], np.uint16)

    def array_words(self, t: ty.ArrayType, data: Sequence[Any]) -> Array:
        """Return the data of an array as 16-bit words."""
        e = t.element
        if not t.count:
            return np.zeros(0, np.uint16)
        if e is ty.F32:
            return np.array(data, np.float32).view(np.uint16)
        if e is ty.F16:
            with np.errstate(over="ignore"):
                return np.array(data, np.float16).view(np.uint16)
        if isinstance(e, ty.IntType) and e.words < 4:
            mask = (1 << (16 * e.words)) - 1
            return np.array([x & mask for x in data], np.uint32 if e.words == 2 else np.uint16).view(
                np.uint16
            )
        return np.concatenate([self.words(e, x) for x in data])

    def number(self, t: ty.Type, data: object) -> int:
        """Return the bit pattern of a scalar, with addresses filled in."""
        if isinstance(data, Ref):
            return self.address(data.root) + data.words()
        if isinstance(data, (Dsd, Fifo)):
            return self.descriptor(data)
        if isinstance(t, ty.EnumType):
            return int(cast(int, data)) & ((1 << (16 * t.words)) - 1)
        return to_bits(t, cast(float, data))

    def address(self, root: Cell) -> int:
        """Return the word address of a variable."""
        return self.addresses[id(root)]

    def descriptor(self, d: Dsd | Fifo) -> int:
        """Return the machine representation of a DSD or a FIFO."""
        if isinstance(d, Fifo):
            return dsd(DsdKind.FIFO, base=self.fifo_rows[id(d)])
        fields = dict(d.fields)
        kind = KINDS[d.kind]
        if kind in (DsdKind.FABIN, DsdKind.FABOUT):
            color = O.NO_COLOR if d.color is None else d.color
            return dsd(
                kind, length=d.length, color=color, queue=O.NO_QUEUE if d.queue is None else d.queue, **fields
            )
        base = 0 if d.ref is None else self.address(d.ref.root) + d.ref.words()
        length, stride = d.length, d.stride
        if kind == DsdKind.MEM4D or (d.shape and kind == DsdKind.MEM1D):
            kind = DsdKind.MEM4D
            shape = [*d.shape, *([(1, 0)] * (4 - len(d.shape)))]
            length, stride = (
                self.shapes.add((len(d.shape), *(n for n, _ in shape), *(s for _, s in shape))),
                0,
            )
        elif kind == DsdKind.CIRCBUF:
            words = d.shape[0][0] * (d.element.words if d.element is not None else 1)
            stride = self.rings.add((base, words, d.stride))
        return dsd(kind, base=(base + d.offset) & 0xFFFF, length=length, stride=stride, **fields)

    def fifo(self, f: Fifo) -> ImageFifo:
        """Return the image's description of a FIFO."""
        t = f.buffer.type
        if not isinstance(t, ty.ArrayType):
            raise CslError(f.at, f"a fifo takes an array, and '{t}' is given")
        ids = {}
        for name in ("activate_push", "activate_pop"):
            value = f.options.get(name)
            ids[name] = -1 if value is None else task_number(self.evaluator, value, f.at).data
        priority = f.options.get("priority")
        number = (
            0 if priority is None else choice(priority, {"high": 1, "medium": 2, "low": 3}, "priority", f.at)
        )
        return ImageFifo(
            self.address(f.buffer.root) + f.buffer.words(),
            t.words,
            max(1, min(2, t.element.words)),
            priority=number,
            name=f.name,
            **ids,
        )


def roots_of(data: object) -> list[Cell]:
    """Return the variables to which data points."""
    if isinstance(data, Ref):
        return [data.root]
    if isinstance(data, Dsd):
        return [data.ref.root] if data.ref is not None else []
    if isinstance(data, Fifo):
        return [data.buffer.root]
    if isinstance(data, list) and data and isinstance(data[0], (Ref, Dsd, list, Value)):
        return [r for x in data for r in roots_of(x)]
    if isinstance(data, list) and data and any(isinstance(x, (Ref, Dsd, list)) for x in data):
        return [r for x in data for r in roots_of(x)]
    return []
