"""The outermost door of the command line: every way to end is an exit status and at most one line.

0 done; 1 the model does not fit (the result says what binds); 2 bad usage or input; 3 a fault of the simulator
itself; 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    pass

INTERRUPTED = 130
GARBAGE = 50_000, 20, 50
"""How often the interpreter looks for cycles: a command makes few, and torch alone leaves 700,000 lasting objects."""
_signals: list[int] = []  # interrupts that came while a command ran


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    """While modules load, nothing is open that would have to be closed."""
    os.write(2, b"wse-sim: interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """The first signal unwinds, so that files and workers are closed; the second one does not wait."""
    if _signals:
        _leave_at_once(number, frame)
    _signals.append(number)
    raise KeyboardInterrupt


def main() -> None:
    """The program ``wse-sim``: load the commands, run one, end with its status."""
    signal.signal(signal.SIGINT, _leave_at_once)
    # The last thing of all: an interpreter that ends gives its handlers back, and a late signal would kill it.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    # Or the interpreter looks for cycles among millions of objects before it ends.  Not sooner: a caller who goes on
    # (a test, a notebook) would keep all garbage of this command for ever.
    atexit.register(gc.freeze)
    gc.set_threshold(*GARBAGE)
    try:
        from wse_sim.cli import app

        signal.signal(signal.SIGINT, _interrupt)
        status = run(app, sys.argv[1:])
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of our output has gone, as in `wse-sim show models | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finally:
        signal.signal(signal.SIGINT, _leave_at_once)  # threads may still be waited for
    sys.exit(status)


def run(app: Callable[..., Any], words: Sequence[str]) -> int:
    """Run one command line; returns its exit status, prints one line for a fault."""
    from wse_sim import files

    try:
        return _run(app, words)
    finally:
        files.drop_claims()


def _run(app: Callable[..., Any], words: Sequence[str]) -> int:
    import typer

    from wse_sim.errors import WseError
    from wse_sim.files import refusal
    from wse_sim.foreign import is_own, place_of, sentence

    try:
        status = int(app(args=list(words), standalone_mode=False, prog_name="wse-sim") or 0)
        return _say("interrupted", INTERRUPTED) if status == INTERRUPTED and _signals else status
    except WseError as fault:
        return _say(str(fault), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except SystemExit as leaving:
        if place := place_of(
            leaving
        ):  # code of the user's ends the program: its status must not pass for ours
            return _say(sentence(leaving, place), 2)
        return leaving.code if isinstance(leaving.code, int) else 1 if leaving.code else 0
    except BaseException as fault:  # the outermost door: whatever is left
        if _signals:  # a library made something else of the signal
            return _say("interrupted", INTERRUPTED)
        if hasattr(fault, "format_message"):  # a usage fault of the command line's own parser
            return _usage(cast(UsageFault, fault))
        if (place := place_of(fault)) and not is_own(fault):
            return _say(sentence(fault, place), 2)
        if isinstance(fault, OSError) and fault.errno in (28, 122):  # the disk is full, the quota is used up
            return _say(f"writing failed ({fault.strerror}); make room or name another folder", 2)
        if isinstance(fault, OSError) and (
            refused := refusal(fault)
        ):  # a path that no command looked at first
            return _say(refused, 2)
        if isinstance(fault, MemoryError):
            return _say("memory is used up; ask for a smaller run", 2)
        return _own(fault)


class UsageFault(Protocol):
    """A fault of the command line's own parser."""

    def format_message(self) -> str:
        """The fault as text."""


def _usage(fault: UsageFault) -> int:
    """A wrong option or argument, in one sentence; no arguments at all show the help."""
    context = getattr(fault, "ctx", None)
    if type(fault).__name__ == "NoArgsIsHelpError":
        print(fault.format_message())
        return 2
    text = " ".join(str(fault.format_message()).split()).rstrip(".")
    path = context.command_path if context is not None else "wse-sim"
    return _say(f"{text}; '{path} --help' lists what it takes", 2)


def _own(fault: BaseException) -> int:
    import traceback

    if os.environ.get("WSE_SIM_TRACEBACK"):
        traceback.print_exc()
    where = traceback.extract_tb(fault.__traceback__)[-1]
    text = " ".join(str(fault).split())[:300]
    return _say(
        f"fault of the simulator: {type(fault).__name__}: {text} ({where.filename}:{where.lineno}); "
        "set WSE_SIM_TRACEBACK=1 for the trace and report it",
        3,
    )


def _say(text: str, status: int) -> int:
    """One line; a very long word (a value that was pasted) is cut in the middle."""
    words = (word if len(word) <= 300 else f"{word[:120]}...{word[-60:]}" for word in text.split())
    line = f"wse-sim: {' '.join(words)}"
    print(line.encode("utf-8", "backslashreplace").decode("utf-8"), file=sys.stderr)
    return status
