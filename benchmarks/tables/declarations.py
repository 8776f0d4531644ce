"""Tables of the declarations in the code: options, commands, placers, objectives, kernel families."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.tables.base import markdown, percent, table
from wse_sim.compiler.objectives import OBJECTIVES
from wse_sim.compiler.placers import placers
from wse_sim.compiler.placers.options import PlaceOptions
from wse_sim.kernels import family, load_families
from wse_sim.modes import MODES
from wse_sim.options import Declared, GenerationOptions, KernelOptions, RunOptions
from wse_sim.serving.options import ServingOptions

if TYPE_CHECKING:
    from click import Command, Parameter


def _options(kind: type[Declared]) -> str:
    rows = []
    for option in kind.options():
        default = "" if option.default is None else f"`{option.default}`"
        flags = ", ".join(f"`{flag}`" for flag in option.flag.split())
        limits = option.range if not option.choices else ", ".join(f"`{choice}`" for choice in option.choices)
        rows.append(
            (flags, f"`{option.name}`", default, limits, option.unit, option.help.replace("|", "\\|"))
        )
    return markdown(("command line", "field", "default", "allowed", "unit", "meaning"), rows)


@table("placers")
def _placers() -> str:
    takes = {True: "models and contest", False: "models"}
    return markdown(
        ("name", "takes", "what it does"), [(f"`{p.name}`", takes[p.contest], p.about) for p in placers()]
    )


@table("objectives")
def _objectives() -> str:
    return markdown(
        ("objective", "what is made small"), [(f"`{name}`", text) for name, text in OBJECTIVES.items()]
    )


DECLARATIONS = {
    "run": RunOptions,
    "generate": GenerationOptions,
    "serve": ServingOptions,
    "place": PlaceOptions,
    "kernel": KernelOptions,
}
for command, declaration in DECLARATIONS.items():
    table(f"options.{command}")(partial(_options, declaration))


@table("options.modes")
def _modes() -> str:
    """Return the options of single modes; those of a run are in its table."""
    rows = [
        (
            mode.name,
            f"`{each.name}`",
            "" if each.default is None else f"`{each.default}`",
            each.range,
            each.unit,
            each.help,
        )
        for mode in MODES
        if issubclass(mode.options, Declared)
        for each in mode.options.options()
        if each.name not in RunOptions.of_modes and each.name != "batch"
    ]
    return markdown(("mode", "field", "default", "allowed", "unit", "meaning"), rows)


DECLARED_IN = {
    "run": ("run", "#a-run"),
    "compare": ("run", "#a-run"),
    "sensitivity": ("run", "#a-run"),
    "generate": ("generate", "#generation"),
    "place": ("place", "#a-placement"),
    "kernel": ("kernel", "#a-kernel"),
}
"""Commands whose options are in their own table: its declaration and its place on the page."""


def _commands(group: Command, path: tuple[str, ...] = ()) -> Iterable[tuple[str, Command]]:
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from _commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


@table("options.commands")
def _every_command() -> str:
    """Arguments and options of every command, as the command line itself knows them."""
    from typer.main import get_command

    from wse_sim.cli import app

    parts = []
    for name, found in sorted(_commands(get_command(app))):
        about = (found.help or "").split("\n\n")[0].replace("\n", " ").strip()
        lines = [f"### wse-sim {name}", "", about]
        known: set[str] = set()
        if name in DECLARED_IN:
            declared, place = DECLARED_IN[name]
            known = {option.flag.split()[0] for option in DECLARATIONS[declared].options()}
            lines += ["", f"Options of [the table above]({place}), and:"]
        rows = [_parameter(each) for each in found.params if each.opts[0] not in known]
        if rows:
            lines += ["", markdown(("command line", "default", "meaning"), rows)]
        elif not known:
            lines += ["", "Its arguments are those of the program that it stands for; see [CSL](csl.md)."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _parameter(found: Parameter) -> tuple[str, str, str]:
    """Flags, default and help (with the range, where there is one) of one parameter of a command."""
    is_argument = found.param_type_name == "argument"
    flags = f"`{found.name.upper()}`" if is_argument else ", ".join(f"`{flag}`" for flag in found.opts)
    default = found.default
    is_silent = default is None or default is False or callable(default) or is_argument
    text = (found.help or "").replace("\n", " ").replace("|", "\\|")
    bounds = [getattr(found, end, getattr(getattr(found, "type", None), end, None)) for end in ("min", "max")]
    if any(bound is not None for bound in bounds):
        low, high = (f"{bound:,.12g}" if bound is not None else "" for bound in bounds)
        between = f"{low} to {high}" if low and high else f"{low} or more" if low else f"{high} or less"
        text += f" ({between})"
    return flags, "" if is_silent else f"`{default}`", text


def _lines(names: Iterable[str]) -> str:
    found = (family(name) for name in names)
    head = ("family", "mapping over the cores", "program", "band of cost against program")
    return markdown(head, ((f.name, f.lies, f.programs, f.bands or percent(f.band, 0, False)) for f in found))


def _own_families() -> list[str]:
    """Return the names of the families of this library; one that was registered next to them is not of the pages."""
    return [
        name
        for name in sorted(load_families())
        if type(family(name)).__module__.startswith("wse_sim.kernels.")
    ]


@table("kernels.families")
def _families() -> str:
    return _lines(name for name in _own_families() if _is_tabled(name, collective=False))


@table("kernels.collectives")
def _collectives() -> str:
    return _lines(name for name in _own_families() if _is_tabled(name, collective=True))


def _is_tabled(name: str, *, collective: bool) -> bool:
    found = family(name)
    return bool(found.lies) and collective == (".collectives." in type(found).__module__)


@table("kernels.stated")
def _stated() -> str:
    """Sizes and attributes of every family, from its declarations."""
    rows = []
    for name in _own_families():
        found = family(name)
        sizes = ", ".join(f"`{size.name}` {size.help}".strip() for size in found.sizes())
        own = (item for item in found.parameters().values() if not (item.is_pin or item.is_common))
        says = "; ".join(f"`{item.name}` ({item.default!r}; {item.range}) {item.help}" for item in own)
        rows.append((name, sizes, says or "none"))
    return markdown(("family", "sizes", "attributes (default; values)"), rows)
