"""Issue costs of every instruction on one wafer: the only place where rates become cycles."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Kind, Op, Program

# Columns of the cost table.  C_PER = elements per step, 0 for an instruction without fabric operand;
# C_MILLI = 1/1000 cycles per step (fabric) or per element (memory only).
C_START, C_PER, C_MILLI = range(3)

ELEMENTS_PER_STEP = {P.Wire.FP32: 1, P.Wire.FP16: 1, P.Wire.FP16X2: 2, P.Wire.FP16X4: 4}


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program on one wafer: what an executor runs.  ``costs`` int64 (n_instr, 3) has the columns C_*."""

    program: Program
    config: FabricConfig
    costs: npt.NDArray[np.int64]


def lower(program: Program, config: FabricConfig) -> Lowered:
    """Return `program` with the cost of every instruction on `config`."""
    seen: dict[bytes, int] = {}  # large programs repeat few distinct instructions
    place = [seen.setdefault(row.tobytes(), len(seen)) for row in program.code]
    _, first = np.unique(np.array(place, np.int64), return_index=True)
    return Lowered(program, config, _cost_table(program, config, program.code[first])[place])


def _cost_table(program: Program, config: FabricConfig, code: P.IntArray) -> npt.NDArray[np.int64]:
    table = np.zeros((len(code), 3), np.int64)
    for i in np.flatnonzero(code[:, P.OP] >= P.FIRST_VECTOR_OP):
        row = code[i]
        table[i, C_START] = (config.start_code_cycles, config.start_loaded_cycles, 0)[row[P.START]]
        element = element_milli(program, row, config)
        fabric = any(row[place + P.KIND] == Kind.FABRIC for place in (P.D, P.A, P.B))
        if fabric:
            per = ELEMENTS_PER_STEP[P.Wire(int(row[P.WIRE]))]
            table[i, C_PER] = per
            table[i, C_MILLI] = max(1000, per * element)
        else:
            table[i, C_MILLI] = element
    return table


_RATE_OF = {Op.MOV: "mov_milli", Op.MUL: "mul_milli", Op.MAX: "max_milli", Op.MIN: "max_milli"}


def element_milli(program: Program, row: npt.NDArray[np.int64], config: FabricConfig) -> int:
    """Cost of one element in 1/1000 cycle: rate by type and width, bank rule, map cost."""
    op, dtype = Op(int(row[P.OP])), int(row[P.DTYPE])
    if row[P.PERIOD]:
        return int(row[P.PERIOD])
    if op == Op.CONTROL:
        return 1000
    if op == Op.MAP:
        return config.fn_milli[row[P.FN]]
    from_memory = sum(row[p + P.KIND] == Kind.MEMORY and row[p + P.STRIDE] != 0 for p in (P.A, P.B))
    if op in (Op.ADD, Op.SUB):
        rate = (config.add_memory_milli if from_memory == 2 else config.add_milli)[dtype]
    else:
        rate = getattr(config, _RATE_OF.get(op, "fma_milli"))[dtype]
    if op != Op.FMACV and row[P.D + P.KIND] == Kind.MEMORY and row[P.D + P.STRIDE] == 0:
        rate = max(rate, 1000)  # an accumulator depends on itself: one element a cycle at most
    if has_bank_conflict(program, row, config):
        rate = -(-rate * config.conflict_milli // 1000)
    fraction = misaligned_fraction(program, row) if dtype == P.Dtype.FP16 else 0.0
    slow = max(rate, config.misaligned_fp16_milli)
    if op != Op.FMACV:
        return round(rate + fraction * (slow - rate))
    per_element = config.map_element_milli + (config.map_vector_milli if row[P.M] > 1 else 0)
    if row[P.FN] & P.Each.TRIGGERED:
        per_element = config.triggered_milli
    # A column as wide as the SIMD unit is one issue, whatever limits the rate of long columns.
    width, length = (
        config.simd_fp16 if dtype == P.Dtype.FP16 and rate == config.fma_milli[dtype] else 1,
        int(row[P.M]),
    )
    inner = (
        1000 * (1 + -(-max(0, length - width) * rate // 1000))
        if width > 1
        else 1000 * max(1, -(-length * rate // 1000))
    )
    inner_slow = 1000 * max(1, -(-length * slow // 1000))
    return int(per_element) + round(inner + fraction * (inner_slow - inner))


@dataclasses.dataclass(frozen=True)
class _Read:
    """A vector read from memory: address (bytes) in the first iteration, stride, steps per iteration of the
    enclosing loops."""

    address: int
    stride: int
    element_bytes: int
    steps: tuple[int, int, int]


def _vector_reads(program: Program, row: npt.NDArray[np.int64]) -> list[_Read]:
    """Vector operands that an instruction reads from memory; one that is read twice is one read."""
    op = Op(int(row[P.OP]))
    places = {Op.FMACV: (P.D, P.B), Op.MAC: (P.D, P.A, P.B)}.get(op, (P.A, P.B))
    reads = []
    for place in places:
        if row[place + P.KIND] != Kind.MEMORY or row[place + P.STRIDE] == 0:
            continue
        buffer = program.buffer_table[row[place + P.BUF]]
        size = 2 if buffer[P.B_DTYPE] else 4
        outer = {P.D: P.D_OUTER, P.B: P.B_OUTER}.get(place) if op == Op.FMACV else None
        steps = (
            int(row[place + P.STEP]),
            int(row[place + P.OUTER_STEP]),
            0 if outer is None else int(row[outer]),
        )
        address = int(buffer[P.B_ADDRESS] + size * row[place + P.OFFSET])
        reads.append(_Read(address, int(row[place + P.STRIDE]), size, steps))
    return list(dict.fromkeys(reads))


def has_bank_conflict(program: Program, row: npt.NDArray[np.int64], config: FabricConfig) -> bool:
    """Two vector reads whose first 16-bit words are equal modulo half the banks (fp32: `fp32_bank_period_words`).

    This is a static rule for the first iteration of every loop.
    """
    period = config.sram_banks // 2 if row[P.DTYPE] == P.Dtype.FP16 else config.fp32_bank_period_words
    pairs = combinations(_vector_reads(program, row), 2)
    return any(a.address // 2 % period == b.address // 2 % period for a, b in pairs)


def misaligned_fraction(program: Program, row: npt.NDArray[np.int64]) -> float:
    """Return the fraction of an instruction's iterations in which two contiguous fp16 vectors start half a
    32-bit word apart.

    A static rule: if the distance of the two starts changes by an odd number of elements per iteration
    (columns of odd length), it is every other iteration.
    """
    reads = [read for read in _vector_reads(program, row) if read.element_bytes == 2 and read.stride == 1]
    fractions = [0.0]
    for a, b in combinations(reads, 2):
        alternates = any((x - y) % 2 for x, y in zip(a.steps, b.steps, strict=True))
        fractions.append(0.5 if alternates else float((a.address - b.address) // 2 % 2))
    return max(fractions)
