"""Server for the inspection of a running job: HTTP on the loopback address, with a token.

    GET  /status    state, step, rates, folder        GET  /log?after=N   lines from number N on
    GET  /metrics   the metrics report (text)         POST /capture       {"steps": N} -> the next N whole steps
    POST /stop      end after this step               POST /save          the present compile's result, as a folder

The token is in the run's entry of the registry, a file that only the user can read; every request carries it.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import json
import os
import secrets
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from wse_sim.cstorch import counters, faults, runtime
from wse_sim.cstorch.monitor import capture
from wse_sim.units import counted

ADDRESS = "127.0.0.1"
OPT_OUT = "WSE_SIM_NO_PORT"
CAPTURE_TIMEOUT_S = 3600.0


def registry() -> Path:
    """Return the folder with one file per live run."""
    import platformdirs

    return Path(os.environ.get("WSE_SIM_RUNS") or platformdirs.user_state_dir("wse-sim")) / "runs"


def _entry() -> Path:
    """This process's file in the registry."""
    return registry() / f"{os.getpid()}.json"


@dataclass
class Server:
    """A server that listens."""

    http: ThreadingHTTPServer
    token: str
    entry: Path

    @property
    def port(self) -> int:
        return int(self.http.server_address[1])


_server: Server | None = None


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    token = ""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing, because the log belongs to the user."""

    def do_GET(self) -> None:
        if not self._allowed():
            return
        url = urlsplit(self.path)
        run = runtime.run()
        if url.path == "/status":
            self._answer(run.status())
        elif url.path == "/metrics":
            wanted = parse_qs(url.query).get("format", ["text"])[0]
            if wanted == "json":
                self._answer({"metrics": counters.as_dict(), "counters": counters.counters()})
            else:
                self._text(counters.metrics_report())
        elif url.path == "/log":
            asked = parse_qs(url.query).get("after", ["0"])[0]
            after = counted(asked)
            if after is None:
                self._refuse(400, f"after={asked[:80]} is not a line number")
                return
            lines = list(run.log_lines)
            self._answer({"next": len(lines), "lines": lines[after:]})
        else:
            self._refuse(
                404, f"there is no {url.path}; use /status, /metrics, /log, /capture, /save or /stop"
            )

    def do_POST(self) -> None:
        if not self._allowed():
            return
        try:
            size = int(self.headers.get("Content-Length") or 0)
            given = json.loads(self.rfile.read(size) or b"{}")
        except ValueError:
            self._refuse(400, "the request's body is not JSON")
            return
        if not isinstance(given, dict):
            self._refuse(400, "the request's body is not a JSON object")
            return
        path = urlsplit(self.path).path
        if path == "/stop":
            runtime.run().request_stop()
            self._answer({"stopping": True})
        elif path == "/capture":
            self._capture(given)
        elif path == "/save":
            self._save()
        else:
            self._refuse(404, f"there is no {path}; post to /capture, /save or /stop")

    def _capture(self, given: dict[str, Any]) -> None:
        steps, seconds = given.get("steps"), given.get("seconds")
        if steps is None and seconds is None:
            steps = 1
        whole = steps if steps is not None else 1 << 30
        if not isinstance(whole, int) or isinstance(whole, bool) or whole < 1:
            self._refuse(400, f"steps={whole!r} must be an integer of at least 1")
            return
        if seconds is not None and (not isinstance(seconds, int | float) or seconds <= 0):
            self._refuse(400, f"seconds={seconds!r} must be a positive number")
            return
        limit = given.get("timeout", CAPTURE_TIMEOUT_S)
        if (
            isinstance(limit, bool)
            or not isinstance(limit, int | float)
            or not 0 < limit < threading.TIMEOUT_MAX
        ):
            self._refuse(400, f"timeout={limit!r} must be a positive number of seconds")
            return
        wanted = capture.recorder.ask(whole, seconds, tuple(given.get("regions") or ()))
        if not wanted.done.wait(float(limit)):
            self._refuse(504, f"the run has not finished {whole} steps in time; request fewer")
            return
        self._answer(capture.as_data(wanted))

    def _save(self) -> None:
        from wse_sim.serialize import save

        compiled = next((c for c in reversed(runtime.run().compiled) if c.result is not None), None)
        if compiled is None:
            self._refuse(409, "nothing is compiled yet; retry when the run is in its first step")
            return
        folder = runtime.run().folder / "captures" / f"{compiled.name}-{int(time.time())}"
        folder.mkdir(parents=True, exist_ok=True)
        save(compiled.result, folder, "result")
        self._answer({"folder": str(folder.resolve())})

    # -- answers ---------------------------------------------------------------------------------

    def _allowed(self) -> bool:
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        if hmac.compare_digest(given.encode(), self.token.encode()):
            return True
        self._refuse(
            401, "the token is missing or wrong; it is in the run's entry, see 'wse-sim capture --list'"
        )
        return False

    def _refuse(self, status: int, reason: str) -> None:
        self._send(status, json.dumps({"error": reason}).encode(), "application/json")

    def _answer(self, data: object) -> None:
        self._send(200, json.dumps(data, default=str).encode(), "application/json")

    def _text(self, text: str) -> None:
        self._send(200, text.encode(), "text/plain; charset=utf-8")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status >= 400:
                # The body of a refused request is not read, so the connection cannot be used again.
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            self.wfile.write(body)


def start(run: runtime.Run | None = None, port: int | None = None) -> int | None:
    """Start the server of this process; return its port, or None if the user disabled it.

    Raises:
        ProgramError: the port is taken.
    """
    global _server
    if _server is not None:
        _register(run or runtime.run())  # one port per process: its entry names the run that is live now
        return _server.port
    if os.environ.get(OPT_OUT):
        return None
    token = secrets.token_urlsafe(24)
    handler = type("Handler", (_Handler,), {"token": token})
    try:
        http = ThreadingHTTPServer((ADDRESS, port or 0), handler)
    except OSError as fault:
        raise faults.program_error(
            f"port {port} cannot be opened ({fault.strerror}); give another --port, or --no-port", where=""
        ) from None
    http.daemon_threads = True
    _server = Server(http, token, _entry())
    _register(run or runtime.run())
    atexit.register(stop)
    threading.Thread(
        target=http.serve_forever, kwargs={"poll_interval": 0.5}, name="monitor", daemon=True
    ).start()
    return _server.port


def _register(run: runtime.Run) -> None:
    """Write a file that only the user can read: port, token, and the running program."""
    if _server is None:
        return
    if _server.entry != _entry():
        _server.entry.unlink(missing_ok=True)
        _server.entry = _entry()
    _server.entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = {
        "pid": os.getpid(),
        "port": _server.port,
        "token": _server.token,
        "script": sys.argv[0] if sys.argv else "",
        "folder": str(Path(run.folder).resolve()),
        "started": time.time(),
    }
    part = _server.entry.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(held, file)
    os.replace(part, _server.entry)


def stop() -> None:
    """Stop the server and remove its entry from the registry."""
    global _server
    capture.recorder.close()
    if _server is not None:
        held, _server = _server, None
        held.entry.unlink(missing_ok=True)
        threading.Thread(target=held.http.shutdown, daemon=True).start()
        held.http.server_close()
