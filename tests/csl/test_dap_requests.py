"""Requests of an editor that arrive while the program runs."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace

import pytest

from wse_sim.csl.debug.dap import DapFront
from wse_sim.csl.debug.wire import EditorWire


class Ends:
    """A front end, the other end of its wire, and a debugger that only remembers whether it was detached."""

    def __init__(self) -> None:
        here, self.editor = socket.socketpair()
        self.front = DapFront(EditorWire(here))
        self.debugger = SimpleNamespace(
            is_detached=True, detach=lambda: setattr(self.debugger, "is_detached", True)
        )
        self.front._debugger = self.debugger  # type: ignore[assignment]

    def asks(self, *commands: str) -> None:
        for number, command in enumerate(commands):
            request = {"seq": number, "type": "request", "command": command, "arguments": {}}
            self.editor.sendall(json.dumps({"dap": request}).encode() + b"\n")


@pytest.mark.parametrize(
    ("commands", "stops"),
    [
        ((), False),
        (("setExceptionBreakpoints",), False),
        (("pause",), True),
        (("pause", "setExceptionBreakpoints"), True),
    ],
)
def test_only_a_pause_stops_the_program(commands: tuple[str, ...], stops: bool) -> None:
    """All requests that have arrived are answered, in order, whether or not one of them stops the program."""
    ends = Ends()
    ends.asks(*commands)
    assert ends.front.asks_pause() is stops
    assert not ends.front.asks_pause()
    ends.front.wire.socket.close()
    answers = [json.loads(line)["dap"] for line in ends.editor.makefile()]
    assert [one["command"] for one in answers if one["type"] == "response"] == list(commands)
    assert ends.debugger.is_detached  # and nothing has attached it again


def test_an_editor_that_has_gone_detaches() -> None:
    ends = Ends()
    ends.debugger.is_detached = False
    ends.editor.close()
    ends.front.asks_pause()
    assert ends.debugger.is_detached
