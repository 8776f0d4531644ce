"""Nested structures: tensors with their paths, and their flat forms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

tree_map, tree_flatten, tree_unflatten = pytree.tree_map, pytree.tree_flatten, pytree.tree_unflatten


def visit_structure(
    data: object, select_fn: Callable[[Any], bool], strict: bool = False, scope: list[str] | None = None
) -> Iterator[tuple[list[str], Any]]:
    """Yield (path, value) of every selected value of a structure of dicts, lists and tuples.

    Args:
        data: the structure.
        select_fn: true for values to give.
        strict: refuse other leaves.
        scope: put before every path.
    """
    path = list(scope or ())
    if select_fn(data):
        yield path, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from visit_structure(value, select_fn, strict, [*path, str(key)])
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from visit_structure(value, select_fn, strict, [*path, str(index)])
    elif strict:
        raise TypeError(
            f"{'.'.join(path)} is a {type(data).__name__}, which is neither selected nor a structure"
        )


def visit_torch_tensors(
    data: object, strict: bool = False, scope: list[str] | None = None
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Yield (path, tensor) of every tensor of a structure."""
    yield from visit_structure(data, lambda x: isinstance(x, torch.Tensor), strict, scope)


def recurse_spec(spec: pytree.TreeSpec) -> Iterator[list[str]]:
    """Yield the paths of the leaves of a structure's specification (of torch's pytree), in order."""
    marked = pytree.tree_unflatten([_Leaf()] * spec.num_leaves, spec)
    for path, _ in visit_structure(marked, lambda x: isinstance(x, _Leaf)):
        yield path


class _Leaf:
    """Placeholder of a leaf."""


def diff(a: object, b: object) -> list[list[str]]:
    """Return the paths at which two structures differ."""
    left, right = (
        [(p, v) for p, v in visit_structure(x, lambda y: not isinstance(y, dict | list | tuple))]
        for x in (a, b)
    )
    pairs = itertools.zip_longest(left, right, fillvalue=(["?"], None))
    return [p for (p, v), (q, w) in pairs if p != q or (v is not w and v != w)]
