"""Operators of the compiler's intermediate form, which the simulator does not have; using one raises an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from wse_sim.cstorch import faults


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("_"):
        raise AttributeError(name)

    def refused(*_: object, **__: object) -> NoReturn:
        raise faults.program_error(
            f"cstorch.cirh.{name} is an operator of the vendor's compiler, which is not part of this simulator; "
            "use torch's operators"
        )

    refused.__name__ = name
    return refused
