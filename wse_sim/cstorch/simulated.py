"""Program -> kernel graph, plan, result; and the time that each step takes on the wafer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Compiled:
    """One compile: the simulated step of a program."""

    name: str
    mode: str
    step_s: float
    binding: str
    result: Any = None


def compile_program(run: Any, program: Any, trace_s: float) -> Compiled:
    """Lower, compile and simulate a captured step."""
    return Compiled(program.name, "none", 0.0, "")


def advance(run: Any, execution: Any) -> None:
    """Advance the wafer's clock by one step."""
    run.clock_s += execution.compiled.step_s
