"""The outermost door of the command line: every way to end is an exit status and at most one line.

0 done; 1 the model does not fit (the result states the bottleneck); 2 bad usage or input, or no room where it runs; 3 a fault
of the simulator itself; 130 interrupted (143 by SIGTERM, 129 by a terminal that goes).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, cast

from wse_sim import compile_time

if TYPE_CHECKING:
    pass

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))
LEAST_BYTES = 560 * 2**20
"""Address space below which the loaded libraries cannot even report a shortage; a run needs more."""

GARBAGE = 50_000, 20, 50
"""Thresholds of the cyclic garbage collector: a command makes few cycles, and torch alone leaves 700,000
lasting objects."""
_signals: list[int] = []  # interrupts that came while a command ran
_owner = [os.getpid()]  # the process that runs the command: workers are copies of it


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    """While modules load, nothing is open that would have to be closed; nor in a copy of this process."""
    if [os.getpid()] == _owner:
        with contextlib.suppress(OSError):
            os.write(2, b"wse-sim: interrupted\n")
    os._exit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """The first signal unwinds, so that files and workers are closed; the second one does not wait."""
    if _signals or [os.getpid()] != _owner:
        _leave_at_once(number, frame)
    _signals.append(number)
    raise KeyboardInterrupt


def main() -> None:
    """The program ``wse-sim``: load the commands, run one, end with its status."""
    _owner[:] = [os.getpid()]
    _open_standard_files()
    _listen(_leave_at_once)
    if short := _too_little_memory():
        sys.exit(_say(short, 2))
    # The last thing of all: an interpreter that ends gives its handlers back, and a late signal would kill it.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    # Or the interpreter looks for cycles among millions of objects before it ends.  Not sooner: a caller who continues
    # (a test, a notebook) would keep all garbage of this command forever.
    atexit.register(gc.freeze)
    gc.set_threshold(*GARBAGE)
    compile_time.so_far.announces = True
    # numba colors a message for each overload that it rejects, and prints none of them: 5 % of the time to compile.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
    try:
        try:
            from wse_sim.cli import app
        except BaseException as fault:
            if not (short := shortage(fault)):
                raise
            sys.exit(_say(short, 2))
        _listen(_interrupt)
        status = _flushed(run(app, sys.argv[1:]))
    finally:
        _listen(_leave_at_once)  # threads may still be waited for
    sys.exit(status)


def _too_little_memory() -> str:
    """A sentence if the limit on memory is one under which the libraries of arithmetic end a process by themselves."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit in (resource.RLIM_INFINITY, -1) or limit >= LEAST_BYTES:
        return ""
    return f"memory is limited to {limit:,} bytes; give {LEAST_BYTES:,} at least (ulimit -v {LEAST_BYTES // 1024})"


def _listen(handler: Callable[[int, FrameType | None], None]) -> None:
    """Hear the signals that end a command; one that was to be ignored (nohup) is."""
    for number in SIGNALS:  # a shell's background jobs ignore SIGINT, which is no wish of anybody's
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _open_standard_files() -> None:
    """Connect closed standard files to /dev/null; otherwise the next opened file would receive what is printed."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        if os.open(os.devnull, os.O_RDWR) == number or getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # for good
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and not (stream.encoding or "").lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def _flushed(status: int) -> int:
    """The status of a command whose output has arrived."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone, as in `wse-sim show models | head`
        _to_nowhere(1)
    except OSError as fault:
        _to_nowhere(1)
        return _say(f"standard output cannot be written ({fault.strerror}); name another file", 2)
    return status


def _to_nowhere(number: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


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
    from wse_sim.user_code import is_own, place_of, sentence

    try:
        status = int(app(args=list(words), standalone_mode=False, prog_name="wse-sim") or 0)
        return _interrupted() if status == INTERRUPTED and _signals else status
    except WseError as fault:
        return _say_lines(str(fault), 2) if fault.keeps_lines else _say(str(fault), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        _to_nowhere(1)
        return 0
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # the parser's own answer to a reader that went
            _to_nowhere(1)
            return 0
        if place := place_of(
            leaving
        ):  # code of the user's ends the program: its status must not pass for ours
            return _say(sentence(leaving, place), 2)
        return leaving.code if isinstance(leaving.code, int) else 1 if leaving.code else 0
    except BaseException as fault:  # the outermost door: whatever is left
        if _signals:  # a library made something else of the signal
            return _interrupted()
        if hasattr(fault, "format_message"):  # a usage fault of the command line's own parser
            return _usage(cast(UsageFault, fault))
        if (place := place_of(fault)) and not is_own(fault):
            return _say(sentence(fault, place), 2)
        if short := shortage(fault):
            return _say(short, 2)
        if isinstance(fault, OSError) and (
            refused := refusal(fault)
        ):  # a path that no command looked at first
            return _say(refused, 2)
        return _own(fault)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = (
    "cannot allocate memory",
    "failed to map segment",
    "unable to allocate",
    "can't allocate memory",
)
_NO_PROCESS = ("can't start new thread", "resource temporarily unavailable")
_NO_FILE = ("too many open files",)


def shortage(fault: BaseException) -> str:
    """A sentence that names the resource that the machine ran out of; "" if a fault has another cause.

    Libraries wrap system errors, so the causes of causes are searched too, as are the texts of messages.
    """
    for cause in _causes(fault):
        number = cause.errno if isinstance(cause, OSError) else None
        text = " ".join(str(cause).lower().split())
        if number in _NO_ROOM:
            why = cause.strerror if isinstance(cause, OSError) else ""
            return f"writing failed ({why}); make room or name another folder"
        if (
            isinstance(cause, MemoryError)
            or number == errno.ENOMEM
            or any(said in text for said in _NO_MEMORY)
        ):
            return "memory is exhausted; use a smaller run, or raise the limit (ulimit -v)"
        if number in (errno.EMFILE, errno.ENFILE) or any(said in text for said in _NO_FILE):
            return "too many files are open; raise the limit (ulimit -n), or use fewer workers"
        if number == errno.EAGAIN or any(said in text for said in _NO_PROCESS):
            return "no more threads or processes are available; raise the limit (ulimit -u), or use fewer workers"
    return ""


def _causes(fault: BaseException) -> Iterator[BaseException]:
    """A fault, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = fault
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _interrupted() -> int:
    return _say("interrupted", 128 + (_signals[0] if _signals else signal.SIGINT))


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
    return _say(f"{text}; '{path} --help' lists its arguments", 2)


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


def _say_lines(text: str, status: int) -> int:
    """Print a sentence, and below it further lines with their indents."""
    first, *rest = text.splitlines() or [""]
    status = _say(first, status)
    for line in rest:  # spaces too: a caret is below its column
        status = _print("".join(map(_shortened, re.split(r"(\s+)", line.rstrip()))), status)
    return status


def _whole_words(text: str) -> str:
    """The words of a text, each apart by a space; a very long word (a value that was pasted) is cut in the middle."""
    return " ".join(map(_shortened, text.split()))


def _shortened(word: str) -> str:
    return word if len(word) <= 300 else f"{word[:120]}...{word[-60:]}"


def _say(text: str, status: int) -> int:
    """One line."""
    return _print(f"wse-sim: {_whole_words(text)}", status)


def _print(line: str, status: int) -> int:
    try:
        print(line.encode("utf-8", "backslashreplace").decode("utf-8"), file=sys.stderr, flush=True)
    except OSError:  # nobody can be told: the status says it
        _to_nowhere(2)
    return status
