"""Commands from declarations: one parameter of a command stands for all options of a declaration.

    @command
    def run_command(model: ModelArgument, options: RunOptions, screen: Screen) -> None: ...

becomes a command with one option per field of ``RunOptions`` and of ``Screen``; the function gets the filled, checked
objects.  ``Annotated[RunOptions, Without("jitter")]`` leaves options out, ``Annotated[PlaceOptions, Only("seed")]``
takes some.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from wse_sim.files import claim_file, claim_folder, looked_at
from wse_sim.options import Declared, Option
from wse_sim.timings import collecting, lines

KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True)
class Without:
    """Leave these options of a declaration out; they keep their defaults."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def takes(self, name: str) -> bool:
        """Whether the command has the option."""
        return name not in self.names


@dataclass(frozen=True)
class Only(Without):
    """Take these options of a declaration alone."""

    def takes(self, name: str) -> bool:
        """Whether the command has the option."""
        return name in self.names


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function with its declarations spread out into options, ready for typer."""
    hints = get_type_hints(function, include_extras=True)
    spread: dict[str, tuple[type[Declared], tuple[str, ...]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        declared = _declaration(hints[name])
        if declared is None:
            parameters.append(parameter.replace(annotation=hints[name], kind=KEYWORD))
            continue
        kind, chosen = declared
        spread[name] = (kind, tuple(option.name for option in chosen))
        parameters += [_parameter(option) for option in chosen]

    @functools.wraps(function)
    def call(**given: Any) -> None:
        for name, (kind, fields) in spread.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        for name, value in given.items():
            for path in value if isinstance(value, tuple | list) else (value,):
                if isinstance(path, Path):
                    looked_at(path, name)
        for name, (kind, fields) in spread.items():
            _claim([option for option in kind.options() if option.name in fields], given[name])
        if any(getattr(given[name], "timings", False) for name in spread):
            with said_timings():
                function(**given)
        else:
            function(**given)

    # Typer reads this signature, not that of the function.
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    del call.__wrapped__  # type: ignore[attr-defined]
    return call


@contextmanager
def said_timings() -> Iterator[None]:
    """Write where the time of the block went to standard error, whether or not it ends well."""
    before_s = time.process_time()
    with collecting() as log:
        try:
            yield
        finally:
            print("\n".join(lines(log.parts, before_s, time.process_time())), file=sys.stderr)


def _claim(options: Iterable[Option], given: Declared) -> None:
    """Claim the paths of all options that write files, before any work."""
    for option in options:
        path = getattr(given, option.name)
        if option.writes and path is not None:
            (claim_file if option.writes == "file" else claim_folder)(path, option.flag.split()[0])


def _declaration(hint: object) -> tuple[type[Declared], list[Option]] | None:
    choice: Without = Without()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        choice = next((extra for extra in extras if isinstance(extra, Without)), choice)
    if not (isinstance(hint, type) and issubclass(hint, Declared)):
        return None
    return hint, _chosen(hint, choice)


def _chosen(kind: type[Declared], choice: Without) -> list[Option]:
    return [option for option in kind.options() if choice.takes(option.name)]


def _parameter(option: Option) -> inspect.Parameter:
    kind: Any = option.type
    if option.optional:
        kind = kind | None
    flags: Iterable[str] = option.flag.split()
    hint = Annotated[kind, typer.Option(*flags, help=option.help)]
    default = str(option.default) if isinstance(option.default, Path) else option.default
    return inspect.Parameter(option.name, KEYWORD, default=default, annotation=hint)
