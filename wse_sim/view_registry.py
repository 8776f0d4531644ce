"""Views of a result, by name: what is written about one above the floor on which results stand.

A result offers `summary`, `table`, `heatmap` and others as methods.  The report, which writes them, knows results; so the
package registers here where a view is written, and a result asks here.  Nothing imports upwards, and a view is loaded
when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from wse_sim.errors import WseError

_homes: dict[str, tuple[str, str]] = {}


class Displayed:
    """A large object as people see it: one line at a prompt, a card in a notebook.

    A dataclass that derives from this is declared with ``repr=False``: its own repr would print every field.
    """

    @property
    def brief(self) -> str:
        """A short description."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.brief}>"

    def _repr_html_(self) -> str:
        return str(view("card")(self))


def register_view(name: str, module: str, function: str) -> None:
    """Offer a view: `function` of `module` takes a result, then the view's options."""
    _homes[name] = module, function


def view(name: str) -> Callable[..., Any]:
    """The function that computes a view.

    Raises
    ------
    WseError
        If nobody registered it.
    """
    if name not in _homes:
        raise WseError(f"there is no view '{name}' of a result; use one of {', '.join(sorted(_homes))}")
    module, function = _homes[name]
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
