"""A suite of published measurements with everything that is needed to set up the runs."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim.errors import ConfigError
from wse_sim.files import read_yaml
from wse_sim.hardware.constants import one_sentence


class Point(BaseModel):
    """One measurement: predict `quantity` of `subject` with `params` on `system`.

    `note` is for comments.  `fitted` marks a point to which a constant of the machine was fitted, so its error is no
    prediction's.  `fault` says why a point of the file cannot be read; such
    a point stays in the suite, so that it is listed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    id: str
    system: str = "wse2"
    subject: str
    params: dict[str, Any] = Field(default_factory=dict)
    quantity: str
    measured: float | None = Field(gt=0, allow_inf_nan=False)
    unit: str = ""
    evidence: object = ""
    source: object = ""
    note: object = ""
    gate: bool = True
    fitted: bool = False
    fault: str = ""


class Suite(BaseModel):
    """A file of points."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: int = Field(alias="schema", default=1, ge=1, le=1)
    points: tuple[Point, ...]


SHIPPED = ("suite.yaml", "suite_wse3.yaml")
"""The shipped suites: the points known when the constants were chosen, and those published later."""


def shipped_suite(name: str = SHIPPED[0]) -> Path:
    """Return a suite that ships with the package."""
    return Path(str(resources.files("wse_sim.suites").joinpath(name)))


def load_suite(path: Path | None = None) -> Suite:
    """Read a suite, or all that ship; a point that cannot be read is kept with its fault.

    Raises
    ------
    ConfigError
        One sentence with file and key, if the file is no suite.
    """
    if path is None:
        return Suite(points=tuple(p for name in SHIPPED for p in load_suite(shipped_suite(name)).points))
    data = read_yaml(path)
    entries = data.get("points")
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: key 'points' must be a list of measurements")
    points = tuple(_point(entry, number, path) for number, entry in enumerate(entries))
    try:
        return Suite.model_validate({**data, "points": points})
    except ValidationError as fault:
        raise ConfigError(one_sentence(path, fault)) from fault


def _point(entry: object, number: int, path: Path) -> Point:
    if not isinstance(entry, dict):
        reason = f"{path}: entry {number} of 'points' is not a mapping; state id, subject, params and so on"
        return Point(id=f"entry {number}", subject="", quantity="", measured=None, fault=reason)
    try:
        return Point.model_validate(entry)
    except ValidationError as fault:
        return Point(
            id=str(entry.get("id", f"entry {number}")),
            subject=str(entry.get("subject", "")),
            quantity=str(entry.get("quantity", "")),
            measured=None,
            fault=one_sentence(path, fault),
        )


def write_suite(suite: Suite, path: Path) -> Path:
    """Write the points that could be read as a suite that :func:`load_suite` reads."""
    rows = [
        {"id": point.id, "system": point.system} | point.model_dump(exclude={"fault"}, exclude_defaults=True)
        for point in suite.points
        if not point.fault
    ]
    text = yaml.safe_dump({"schema": 1, "points": rows}, sort_keys=False, allow_unicode=True, width=120)
    path.write_text(
        f"# Measurements as wse-sim validate read them; predict them by --data.\n{text}", encoding="utf-8"
    )
    return path
