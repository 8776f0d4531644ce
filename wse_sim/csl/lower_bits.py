"""Lowering of packed structures' fields that share words: loads shift and mask, and stores keep the bits of
other fields."""

from __future__ import annotations

from collections.abc import Iterator

from wse_sim.csl import types as ty
from wse_sim.csl.code import Agg, Mem, Run
from wse_sim.csl.lower_map import copy_words
from wse_sim.csl.lowering import LowererParts
from wse_sim.csl.values import Operand, Ref, Value, is_zero, number_of, words_of
from wse_sim.fabric.vm.opcodes import Op

WORD = 0xFFFF


def load_bits(low: LowererParts, mem: Mem, at: int) -> Operand:
    """Load a field that begins or ends inside a word."""
    t, bits = mem.type, ty.bits_of(mem.type)
    mem = low.simple(mem, at)
    if isinstance(t, ty.StructType):  # a structure with a union, which is kept in memory
        cell = low.address(Ref(low.frame_cell("union", t, at), (), t), at)
        for k in range(t.words):
            inner = ty.int_type(False, min(16, bits - 16 * k))
            part = load_bits(low, Mem(inner, at, mem.root, mem.base, mem.offset + k, bit=mem.bit), at)
            low.store_memory(
                Mem(ty.U16, at, cell.root, offset=k), Run(ty.U16, low.register(part, at), at), at
            )
        return cell
    span = -(-(mem.bit + bits) // 16)
    reg = -1
    for k in range(0, span, 2):
        chunk = ty.U32 if k + 1 < span else ty.U16
        run = low.load_memory(Mem(chunk, at, mem.root, mem.base, mem.offset + k), at)
        assert type(run) is Run
        if k == 0:
            reg = shifted(low, run.reg, mem.bit, f"alu{chunk.bits}", at)
        else:
            high = low.emit(Op.SHL_I64, run.reg, amount(low, 16 * k - mem.bit, at), "alu64", ty.I64, at).reg
            reg = low.emit(Op.OR, reg, high, "alu64", ty.I64, at).reg
    signed = isinstance(t, ty.IntType) and t.signed
    if bits < 64 and (signed or (mem.bit + bits) % 16):
        cost = "alu16" if bits <= 16 else "alu32"
        reg = low.emit(Op.WRAPS if signed else Op.WRAPU, reg, bits, cost, t, at).reg
    return Run(t, reg, at)


def shifted(low: LowererParts, reg: int, n: int, cost: str, at: int) -> int:
    """Shift a register right by n bits, or left if n is negative; return the register of the result."""
    if n > 0:
        return low.emit(Op.SHRI, reg, n, cost, ty.U32, at).reg
    return low.emit(Op.SHLI_I32, reg, -n, cost, ty.I32, at).reg if n < 0 else reg


def amount(low: LowererParts, n: int, at: int) -> int:
    return low.constant(n, low.code.alloc(), at)


def store_packed(low: LowererParts, mem: Mem, value: Operand, at: int) -> None:
    """Store a field that shares words, or a whole packed structure with such fields."""
    value = low.load(value, at)
    if type(value) is Mem and mem.bit < 0:
        copy_words(low, mem, value, mem.type.words, at)
        return
    mem = low.simple(mem, at)
    first = max(mem.bit, 0)
    known: dict[int, int] = {}  # bits that are known, by word
    masks: dict[int, int] = {}  # bits that are written, by word
    pieces: dict[int, list[int]] = {}  # registers with further bits, by word
    for start, t, item in leaves(low, mem.type, value, first, at):
        bits = ty.bits_of(t)
        for k in range(start // 16, -(-(start + bits) // 16)):
            skip = 16 * k - start  # bits of the value below this word
            mask = (((1 << bits) - 1) << start) >> (16 * k) & WORD
            masks[k] = masks.get(k, 0) | mask
            words = words_of(t, item.data) if type(item) is Value else None
            if words is not None:
                number = number_of(words, bits)
                known[k] = known.get(k, 0) | ((number << start) >> (16 * k) & WORD)
                continue
            reg = shifted(low, low.register(item, at), skip, "alu16" if bits <= 16 else "alu32", at)
            pieces.setdefault(k, []).append(low.emit(Op.ANDI, reg, mask, "alu16", ty.U16, at).reg)
    whole = mem.bit < 0  # the bits after a structure are unused
    for k, mask in masks.items():
        place = Mem(ty.U16, at, mem.root, mem.base, mem.offset + k)
        regs = pieces.get(k, [])
        if mask != WORD and not whole:
            old = low.register(low.load_memory(place, at), at)
            regs = [low.emit(Op.ANDI, old, WORD & ~mask, "alu16", ty.U16, at).reg, *regs]
        total = regs[0] if regs else low.constant(known[k], low.code.alloc(), at)
        for reg in regs[1:]:
            total = low.emit(Op.OR, total, reg, "alu16", ty.U16, at).reg
        if regs and known.get(k):
            total = low.emit(Op.ORI, total, known[k], "alu16", ty.U16, at).reg
        low.store_memory(place, Run(ty.U16, total, at), at)


def leaves(
    low: LowererParts, t: ty.Type, value: Operand, start: int, at: int
) -> Iterator[tuple[int, ty.Type, Operand]]:
    """Yield (first bit, type, scalar) for every scalar of a packed value."""
    value = low.load(value, at)
    if not isinstance(t, ty.StructType):
        yield start, t, value
    elif type(value) is Mem:  # a union in memory: its bits
        for k in range(t.words):
            part = ty.int_type(False, min(16, t.total_bits - 16 * k))
            place = Mem(part, at, value.root, value.base, value.offset + k)
            yield start + 16 * k, part, low.load_memory(place, at)
    else:
        for k, (_, inner) in enumerate(t.fields):
            item = value.items[k] if type(value) is Agg else Value(inner, value.data[k])
            if t.kind == "union" and type(item) is Value and is_zero(item.data):
                continue
            yield from leaves(low, inner, low.coerce(item, inner, at), start + t.start(k), at)
