"""Registration of kernel families, operators and rewrites by users.

``wse_sim.register_family``, ``wse_sim.register_operator`` and ``wse_sim.register_rewrite`` are these
functions; ``docs/add-an-operator.md`` adds an operator with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import wse_sim.frontend.classify_rows  # noqa: F401  (its handlers must exist before others replace them)
from wse_sim.errors import KernelError, ModelError
from wse_sim.frontend.classify import HANDLERS, Handler, handles
from wse_sim.frontend.fusions import FUSIONS, Fusion
from wse_sim.frontend.patterns import PATTERNS, Pattern
from wse_sim.kernels import Family, register
from wse_sim.kernels.contract.registry import restored

F = TypeVar("F", bound=Family)
Rule = TypeVar("Rule", bound=Pattern | Fusion)


def register_family(family: F) -> F:
    """Add a kernel family; it replaces one of the same name.

    Parameters
    ----------
    family
        An object of a subclass of :class:`wse_sim.kernels.Family` with `name`, `dims`, `footprint` and `cost`.

    Returns
    -------
    Family
        The same object.

    Example
    -------
    >>> from wse_sim.kernels import family
    >>> with temporary_registrations():
    ...     register_family(family("gemm")).name
    'gemm'

    Raises
    ------
    KernelError
        If it is not such an object, or has no name or no dimensions.
    """
    if not isinstance(family, Family):
        raise KernelError(
            f"{family!r} is not a kernel family; give an object of a subclass of wse_sim.kernels.Family"
        )
    if not family.name or not family.dims:
        raise KernelError(
            f"family {type(family).__name__} has name '{family.name}' and dims {family.dims}; set both on the class"
        )
    return register(family)


def register_operator(*operators: str) -> Callable[[Handler], Handler]:
    """Return a decorator for a handler: a function of (node, trace) that returns the kernel of an operator.

    It replaces an earlier handler of the same operator.

    Parameters
    ----------
    operators
        Names of operators as in error messages: "gelu" for an ATen operator, "demo.cube" for one of a
        library ``demo``.

    Example
    -------
    >>> with temporary_registrations():
    ...     @register_operator("demo.cube")
    ...     def cube(node, trace):
    ...         raise NotImplementedError

    Raises
    ------
    ModelError
        If no operator is named.
    """
    if not operators:
        raise ModelError("register_operator names no operator; give at least one, like 'demo.cube'")
    return handles(*operators)


def register_rewrite(rule: Rule) -> Rule:
    """Add a rewrite rule after those of the library.

    Parameters
    ----------
    rule
        An object with `name` and either `roots` and `match(node, trace)` (operators of a trace: see
        :mod:`wse_sim.frontend.patterns`) or `apply(draft, kernel)` (kernels: see
        :mod:`wse_sim.frontend.fusions`).

    Returns
    -------
    object
        The same object.

    Example
    -------
    >>> class Same:
    ...     name = "same"
    ...
    ...     def apply(self, draft, kernel):
    ...         return None
    >>> with temporary_registrations():
    ...     register_rewrite(Same()).name
    'same'

    Raises
    ------
    ModelError
        If the object has neither form.
    """
    name = getattr(rule, "name", "")
    if name and hasattr(rule, "match") and hasattr(rule, "roots"):
        PATTERNS.append(rule)  # type: ignore[arg-type]
    elif name and hasattr(rule, "apply"):
        FUSIONS.append(rule)  # type: ignore[arg-type]
    else:
        raise ModelError(
            f"{type(rule).__name__} is not a rewrite; it needs a name, and roots and match(node, trace) or apply(draft, kernel)"
        )
    return rule


@contextmanager
def temporary_registrations() -> Iterator[None]:
    """Undo every registration of the block at its end, for tests and notebooks.

    Example
    -------
    >>> from wse_sim.kernels import family
    >>> with temporary_registrations():
    ...     _ = register_family(family("gemm"))
    >>> family("gemm").name
    'gemm'
    """
    handlers, patterns, fusions = dict(HANDLERS), list(PATTERNS), list(FUSIONS)
    with restored():
        try:
            yield
        finally:
            HANDLERS.clear()
            HANDLERS.update(handlers)
            PATTERNS[:], FUSIONS[:] = patterns, fusions
