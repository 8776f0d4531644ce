"""Rows of a study for pictures and the page: varied parameters, outputs, and the better direction of each
output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import WseError
from wse_sim.studies import serving_parameters
from wse_sim.studies.evaluate import DONE
from wse_sim.studies.pareto import Chosen, choose, front
from wse_sim.studies.quantities import is_output
from wse_sim.studies.schema import StudySpec, study_from
from wse_sim.studies.store import Store

LESS_IS_BETTER = ("_s", "_joules", "_w", "_mm2", "_bytes", "dead_cores", "cache_bytes_per_token")
MORE_IS_BETTER = ("_per_s", "_per_s_per_user", "yield_fraction", "mfu")


def better(output: str) -> str:
    """ "maximize" or "minimize": the default direction of an output."""
    if output in serving_parameters.LESS_IS_BETTER:
        return "minimize"
    if output.endswith(MORE_IS_BETTER):
        return "maximize"
    return "minimize" if output.endswith(LESS_IS_BETTER) else "maximize"


RowValues = dict[str, Any]
"""A row of a study: value by name of column."""


@dataclass(frozen=True)
class Shown:
    """A study prepared for display: its description, its rows, the varied parameters and the requested outputs."""

    name: str
    spec: StudySpec
    rows: tuple[RowValues, ...]
    varied: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def done(self) -> list[RowValues]:
        """Rows with a result."""
        return [row for row in self.rows if row["status"] == DONE]

    def value(self, row: RowValues, name: str) -> Any:
        """Return a parameter or an output of a row; None if the row does not have it."""
        return row["parameters"][name] if name in row["parameters"] else row["outputs"].get(name)

    def column(self, rows: Sequence[RowValues], name: str) -> NDArray[np.float64]:
        """Return the numbers of a parameter or an output; NaN where a row has none."""
        return np.array([_number(self.value(row, name)) for row in rows])

    def is_numeric(self, name: str) -> bool:
        """Return whether a parameter or an output is a number in every row that has it."""
        found = [value for row in self.rows if (value := self.value(row, name)) is not None]
        return bool(found) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in found)

    def objectives(self, asked: str = "") -> dict[str, str]:
        """Return two or more outputs with their directions: those of the search, the requested ones, or the
        first two.

        Raises
        ------
        WseError
            If the text is not NAME:max,NAME:min or names no output.
        """
        if asked:
            return _objectives(asked)
        if self.spec.search is not None:
            return dict(self.spec.search.objectives)
        return {name: better(name) for name in self.outputs[:2]}

    def pareto(self, objectives: dict[str, str]) -> tuple[list[RowValues], list[int], Chosen | None]:
        """Return the rows that have all objectives, the indices of the Pareto front, and the recommended row."""
        rows = [row for row in self.done if all(row["outputs"].get(name) is not None for name in objectives)]
        rows = [row for row in rows if self._meets(row)]
        if not rows:
            return [], [], None
        values = np.array([[row["outputs"][name] for name in objectives] for row in rows])
        ways = list(objectives.values())
        settings = [{name: row["parameters"].get(name) for name in self.varied} for row in rows]
        return rows, front(values, ways).tolist(), choose(values, list(objectives), ways, settings)

    def _meets(self, row: RowValues) -> bool:
        """Return whether a row meets the constraints whose names have values in it."""
        given = {**row["parameters"], **row["outputs"]}
        return all(c.holds(given) for c in self.spec.conditions if c.names <= set(given))


def _objectives(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        name, _, way = part.strip().partition(":")
        way = {"max": "maximize", "min": "minimize", "": better(name)}.get(way, way)
        if not is_output(name) or way not in ("maximize", "minimize"):
            raise WseError(
                f"--objectives '{part.strip()}' is not an objective; give OUTPUT:max or OUTPUT:min"
            )
        found[name] = way
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else np.nan


def shown(store: Store, study: int, name: str) -> Shown:
    """Return the rows of a study, prepared for display.

    Raises
    ------
    WseError
        If the study has no rows.
    """
    spec = study_from(store.spec_of(study), name)
    rows = tuple(store.rows(study))
    if not rows:
        raise WseError(f"study {name} has no rows; run it first")
    varied = tuple(n for n in spec.varied if len({repr(row["parameters"].get(n)) for row in rows}) > 1)
    outputs = tuple(dict.fromkeys((*spec.outputs, *(spec.search.objectives if spec.search else ()))))
    return Shown(name, spec, rows, varied or spec.varied, outputs)
