"""Attributes of operators in the compiler's intermediate form, which are accepted without effect."""

from __future__ import annotations

from wse_sim.cstorch.kinds import T

__all__ = ["set_attribute"]


def set_attribute(tensor: T, name: str, value: object) -> T:
    """Attach an attribute to the origin of a tensor, without effect on the plan."""
    return tensor
