"""Finds where gradients stop in a model: at ``detach()``, under ``torch.no_grad()``, at casts to integers and at
indices.

As in torch, an operator of a training step has a gradient if one of its operands has one, unless it detaches
or ran under no_grad. A gradient arrives at it if it reaches a result of the model through such operators
only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from wse_sim.frontend.trace import VIEWS, Node, Trace

_FLOAT = frozenset(["fp64", "fp32", "fp16", "bf16", "complex64", "complex128"])


@dataclass(frozen=True)
class Cuts:
    """The cuts in the backward pass of a program, as names of nodes.

    `off` are nodes that would have a gradient without cuts but do not get one. `reached` are nodes that get a
    gradient. `through` states for each node whether it depends on a trained parameter without a cut between.
    """

    off: Collection[str] = frozenset()
    reached: Collection[str] = frozenset()
    through: Mapping[str, bool] = field(default_factory=dict)

    def stops(self, node: Node, trace: Trace) -> list[str]:
        """Return the operands that get a gradient, but not from this reader, which takes them detached."""
        if node.name not in self.reached:
            return []
        passes: dict[str, bool] = {}
        for ref in node.refs():
            base = trace.base(ref)
            if base is not None and base.name in self.reached:
                passes[base.name] = passes.get(base.name, False) or self.through[ref.name]
        return [name for name, passed in passes.items() if not passed]


def cuts_of(trace: Trace) -> Cuts:
    """Return the cuts of a captured training step; without any cut the result is empty."""
    calls = [node for node in trace if node.kind == "call"]
    if not any(_cuts(node) for node in calls):
        return Cuts()
    leaves = {n.name: n.kind == "parameter" and n.trains for n in trace if n.kind != "call"}
    free, through = dict(leaves), dict(leaves)
    for node in calls:
        floats = node.dtype in _FLOAT
        # A kernel of several results has one tensor, so views of positions would have the gradient of the values.
        free[node.name] = (floats or node.op in VIEWS) and any(free[r.name] for r in node.refs())
        through[node.name] = floats and not _cuts(node) and any(through[r.name] for r in node.refs())
    reached: set[str] = set()
    waiting = [ref.name for ref in trace.outputs]
    while waiting:
        name = waiting.pop()
        if through[name] and name not in reached:
            reached.add(name)
            waiting += [ref.name for ref in trace.nodes[name].refs()]
    off = {name for name, has in free.items() if has and name not in reached}
    return Cuts(off, reached, through)


def _cuts(node: Node) -> bool:
    is_cast = node.op == "no_op_cast" and node.dtype not in _FLOAT
    return node.op == "detach" or not node.trains or is_cast or _is_position(node)


def _is_position(node: Node) -> bool:
    """Return whether a node is an integer result of several, such as the indices of the largest values."""
    return node.op == "getitem" and node.dtype not in _FLOAT
