"""Computes integers and booleans of a program under capture from known ones, and random numbers as their means."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, TypeGuard

import torch

from wse_sim.frontend.trace import shape_operand


def _mean(node: torch.fx.Node) -> torch.Tensor | None:
    """Return the mean of the random numbers of a node, or the likelier boolean; None for any other node."""
    name = str(node.target).removeprefix("aten.").partition(".")[0].removesuffix("_")
    made = node.meta.get("val")
    if name not in _DRAWS or not isinstance(made, torch.Tensor):
        return None
    names = ("low", "high") if "randint.low" in str(node.target) else _ARGUMENTS.get(name, ())
    named = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if name == "bernoulli":
        chance = named.get("p")
        return None if not isinstance(chance, float) else _filled(made, float(chance >= 0.5))
    if name in ("randn", "randn_like"):
        return _filled(made, 0.0)
    ends = (
        [named.get("low", 0), named.get("high", node.args[0] if node.args else None)]
        if name == "randint"
        else []
    )
    if name == "uniform":
        ends = [named.get("from", 0.0), named.get("to", 1.0)]
    numbers = [x for x in ends or [0.0, 1.0] if isinstance(x, (int, float))]
    if len(numbers) < 2:
        return None
    return _filled(made, sum(numbers) // 2 if name == "randint" else sum(numbers) / 2)


def _filled(like: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full(like.shape, value, dtype=like.dtype)


_ARGUMENTS = {
    "uniform": ("self", "from", "to"),
    "bernoulli": ("self", "p"),
}
_DRAWS = frozenset(["rand", "rand_like", "uniform", "bernoulli", "randint", "randn", "randn_like"])


def worked_out(
    wanted: torch.fx.Node, known: Mapping[torch.fx.Node, Any], root: object, random: list[torch.fx.Node]
) -> object:
    """Return the value of a node from known nodes and means of random numbers.

    Return None if it depends on anything else. Nodes of random numbers are appended to `random`. The program
    may still write in place: writes to needed tensors are executed in order.
    """
    writes = [node for node in wanted.graph.nodes if _writes(node)]
    needed = _needed(wanted, known, writes)
    values = {n: v.clone() if writes else v for n, v in known.items() if n in needed}
    for node in wanted.graph.nodes:
        if node not in needed or node in values:
            continue
        if node.op == "get_attr":
            found = getattr(root, str(node.target), None)
            if not isinstance(found, torch.Tensor) or type(found) is not torch.Tensor:
                return None
            values[node] = found.clone() if writes else found
        elif (mean := _mean(node)) is not None:
            values[node] = mean
            random.append(node)
        elif node.target is torch.ops.aten.bernoulli.default and isinstance(node.args[0], torch.fx.Node):
            chances = values[node.args[0]]
            values[node] = (chances >= 0.5).to(chances.dtype)
            random.append(node)
        elif node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(
            node.target, "tags", ()
        ):
            return None
        else:
            args, kwargs = torch.fx.map_arg(
                (node.args, dict(node.kwargs)), lambda n: values[n] if n in values else placeholder(n)
            )
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[wanted]


def _needed(
    wanted: torch.fx.Node, known: Mapping[torch.fx.Node, Any], writes: list[torch.fx.Node]
) -> set[torch.fx.Node]:
    """Return the nodes on which a node depends, including writes to any of them."""
    needed: set[torch.fx.Node] = set()
    waiting = [wanted]
    while waiting:
        while waiting:
            node = waiting.pop()
            if node in needed:
                continue
            needed.add(node)
            if node not in known:
                waiting.extend(n for n in node.all_input_nodes if not says_shape(node, n))
        if writes:
            held = {_base(node) for node in needed}
            waiting = [node for node in writes if node not in needed and _base(node) in held]
    return needed


def _writes(node: torch.fx.Node) -> bool:
    """Return whether an operator writes to its first operand."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node whose memory a node shares."""
    while node.op == "call_function" and node.args:
        above = node.args[0]
        schema = getattr(node.target, "_schema", None)
        shares = node.target is operator.getitem or (
            schema is not None and any(r.alias_info is not None for r in schema.returns)
        )
        if not shares or not isinstance(above, torch.fx.Node):
            break
        node = above
    return node


def says_shape(node: torch.fx.Node, operand: torch.fx.Node) -> bool:
    """Return whether an operator uses only the shape or type of an operand."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    place = shape_operand(name)
    return place is not None and [a for a in node.args if a is operand] == list(node.args[place : place + 1])


def placeholder(node: torch.fx.Node) -> torch.Tensor:
    """Return a tensor with the shape and type of a node's result, but memory for one element only."""
    made = node.meta["val"]
    return torch.zeros((), dtype=made.dtype).expand(made.shape)


def is_inexact(x: torch.Tensor) -> bool:
    """Return whether a tensor has floating-point or complex numbers."""
    return x.is_floating_point() or x.is_complex()


_EQUALITY = frozenset(["eq", "ne", "isnan", "isinf", "isfinite"])


def tests_for_equality(node: torch.fx.Node) -> bool:
    """Return whether a result depends on floating-point values only by tests for equality, which measured data pass alike."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        operands = current.all_input_nodes
        values = [n.meta.get("val") for n in operands]
        if any(isinstance(x, torch.Tensor) and is_inexact(x) for x in values):
            if str(current.target).removeprefix("aten.").partition(".")[0] not in _EQUALITY:
                return False
            continue
        waiting += [n for n in operands if n not in seen]
        seen.update(operands)
    return True


def joined(index: object) -> object:
    """Return an index with lists of tensors, whose values torch would read, as stacks of them."""
    if not isinstance(index, tuple):
        return index
    return tuple(
        stacked(part)
        if isinstance(part, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in part)
        else part
        for part in index
    )


def stacked(data: object) -> torch.Tensor:
    """Return nested lists of tensors and numbers as one stacked tensor."""
    if isinstance(data, (list, tuple)):
        return torch.stack([stacked(item) for item in data])
    return data if isinstance(data, torch.Tensor) else torch.tensor(data)


def constant(value: torch.Tensor) -> torch.Tensor:
    """Return a constant tensor of the program with these values."""
    return torch.tensor(value.tolist(), dtype=value.dtype).reshape(value.shape)


def has_values(x: object) -> TypeGuard[torch.Tensor]:
    """Return whether an argument is a tensor that has values."""
    return isinstance(x, torch.Tensor) and type(x) is torch.Tensor and x.device.type == "cpu"


def has_counted_values(x: object) -> bool:
    """Return whether an argument is a tensor of integers or booleans that has values."""
    return has_values(x) and not is_inexact(x)
