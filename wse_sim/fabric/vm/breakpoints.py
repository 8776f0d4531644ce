"""Stops of single cores before a row of code, without a price for machines that nobody debugs.

A row at which cores may stop is replaced by BREAK.  No opcode has this number, so it ends a stretch of scalar code as a fault would, at the
core and the cycle; the other cores complete the cycle.  A core that is in none of the row's groups continues with a copy of the row behind the
code.  :func:`complete_cycle` lets the cores that stopped go on within the same cycle, so results and cycles stay as they are.

Code of a machine with stops, of n rows: n rows as compiled, then three rows for each of them: its copy and a jump back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm import bands as B
from wse_sim.fabric.vm import loop as L
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image

Array = npt.NDArray[Any]
COPY = 3
GROUPS = 30
"""Sets of cores that rows can name; each is a bit."""
_ENDS = (int(O.Op.RET), int(O.Op.END), int(O.Op.JMP))
_CONDITIONAL = tuple(int(O.Op[name]) for name in O.Op.__members__ if name[0] == "J" and name != "JMP")


def with_stops(machine: S.Machine) -> S.Machine:
    """The machine with a copy of every row of its code, and no stop."""
    code, late = machine.code.reshape(-1, 4), machine.late_price
    n = len(code)
    copies = np.zeros((n, COPY, 4), np.int32)  # NOP without a price
    rows, targets = np.arange(n), code[:, 3]
    op = code[:, 0] & 255
    ends, branches = np.isin(op, _ENDS), np.isin(op, _CONDITIONAL)
    copies[~ends, 0] = code[~ends]
    copies[ends, 1] = code[ends]
    copies[~ends, 1, 0], copies[~ends, 1, 3] = int(O.Op.JMP), rows[~ends] + 1
    copies[branches, 0, 3] = (
        first_copies(n)[branches] + 2
    )  # a jump that is taken passes one more row, as one that is not
    copies[branches, 2, 0], copies[branches, 2, 3] = int(O.Op.JMP), targets[branches]
    late_copies = np.zeros((n, COPY), np.int32)
    late_copies[~ends, 0] = late[~ends]
    counts = machine.found_count
    return machine._replace(
        code=np.ascontiguousarray(np.concatenate([code, copies.reshape(-1, 4)]).reshape(-1), np.int32),
        late_price=np.ascontiguousarray(np.concatenate([late, late_copies.reshape(-1)]), np.int32),
        found_count=np.zeros((counts.shape[0], (1 + COPY) * counts.shape[1]), np.int64),
        stops=np.zeros(machine.core.shape[0], np.int64),
    )


def with_places(image: Image) -> Image:
    """The image whose copies of rows have the places of the rows, for messages; it cannot be run."""
    copies = np.repeat(image.source, COPY)
    return dataclasses.replace(image, source=np.concatenate([image.source, copies]))


def first_copies(n: int) -> Array:
    """Where the copy of each of `n` rows begins."""
    return n + COPY * np.arange(n)


def row_of(pc: int, n: int) -> int:
    """Return the original row of a row of the code, which may be a copy."""
    return pc if pc < n else (pc - n) // COPY


def set_stops(machine: S.Machine, clean: Array, rows: Mapping[int, int], cores: Mapping[int, Array]) -> None:
    """Replace rows by stops: row -> mask of groups, group -> cores; `clean` is the code without stops."""
    machine.code[:] = clean
    code = machine.code.reshape(-1, 4)
    for row, mask in rows.items():
        code[row] = (S.BREAK, 0, 0, mask)
    machine.stops[:] = 0
    for group, chosen in cores.items():
        machine.stops[chosen] |= 1 << group


def mark_stops(machine: S.Machine) -> None:
    """Separate stops of the debugger from faults of the program after a run."""
    core = machine.core
    at_stop = machine.code[4 * core[:, S.PC]] == S.BREAK
    core[at_stop & (core[:, S.FAULT] == S.F_OPCODE), S.FAULT] = S.F_STOP


def stopped_cores(machine: S.Machine) -> Array:
    """Cores that are at a stop within the present cycle; none if a core has a fault of the program."""
    fault = machine.core[:, S.FAULT]
    stopped = np.flatnonzero(fault == S.F_STOP)
    return stopped if np.count_nonzero(fault) == len(stopped) else stopped[:0]


def complete_cycle(machine: S.Machine, band: B.Band, cores: Iterable[int]) -> bool:
    """Let cores that stopped go on within the present cycle; True if the cycle is over, False if some stopped again.

    The other cores, the routers and the host have done their part of the cycle, so they are hidden from the loop.
    """
    m, size, core = machine, machine.size, machine.core
    chosen, n = np.fromiter(cores, np.int64), machine.late_price.shape[0] // (1 + COPY)
    core[chosen, S.PC] = n + COPY * core[chosen, S.PC]
    core[chosen, S.MODE], core[chosen, S.FAULT] = S.RESUMED, S.F_NONE
    core[chosen, S.CARRIED] -= 1  # the jump back is no instruction of the program
    core[chosen, S.OPCODES] -= 1
    now, parity = int(size[S.CLOCK]), int(size[S.PARITY])
    m.ready[parity, : len(chosen)] = chosen
    m.listed[chosen] |= np.uint8(1 << parity)
    routers, rings = m.router_list[: size[S.N_ROUTERS]].copy(), m.rings_list[: size[S.N_RINGS]].copy()
    timed = int(size[S.N_TIMED])
    size[S.N_READY], size[S.FAULTS], size[S.PHASE] = len(chosen), 0, L.BEGIN
    size[[S.N_ROUTERS, S.N_RINGS, S.N_INJECTING, S.N_TIMED]] = 0
    none = np.zeros((1, S.INJECTION_FIELDS), np.int64)
    why = int(L.run(m, band, none, np.zeros(1, np.int64), False, now + 1, 0))
    for field, held, listed in ((S.N_ROUTERS, routers, m.router_list), (S.N_RINGS, rings, m.rings_list)):
        both = np.concatenate([held, listed[: size[field]]])
        listed[: len(both)] = both
        size[field] = len(both)
    size[S.N_TIMED] += timed
    size[S.PHASE] = L.BEGIN
    if why == L.FAULTED:
        return False
    is_quiet = not size[[S.N_ROUTERS, S.N_RINGS, S.N_TIMED, S.N_READY]].any()
    size[S.CLOCK] = now if is_quiet else now + 1
    return True
