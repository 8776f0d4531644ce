"""The debug adapter: speaks the Debug Adapter Protocol with an editor, runs the command file, and hands requests to the program that is debugged."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from wse_sim.csl.debug.dap import CAPABILITIES
from wse_sim.csl.debug.wire import Message, Wire
from wse_sim.csl.host.debugged import DAP
from wse_sim.csl.host.debugging import LOOK_S, Run, running
from wse_sim.errors import WseError

_SETS = ("setBreakpoints", "setFunctionBreakpoints", "setDataBreakpoints", "setExceptionBreakpoints", "configurationDone")
"""Requests that every further program of a command file gets again."""
MOST_HEADER, MOST_BODY = 4096, 1 << 26


class Editor:
    """The editor's end: messages with a header that says their length."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader, self._writer = reader, writer
        self._seq = 0
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message with the next number."""
        with self._lock, suppress(OSError, ValueError):
            self._seq += 1
            body = json.dumps({"seq": self._seq, **message}).encode()
            self._writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            self._writer.flush()

    def receive(self) -> Message | None:
        """The next message; None at the end, or if what comes is no message."""
        length = 0
        while (line := self._reader.readline(MOST_HEADER)) not in (b"\r\n", b"\n", b""):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
        if not 0 < length <= MOST_BODY:
            return None
        try:
            message = json.loads(self._reader.read(length))
        except ValueError:
            return None
        return message if isinstance(message, dict) and "command" in message else None


class Adapter:
    """One session of an editor."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._wake, self._woken = os.pipe()
        self._requests: list[Message | None] = []
        self._sets: dict[str, Message] = {}
        self._stops_first = False
        self._is_over = False

    def serve(self) -> None:
        """Answer until the editor disconnects or the program has ended."""
        threading.Thread(target=self._read, daemon=True).start()
        while not self._is_over:
            request = self._next(None)
            if request is None:
                return
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

    def _read(self) -> None:
        message: Message | None = {}
        while message is not None:
            message = self.editor.receive()
            self._requests.append(message)
            os.write(self._woken, b".")

    def _next(self, timeout_s: float | None, *others: socket.socket) -> Message | None:
        """The next request; None at the end, or if another end has something first."""
        ready = select.select([self._wake, *others], [], [], timeout_s)[0]
        if self._wake not in ready:
            return None
        os.read(self._wake, 1)
        return self._requests.pop(0)

    def _answer(self, request: Message, body: Message | None, why: str = "") -> None:
        told = {"type": "response", "request_seq": request["seq"], "command": request["command"]}
        said = {"success": True, "body": body} if body is not None else {"success": False, "message": why}
        self.editor.send({**told, **said})

    def event(self, name: str, **body: object) -> None:
        """Send an event."""
        self.editor.send({"type": "event", "event": name, "body": body})

    def output(self, source: IO[bytes]) -> None:
        """Hand on what the command file prints."""
        for line in source:
            self.event("output", category="stdout", output=line.decode("utf-8", "replace"))

    def _launch(self, request: Message) -> None:
        arguments = request.get("arguments") or {}
        program = arguments.get("program")
        if not isinstance(program, str) or not Path(program).is_file():
            self._answer(request, None, f"'program' is {program!r}; name a command file with cslc and cs_python lines")
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
        self.event("exited", exitCode=status)
        self.event("terminated")
        self._is_over = True

    def _program(self, run: Run) -> Wire | None:
        """The next program of the command file; requests that come before it are answered here."""
        while (wire := run.next_program(LOOK_S)) is None and not run.is_over():
            if self._requests:
                request = self._next(0.0)
                if request is None or request["command"] in ("disconnect", "terminate"):
                    self._is_over = True
                    if request is not None:
                        self._answer(request, {})
                    return None
                threads: Message | None = {"threads": []} if request["command"] == "threads" else None
                self._answer(request, threads, "no program runs yet")
        return wire

    def _serve_program(self, wire: Wire) -> None:
        """Hand messages to and fro until the program ends."""
        again = [dict(m, seq=-1) for m in self._sets.values()]
        for message in again:
            wire.send({"dap": message})
        while not wire.is_closed:
            request = self._next(None, wire.socket) if not self._is_over else None
            if request is not None:
                self._forward(request, wire)
            elif self._has_ended():
                self._is_over = True
                wire.send({"dap": {"seq": -1, "command": "disconnect"}})
            message = wire.receive(0.0 if not self._is_over else LOOK_S)
            while message is not None:
                told = message["dap"]
                if told.get("request_seq") != -1 and not (again and told.get("event") == "initialized"):
                    self.editor.send(told)
                message = wire.receive(0.0)
        wire.close()

    def _has_ended(self) -> bool:
        """Whether the editor has gone without a word."""
        return bool(self._requests) and self._requests[0] is None

    def _forward(self, request: Message, wire: Wire) -> None:
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


def serve_standard() -> None:
    """Serve an editor on standard input and output; what programs print becomes events."""
    writer = os.fdopen(os.dup(1), "wb")
    serve(Editor(sys.stdin.buffer, writer))


def serve_port(port: int) -> None:
    """Serve the first editor that connects to a TCP port of this machine; 0 takes a free one and says which."""
    with socket.create_server(("127.0.0.1", port)) as server:
        print(f"waiting for an editor on port {server.getsockname()[1]}", flush=True)
        connection = server.accept()[0]
    with connection, connection.makefile("rb") as reader, connection.makefile("wb") as writer:
        serve(Editor(reader, writer))


def serve(editor: Editor) -> None:
    """Serve an editor; this process and its children print to the editor from here on."""
    source, target = os.pipe()
    for number in (1, 2):
        os.dup2(target, number)
    os.close(target)
    adapter = Adapter(editor)
    printed = threading.Thread(target=adapter.output, args=(os.fdopen(source, "rb"),), daemon=True)
    printed.start()
    adapter.serve()
