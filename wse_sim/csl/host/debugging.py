"""Terminal side of the debugger: runs a command file and sends commands to each program that it starts."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wse_sim.atomic_files import scratch
from wse_sim.csl.debug.wire import EditorWire, Message
from wse_sim.csl.host.commands import run_commands
from wse_sim.csl.host.debugged import CONSOLE
from wse_sim.errors import WseError
from wse_sim.files import read_text

LOOK_S = 0.1


class Run:
    """Command file that runs in a thread; its programs connect one after the other."""

    def __init__(
        self, file: Path, kind: str, listener: socket.socket, path: Path, timeout_s: float | None
    ) -> None:
        self.status: int | None = None
        self.fault: BaseException | None = None
        self._listener = listener
        self._work = threading.Thread(target=self._run, args=(file, f"{kind}|{path}", timeout_s), daemon=True)
        self._work.start()

    def _run(self, file: Path, asked: str, timeout_s: float | None) -> None:
        try:
            self.status = run_commands(file, timeout_s=timeout_s, debug=asked).returncode
        except (WseError, subprocess.TimeoutExpired) as fault:
            self.fault = fault

    def is_over(self) -> bool:
        """Return whether the command file has ended."""
        return not self._work.is_alive()

    def next_program(self, timeout_s: float) -> EditorWire | None:
        """Return the connection of the next program, or None if none connects within `timeout_s` seconds."""
        ready = select.select([self._listener], [], [], timeout_s)[0]
        return EditorWire(self._listener.accept()[0]) if ready else None

    def end(self) -> int:
        """Wait for the command file to end; return its exit status, or raise its error."""
        self._work.join()
        if self.fault is not None:
            raise self.fault
        assert self.status is not None
        return self.status


@contextmanager
def running(file: Path, kind: str, timeout_s: float | None = None) -> Iterator[Run]:
    """Run a command file with debugging, as a context manager; yield the :class:`Run`."""
    with scratch("debug") as folder:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path = folder / "s"
            listener.bind(str(path))
            listener.listen(4)
            yield Run(file, kind, listener, path, timeout_s)
        finally:
            listener.close()


def lines_of(left: list[str], *, batch: bool) -> Callable[[], str | None]:
    """Return a function that returns the next command, or None at the end.

    It pops the commands of `left` from the end; then, unless `batch`, it reads standard input.
    """

    def following() -> str | None:
        if left:
            print(f"(csl) {left[-1]}", flush=True)
            return left.pop()
        if batch:
            return None
        try:
            line = input("(csl) ")
        except EOFError:
            return None
        if not sys.stdin.isatty():
            print(line, flush=True)
        return line

    return following


def debug_console(file: Path, script: Path | None, *, batch: bool, timeout_s: float | None = None) -> int:
    """Debug a command file in the terminal and return its exit status.

    After the last command the program continues without stops.

    Raises
    ------
    WseError
        If the command file or the commands cannot be read, or the time limit passes.
    """
    left = [] if script is None else read_text(script, "the commands", WseError).splitlines()[::-1]
    following = lines_of(left, batch=batch)
    with running(file, CONSOLE, timeout_s) as run:
        while not run.is_over():
            wire = run.next_program(LOOK_S)
            if wire is not None and _serve(wire, following):
                following, left = _quits, []
        if left:
            print(
                f"wse-sim: note: {file} ended before the last {len(left)} lines of {script} were read",
                file=sys.stderr,
            )
        try:
            return run.end()
        except subprocess.TimeoutExpired:
            raise WseError(f"{file} did not finish within {timeout_s:g} s; raise --timeout") from None


def _quits() -> str:
    return "quit"


def _serve(wire: EditorWire, following: Callable[[], str | None]) -> bool:
    """Send commands to one program until it ends; return whether the user has quit."""
    is_quit = False
    while not wire.is_closed:
        try:
            message = wire.receive()
        except KeyboardInterrupt:
            wire.send({"pause": True})
            continue
        if message is None:
            break
        if "text" in message:
            print(message["text"], flush=True)
        if "prompt" in message:
            answer = _answer(following)
            is_quit = is_quit or answer["command"] in ("quit", "q")
            wire.send(answer)
    wire.close()
    return is_quit


def _answer(following: Callable[[], str | None]) -> Message:
    """Return the next command as a message; after the last one, a command that lets the program continue."""
    try:
        line = following()
    except KeyboardInterrupt:
        return {"command": ""}
    return {"command": "detach" if line is None else line.strip()}
