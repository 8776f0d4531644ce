"""Values of the parameters of modules: given by an import, or as text on the command line."""

from __future__ import annotations

import contextlib

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import NOWHERE, CslError
from wse_sim.csl.evaluation import Evaluation
from wse_sim.csl.values import FALSE, TRUE, CommandLineText, Global, Operand, Value


def given_param(ev: Evaluation, given: Value, t: ty.Type | None, decl: tree.Declaration) -> Operand:
    if t is None:
        return literal(given.data) if isinstance(given.data, CommandLineText) else given
    if given.type is ty.COMPTIME_STRING and t is not ty.COMPTIME_STRING:
        return parse_param(ev, given.data, t, decl)
    return ev.coerce(given, t, decl.at)


def parse_param(ev: Evaluation, text: str, t: ty.Type, decl: tree.Declaration) -> Operand:
    """Convert the text of a command-line parameter to the type of its declaration.

    Raises
    ------
    CslError
        If the text is not a value of this type.
    """
    try:
        if ty.is_int(t):
            return ev.coerce(Value(ty.COMPTIME_INT, int(text, 0)), t, decl.at)
        if ty.is_float(t):
            return ev.coerce(Value(ty.COMPTIME_FLOAT, float(text)), t, decl.at)
        if t is ty.BOOL and text in ("true", "false", "0", "1"):
            return TRUE if text in ("true", "1") else FALSE
        if isinstance(t, ty.HandleType):
            return Value(t, int(text, 0))
    except ValueError as error:
        raise CslError(
            decl.at, f"the parameter '{decl.name}' has type '{t}'; '{text}' is not a value of this type"
        ) from error
    raise CslError(decl.at, f"the parameter '{decl.name}' has type '{t}'; '{text}' cannot be read as one")


def no_value(g: Global) -> CslError:
    """Return the error for a parameter without a value: at the import of a library, or else at the
    declaration."""
    instance = g.instance
    if instance.library and instance.imported_at != NOWHERE:
        return CslError(
            instance.imported_at, f"{instance.path} needs a value for its parameter '{g.name}'; pass it here"
        )
    return CslError(
        g.decl.at, f"the parameter '{g.name}' has no value; pass it where this file is used, or with --params"
    )


def literal(text: str) -> Value:
    """Parse `text` as a literal of the language: an integer, a float, a Boolean, or else a string."""
    if text in ("true", "false"):
        return TRUE if text == "true" else FALSE
    if text[:1] in set("-.0123456789"):  # float() also reads words such as 'inf'
        with contextlib.suppress(ValueError):
            return Value(ty.COMPTIME_INT, int(text, 0))
        with contextlib.suppress(ValueError):
            return Value(ty.COMPTIME_FLOAT, float(text))
    return Value(ty.COMPTIME_STRING, str(text))
