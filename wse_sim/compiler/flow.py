"""Compilation as an explicit list of steps.

A step is a function. Its parameters name the values that it reads, and :func:`step` declares the names of
those that it writes. All values of a compilation are in one table. A step that returns
:class:`~wse_sim.compiler.plan.Infeasible` ends the compilation.

    @step("sizer")
    def size(graph: KernelGraph, prices: Prices) -> Sizer: ...

    STEPS = [price, size, place, route]
    run_steps(STEPS, {"graph": graph, "wafer": wafer})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import ConfigError
from wse_sim.timings import spent
from wse_sim.units import summary


@dataclass(frozen=True)
class PlanStep:
    """One step: its function, the names of the values that it reads and of those that it writes."""

    run: Callable[..., object]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.run.__name__

    @property
    def about(self) -> str:
        """First paragraph of the function's docstring."""
        return summary(self.run)


def step(*writes: str) -> Callable[[Callable[..., object]], PlanStep]:
    """Return a decorator that makes a step from a function.

    The function returns the value named in `writes`, a tuple of values for several names, or None for none.
    """

    def made(run: Callable[..., object]) -> PlanStep:
        return PlanStep(run, tuple(inspect.signature(run).parameters), writes)

    return made


def run_steps(steps: Sequence[PlanStep], given: Mapping[str, object]) -> dict[str, object] | Infeasible:
    """Run the steps in order.

    Returns all values by name, those of `given` included, or the first
    :class:`~wse_sim.compiler.plan.Infeasible` that a step returns.

    Raises
    ------
    ConfigError
        If a step reads a value that no earlier step writes and that is not in `given`.
    """
    check_steps(steps, given)
    values = dict(given)
    for item in steps:
        with spent(item.name.replace("_", " ")):
            answer = item.run(**{name: values[name] for name in item.reads})
        if isinstance(answer, Infeasible):
            return answer
        if len(item.writes) == 1:
            values[item.writes[0]] = answer
        elif item.writes and isinstance(answer, tuple):
            values.update(zip(item.writes, answer, strict=True))
    return values


def check_steps(steps: Sequence[PlanStep], given: Iterable[str]) -> None:
    """Check that each step reads only values that are in `given` or that an earlier step writes.

    Raises
    ------
    ConfigError
        If a step reads any other value; the message names the step, the value and the remedy.
    """
    known = set(given)
    for item in steps:
        missing = [name for name in item.reads if name not in known]
        if missing:
            raise ConfigError(
                f"step '{item.name}' reads '{missing[0]}', which no earlier step writes; put the step that "
                f"writes it before"
            )
        known.update(item.writes)
