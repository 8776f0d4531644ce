"""Text trace of a small run in the format that the viewer wse-viz reads.

One line per event: ``@cycle P<x>.<y> (hwtile) wavelet ...`` for every hop of a wavelet, ``[EX OP]`` lines when the main
thread's instruction changes.  A wavelet that leaves a router at cycle t lands on the neighbour at t + 1; one that waits
is written when it lands and again, with ``landing=-``, when it leaves.
"""

from __future__ import annotations

import io
from collections import defaultdict

import numpy as np

from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import TRACE_ISSUE, TRACE_MOVE
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Op, Program
from wse_sim.fabric.run import FabricResult

_LANDING = "NESWR"
_DEPARTING = "ENWSR"  # order of the five slots of a departing field
_NEXT = ((-1, 0), (0, 1), (1, 0), (0, -1))
TRACE_ROWS = 2_000_000


def export_trace(
    program: Program,
    config: FabricConfig,
    result: FabricResult,
    *,
    cycles: tuple[int, int] | None = None,
    region: tuple[int, int, int, int] | None = None,
) -> str:
    """Return the trace text of a run made with ``executor="oracle", trace_rows=...``.

    Parameters
    ----------
    cycles : (first, last)
        Cycles to write, both included; all by default.
    region : (row, col, rows, cols)
        Cores to write; all by default.

    Raises
    ------
    ProgramError
        If the run was not traced or the trace is longer than its rows.
    """
    trace = result.trace
    if trace.shape[0] == 0:
        raise ProgramError("the run has no trace; run it with executor='oracle' and trace_rows > 0")
    if config.hop_cycles != 1:
        raise ProgramError(
            f"the viewer expects links of 1 cycle but {config.name} has {config.hop_cycles}; trace it with hop_cycles=1"
        )
    first, last = cycles or (0, int(trace[-1, 0]))
    row0, col0, n_rows, n_cols = region or (0, 0, program.rows, program.user_cols)
    lines: dict[int, list[str]] = defaultdict(list)
    moves = trace[trace[:, 2] == TRACE_MOVE]
    left_at = {(int(m[8]), int(m[1])): int(m[0]) for m in moves}
    for event in trace:
        row, col = divmod(int(event[1]), program.cols)
        col -= program.west
        if not (row0 <= row < row0 + n_rows and col0 <= col < col0 + n_cols):
            continue
        if event[2] == TRACE_ISSUE:
            if first <= event[0] <= last:
                lines[int(event[0])].append(_issue_line(program, event, row, col))
            continue
        _move_lines(program, event, row, col, left_at, lines)
    out = io.StringIO()
    out.write(f"@{first} dimX={program.user_cols}, dimY={program.rows}\n")
    for cycle in sorted(lines):
        if first <= cycle <= last:
            out.write("".join(f"@{cycle} {line}\n" for line in lines[cycle]))
    return out.getvalue()


def _issue_line(program: Program, event: np.ndarray, row: int, col: int) -> str:
    instruction = int(event[3])
    head = f"P{col}.{row}: Id: 0, Instr: 1, Seq: 0, Pipe: 2, Msg: [EX OP]"
    if instruction < 0:
        return f"{head} IDLE"
    return f"{head} ^ 0x{instruction:04x}: T0 {Op(int(program.code[instruction, P.OP])).name}"


def _move_lines(
    program: Program,
    event: np.ndarray,
    row: int,
    col: int,
    left_at: dict[tuple[int, int], int],
    lines: dict[int, list[str]],
) -> None:
    """The departure of a wavelet, and its landing a cycle earlier or more if it waited."""
    cycle, core, slot, port, tx, word, flag, ident = (int(event[i]) for i in (0, 1, 3, 4, 5, 6, 7, 8))
    landed = cycle
    if port < 4:
        d_row, d_col = _NEXT[port]
        before = left_at.get((ident, core + d_row * program.cols + d_col))
        landed = cycle if before is None else before + 1
    outputs = {P.PORT_NAMES[q][0] for q in range(5) if (tx >> q) & 1}
    departing = "".join(letter if letter in outputs else " " for letter in _DEPARTING)
    data = word & 0xFFFFFFFF
    body = (
        f"P{col}.{row} (hwtile) wavelet C{program.slot_color[slot]} ctrl={int(flag == P.FLAG_CONTROL)}, "
        f"idx={data >> 16:04x}, data={data & 0xFFFF:04x} ({data:08x}({data:08x})), half=0, ident={ident:016x} "
    )
    if landed < cycle:
        lines[landed].append(f"{body}landing={_LANDING[port]} departing=/     /")
    arrival = "-" if landed < cycle else _LANDING[port]
    taken = ", to_ce_from_router" if "R" in outputs else ""
    lines[cycle].append(f"{body}landing={arrival} departing=/{departing}/{taken}")
