"""Debug adapter: connects an editor (Debug Adapter Protocol) with the programs of a command file.

The adapter runs the command file and forwards the editor's requests to the program that is being debugged.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeGuard

from wse_sim.csl.debug.dap import CAPABILITIES
from wse_sim.csl.debug.wire import EditorWire, Message
from wse_sim.csl.host.debugged import DAP
from wse_sim.csl.host.debugging import LOOK_S, Run, running
from wse_sim.errors import WseError

_SETS = (
    "setBreakpoints",
    "setFunctionBreakpoints",
    "setDataBreakpoints",
    "setExceptionBreakpoints",
    "configurationDone",
)
"""Requests that are repeated for every further program of a command file."""
MOST_HEADER, MOST_BODY = 4096, 1 << 26
END, END_S = b"\0wse-sim: end of output\0", 5.0


class Editor:
    """Connection to an editor: messages with a ``Content-Length`` header, read from a file descriptor."""

    def __init__(self, number: int, writer: IO[bytes]) -> None:
        self.number, self._writer = number, writer
        self.has_gone = False
        self._seq, self._buffer = 0, b""
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the file descriptor, as `select` requires."""
        return self.number

    def send(self, message: Message) -> None:
        """Send a message with the next sequence number; ignored if the connection is closed."""
        with self._lock, suppress(OSError, ValueError):
            self._seq += 1
            body = json.dumps({"seq": self._seq, **message}).encode()
            self._writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            self._writer.flush()

    def take(self) -> Message | None:
        """Return the next complete request that was read, or None if there is none yet.

        Raises
        ------
        WseError
            If the data is not a request of the protocol, or its header or body is too long.
        """
        head, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            if len(self._buffer) > MOST_HEADER:
                raise WseError(
                    "the input is not a message of the Debug Adapter Protocol: its header does not end"
                )
            return None
        lengths = [
            v
            for n, _, v in (line.partition(b":") for line in head.split(b"\r\n"))
            if n.lower() == b"content-length"
        ]
        length = int(lengths[0]) if lengths and lengths[0].strip().isdigit() else 0
        if not 0 < length <= MOST_BODY:
            raise WseError(
                f"a message of the Debug Adapter Protocol has {length} bytes; 1 to {MOST_BODY} are allowed"
            )
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        try:
            message = json.loads(rest[:length])
        except (ValueError, RecursionError):
            message = None
        if not _is_request(message):
            raise WseError(
                "a message of the Debug Adapter Protocol is not a request: it needs 'seq', 'command' and an object as 'arguments'"
            )
        return dict(message)

    def read(self) -> None:
        """Read the available data; blocks until there is some.

        Raises
        ------
        WseError
            If the connection ends within a message.
        """
        data = os.read(self.number, 1 << 16)
        self.has_gone = self.has_gone or not data
        if self.has_gone and self._buffer:
            raise WseError("the editor closed the connection within a message of the Debug Adapter Protocol")
        self._buffer += data


def _is_request(message: object) -> TypeGuard[Message]:
    """Return whether a message has the fields of every request of the protocol."""
    return (
        isinstance(message, dict)
        and isinstance(message.get("command"), str)
        and isinstance(message.get("seq"), int)
        and isinstance(message.get("arguments") or {}, dict)
    )


class Adapter:
    """Debug session of one editor."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._sets: dict[str, Message] = {}
        self._stops_first = False
        self._is_over = False
        self._printed = threading.Event()

    def serve(self) -> None:
        """Answer requests until the editor disconnects or the command file has ended."""
        while not self._is_over:
            request = self._next(None)
            if request is None:
                if self.editor.has_gone:
                    return
                continue
            command = request["command"]
            if command == "initialize":
                self._answer(request, CAPABILITIES)
            elif command == "launch":
                self._launch(request)
            elif command in ("disconnect", "terminate"):
                self._answer(request, {})
                return
            else:
                self._answer(request, None, f"'{command}' came before 'launch'")

    def _next(self, timeout_s: float | None, *others: socket.socket) -> Message | None:
        """Return the next request; None if the editor has closed, the timeout passed, or another end has data."""
        message = self.editor.take()
        if message is not None or self.editor.has_gone:
            return message
        ready = select.select([self.editor.number, *(o.fileno() for o in others)], [], [], timeout_s)[0]
        if self.editor.number in ready:
            self.editor.read()
        return self.editor.take()

    def _answer(self, request: Message, body: Message | None, why: str = "") -> None:
        told = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
        said = {"success": True, "body": body} if body is not None else {"success": False, "message": why}
        self.editor.send({**told, **said})

    def event(self, name: str, **body: object) -> None:
        """Send an event to the editor."""
        self.editor.send({"type": "event", "event": name, "body": body})

    def output(self, source: int) -> None:
        """Forward what the command file prints, up to the end mark."""
        held = b""
        while END not in held:
            data = os.read(source, 1 << 16)
            held += data
            text, mark, held = held.partition(END) if END in held else (held, b"", b"")
            held = mark
            if text:
                self.event("output", category="stdout", output=text.decode("utf-8", "replace"))
            if not data:
                break
        self._printed.set()

    def wait_for_output(self) -> None:
        """Wait until everything that was printed has been sent to the editor, for at most :data:`END_S`
        seconds."""
        os.write(1, END)
        self._printed.wait(END_S)

    def _launch(self, request: Message) -> None:
        arguments = request.get("arguments") or {}
        program = arguments.get("program")
        if not isinstance(program, str) or not Path(program).is_file():
            self._answer(
                request, None, f"'program' is {program!r}; name a command file with cslc and cs_python lines"
            )
            return
        self._stops_first = bool(arguments.get("stopOnEntry"))
        self._answer(request, {})
        with running(Path(program), DAP) as run:
            while not self._is_over and (wire := self._program(run)) is not None:
                self._serve_program(wire)
            try:
                status = 1 if self._is_over and run.status is None else run.end()
            except (WseError, subprocess.TimeoutExpired) as fault:
                self.event("output", category="stderr", output=f"wse-sim: {fault}\n")
                status = 2
        self.wait_for_output()
        self.event("exited", exitCode=status)
        self.event("terminated")
        self._is_over = True

    def _program(self, run: Run) -> EditorWire | None:
        """Return the next program of the command file, or None at its end; answer requests that arrive
        before."""
        while (wire := run.next_program(LOOK_S)) is None and not run.is_over():
            request = self._next(0.0)
            if self.editor.has_gone or (
                request is not None and request["command"] in ("disconnect", "terminate")
            ):
                self._is_over = True
                if request is not None:
                    self._answer(request, {})
                return None
            if request is not None:
                threads: Message | None = {"threads": []} if request["command"] == "threads" else None
                self._answer(request, threads, "no program runs yet")
        return wire

    def _serve_program(self, wire: EditorWire) -> None:
        """Forward messages between the editor and a program until the program ends."""
        again = [dict(m, seq=-1) for m in self._sets.values()]
        for message in again:
            wire.send({"dap": message})
        while not wire.is_closed:
            request = self._next(None, wire.socket) if not self._is_over else None
            if request is not None:
                self._forward(request, wire)
            elif self.editor.has_gone and not self._is_over:
                self._is_over = True
                wire.send({"dap": {"seq": -1, "command": "disconnect"}})
            came: Message | None = wire.receive(0.0 if not self._is_over else LOOK_S)
            while came is not None:
                told = came["dap"]
                if told.get("request_seq") != -1 and not (again and told.get("event") == "initialized"):
                    self.editor.send(told)
                came = wire.receive(0.0)
        wire.close()

    def _forward(self, request: Message, wire: EditorWire) -> None:
        command = request["command"]
        if command in _SETS:
            key = f"{command} {(request.get('arguments') or {}).get('source', {}).get('path', '')}"
            if command == "configurationDone":
                request["arguments"] = {"stopOnEntry": self._stops_first}
            self._sets.pop(key, None)
            self._sets[key] = request
        if command in ("disconnect", "terminate"):
            self._is_over = True
        wire.send({"dap": request})


def serve_standard() -> int:
    """Serve an editor on standard input and output; what programs print is sent as output events."""
    return serve(Editor(os.dup(0), os.fdopen(os.dup(1), "wb")))


def serve_port(port: int) -> int:
    """Serve the first editor that connects to a TCP port of this machine; port 0 takes a free port and prints
    its number."""
    with socket.create_server(("127.0.0.1", port)) as server:
        print(f"waiting for an editor on port {server.getsockname()[1]}", flush=True)
        connection = server.accept()[0]
    with connection, connection.makefile("wb") as writer:
        return serve(Editor(connection.fileno(), writer))


def serve(editor: Editor) -> int:
    """Serve an editor and return the exit status: 2 if the editor does not follow the protocol, else 0.

    From here on, output of this process and its children is sent to the editor, and their standard input is
    empty.
    """
    source, target = os.pipe()
    for number in (1, 2):
        os.dup2(target, number)
    os.close(target)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    adapter = Adapter(editor)
    threading.Thread(target=adapter.output, args=(source,), daemon=True).start()
    try:
        adapter.serve()
    except WseError as fault:
        adapter.event("output", category="stderr", output=f"wse-sim: {fault}\n")
        adapter.event("terminated")
        return 2
    return 0
