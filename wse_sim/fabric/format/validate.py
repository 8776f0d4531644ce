"""Checks of a built program; every error is one sentence with core, color and limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Kind, Op, Program

_NEIGHBOUR = ((-1, 0), (0, 1), (1, 0), (0, -1))
# Members of enumerations as integers, because looking one up takes longer than the rest of the check.
_CONTROL, _FMACV, _INDEXED = int(Op.CONTROL), int(Op.FMACV), int(P.Each.INDEXED)
_FABRIC, _MEMORY, _NONE = int(Kind.FABRIC), int(Kind.MEMORY), int(Kind.NONE)
_DATA = int(P.TaskKind.DATA)
_PLACES = (P.D, P.A, P.B, P.S)
_ACCUMULATE = {int(op) for op in (Op.MAC, Op.FMACV)}
_TWO_SOURCES = {int(op) for op in (Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN, Op.MAC, Op.FMAC)}


def validate(program: Program, config: FabricConfig) -> None:
    """Raise :class:`ProgramError` for the first fault of a program."""
    _limits(program, config)
    _instructions(program)
    rx = np.bitwise_or.reduce(program.cfg_rx, axis=1)
    tx = np.bitwise_or.reduce(program.cfg_tx, axis=1)
    for slot in range(program.n_slots):
        _routes(program, slot, rx[program.route[slot]], tx[program.route[slot]])
    _uses(program, rx, tx)
    _pairs(program, tx)
    _buffers(program)


def _limits(program: Program, config: FabricConfig) -> None:
    if program.n_slots > config.colors:
        raise ProgramError(
            f"{program.n_slots} colors are used, limit {config.colors}; share colors by switches"
        )
    if program.n_threads > config.microthreads + 1:
        raise ProgramError(
            f"microthread {program.n_threads - 1} is used, limit {config.microthreads}; number them from 1"
        )
    if len(program.cfg_rx) > np.iinfo(np.uint16).max:
        raise ProgramError(f"{len(program.cfg_rx)} distinct route configurations, limit 65535; use fewer")
    if program.arena_elements >= 2**31:
        raise ProgramError(
            f"buffers of {program.arena_elements} elements in all cores, limit {2**31 - 1}; declare them on fewer cores"
        )


def _instructions(program: Program) -> None:
    owner = program.class_of_instruction()
    for i in np.flatnonzero(program.code[:, P.OP] > _CONTROL):
        if told := _instruction_fault(program, program.code[i].tolist()):
            op = Op(int(program.code[i, P.OP])).name
            raise ProgramError(f"class '{program.class_names[owner[i]]}': {op} {told}")


def _instruction_fault(program: Program, row: list[int]) -> str:
    """Return what is wrong with one instruction, or ""."""
    op, kinds = row[P.OP], {place: row[place + P.KIND] for place in (P.D, P.A, P.B, P.S)}
    inputs = [row[place + P.BUF] for place in (P.A, P.B, P.S) if kinds[place] == _FABRIC]
    if len(set(inputs)) < len(inputs):
        return f"reads color {program.slot_color[inputs[0]]} twice; use two colors"
    if kinds[P.S] == _FABRIC:
        return "takes its scalar from the fabric; move it to memory first"
    if kinds[P.D] not in (_MEMORY, _FABRIC):
        return "has no destination; use a memory or fabric DSD"
    if op in _ACCUMULATE and kinds[P.D] != _MEMORY:
        return "accumulates into the fabric; accumulate in memory, then move"
    if op == _FMACV and kinds[P.B] != _MEMORY:
        return "needs its vector in memory; receive it first"
    is_indexed = op == _FMACV and row[P.FN] & _INDEXED
    if is_indexed and (kinds[P.A] != _FABRIC or row[P.N_PARAM] >= 0):
        return "takes indexed words from memory or without a fixed length; receive at most n"
    if kinds[P.A] == _NONE:
        return "has no first source; give one"
    if op in _TWO_SOURCES and kinds[P.B] == _NONE:
        return "has no second source; give one"
    return ""


def _routes(program: Program, slot: int, rx: npt.NDArray[np.uint8], tx: npt.NDArray[np.uint8]) -> None:
    color = program.slot_color[slot]
    rx2, tx2 = rx.reshape(program.rows, program.cols), tx.reshape(program.rows, program.cols)
    for port, (d_row, d_col) in enumerate(_NEIGHBOUR):
        accepts = np.zeros(rx2.shape, bool)
        src = (
            slice(max(0, d_row), program.rows + min(0, d_row)),
            slice(max(0, d_col), program.cols + min(0, d_col)),
        )
        dst = (
            slice(max(0, -d_row), program.rows + min(0, -d_row)),
            slice(max(0, -d_col), program.cols + min(0, -d_col)),
        )
        accepts[dst] = (rx2[src] >> ((port + 2) % 4)) & 1
        lost = ((tx2 >> port) & 1).astype(bool) & ~accepts
        if lost.any():
            core = int(np.argmax(lost.reshape(-1)))
            raise ProgramError(
                f"color {color} leaves core {program.core_name(core)} to the {P.PORT_NAMES[port]} where nothing "
                f"takes it; give the neighbour an input from there, or end the route here"
            )


def _uses(program: Program, rx: npt.NDArray[np.uint8], tx: npt.NDArray[np.uint8]) -> None:
    """Check that a core that sends (receives) a color has a route from (to) its ramp."""
    code, n_classes = program.code, len(program.class_names)
    owner = program.class_of_instruction()
    sends = np.zeros((n_classes, program.n_slots), bool)
    reads = np.zeros((n_classes, program.n_slots), bool)
    at_work = code[:, P.OP] >= _CONTROL
    for used, place in ((sends, P.D), (reads, P.A), (reads, P.B)):
        rows = np.flatnonzero(at_work & (code[:, place + P.KIND] == _FABRIC))
        used[owner[rows], code[rows, place + P.BUF]] = True
    for c in range(n_classes):
        for row in program.tasks[program.class_tasks[c] : program.class_tasks[c + 1]]:
            if row[P.T_KIND] == _DATA:
                reads[c, row[P.T_KEY]] = True
    for slot in range(program.n_slots):
        route = program.route[slot]
        for used, mask, verb, side in (
            (sends, rx, "sends", "takes it from"),
            (reads, tx, "reads", "brings it to"),
        ):
            bad = used[program.core_class, slot] & ((mask[route] & P.PORT_BIT["R"]) == 0)
            if bad.any():
                core = int(np.argmax(bad))
                raise ProgramError(
                    f"core {program.core_name(core)} {verb} color {program.slot_color[slot]} but no route there "
                    f"{side} the ramp; add R to its {'rx' if verb == 'sends' else 'tx'}"
                )


def _pairs(program: Program, tx: npt.NDArray[np.uint8]) -> None:
    """Check that no control wavelet can reach a core that reads its color in pairs."""
    code, owner = program.code, program.class_of_instruction()
    is_wide = code[:, P.WIRE] == P.Wire.FP16X4
    steers = code[:, P.OP] == Op.CONTROL
    for slot in {int(each) for each in code[steers, P.D + P.BUF]}:
        reads = np.zeros(len(code), bool)
        for place in (P.A, P.B):
            reads |= is_wide & (code[:, place + P.KIND] == Kind.FABRIC) & (code[:, place + P.BUF] == slot)
        if not reads.any():
            continue
        sends = steers & (code[:, P.D + P.BUF] == slot)
        onward = tx[program.route[slot]]
        met = _reached(program, onward, np.isin(program.core_class, owner[sends]))
        bad = met & (onward & P.PORT_BIT["R"] > 0) & np.isin(program.core_class, owner[reads])
        if bad.any():
            raise ProgramError(
                f"color {program.slot_color[slot]} carries control wavelets to core {program.core_name(int(np.argmax(bad)))}, which "
                "reads it in pairs (fp16x4); read it as fp16x2, or steer another color"
            )


def _reached(
    program: Program, onward: npt.NDArray[np.uint8], sources: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return the cores that words of a color can reach from `sources`, including these, in any switch positions."""
    found, open_ = sources.copy(), np.flatnonzero(sources).tolist()
    while open_:
        row, col = divmod(open_.pop(), program.cols)
        for port, (d_row, d_col) in enumerate(_NEIGHBOUR):
            r, c = row + d_row, col + d_col
            inside = 0 <= r < program.rows and 0 <= c < program.cols
            if inside and onward[row * program.cols + col] >> port & 1 and not found[r * program.cols + c]:
                found[r * program.cols + c] = True
                open_.append(r * program.cols + c)
    return found


def _buffers(program: Program) -> None:
    """Every buffer that a class uses must be declared on all cores of the class."""
    n_classes = len(program.class_names)
    first = np.full((n_classes, 2), 1 << 30)
    last = np.full((n_classes, 2), -1)
    cores = np.arange(program.n_cores, dtype=np.int32)
    for axis, index in enumerate((cores // program.cols, cores % program.cols)):
        np.minimum.at(first[:, axis], program.core_class, index)
        np.maximum.at(last[:, axis], program.core_class, index)
    owner = program.class_of_instruction()
    by_index = {info.index: info for info in program.buffers.values()}
    code = program.code
    rows, places = np.nonzero(
        (code[:, [place + P.KIND for place in _PLACES]] == _MEMORY)
        & ((code[:, P.OP] > _CONTROL) & (last[owner, 0] >= 0))[:, None]
    )
    used = zip(owner[rows].tolist(), code[rows, np.array(_PLACES)[places] + P.BUF].tolist(), strict=True)
    for c, buffer in dict.fromkeys(used):  # each pair once, in the order of the instructions
        info = by_index[buffer]
        col = info.col + program.west
        inside = (
            info.row <= first[c, 0]
            and last[c, 0] < info.row + info.rows
            and col <= first[c, 1]
            and last[c, 1] < col + info.cols
        )
        if not inside:
            raise ProgramError(
                f"class '{program.class_names[c]}' reaches cores ({first[c, 0]}, {first[c, 1] - program.west}) to "
                f"({last[c, 0]}, {last[c, 1] - program.west}) but buffer '{info.name}' is declared on rows "
                f"{info.row}..{info.row + info.rows - 1}, columns {info.col}..{info.col + info.cols - 1}; "
                "declare it on all of them"
            )
