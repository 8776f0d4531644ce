"""What a run leaves behind: run.json, performance.json, one folder per compile, the page."""

from __future__ import annotations

from typing import Any


def write(run: Any, execution: Any) -> None:
    """Write what the run has so far."""


def finish(run: Any, status: int) -> None:
    """The end of the script: the summary and the report."""
