"""Attributes of operators in the compiler's intermediate form: taken and without effect here."""

from __future__ import annotations

from wse_sim.cstorch.kinds import T

__all__ = ["set_attribute"]


def set_attribute(tensor: T, name: str, value: object) -> T:
    """Attach an attribute to what made a tensor: the plan does not read it."""
    return tensor
