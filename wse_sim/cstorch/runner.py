"""The runner: executes a script as ``__main__`` with the aliases installed, and reports its last exception in
one sentence."""

from __future__ import annotations

import importlib
import logging
import os
import re
import runpy
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from wse_sim.errors import WseError
from wse_sim.files import read_text


class _Lines(logging.Formatter):
    """``wse_sim: text`` for every line of ours."""

    def format(self, record: logging.LogRecord) -> str:
        return f"wse_sim: {record.getMessage()}"


def prepare_log() -> None:
    """Send this package's log to standard error, independently of the script's logging."""
    from wse_sim.cstorch.faults import LOG

    if any(getattr(h, "_wse_sim", False) for h in LOG.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    handler._wse_sim = True  # type: ignore[attr-defined]
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def run_script(path: str, arguments: list[str], show_traceback: bool = False) -> int:
    """Run a script; returns the exit status.

    The script's own status; 2 for a program that the wafer cannot run, 1 if it does not fit.
    """
    from wse_sim.cstorch import doors, outcome, runtime
    from wse_sim.cstorch.monitor import server

    prepare_log()
    file = Path(path)
    read_text(file, "script")
    doors.install_aliases()
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        status = _outcome_of(file, show_traceback)
        try:
            outcome.finish(runtime.run(), status)
        except WseError as fault:
            _say(fault, show_traceback)
            status = status or 2
        return status
    finally:
        # A caller in the same process (a notebook, a test) keeps neither our handler nor a run that looks live.
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        server.stop()


def _outcome_of(file: Path, show_traceback: bool) -> int:
    """Run the script; the exit status."""
    from wse_sim.cstorch import faults, outcome

    status = 0
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as leaving:
        status = _status(leaving.code)
    except KeyboardInterrupt:
        status = outcome.INTERRUPTED
        _close_execution()
        print("wse_sim: interrupted; closures are drained", file=sys.stderr)
    except faults.DoesNotFitError as fault:
        status = 1
        _say(fault, show_traceback)
    except WseError as fault:
        status = 2
        _say(fault, show_traceback)
    except Exception as fault:  # the script's own: shown as Python shows it, without our frames
        status = _own_fault(fault, show_traceback)
    return status


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _close_execution() -> None:
    from wse_sim.cstorch import runtime

    execution = runtime.run().execution
    if execution is not None:
        execution.finish()


def _say(fault: BaseException, show_traceback: bool) -> None:
    if show_traceback:
        traceback.print_exception(fault)
    print(f"wse-sim: {' '.join(str(fault).split())}", file=sys.stderr)


def _own_fault(fault: Exception, show_traceback: bool) -> int:
    """Return a fault of the script: a fault of the program (cause), or Python's own report of the script's frames."""
    cause: BaseException | None = fault
    while cause is not None:
        if isinstance(cause, WseError):
            _say(cause, show_traceback)
            return 2
        cause = cause.__cause__
    if not show_traceback:
        first = fault.__traceback__
        while first is not None and "runpy" not in first.tb_frame.f_code.co_filename:
            first = first.tb_next
        while first is not None and "runpy" in first.tb_frame.f_code.co_filename:
            first = first.tb_next
        fault.__traceback__ = first or fault.__traceback__
    traceback.print_exception(fault)
    _say_near(fault)
    return 1


def _say_near(fault: Exception) -> None:
    """Print similar names after a failed ``from cerebras.pytorch.optim import AdmW``, since Python drops the
    module's message."""
    from wse_sim.cstorch import doors

    found = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(fault))
    if isinstance(fault, ImportError) and found and (behind := doors.behind(found[2])) is not None:
        near = doors.near(found[1], dir(importlib.import_module(behind)))
        print(
            f"wse-sim: {found[2]} has no {found[1]}{near}; supported names: docs/cstorch.md", file=sys.stderr
        )
