"""Monitoring of a run: metrics report, captures, the loopback server and its clients."""

from __future__ import annotations

import threading
from pathlib import Path


def start_server(port: int | None = None) -> int | None:
    """Open the run's port (loopback, with a token); the port."""
    from wse_sim.cstorch.monitor import server

    return server.start(port=port)


def trace(address: str | int, folder: str | Path, duration_ms: float = 1000.0, **_: object) -> Path:
    """Capture from a run for so long, and write a Chrome trace into a folder."""
    from wse_sim.cstorch.monitor import client

    return client.trace(address, folder, duration_ms)


def trace_detached(
    address: str | int, folder: str | Path, duration_ms: float = 1000.0, **_: object
) -> threading.Thread:
    """Capture in the background, for a program that captures itself."""
    thread = threading.Thread(target=trace, args=(address, folder, duration_ms), daemon=True)
    thread.start()
    return thread
