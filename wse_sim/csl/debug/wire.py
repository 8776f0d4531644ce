"""Messages between a running program and the front end that controls it: JSON objects, one per line, over a
socket."""

from __future__ import annotations

import json
import select
import socket
from pathlib import Path
from typing import Any

Message = dict[str, Any]
MOST_BYTES = 1 << 26


class EditorWire:
    """One end of a message connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""
        self.is_closed = False

    @classmethod
    def connect(cls, path: Path, timeout_s: float = 30.0) -> EditorWire:
        """Connect to the front end that listens at a path."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.settimeout(None)
        return cls(connection)

    def send(self, message: Message) -> None:
        """Send a message; ignored if the other end is closed."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_closed = True

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, or None if the other end is closed or no message arrives within
        `timeout_s` seconds."""
        while b"\n" not in self._buffer:
            if not self._wait(timeout_s):
                return None
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data or len(self._buffer) > MOST_BYTES:
                self.is_closed = True
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def _wait(self, timeout_s: float | None) -> bool:
        return not self.is_closed and bool(select.select([self.socket], [], [], timeout_s)[0])

    def close(self) -> None:
        """Close the connection and its socket."""
        self.is_closed = True
        self.socket.close()
