"""Lists elementwise work operator by operator, each with its tensor or number as the second operand.

    (x - 3) * 2 + y     ("", "x"), ("add", -3.0), ("mul", 2.0), ("add", "y")
    1 - x               ("", "x"), ("mul", -1.0), ("add", 1.0)
    x / 2, x ** 2       ("mul", 0.5), ("square", "")
    clamp(x, 0, 6)      ("max", 0.0), ("min", 6.0)
    leaky_relu(x)       ("mul", 0.01), ("max", START)

Families and costs know only the names of operators. Code that computes values also needs the numbers, and the
order of operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from wse_sim.frontend.trace import Argument, Node, Trace
from wse_sim.graph.access import START, Step

VALUE = object()
"""Placeholder for the current value in the operands of an operator."""
PLAIN = (
    "relu",
    "silu",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "neg",
    "abs",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "reciprocal",
    "erf",
    "square",
)
POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
MEETS = {"maximum": "max", "minimum": "min", "mul": "mul"}
Operand = object
Rule = Callable[[Node, list[Operand]], "list[Step] | None"]


def steps_of(
    trace: Trace, nodes: Sequence[Node], tensor_of: Mapping[str, str], made: str = ""
) -> tuple[Step, ...]:
    """Return the steps that a chain of operators applies to each element.

    The result is empty if an operator has no rule, does not read the current value exactly once, or needs an earlier one with
    which the chain does not start. `made` is
    the name of the operator whose result the first one continues from, which is ("", "") in the steps; if it
    is "", the first step names a tensor.
    """
    found: list[Step] = [("", "")] if made else []
    before = made
    for node in nodes:
        operands = [_operand(trace, arg, before, tensor_of) for arg in node.args]
        if not before:
            start = _start(operands, trace, node)
            if start is None:
                return ()
            found.append(("", str(operands[start])))
            operands[start] = VALUE
        rule = _RULES.get(node.op)
        steps = rule(node, operands) if rule is not None and operands.count(VALUE) == 1 else None
        if steps is None or (len(found) > 1 and any(taken == START for _, taken in steps)):
            return ()
        found += steps
        before = node.name
    return tuple(found)


def says_more(steps: Sequence[Step], nodes: Sequence[Node]) -> bool:
    """Return whether steps state more than the operator names: a number, an order of operands, or a power."""
    is_ordered = len(steps) > 2 and any(op in ("sub", "div") for op, _ in steps)
    has_number = any(isinstance(taken, float) for _, taken in steps)
    return bool(steps) and (is_ordered or has_number or any(node.op == "pow" for node in nodes))


def _operand(trace: Trace, arg: Argument, before: str, tensor_of: Mapping[str, str]) -> Operand:
    """Return the meaning of an argument: the current value, the name of a tensor, a number, or itself."""
    base = trace.base(arg)
    if base is not None:
        if base.name == before:
            return VALUE
        if not base.elements > 1 and trace.is_constant(arg):
            value = trace.evaluate(base.name)
            return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None
        return tensor_of.get(base.name)
    is_number = isinstance(arg, (int, float)) and not isinstance(arg, bool)
    return float(arg) if is_number else arg  # type: ignore[arg-type]


def _start(operands: Sequence[Operand], trace: Trace, node: Node) -> int | None:
    """Return the position of the operand with which the value starts, one that depends on the model's inputs.

    In a sum with a factor it is the last such operand, otherwise the first. Return None if there is none.
    """
    places = [
        i
        for i, (operand, arg) in enumerate(zip(operands, node.args, strict=True))
        if isinstance(operand, str) and (base := trace.base(arg)) is not None and base.dynamic
    ]
    if not places:
        return None
    has_factor = node.kwargs.get("alpha", 1) != 1 and node.op in ("add", "sub")
    return places[-1] if has_factor else places[0]


def _number(value: Operand) -> bool:
    return isinstance(value, float) and isfinite(value)


def _is_taken(value: Operand) -> bool:
    return isinstance(value, str) or _number(value)


def _sum(first: float, second: float) -> Rule:
    """Return the rule of `first` x + `second` y.

    alpha multiplies the second operand of a sum or difference, and the first one of rsub.
    """

    def rule(node: Node, operands: list[Operand]) -> list[Step] | None:
        alpha = float(node.kwargs.get("alpha", 1))
        signs = [first * (alpha if node.op == "rsub" else 1), second * (1 if node.op == "rsub" else alpha)]
        place = operands.index(VALUE)
        other, factor = operands[1 - place], signs[1 - place]
        steps: list[Step] = [] if signs[place] == 1 else [("mul", signs[place])]
        if _number(other):
            return [*steps, ("add", factor * other)]  # type: ignore[operator]
        if isinstance(other, str) and factor in (1, -1):
            return [*steps, ("add" if factor == 1 else "sub", other)]
        return None

    return rule


def _meeting(node: Node, operands: list[Operand]) -> list[Step] | None:
    other = operands[1 - operands.index(VALUE)]
    return [(MEETS[node.op], other)] if _is_taken(other) else None  # type: ignore[list-item]


def _quotient(node: Node, operands: list[Operand]) -> list[Step] | None:
    other = operands[1 - operands.index(VALUE)]
    if node.kwargs.get("rounding_mode") is not None or not _is_taken(other) or other == 0.0:
        return None
    if operands[0] is not VALUE:
        return [("reciprocal", ""), ("mul", other)]  # type: ignore[list-item]
    return [("mul", 1 / other)] if isinstance(other, float) else [("div", str(other))]


def _power(_node: Node, operands: list[Operand]) -> list[Step] | None:
    if operands[0] is not VALUE or operands[1] not in POWERS:
        return None
    return [(POWERS[operands[1]], "")]  # type: ignore[index]


def _clamped(node: Node, operands: list[Operand]) -> list[Step] | None:
    least = operands[1] if len(operands) > 1 else node.kwargs.get("min")
    most = operands[2] if len(operands) > 2 else node.kwargs.get("max")
    if node.op == "clamp_min":
        most = None
    elif node.op == "clamp_max":
        least, most = None, operands[1]
    elif node.op == "hardtanh":
        least, most = -1.0 if least is None else least, 1.0 if most is None else most
    elif node.op == "relu6":
        least, most = 0.0, 6.0
    found: list[Step] = []
    for op, bound in (("max", least), ("min", most)):
        if isinstance(bound, (int, float)):
            found.append((op, float(bound)))
        elif bound is not None:
            return None
    return found


def _hard_sigmoid(_node: Node, _operands: list[Operand]) -> list[Step]:
    return [("add", 3.0), ("max", 0.0), ("min", 6.0), ("mul", 1 / 6)]


def _hard_swish(_node: Node, _operands: list[Operand]) -> list[Step]:
    return [("add", 3.0), ("max", 0.0), ("min", 6.0), ("mul", START), ("mul", 1 / 6)]


def _leaky_relu(node: Node, operands: list[Operand]) -> list[Step] | None:
    slope = operands[1] if len(operands) > 1 else node.kwargs.get("negative_slope", 0.01)
    return [("mul", slope), ("max", START)] if isinstance(slope, float) and 0 < slope < 1 else None


def _function(node: Node, _operands: list[Operand]) -> list[Step]:
    return [(node.op, "")]


def _gelu(node: Node, _operands: list[Operand]) -> list[Step]:
    how = node.kwargs.get("approximate")
    if how == "quick":
        return _scaled("silu", float(node.kwargs["factor"]))
    return [("gelu_tanh" if how == "tanh" else "gelu", "")]


def _softplus(node: Node, operands: list[Operand]) -> list[Step]:
    beta = operands[1] if len(operands) > 1 else node.kwargs.get("beta", 1.0)
    return _scaled("softplus", float(beta))  # type: ignore[arg-type]


def _scaled(function: str, factor: float) -> list[Step]:
    """Return the steps of f(c x) / c; with f = SiLU this is the quick GELU x sigmoid(c x)."""
    steps: list[Step] = [("mul", factor), (function, ""), ("mul", 1 / factor)]
    return steps if factor != 1 else [(function, "")]


_RULES: dict[str, Rule] = {
    "add": _sum(1, 1),
    "sub": _sum(1, -1),
    "rsub": _sum(-1, 1),
    **dict.fromkeys(MEETS, _meeting),
    **dict.fromkeys(("div", "true_divide"), _quotient),
    "pow": _power,
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "relu6"), _clamped),
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _hard_swish,
    "leaky_relu": _leaky_relu,
    "gelu": _gelu,
    "softplus": _softplus,
    **dict.fromkeys(PLAIN, _function),
}
