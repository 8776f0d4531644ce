"""Cost and values of an instruction, by the text of the specification: scalar Python, one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Dtype, Each, Fn, Kind, Op, Program, Wire

F32 = np.float32


class Read(NamedTuple):
    """A vector that an instruction reads from memory: its first byte, stride, element size, and steps of the loops."""

    address: int
    stride: int
    size: int
    steps: tuple[int, ...]


def reads_of(program: Program, row: list[int]) -> set[Read]:
    """Return the vectors from memory; those that are the same count once."""
    places = [P.A, P.B]
    if row[P.OP] == Op.MAC:
        places.append(P.D)
    if row[P.OP] == Op.FMACV:
        places = [P.D, P.B]
    found = set()
    for place in places:
        kind, buffer, offset, stride, *steps = row[place : place + P.OPERAND_FIELDS]
        if kind != Kind.MEMORY or not stride:
            continue
        entry = program.buffer_table[buffer]
        size = 2 if entry[P.B_DTYPE] else 4
        if row[P.OP] == Op.FMACV:
            steps.append(row[P.D_OUTER if place == P.D else P.B_OUTER])
        found.add(Read(int(entry[P.B_ADDRESS]) + size * offset, stride, size, tuple(steps)))
    return found


def collides(program: Program, config: FabricConfig, row: list[int]) -> bool:
    """Return whether two of them begin in banks that are equal modulo the period."""
    half = row[P.DTYPE] == Dtype.FP16
    period = config.sram_banks // 2 if half else config.fp32_bank_period_words
    reads = reads_of(program, row)
    return len({read.address // 2 % period for read in reads}) < len(reads)


def misaligned(program: Program, row: list[int]) -> float:
    """Return in how many turns two fp16 vectors without gaps begin half a word apart: 0, 0.5 or 1."""
    share = 0.0
    reads = [read for read in reads_of(program, row) if read.size == 2 and read.stride == 1]
    for a in reads:
        for b in reads:
            if any((x + y) % 2 for x, y in zip(a.steps, b.steps, strict=True)):
                share = max(share, 0.5)
            elif (a.address + b.address) // 2 % 2:
                share = 1.0
    return share if row[P.DTYPE] == Dtype.FP16 else 0.0


def element_milli(program: Program, config: FabricConfig, row: list[int]) -> int:
    """Return the price of an element of a vector instruction, in 1/1000 cycle."""
    op, dtype = row[P.OP], row[P.DTYPE]
    if op == Op.CONTROL:
        return 1000
    if row[P.PERIOD]:
        return row[P.PERIOD]
    if op == Op.MAP:
        return config.fn_milli[row[P.FN]]
    both = all(row[place + P.KIND] == Kind.MEMORY and row[place + P.STRIDE] for place in (P.A, P.B))
    sums = config.add_memory_milli if both else config.add_milli
    rates = {
        Op.MOV: config.mov_milli,
        Op.ADD: sums,
        Op.SUB: sums,
        Op.MUL: config.mul_milli,
        Op.MAX: config.max_milli,
        Op.MIN: config.max_milli,
    }
    full = rate = rates.get(Op(op), config.fma_milli)[dtype]
    if op != Op.FMACV and row[P.D + P.KIND] == Kind.MEMORY and not row[P.D + P.STRIDE]:
        rate = max(rate, 1000)
    if collides(program, config, row):
        rate = math.ceil(rate * config.conflict_milli / 1000)
    slow, share = max(rate, config.misaligned_fp16_milli), misaligned(program, row)
    if op != Op.FMACV:
        return round((1 - share) * rate + share * slow)
    length = row[P.M]
    width = config.simd_fp16 if dtype == Dtype.FP16 and rate == full else 1
    straight = max(1, math.ceil(length * rate / 1000))
    if width > 1:
        straight = 1 + math.ceil(max(0, length - width) * rate / 1000)
    turned = max(1, math.ceil(length * slow / 1000))
    start = config.map_element_milli + (config.map_vector_milli if length > 1 else 0)
    if row[P.FN] & Each.TRIGGERED:
        start = config.triggered_milli
    return start + round(1000 * ((1 - share) * straight + share * turned))


def step_milli(program: Program, config: FabricConfig, row: list[int]) -> int:
    """Return the price of a step of an instruction with a fabric operand, or of an element of another one."""
    per = {Wire.FP16X2: 2, Wire.FP16X4: 4}.get(Wire(row[P.WIRE]), 1)
    fabric = any(row[place + P.KIND] == Kind.FABRIC for place in (P.D, P.A, P.B))
    price = element_milli(program, config, row)
    return max(1000, per * price) if fabric else price


def _function(fn: int, x: float) -> float:
    """Return a scalar function; not a number where it has no value."""
    forms: dict[int, Callable[[float], float]] = {
        Fn.EXP: math.exp,
        Fn.SILU: lambda v: v / (1 + math.exp(-v)),
        Fn.GELU: lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
        Fn.TANH: math.tanh,
        Fn.RECIPROCAL: lambda v: 1 / v if v else math.inf,
        Fn.SQRT: lambda v: math.sqrt(v) if v >= 0 else math.nan,
        Fn.RSQRT: lambda v: 1 / math.sqrt(v) if v > 0 else math.inf,
        Fn.RELU: lambda v: max(v, 0.0),
        Fn.ABS: abs,
        Fn.NEGATE: lambda v: -v,
        Fn.STEP: lambda v: float(v > 0),
        Fn.SIGMOID: lambda v: 1 / (1 + math.exp(-v)),
        Fn.GELU_TANH: lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
        Fn.ERF: math.erf,
        Fn.SOFTPLUS: lambda v: max(v, 0.0) + math.log1p(math.exp(-abs(v))),
        Fn.SIN: math.sin,
        Fn.COS: math.cos,
        Fn.LOG: lambda v: math.log(v) if v > 0 else -math.inf,
    }
    return x if math.isnan(x) else forms[fn](x)


def rounded_half(value: F32) -> F32:
    """Round a number to fp16."""
    with np.errstate(over="ignore"):
        return F32(np.float16(value))


def packed(values: Sequence[F32], wire: int) -> int:
    """Return the 32 bits of a wavelet that carries one or two elements."""
    if wire == Wire.FP32:
        return int(F32(values[0]).view(np.uint32))
    with np.errstate(over="ignore"):
        halves = [int(np.float16(value).view(np.uint16)) for value in values]
    return halves[0] | (halves[1] << 16 if len(halves) > 1 else 0)


def unpacked(bits: int, wire: int) -> list[F32]:
    """Return the elements of a wavelet."""
    if wire == Wire.FP32:
        return [np.uint32(bits).view(F32)]
    halves = [F32(np.uint16(part).view(np.float16)) for part in (bits & 0xFFFF, bits >> 16)]
    return halves[:1] if wire == Wire.FP16 else halves


def compute(row: list[int], d: F32, a: F32, b: F32, s: F32) -> F32:
    """Compute one element in fp32: every operation rounds."""
    op = row[P.OP]
    if op == Op.MAP:
        return F32(_function(row[P.FN], float(a)))
    forms: dict[int, Callable[[], F32]] = {
        Op.MOV: lambda: a,
        Op.ADD: lambda: a + b,
        Op.SUB: lambda: a - b,
        Op.MUL: lambda: a * b,
        Op.FMAC: lambda: a + b * s,
        Op.MAC: lambda: d + a * b,
        Op.MAX: lambda: max(a, b),
        Op.MIN: lambda: min(a, b),
    }
    with np.errstate(all="ignore"):
        return F32(forms[op]())
