"""Settings of ``csl run --trace`` for every run of a command file: cores, cycles and output folder of the
trace."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from wse_sim.atomic_files import together
from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.host.debugged import debugged_session, is_debugged
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.session import Session
from wse_sim.fabric.vm.trace import TracedSession, Tracer
from wse_sim.hardware.wafer import Wafer

TRACE_VARIABLE = "WSE_SIM_CSL_TRACE"
"""Environment variable ``CORES|CYCLES|FOLDER``; unset: no trace."""
_PART = re.compile(r"(\d{1,6})(?::(\d{1,6}))?,(\d{1,6})(?::(\d{1,6}))?")
_SPAN = re.compile(r"(\d{1,15}):(\d{1,15})")
TIMELINE, LOG = "timeline.json", "sim.log"


def cores_of(text: str) -> list[tuple[int, int]]:
    """Parse ``X,Y`` or ``X0:X1,Y0:Y1`` (ends not included), several joined by ``+``, into a list of cores (x,
    y).

    Raises
    ------
    HostError
        If the text has another form or names no core.

    Examples
    --------
    >>> cores_of("0:2,0+5,1")
    [(0, 0), (1, 0), (5, 1)]
    """
    found: dict[tuple[int, int], None] = {}
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise HostError(
                f"--trace has '{part.strip()[:40]}'; give X,Y or X0:X1,Y0:Y1 (ends not included), several joined by +"
            )
        x0, y0 = int(match[1]), int(match[3])
        x1, y1 = int(match[2] or x0 + 1), int(match[4] or y0 + 1)
        if (x1 - x0) * (y1 - y0) > 1_000_000:
            raise HostError(f"--trace {part.strip()} names {(x1 - x0) * (y1 - y0):,} cores; name fewer")
        found |= {(x, y): None for y in range(y0, y1) for x in range(x0, x1)}
    if not found:
        raise HostError(f"--trace {text[:40]} names no core; X1 must be above X0, Y1 above Y0")
    return list(found)


def cycles_of(text: str) -> tuple[int, int]:
    """Parse ``FIRST:END`` into the first cycle and the end, which is not included.

    Raises
    ------
    HostError
        If the text has another form, or END is not greater than FIRST.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None or int(match[1]) >= int(match[2]):
        raise HostError(f"--cycles is '{text[:40]}'; give FIRST:END, with FIRST below END")
    return int(match[1]), int(match[2])


def traced_session(image: Image, wafer: Wafer, **how: Any) -> Session:
    """Return a session for the program: a debugged or traced one if the environment requests it."""
    if is_debugged():
        return debugged_session(image, wafer, **how)
    asked = os.environ.get(TRACE_VARIABLE)
    if not asked:
        return Session(image, wafer, **how)
    cores, cycles, _ = asked.split("|", 2)
    return TracedSession(image, wafer, Tracer(image, cores_of(cores), cycles_of(cycles)), **how)


def write_trace_where_asked(session: Session) -> None:
    """Write the trace of a traced session to its folder, and print a summary to standard error."""
    if not isinstance(session, TracedSession):
        return
    folder, tracer = Path(os.environ[TRACE_VARIABLE].split("|", 2)[2]), session.tracer
    with together(folder) as part:
        (part / TIMELINE).write_text(tracer.timeline(), encoding="utf-8")
        (part / LOG).write_text(tracer.log(), encoding="utf-8")
    cut = (
        f"; the trace is full at cycle {tracer.cut_at:,}: name fewer cores or cycles"
        if tracer.cut_at >= 0
        else ""
    )
    count = f"{len(tracer.spans):,} spans and {len(tracer.words):,} words"
    print(f"wse-sim: trace of {len(tracer.cores)} cores in {folder}: {count}{cut}", file=sys.stderr)
