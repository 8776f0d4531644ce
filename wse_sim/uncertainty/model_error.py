"""The model's own error per subject, which covers effects that no constant describes.

``own_error.yaml`` next to the suites is written by ``python -m benchmarks.coverage --write``.  A subject with few points
takes the number of its kind (`kernel`, `model`); docs/validation.md states the procedure.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path

from wse_sim.errors import ConfigError
from wse_sim.files import read_yaml

FILE = "own_error.yaml"


@lru_cache(maxsize=1)
def _table() -> dict[str, float]:
    path = Path(str(resources.files("wse_sim.suites").joinpath(FILE)))
    stated = read_yaml(path).get("half_width_90")
    if not isinstance(stated, dict):
        raise ConfigError(f"{path}: key 'half_width_90' must be a mapping of subjects")
    return {str(subject): float(value) for subject, value in stated.items()}


def own_error(subject: str) -> float:
    """Return the half-width (90 %, in logarithms) of the own error of a subject such as `kernel.gemv` or
    `model.training`.
    """
    table = _table()
    return table.get(subject, table[subject.partition(".")[0]])
