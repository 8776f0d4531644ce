"""The list of modes, and functions to find a mode by name, by plan, or in a user's module."""

from __future__ import annotations

from wse_sim.compiler.plan import Plan
from wse_sim.errors import ModelError
from wse_sim.modes.base import Mode
from wse_sim.modes.generation import Generation
from wse_sim.modes.pipelined import Pipelined
from wse_sim.modes.pipelined_systems import PipelinedSystems
from wse_sim.modes.weight_streaming import WeightStreaming
from wse_sim.user_code import loaded

MODES: list[Mode] = [Pipelined(), WeightStreaming(), PipelinedSystems(), Generation()]
"""All modes, in the order of lists and comparisons. To add a mode, add a folder and an entry here, or call
`register_mode`."""


def register_mode(mode: Mode) -> None:
    """Add a mode to the list; it replaces a mode of the same name."""
    MODES[:] = [known for known in MODES if known.name != mode.name] + [mode]


def forget_mode(name: str) -> None:
    """Remove a mode from the list."""
    MODES[:] = [known for known in MODES if known.name != name]


def mode_names() -> tuple[str, ...]:
    """Return the names of all modes."""
    return tuple(mode.name for mode in MODES)


def competing(systems: int | None = None) -> tuple[Mode, ...]:
    """Return the modes for "auto" and for comparisons; only those that support `systems` systems, if given."""
    return tuple(
        mode for mode in MODES if mode.competes and (systems is None or mode.least_systems <= systems)
    )


def on_systems(name: str, systems: int) -> str:
    """Return the mode for a name and a number of systems; a pipeline over several systems is a separate
    mode."""
    return (
        PipelinedSystems.name
        if name == Pipelined.name and systems >= PipelinedSystems.least_systems
        else name
    )


def resting() -> Mode:
    """Return the first competing mode that keeps all weights on the wafer; a model may be too large for
    it."""
    return next(mode for mode in competing() if mode.weights_rest)


def streaming() -> Mode:
    """Return the first competing mode that streams weights in; it supports models of any size, and several
    systems."""
    return next(mode for mode in competing() if not mode.weights_rest)


def mode_named(name: str) -> Mode:
    """Return the mode with a name; ``package.module:NAME`` or ``FILE.py:NAME`` registers and returns your own
    mode.

    Raises
    ------
    ModelError
        If there is none.
    """
    if ":" in name:
        made = loaded(name, "a mode", ModelError)
        mode: Mode = made() if isinstance(made, type) else made
        register_mode(mode)
        return mode
    for mode in MODES:
        if mode.name == name:
            return mode
    raise ModelError(f"mode '{name}' is unknown; use one of {', '.join(mode_names())}")


def mode_of(plan: Plan) -> Mode:
    """Return the mode that made a plan.

    Raises
    ------
    ModelError
        If no mode of the list made it.
    """
    mode = mode_named(plan.mode)
    if not isinstance(plan, mode.plan):
        raise ModelError(
            f"a {type(plan).__name__} says that mode {mode.name} made it, which makes {mode.plan.__name__}; "
            f"give the plan its mode's name"
        )
    return mode
