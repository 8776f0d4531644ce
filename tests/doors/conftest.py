"""Run the command line in this process: torch is imported once for all tests of the doors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass
class Ran:
    """The outcome of one call of the command line."""

    status: int
    out: str
    err: str


@pytest.fixture
def wse(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``wse("show", "models")`` runs ``wse-sim show models``."""
    from wse_sim.door import main

    def call(*words: str) -> Ran:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["wse-sim", *words])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        seen = capfd.readouterr()
        return Ran(status, seen.out, seen.err)

    return call
