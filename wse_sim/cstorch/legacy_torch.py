"""Compatibility with older torch releases: field names that torch has renamed since public trainers were
written."""

from __future__ import annotations

import functools

from torch.utils import _pytree as pytree

_plain = pytree.TreeSpec.__init__


@functools.wraps(_plain)
def _spec(
    self: pytree.TreeSpec,
    type: object,  # noqa: A002
    context: object = None,
    children_specs: object = None,
    **renamed: object,
) -> None:
    """``dataclasses.replace(spec, children_specs=...)`` accepts the current names of the fields in addition to older ones."""
    if context is None:
        context = renamed.pop("_context", None)
    if children_specs is None:
        children_specs = renamed.pop("_children", [])
    _plain(self, type, context, children_specs)  # type: ignore[arg-type]


def enter() -> None:
    """Install structures of arguments with fields of both names."""
    pytree.TreeSpec.__init__ = _spec  # type: ignore[method-assign]
