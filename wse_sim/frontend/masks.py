"""Masks of attention: how a step of the scores hides keys or adds to scores, and the values that a step adds.

A mask is what a step does to the scores: it adds values, or hides the keys where a condition is false ("seen") or true
("hidden"). Constant masks have values when the model is captured; several of them are one sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.frontend.trace import Argument, Node, NodeRef, Trace

HIDDEN = -1e4
"""Largest value that, added to a score, hides a key."""
ADDED, SEEN, HIDES = "added", "seen", "hidden"
MASKING = ("add", "where", "masked_fill", "maximum", "max")
SCORES = ("matmul", "bmm", "baddbmm", "mul", "div", "where", "tanh")
MASK = ".mask"
"""Suffix of the name of attention: the values that are added to its scores, (heads or 1, queries, keys)."""


class Mask(NamedTuple):
    """A step of the scores, and the number by which later steps multiply the values that it adds: None if they do more."""

    value: Argument
    how: str
    factor: float | None


def masked_by(step: Node, trace: Trace, factor: float | None) -> tuple[Argument, Mask] | None:
    """Return the scores and the mask of one masking step; None if the scores are not found."""
    if step.op == "where":
        return step.args[1], Mask(step.args[0], SEEN, factor if _hides(step.args[2], trace) else None)
    if step.op == "masked_fill":
        return step.args[0], Mask(step.args[1], HIDES, factor if _hides(step.args[2], trace) else None)
    for scores, other in (step.args[:2], step.args[1::-1]):
        base = trace.base(scores)
        if base is not None and base.kind == "call" and base.op in SCORES and not trace.is_constant(scores):
            if step.op != "add" and _hides(other, trace):  # a bound below all scores
                return scores, Mask(None, ADDED, factor)
            return scores, Mask(
                other, ADDED, factor if step.op == "add" and "alpha" not in step.kwargs else None
            )
    return None


def without_idle(trace: Trace, masks: Sequence[Mask]) -> tuple[str, list[Mask]]:
    """Return the kind of all masks together, as :func:`kind_of_mask` states it, and the masks without those that do nothing;
    none if they are causal."""
    masks = [mask for mask in masks if isinstance(mask.value, NodeRef) and _kind(trace, [mask]) != "none"]
    kind = _kind(trace, masks) if masks else "none"
    return kind, masks if kind == "dense" else []


def _kind(trace: Trace, masks: Sequence[Mask]) -> str:
    values = [trace.evaluate(one.value.name) if trace.is_constant(one.value) else None for one in masks]  # type: ignore[union-attr]
    if any(value is None for value in values) or any(one.factor is None for one in masks):
        return "dense"
    hows = [(one.how, one.factor or 0.0) for one in masks]
    return kind_of_mask(sum_of_masks(hows, [np.asarray(value) for value in values]))


def sum_of_masks(hows: Sequence[tuple[str, float]], values: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """Return what masks add to the scores together, from how each is applied and its values.

    >>> sum_of_masks([("added", 2.0), ("seen", 1.0)], [np.array([[1.0, 3.0]]), np.array([[True, False]])])
    array([[  2., -inf]], dtype=float32)
    """
    total: NDArray[np.float32] = np.zeros((), np.float32)
    for (how, factor), value in zip(hows, values, strict=True):
        if value.dtype == bool or how != ADDED:
            is_seen = value.astype(bool) == (how != HIDES)
            added = np.where(is_seen, np.float32(0), np.float32(-np.inf))
        else:
            added = np.asarray(value, np.float32) * np.float32(factor)
        total = total + added
    return total


def _hides(value: Argument, trace: Trace) -> bool:
    """Return whether a constant hides every key to which it is assigned."""
    if isinstance(value, (int, float)):
        return value <= HIDDEN
    found = trace.evaluate(value.name) if isinstance(value, NodeRef) and trace.is_constant(value) else None
    return found is not None and bool((found <= HIDDEN).all())


def mask_kind(trace: Trace, mask: Argument) -> str:
    """Return the kind of a mask: "none" (all keys are visible), "causal", or "dense" (anything else)."""
    if not isinstance(mask, NodeRef):
        return "none"
    if not trace.is_constant(mask):
        return "dense"
    value = trace.evaluate(mask.name)
    return "dense" if value is None else kind_of_mask(value)


def kind_of_mask(value: NDArray[Any]) -> str:
    """Return the kind of a mask from its values.

    These are booleans (true is visible), or numbers that are added to the scores.
    """
    if value.ndim < 2:
        return "dense"
    plane = value.reshape(-1, *value.shape[-2:])
    seen = plane if plane.dtype == bool else plane > HIDDEN
    if plane.dtype != bool and not ((plane == 0) | (plane <= HIDDEN)).all():
        return "dense"
    if seen.all():
        return "none"
    rows, cols = seen.shape[-2:]
    corner = cols - rows
    # In a causal mask row i sees exactly columns 0 .. i + corner.
    counts = seen.sum(-1)
    triangle = counts == [min(cols, i + corner + 1) for i in range(rows)]
    first_hidden = seen.argmin(-1)
    prefix = ((first_hidden == counts) | (counts == cols)).all()
    return "causal" if corner >= 0 and triangle.all() and prefix else "dense"
