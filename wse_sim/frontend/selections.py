"""Keeps elements that an unknown mask selects at their places, so that their number need not be known.

``y[y > 0] *= 2`` and ``loss[mask].mean()`` select as many elements as values decide, which a static machine
cannot. As long as the selected elements are changed one by one, reduced to one number or written back with
the same mask, they are computed at all places, and the mask is applied at the end (:class:`Selections`). Any
other use is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional
from torch.utils import _pytree as pytree

from wse_sim.frontend.classify_rows import ACTIVATIONS, BINARY, UNARY
from wse_sim.frontend.watch import made_by

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Named = Mapping[str, Any]
Answer = tuple[bool, Any]
"""Whether a call is possible, and its result."""
NOTE = "masks: elements that a mask selects are computed at all places, as their number is not known"
_ALIASES = "rsub rdiv rtruediv truediv radd rmul rpow iadd isub imul itruediv ipow idiv floordiv"
_PASSED_ON = "float half double bfloat16 to type type_as long int bool clone detach contiguous"
_ELEMENTWISE = frozenset(f"{ACTIVATIONS} {BINARY} {UNARY} {_ALIASES} {_PASSED_ON}".split()) - {
    *("glu", "prelu", "outer", "where"),
}
_LOSSES = {
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
}
_FILLS = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "amax": float("-inf")}
_FILLS |= {"min": float("inf"), "amin": float("inf")}
_PLAIN = frozenset(
    getattr(Tensor, name).__get__
    for name in ("dtype", "device", "requires_grad", "is_leaf", "is_cuda", "is_sparse", "is_quantized")
)
_METHODS = (Tensor.stride, Tensor.size, Tensor.storage_offset, Tensor.numel, Tensor.dim)
FACTS = _PLAIN | {*_METHODS, Tensor.layout.__get__, Tensor.shape.__get__}  # type: ignore[attr-defined]
"""Functions that read the facts of tensors for which torch asks most often while it captures."""


@dataclass(frozen=True)
class Selection:
    """Elements of `whole` that `mask` selects: its dimensions come before the last `after` of them.

    `line` is the user's line.
    """

    whole: Tensor
    mask: Tensor
    after: int
    line: str

    def of(self, whole: Tensor) -> Selection:
        """Return the same selection of other elements."""
        return replace(self, whole=whole)

    @property
    def wide(self) -> Tensor:
        """The mask with the dimensions of `whole`."""
        return self.mask.reshape(*self.mask.shape, *[1] * self.after)


class Selections:
    """The selections of one capture; `line` returns the user's line."""

    def __init__(self, line: Callable[[], str]) -> None:
        self.known: dict[int, Selection] = {}
        self.line = line

    def found(self, values: object) -> list[Selection]:
        """Return the selections among values, also in containers."""
        if not self.known:
            return []
        leaves = pytree.tree_leaves(values)
        return [self.known[id(x)] for x in leaves if isinstance(x, Tensor) and id(x) in self.known]

    def select(self, func: Function, args: Arguments) -> Tensor | None:
        """Return the elements that a call selects by a mask, at their places; None for any other call."""
        if func in (torch.masked_select, Tensor.masked_select):
            mask = args[1]
            if mask.shape != args[0].shape:
                return None
        elif func is not Tensor.__getitem__:
            return None
        else:
            mask = args[1]
        index = mask if isinstance(mask, tuple) else (mask,)
        whole = _without_mask(args[0], index)
        if whole is None:
            return None
        view, place, known = whole
        return self._kept(Selection(view.clone(), index[place], view.dim() - known, self.line()))

    def _kept(self, selection: Selection) -> Tensor:
        self.known[id(selection.whole)] = selection
        return selection.whole

    def call(self, func: Function, args: Arguments, kwargs: Named) -> Answer:
        """Return whether a call with selections is possible, and its result."""
        if func in _PLAIN:
            return True, func(*args, **kwargs)
        if func is Tensor.__setitem__:
            return self._written(*args), None
        first, *rest = self.found((args, dict(kwargs)))
        if any(not _is_same(first, other) for other in rest):
            return False, None
        name = str(getattr(func, "__name__", "")).strip("_")
        if func in _LOSSES:
            return self._loss(func, args, kwargs, first)
        if func is functional.cross_entropy:
            return self._cross_entropy(args, kwargs, first)
        if name in _FILLS and len(args) == 1 and not kwargs:
            return True, _reduced(name, first)
        if name not in _ELEMENTWISE or not all(self._fits(x, first) for x in args):
            return False, None
        made = func(*args, **kwargs)
        return True, self._kept(first.of(made)) if isinstance(made, Tensor) else made

    def _fits(self, x: object, selection: Selection) -> bool:
        """Return whether an operand of an elementwise operator is the same for all selected places."""
        if isinstance(x, Tensor) and id(x) not in self.known:
            return x.dim() <= selection.after
        return not isinstance(x, (list, dict))

    def _loss(self, func: Function, args: Arguments, kwargs: Named, first: Selection) -> Answer:
        reduction, how = kwargs.get("reduction", "mean"), {**kwargs, "reduction": "none"}
        if len(args) != 2 or len(self.found(args)) != 2 or reduction not in ("mean", "sum"):
            return False, None
        made = func(*args, **how)
        return True, _reduced(reduction, first.of(made))

    def _cross_entropy(self, args: Arguments, kwargs: Named, first: Selection) -> Answer:
        found, reduction = self.found(args), kwargs.get("reduction", "mean")
        if len(args) != 2 or len(found) != 2 or first.after != 1 or found[1].after:
            return False, None
        if reduction not in ("mean", "sum") or kwargs.get("weight") is not None:
            return False, None
        logits, labels = (one.whole for one in found)
        how = {**kwargs, "reduction": "none"}
        made = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), **how)
        counted = first.mask & (labels != kwargs.get("ignore_index", -100))
        return True, _reduced(reduction, Selection(made.reshape(labels.shape), counted, 0, first.line))

    def _written(self, target: Tensor, index: object, value: object) -> bool:
        """Write selected elements to the places of their mask; return whether it is the same mask."""
        selection = self.known.get(id(value))
        parts = index if isinstance(index, tuple) else (index,)
        whole = _without_mask(target, parts)
        if selection is None or whole is None or self.found((target, index)):
            return False
        view, place, known = whole
        if not _is_same_mask(selection.mask, parts[place]) or view.shape != selection.whole.shape:
            return False
        if view.dim() - known != selection.after:
            return False
        view.copy_(torch.where(selection.wide, selection.whole, view))
        return True


def _without_mask(x: Tensor, index: Arguments) -> tuple[Tensor, int, int] | None:
    """Return x at an index without its mask, the place of the mask in the index, and the dimensions up to its
    end.

    Return None if the index is not one mask behind whole dimensions.
    """
    places = [i for i, part in enumerate(index) if isinstance(part, Tensor)]
    if len(places) != 1 or index[places[0]].dtype is not torch.bool or index[places[0]].dim() == 0:
        return None
    place = places[0]
    whole = slice(None)
    if any(not isinstance(part, slice) or part != whole for part in index[:place]):
        return None
    if any(not isinstance(part, (int, slice)) or isinstance(part, bool) for part in index[place + 1 :]):
        return None
    mask, rest = index[place], index[place + 1 :]
    if tuple(x.shape[place : place + mask.dim()]) != tuple(mask.shape):
        return None
    return x[(whole,) * (place + mask.dim()) + rest], place, place + mask.dim()


def _is_same(one: Selection, other: Selection) -> bool:
    return (
        _is_same_mask(one.mask, other.mask) and one.whole.dim() - one.after == other.whole.dim() - other.after
    )


def _is_same_mask(one: Tensor, other: Tensor) -> bool:
    """Return whether two masks are one tensor, or results of one operator on the same operands.

    Operands may have been written to in between, which rules the second case out.
    """
    if one is other:
        return True
    mode = get_proxy_mode()
    if mode is None:
        return False
    a, b = made_by(one, mode.tracer), made_by(other, mode.tracer)
    if a is None or b is None or (a.target, a.args, a.kwargs) != (b.target, b.args, b.kwargs):
        return False
    nodes = list(a.graph.nodes)
    between = nodes[min(nodes.index(a), nodes.index(b)) : max(nodes.index(a), nodes.index(b))]
    return not any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in between)


def _reduced(name: str, selection: Selection) -> Tensor:
    """Return the sum, mean, largest or smallest of the selected elements."""
    whole, mask = selection.whole, selection.wide
    kept = torch.where(mask, whole, _FILLS[name])
    if name == "mean":
        return kept.sum() / mask.expand_as(whole).sum()
    return kept.sum() if name == "sum" else kept.max() if "max" in name else kept.min()
