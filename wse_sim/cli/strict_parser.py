"""Groups of commands that refuse input that the parser would ignore: an option given twice, a number in unusual digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from typer.core import TyperGroup

from wse_sim.errors import WseError
from wse_sim.files import is_plain_number

if TYPE_CHECKING:
    from typer._click.core import Command, Context

_NUMBERS = ("integer", "float")  # names of types of earlier parsers begin so


class StrictGroup(TyperGroup):
    """Checks the arguments of each of its commands before the command reads them."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Find the named command and its arguments.

        Raises
        ------
        WseError
            If an option is given twice that takes one value, or a number is spelled with other signs than 0 to 9.
        """
        name, command, words = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, TyperGroup):
            _check(command, name, ctx, words)
        return name, command, words


def _check(command: Command, name: str | None, ctx: Context, words: list[str]) -> None:
    if command.context_settings.get("ignore_unknown_options"):
        return  # its words are those of another program
    inner = command.context_class(command, info_name=name, parent=ctx, **command.context_settings)
    try:
        values, _, order = command.make_parser(inner).parse_args(args=list(words))
    except Exception:  # the command parses the same words again, and states what is wrong
        return
    seen: list[Any] = []
    for parameter in order:
        if parameter in seen and not parameter.multiple and parameter.param_type_name == "option":
            raise WseError(f"{parameter.opts[0]} is given twice; give it once")
        seen.append(parameter)
        if _is_number(parameter):
            for text in _texts(values.get(parameter.name or "")):
                if not is_plain_number(text):
                    raise WseError(f"{parameter.opts[0]} is '{text}'; spell numbers with the digits 0 to 9")


def _is_number(parameter: Any) -> bool:
    """Return whether an option takes numbers; versions of the parser state it in different places."""
    stated = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if stated is not None:
        return bool({stated, *get_args(stated)} & {int, float})
    return str(getattr(getattr(parameter, "type", None), "name", "")).startswith(_NUMBERS)


def _texts(value: object) -> list[str]:
    """Return the words that were given for a parameter."""
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []
