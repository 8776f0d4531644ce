"""Assumes which experts tokens choose, where Python reads it during a capture.

A mixture of experts that loops over its experts (``for e in hit: rows = torch.where(chosen == e)``) gets rows
whose number depends on values. Every choice, the largest or the `k` largest of a row of scores, counts as
balanced where a list of modules has one member per expert. Where the weights of all experts are one tensor,
every token chooses the same `k` experts, evenly spaced, and :mod:`wse_sim.frontend.expert_stacks` lets each of these
products represent its share of all experts, so that a model of 512 experts has as many kernels as one of 8.
Either way every token is computed `k` times, as in PyTorch.
"""

from __future__ import annotations

import operator
from math import prod

import torch

from wse_sim.frontend.expert_stacks import NOTE

_aten = torch.ops.aten
_PAIRS = (_aten.topk.default, _aten.max.dim)
_COMPARED = frozenset(
    [
        "eq",
        "ne",
        "one_hot",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "bincount",
        "histc",
        "index_put",
        "index_put_",
    ]
)


class Choices:
    """The choices among the experts of one module; `values` has the assumed values of their nodes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.stacks = {p.shape[0] for p in module.parameters() if p.dim() > 2}
        kinds = (torch.nn.ModuleList, torch.nn.ModuleDict)
        self.lists = {len(part) for part in module.modules() if isinstance(part, kinds)}
        self.values: dict[torch.fx.Node, torch.Tensor] = {}
        self.seen: set[torch.fx.Node] = set()

    def found(self, wanted: torch.fx.Node) -> dict[torch.fx.Node, torch.Tensor]:
        """Return the assumed values that say which experts the tokens of a value chose; {} if it does not tell them
        apart.
        """
        if not (self.stacks or self.lists):
            return {}
        upstream, waiting, tells = {wanted}, [wanted], False
        known: dict[torch.fx.Node, torch.Tensor] = {}
        while waiting:
            node = waiting.pop()
            if (value := self._value(node)) is not None:
                known[node] = value
                continue
            tells = tells or str(node.target).removeprefix("aten.").partition(".")[0] in _COMPARED
            waiting += [n for n in node.all_input_nodes if n not in upstream]
            upstream.update(node.all_input_nodes)
        return known if tells else {}

    @staticmethod
    def note(line: str) -> str:
        """Return the note on a choice at the user's `line`."""
        return f"{NOTE}: the experts chosen at {line} depend on values; every expert gets the mean number of tokens"

    def _value(self, node: torch.fx.Node) -> torch.Tensor | None:
        """Return the assumed value of a choice of experts; None for any other node."""
        if node in self.seen:
            return self.values.get(node)
        self.seen.add(node)
        scores, dim = _scores(node)
        made = node.meta.get("val")
        if scores is None or not isinstance(made, torch.Tensor):
            return None
        experts = scores.shape[-1] if scores.dim() else 0
        each = made.shape[-1] if made.dim() == scores.dim() else 1
        tokens = prod(made.shape) // max(1, each)
        if dim not in (-1, scores.dim() - 1) or tokens < 2 or each >= experts:
            return None
        if experts in self.stacks:
            value = (torch.arange(each) * experts // each).expand(tokens, each)
        elif experts in self.lists:
            value = torch.arange(tokens * each) % experts
        else:
            return None
        self.values[node] = value.reshape(made.shape).clone()
        return self.values[node]


def _scores(node: torch.fx.Node) -> tuple[torch.Tensor | None, int | None]:
    """Return the scores among which a node chooses, and their dimension; (None, None) for any other node."""
    source = node
    if node.target is operator.getitem and node.args[1] == 1 and isinstance(node.args[0], torch.fx.Node):
        source = node.args[0]
        if source.target not in _PAIRS:
            return None, None
    elif node.target is not _aten.argmax.default:
        return None, None
    of = source.args[0]
    scores = of.meta.get("val") if isinstance(of, torch.fx.Node) else None
    if not isinstance(scores, torch.Tensor) or not scores.is_floating_point():
        return None, None
    place = 2 if source.target is _aten.topk.default else 1
    dim = (
        source.args[place]
        if len(source.args) > place
        else source.kwargs.get("dim", -1 if place == 2 else None)
    )
    return scores, dim if isinstance(dim, int) else None
