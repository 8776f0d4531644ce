"""Client of a running job's server, for use in another process."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wse_sim.cstorch.monitor import server, timeline
from wse_sim.errors import WseError


@dataclass(frozen=True)
class Entry:
    """A live run of this user."""

    pid: int
    port: int
    token: str
    script: str
    folder: str
    started: float


def live() -> list[Entry]:
    """Return the runs whose processes are alive; entries of dead processes are removed."""
    found = []
    folder = server.registry()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            entry = Entry(**json.loads(path.read_text(encoding="utf-8")))
            os.kill(entry.pid, 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (OSError, ValueError, TypeError):
            continue
        else:
            found.append(entry)
    return sorted(found, key=lambda e: e.started)


def find(port: int | None = None) -> Entry:
    """Return the run at a port, or the only live run.

    Raises:
        WseError: there is none, or several and no port is given.
    """
    runs = live()
    if port is not None:
        for entry in runs:
            if entry.port == port:
                return entry
        raise WseError(
            f"no run of yours listens on port {port}; 'wse-sim capture --list' shows the live ones"
        )
    if not runs:
        raise WseError("no run is live; start one with 'wse-sim script TRAIN.py' (without --no-port)")
    if len(runs) > 1:
        ports = ", ".join(str(e.port) for e in runs)
        raise WseError(f"{len(runs)} runs are live, on ports {ports}; name one: wse-sim capture PORT")
    return runs[0]


def ask(entry: Entry, path: str, given: dict[str, Any] | None = None, timeout_s: float = 10.0) -> Any:
    """Send a request and return the data of the answer.

    Raises:
        WseError: the run refuses or has gone.
    """
    body = None if given is None else json.dumps(given).encode()
    request = urllib.request.Request(f"http://{server.ADDRESS}:{entry.port}{path}", data=body)
    request.add_header("Authorization", f"Bearer {entry.token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read()
            return json.loads(text) if "json" in (answer.headers.get("Content-Type") or "") else text.decode()
    except urllib.error.HTTPError as fault:
        reason = json.loads(fault.read() or b"{}").get("error", fault.reason)
        raise WseError(f"the run on port {entry.port} refuses: {reason}") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as fault:
        raise WseError(
            f"the run on port {entry.port} does not answer ({getattr(fault, 'reason', fault)}); it may have ended"
        ) from None


def captured(
    entry: Entry,
    steps: int | None = None,
    seconds: float | None = None,
    regions: tuple[str, ...] = (),
    timeout_s: float = 3600.0,
) -> dict[str, Any]:
    """Return the next complete steps of a run, as data."""
    given: dict[str, Any] = {"regions": list(regions), "timeout": timeout_s}
    if steps is not None:
        given["steps"] = steps
    if seconds is not None:
        given["seconds"] = seconds
    found: dict[str, Any] = ask(entry, "/capture", given, timeout_s + 30)
    return found


def trace(address: str | int, folder: str | Path, duration_ms: float = 1000.0, name: str = "trace") -> Path:
    """Capture `duration_ms` of a run, given its address (``localhost:PORT`` or the port), as a Chrome trace in a folder."""
    port = int(str(address).rsplit(":", 1)[-1])
    data = captured(find(port), seconds=duration_ms / 1e3)
    return timeline.write(data, Path(folder) / f"{name}.{os.getpid()}.pt.trace.json")
