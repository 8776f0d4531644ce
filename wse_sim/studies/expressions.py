"""Constraints of a study: ``batch % systems == 0``, ``mfu >= 0.3 and step_joules < 4e4``.

Numbers, texts, names of parameters and outputs (dots allowed), ``+ - * / // % **``, comparisons, ``and or not``,
``min max abs``; nothing else is evaluated.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wse_sim.errors import ConfigError

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
MOST_TEXT = 1000


@dataclass(frozen=True)
class Constraint:
    """One condition, parsed; `names` are the parameters and outputs that it reads."""

    text: str
    names: frozenset[str]

    @staticmethod
    def parse(text: str) -> Constraint:
        """Read a condition.

        Raises
        ------
        ConfigError
            If it cannot be parsed, or uses anything except arithmetic and comparisons.
        """
        if not isinstance(text, str) or len(text) > MOST_TEXT:
            raise ConfigError(
                f"constraint {str(text)[:40]!r} is not a condition; write text such as batch >= systems"
            )
        try:
            tree = _tree(text)
            return Constraint(text, frozenset(_names(tree)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
            why = fault.msg if isinstance(fault, SyntaxError) else str(fault)
            raise ConfigError(
                f"constraint '{text}' cannot be read ({why}); use arithmetic and comparisons"
            ) from None

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the condition holds for these values.

        Raises
        ------
        ConfigError
            If a value is unsuitable (multiplication of a text, division by zero).
        """
        try:
            return bool(_value(_tree(self.text), values))
        except (TypeError, ArithmeticError, KeyError, ValueError, RecursionError) as fault:
            raise ConfigError(
                f"constraint '{self.text}' cannot be evaluated ({fault}); correct it or the values"
            ) from None

    def excess(self, values: Mapping[str, Any]) -> float:
        """Return the violation of the condition: 0 if it holds, the difference of the sides of a comparison,
        else 1."""
        if self.holds(values):
            return 0.0
        node = _tree(self.text)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = [_value(side, values) for side in (node.left, node.comparators[0])]
            if all(isinstance(side, int | float) and math.isfinite(side) for side in sides):
                return abs(sides[0] - sides[1]) / max(abs(sides[0]), abs(sides[1]), 1e-300)
        return 1.0


def _tree(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that an expression reads; raise an error for anything that is not allowed."""
    name = _dotted(node) if isinstance(node, ast.expr) else None
    if name is not None:
        yield name
        return
    allowed = (
        ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.And, ast.Or,
        ast.Not, ast.USub, ast.UAdd, ast.Pow, *_BINARY,
    )  # fmt: skip
    if isinstance(node, ast.Call):
        if not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS) or node.keywords:
            raise ValueError("only min, max and abs can be called")
        for argument in node.args:
            yield from _names(argument)
        return
    if not isinstance(node, allowed):
        raise ValueError(f"{type(node).__name__} is not allowed")
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    name = _dotted(node)
    if name is not None:
        return values[name]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, values) for item in node.elts]
    if isinstance(node, ast.BoolOp):
        parts = (_value(item, values) for item in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, values)
        return (
            (not value)
            if isinstance(node.op, ast.Not)
            else -value
            if isinstance(node.op, ast.USub)
            else +value
        )
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, values), _value(node.right, values)
        odd = next((side for side in (left, right) if not isinstance(side, int | float)), None)
        if odd is not None:  # texts and lists would grow without limit
            raise TypeError(f"a {type(odd).__name__} cannot be used in arithmetic")
        if isinstance(node.op, ast.Pow):
            return float(left) ** float(right)  # whole powers would grow without limit
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.Compare):
        left = _value(node.left, values)
        for compared, right_node in zip(node.ops, node.comparators, strict=True):
            right = _value(right_node, values)
            if not _BINARY[type(compared)](left, right):
                return False
            left = right
        return True
    assert isinstance(node, ast.Call)  # _names rejects everything else
    assert isinstance(node.func, ast.Name)
    return _FUNCTIONS[node.func.id](*(_value(item, values) for item in node.args))
