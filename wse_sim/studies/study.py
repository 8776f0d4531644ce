"""Studies from Python: one call, with rows as a data frame or as an array with named axes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from wse_sim.errors import WseError
from wse_sim.studies.folder import Folder, Ran, Say
from wse_sim.studies.model_objects import with_names
from wse_sim.studies.runner import run_study, summary
from wse_sim.studies.schema import StudySpec, study_from
from wse_sim.studies.store import Store

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SHOWN_ROWS = 20
_OF_RUNS = ("number", "status", "mode", "binding", "message", "seconds", "key")
"""Columns of a row that are neither parameters nor outputs."""


class Study:
    """A completed study: its outcome and its rows.

    Attributes
    ----------
    spec
        The description.
    path
        Folder of the store; by default a temporary one, which is deleted with this object.
    ran
        Counts of runs by status, and seconds.

    Example
    -------
    >>> ran = study({"fixed": {"model": "fc-mnist", "mode": "pipelined"}, "grid": {"batch": [64, 256]}, "draws": 0})
    >>> ran.frame()["batch"].tolist()
    [64, 256]
    """

    def __init__(self, spec: StudySpec, path: Path, ran: Ran, *, held: object = None) -> None:
        self.spec, self.path, self.ran = spec, path, ran
        self._held = held  # a temporary folder lives as long as this object

    def frame(self, outputs: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the rows as a data frame: parameters, outputs (with `.low` and `.high` if bounds were
        drawn), status, binding.

        Raises
        ------
        WseError
            If pandas is not installed.
        """
        folder, number, _ = Folder.opened(self.path)
        with Store(folder.store, readonly=True) as store:
            return store.frame(number, outputs)

    def to_xarray(self, outputs: Sequence[str] | None = None) -> xr.Dataset:
        """Return the outputs over the varied parameters, one axis each; over `number` if the rows do not form
        a grid.

        Raises
        ------
        WseError
            If xarray is not installed.
        """
        try:
            import xarray as xr
        except ImportError:
            raise WseError(
                "an array with named axes needs xarray, which is not installed; pip install 'wse-sim[study]'"
            ) from None
        frame = self.frame(outputs)
        axes = [name for name in self.spec.varied if name in frame]
        cells = prod(frame[name].nunique() for name in axes)
        is_grid = bool(axes) and cells == len(frame.drop_duplicates(axes)) == len(frame)
        indexed = frame.set_index(axes if is_grid else "number")
        return xr.Dataset.from_dataframe(indexed.drop(columns=[n for n in _OF_RUNS if n in indexed]))

    def __repr__(self) -> str:
        return f"<Study over {', '.join(self.spec.varied) or 'nothing'}: {summary(self.ran)}>"

    def _repr_html_(self) -> str:
        from html import escape

        table = self.frame().drop(columns=["key", "seconds"]).head(SHOWN_ROWS).to_html(index=False, border=0)
        return f"<div><b>{escape(repr(self)[1:-1])}</b>{table}</div>"


def study(
    spec: Mapping[str, object] | StudySpec,
    *,
    out: str | Path | None = None,
    workers: int = 0,
    store: str | Path | None = None,
    scheduler: str | None = None,
    say: Say = lambda text: None,
) -> Study:
    """Run a study and return its rows.

    Parameters
    ----------
    spec
        Varied and fixed parameters, as in a study file. A model may be an object, as for :func:`wse_sim.run`.
    out
        Folder of the store; the same call continues an interrupted study. Default: a temporary folder.
    workers
        Number of processes; 0 runs in this process.
    store, scheduler, say
        As of :func:`wse_sim.studies.runner.run_study`.

    Raises
    ------
    WseError
        If the study is malformed, or as :func:`wse_sim.studies.runner.run_study`.

    Example
    -------
    >>> import wse_sim
    >>> found = wse_sim.study(
    ...     {"fixed": {"model": "fc-mnist", "mode": "pipelined"}, "grid": {"batch": [64, 256]}, "draws": 0}
    ... )
    >>> found.frame()["batch"].tolist()
    [64, 256]
    """
    read = spec if isinstance(spec, StudySpec) else study_from(with_names(spec))
    held = tempfile.TemporaryDirectory(prefix="wse_sim_study_") if out is None else None
    path = Path(held.name if held is not None else out or "")
    ran = run_study(read, path, workers=workers, store=store, scheduler=scheduler, say=say)
    return Study(read, path, ran, held=held)
