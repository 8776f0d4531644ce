"""Program -> kernel graph, plan, result; and the time that each step takes on the wafer."""

from __future__ import annotations

from typing import Any


def compile_program(run: Any, program: Any, trace_s: float) -> Any:
    """Lower, compile and simulate a captured step."""
    return None


def advance(run: Any, execution: Any) -> None:
    """Advance the wafer's clock by one step."""
