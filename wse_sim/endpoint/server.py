"""The endpoint on a socket: loopback unless another address is named."""

from __future__ import annotations

import importlib.util
import logging
import socket
from typing import TypedDict

from wse_sim.errors import WseError
from wse_sim.serving.base import ServingError
from wse_sim.serving.run import Replica
from wse_sim.units import counted

NEEDED = ("starlette", "uvicorn", "prometheus_client")
LOOPBACK = "127.0.0.1"
BACKLOG = 2048


class EndpointChoice(TypedDict):
    """Fields of :class:`wse_sim.endpoint.app.EndpointLimits`, for callers that have not imported it."""

    max_queue: int
    max_body_bytes: int
    time_scale: float
    output_law: str
    seed: int
    router: str


def check_installed() -> None:
    """Refuse where a package of the extra `serve` is missing.

    Raises
    ------
    WseError
        One sentence that names it.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise WseError(
                f"the endpoint needs {name.replace('_', '-')}, which is not installed; pip install 'wse-sim[serve]'"
            )


def address_of(text: str) -> tuple[str, int]:
    """Host and port of "PORT" or "HOST:PORT"; port 0 takes a free one.

    Raises
    ------
    ServingError
        If it is neither.
    """
    host, _, port = text.rpartition(":")
    number = counted(port)
    if number is None or not 0 <= number < 65536:
        raise ServingError(
            f"address '{text[:80]}' cannot be parsed; give PORT or HOST:PORT, e.g. 127.0.0.1:8000"
        )
    return host.strip("[]") or LOOPBACK, number


def listening(text: str) -> socket.socket:
    """A socket that is bound to an address.

    Raises
    ------
    ServingError
        If the address is taken, or none of this machine.
    """
    host, port = address_of(text)
    try:
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError as fault:
        raise ServingError(
            f"address {host}:{port} cannot be used ({fault.strerror or fault}); name another one"
        ) from None
    return found


def serve_http(
    model: str, replica: Replica, replicas: int, place: socket.socket, limits: EndpointChoice
) -> None:
    """Answer requests until an interrupt.

    Raises
    ------
    ServingError
        If the law of lengths is none.
    """
    import uvicorn

    from wse_sim.endpoint.app import EndpointLimits, application

    app = application(model, replica, replicas, EndpointLimits(**limits))
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # a client that has gone is no news
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    try:
        uvicorn.Server(config).run(sockets=[place])
    finally:
        if (fault := getattr(app.state, "fault", None)) is not None:
            raise fault
