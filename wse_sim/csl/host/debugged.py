"""Settings of ``csl debug`` for every program of a command file.

The environment names a socket, over which a front end controls a session that can stop and step back.
"""

from __future__ import annotations

import os
from pathlib import Path

from wse_sim.csl.debug.console import ConsoleFront
from wse_sim.csl.debug.dap import DapFront
from wse_sim.csl.debug.debugger import Debugger
from wse_sim.csl.debug.wire import EditorWire
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.replay import ReplaySession, StopEvent
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import Wafer

DEBUG_VARIABLE = "WSE_SIM_CSL_DEBUG"
"""Environment variable ``FRONT|SOCKET`` with FRONT console or dap; unset: no debugging."""
CONSOLE, DAP = "console", "dap"


def is_debugged() -> bool:
    """Return whether the environment requests the debugger."""
    return bool(os.environ.get(DEBUG_VARIABLE))


def debugged_session(image: Image, wafer: Wafer, **how: object) -> ReplaySession:
    """Return a session that the front end at the environment's socket controls; it stops before the first
    cycle."""
    kind, path = os.environ[DEBUG_VARIABLE].split("|", 1)
    wire = EditorWire.connect(Path(path))
    debugger = Debugger(ConsoleFront(wire) if kind == CONSOLE else DapFront(wire))
    session = ReplaySession(image, wafer, **how)  # type: ignore[arg-type]
    debugger.attach(session, image)
    debugger.stopped(StopEvent("loaded", 0))
    return session


def tell_end(session: Session) -> None:
    """Notify the debugger, if there is one, that its session has ended."""
    if isinstance(session, ReplaySession):
        session.ended()
