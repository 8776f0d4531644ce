"""Wafers that differ only in constants, combined into one wafer with arrays of constants, so that closed
forms price all in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.hardware import Wafer

FloatArray = NDArray[np.float64]
NOT_FOR_ARRAYS = (ValueError, TypeError)
"""Exceptions that Python raises if a closed form branches on a constant or converts it to an integer."""


@dataclass(frozen=True)
class DrawnWafers:
    """Wafers that differ only in constants, and one wafer with arrays of these constants."""

    each: Sequence[Wafer]
    together: Wafer

    @classmethod
    def of(cls, wafers: Sequence[Wafer]) -> DrawnWafers:
        """Combine wafers; fields that differ become arrays (draws,)."""
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
        """Named parts at every draw, each (draws,): in one evaluation where the form takes arrays."""
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
