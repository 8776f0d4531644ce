"""The list of modes, and how one is found: by name, by plan, or by a user's module."""

from __future__ import annotations

from wse_sim.compiler.plan import Plan
from wse_sim.errors import ModelError
from wse_sim.foreign import loaded
from wse_sim.modes.base import Mode
from wse_sim.modes.generation import Generation
from wse_sim.modes.pipelined import Pipelined
from wse_sim.modes.pipelined_systems import PipelinedSystems
from wse_sim.modes.weight_streaming import WeightStreaming

MODES: list[Mode] = [Pipelined(), WeightStreaming(), PipelinedSystems(), Generation()]
"""All modes, in the order of lists and comparisons.  A new mode is a folder and a line here, or `register_mode`."""


def register_mode(mode: Mode) -> None:
    """Add your own mode; one of the same name is replaced."""
    MODES[:] = [known for known in MODES if known.name != mode.name] + [mode]


def forget_mode(name: str) -> None:
    """Take a mode out of the list."""
    MODES[:] = [known for known in MODES if known.name != name]


def mode_names() -> tuple[str, ...]:
    """Names of all modes."""
    return tuple(mode.name for mode in MODES)


def competing(systems: int | None = None) -> tuple[Mode, ...]:
    """Return the modes for "auto" and for comparisons; only those that support `systems` systems, if given."""
    return tuple(
        mode for mode in MODES if mode.competes and (systems is None or mode.least_systems <= systems)
    )


def on_systems(name: str, systems: int) -> str:
    """The mode that a name means on that many systems: a pipeline over several is its own mode."""
    return (
        PipelinedSystems.name
        if name == Pipelined.name and systems >= PipelinedSystems.least_systems
        else name
    )


def resting() -> Mode:
    """The first competing mode that keeps all weights on the wafer: a model may be too large for it."""
    return next(mode for mode in competing() if mode.weights_rest)


def streaming() -> Mode:
    """The first competing mode that brings the weights in: it takes models of any size, and several systems."""
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
    """The mode that made a plan.

    Raises
    ------
    ModelError
        If none of the list did.
    """
    mode = mode_named(plan.mode)
    if not isinstance(plan, mode.plan):
        raise ModelError(
            f"a {type(plan).__name__} says that mode {mode.name} made it, which makes {mode.plan.__name__}; "
            f"give the plan its mode's name"
        )
    return mode
