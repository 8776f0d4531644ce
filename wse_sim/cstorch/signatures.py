"""Provides types of constructors' arguments as objects, for trainers that build their configurations from signatures.

Annotations of this package are text until someone evaluates them.  Public trainers read them from ``inspect.signature`` and
know the types of :mod:`typing` (``List``, ``Optional``); :func:`evaluate` puts these in the place of the text.
"""

from __future__ import annotations

import collections.abc
import sys
import types
import typing
from collections.abc import Mapping
from typing import Dict, List, Union  # noqa: UP035  (the types that trainers look for)

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable)
_DICTS = (dict, collections.abc.Mapping)


def evaluate(kind: type, instead: Mapping[object, object], kept: tuple[str, ...] = ()) -> None:
    """Evaluate the annotations of a class's own constructor.

    Parameters
    ----------
    kind
        A class; one without its own constructor is left as it is.
    instead
        Types that stand for others: a union of a number and a tensor is a number in a configuration.
    kept
        Arguments whose type is not taken apart.
    """
    init = vars(kind).get("__init__")
    if not isinstance(init, types.FunctionType):
        return
    names = vars(sys.modules[init.__module__])
    for argument, text in init.__annotations__.items():
        if not isinstance(text, str):
            continue
        try:
            found = eval(text, dict(names))  # the text of this package's own annotations
        except (NameError, AttributeError, TypeError):
            found = object  # a type that only checkers import
        init.__annotations__[argument] = found if argument in kept else _plain(found, instead)


def _plain(found: object, instead: Mapping[object, object]) -> object:
    try:
        if found in instead:
            return instead[found]
    except TypeError:  # not hashable
        return object
    origin, arguments = typing.get_origin(found), typing.get_args(found)
    inner = tuple(_plain(a, instead) for a in arguments if a is not Ellipsis)
    if origin in (Union, types.UnionType):
        return Union[inner]  # noqa: UP007
    if origin in _LISTS:
        return List[inner[0]]  # type: ignore[valid-type]  # noqa: UP006
    if origin in _DICTS:
        return Dict[inner]  # type: ignore[misc,valid-type]  # noqa: UP006
    return found
