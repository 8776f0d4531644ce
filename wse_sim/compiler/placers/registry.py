"""The list of placers: those of this folder, and those that users register."""

from __future__ import annotations

import importlib
import pkgutil

from wse_sim.compiler.placers.base import Placer, RectanglePlacer
from wse_sim.errors import ConfigError
from wse_sim.user_code import loaded

CONTRACT = ("base", "options", "registry")
"""Files of this folder that are not placers."""
_known: dict[str, Placer] = {}


def placers() -> tuple[Placer, ...]:
    """Return all placers, sorted by name.

    Example
    -------
    >>> "shelves" in [placer.name for placer in placers()]
    True
    """
    if not _known:
        package = importlib.import_module(__package__)
        for found in pkgutil.iter_modules(package.__path__):
            if found.name not in CONTRACT:
                module = importlib.import_module(f"{package.__name__}.{found.name}")
                for placer in getattr(module, "PLACERS", None) or (module.PLACER,):
                    _known[placer.name] = placer
    return tuple(_known[name] for name in sorted(_known))


def placer_names(*, contest: bool = False) -> list[str]:
    """Return the names of the placers in alphabetical order; with `contest`, only of those that take contest
    instances.

    Example
    -------
    >>> sorted(set(placer_names()) - set(placer_names(contest=True)))  # those that need to know the costs of stages
    ['shelves']
    """
    return [placer.name for placer in placers() if placer.contest or not contest]


def register_placer(placer: Placer) -> None:
    """Add a placer to the list; it replaces one of the same name.

    Example
    -------
    >>> register_placer(placer_named("peel"))
    >>> "peel" in placer_names()
    True
    """
    placers()
    _known[placer.name] = placer


def forget_placer(name: str) -> None:
    """Remove a placer from the list, if it is there.

    Example
    -------
    >>> placer = placer_named("snake")
    >>> forget_placer("snake")
    >>> "snake" in placer_names()
    False
    >>> register_placer(placer)
    """
    placers()
    _known.pop(name, None)


def placer_named(name: str) -> Placer:
    """Return the placer with a name.

    A name ``package.module:NAME`` or ``FILE.py:NAME`` imports and registers your own placer.

    Example
    -------
    >>> placer_named("peel").name
    'peel'

    Raises
    ------
    ConfigError
        If there is no such placer, or the name refers to an object that is not a placer.
    """
    if ":" in name:
        made = loaded(name, "a placer", ConfigError)
        placer = made() if isinstance(made, type) else made
        if not isinstance(placer, Placer):
            raise ConfigError(f"{name!r} is a {type(placer).__name__}, not a placer; derive it from Placer")
        register_placer(placer)
        return placer
    placers()
    if name not in _known:
        raise ConfigError(f"there is no placer {name!r}; use one of {', '.join(placer_names())}")
    return _known[name]


def rectangle_placer(name: str) -> RectanglePlacer:
    """Return the placer with a name, which must be a placer of rectangles.

    Example
    -------
    >>> rectangle_placer("shelves")
    Traceback (most recent call last):
        ...
    wse_sim.errors.ConfigError: placer 'shelves' places only the stages of a model; use one of best, exact, fast, normal, peel, portfolio, snake

    Raises
    ------
    ConfigError
        If there is no such placer, or it places only the stages of a model.
    """
    placer = placer_named(name)
    if not isinstance(placer, RectanglePlacer):
        raise ConfigError(
            f"placer {name!r} places only the stages of a model; use one of {', '.join(placer_names(contest=True))}"
        )
    return placer
