"""Wafers that differ only in constants, combined into one wafer with arrays of constants.

Closed forms then price all of them in one evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.hardware import Wafer

FloatArray = NDArray[np.float64]
NOT_FOR_ARRAYS = (ValueError, TypeError)
"""Exceptions that Python raises if a closed form branches on an array or converts it to an integer."""


@dataclass(frozen=True)
class DrawnWafers:
    """Wafers that differ only in constants, and one wafer with arrays of these constants."""

    each: Sequence[Wafer]
    together: Wafer

    @classmethod
    def of(cls, wafers: Sequence[Wafer]) -> DrawnWafers:
        """Combine wafers; constants that differ become arrays (draws,)."""
        names = (
            name
            for name in type(wafers[0]).model_fields
            if name not in ("name", "provenance", "correlations")
        )
        columns = {name: [getattr(wafer, name) for wafer in wafers] for name in names}
        changed = {
            name: np.array(column) for name, column in columns.items() if any(v != column[0] for v in column)
        }
        return cls(wafers, wafers[0].model_copy(update=changed))

    def price(self, evaluate: Callable[[Wafer], Mapping[str, object]]) -> dict[str, FloatArray]:
        """Return the named parts of a price at every draw, each (draws,).

        A closed form that takes arrays is evaluated once, any other form once per wafer. There a part that
        the price of a wafer lacks is 0.
        """
        try:
            found = evaluate(self.together)
            return {
                name: np.broadcast_to(np.asarray(part, float), (len(self.each),))
                for name, part in found.items()
            }
        except NOT_FOR_ARRAYS:
            rows = [evaluate(wafer) for wafer in self.each]
            names = dict.fromkeys(name for row in rows for name in row)
            return {name: np.array([float(np.asarray(row.get(name, 0.0))) for row in rows]) for name in names}
