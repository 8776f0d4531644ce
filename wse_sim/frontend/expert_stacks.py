"""Lets products with one expert's weights represent the products with its share of all experts.

After :mod:`wse_sim.frontend.choices` every token chose the same evenly spaced experts, whose weights are rows of one
tensor: ``linear(x, weights[128])``. The product with expert 128 becomes the grouped product of the same tokens
with the experts from 128 up to the next chosen one.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from wse_sim.frontend.trace import Node, NodeRef, Trace

NOTE = "experts"
"""Beginning of a note on an assumed choice of experts."""
_TURNS = frozenset(["t", "transpose", "numpy_T", "mT", "permute"])
_PRODUCTS = {"linear": True, "mm": False, "matmul": False}
"""Products with a weight as second operand, and whether it has the outputs first."""


def group_experts(trace: Trace) -> int:
    """Replace products with one of a stack of weights by grouped products in place, and return their number.

    Nothing is replaced unless a choice was assumed.
    """
    if not any(note.startswith(f"{NOTE}: ") for note in trace.notes):
        return 0
    taken: dict[str, dict[int, list[Node]]] = defaultdict(lambda: defaultdict(list))
    for node in trace:
        stack = trace.node(node.args[0]) if node.op == "select" else None
        if stack is not None and stack.kind == "parameter" and len(stack.shape) == 3 and node.args[1] == 0:
            taken[stack.name][int(node.args[2]) % stack.shape[0]].append(node)
    after: dict[str, list[Node]] = {}
    made: list[Node] = []
    for name, experts in taken.items():
        for expert, width in _shares(sorted(experts), trace.nodes[name].shape[0]):
            for select in experts[expert]:
                part = dataclasses.replace(select, name=f"{select.name}_share", op="slice")
                part.args, part.kwargs = (NodeRef(name), 0, expert, expert + width), {}
                part.shape = (width, *select.shape)
                part.shapes = (part.shape,)
                turned = dataclasses.replace(part, name=f"{part.name}_turned", op="transpose")
                turned.args, turned.shape = (NodeRef(part.name), 1, 2), (width, *reversed(select.shape))
                turned.shapes = (turned.shape,)
                found = _products(select, trace, (part, turned))
                if found:
                    after[select.name] = [part, turned]
                    made += found
    nodes: dict[str, Node] = {}
    for node in trace:
        for one in (node, *after.get(node.name, ())):
            nodes[one.name] = one
    trace.nodes = nodes
    for node in made:
        trace.replace(node.name, node)
    trace.forget_users()
    trace.prune()
    return len(made)


def _shares(chosen: list[int], experts: int) -> list[tuple[int, int]]:
    """Return the chosen experts with the number of experts that each represents; none if that is one.

    >>> _shares([0, 4], 8), _shares([0, 256], 768), _shares([0], 8), _shares([0, 1, 2], 3)
    ([(0, 4), (4, 4)], [(0, 256), (256, 256)], [(0, 8)], [])
    """
    ends = [*chosen[1:], experts]
    widths = [end - start for start, end in zip(chosen, ends, strict=True)]
    if len(widths) > 1:  # the experts after the last one's share have no weights that are read
        widths[-1] = min(widths[-1], max(widths[:-1]))
    return [(start, width) for start, width in zip(chosen, widths, strict=True) if width > 1]


def _products(select: Node, trace: Trace, parts: tuple[Node, Node]) -> list[Node]:
    """Return the grouped products that replace those with the weights that `select` takes.

    `parts` are the weights of the experts of a share as they are stored, and transposed.
    """
    found = []
    for turned, weight in ((False, select), *((True, trace.nodes[n]) for n in trace.users(select.name))):
        if turned and weight.op not in _TURNS:
            continue
        for name in trace.users(weight.name):
            node = trace.nodes[name]
            operands = [ref.name for ref in node.refs()]
            if node.op not in _PRODUCTS or len(operands) != 2 or operands[1] != weight.name:
                continue
            found.append(dataclasses.replace(node, op="_grouped_mm", overload="", kwargs={}))
            found[-1].args = (node.args[0], NodeRef(parts[_PRODUCTS[node.op] != turned].name))
    return found
