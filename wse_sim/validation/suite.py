"""A suite: published measurements with all that is needed to set the runs up."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim.errors import ConfigError
from wse_sim.hardware.constants import one_sentence, read_yaml


class Point(BaseModel):
    """One measurement: predict `quantity` of `subject` with `params` on `system`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    system: str
    subject: str
    params: dict[str, Any]
    quantity: str
    measured: float = Field(gt=0)
    unit: str
    evidence: str = ""
    source: str = ""
    note: str = ""
    gate: bool = True


class Suite(BaseModel):
    """A file of points."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: int = Field(alias="schema", ge=1, le=1)
    points: tuple[Point, ...]


def default_suite_path() -> Path:
    """The suite that ships with the package."""
    return Path(str(resources.files("wse_sim.suites").joinpath("suite.yaml")))


def load_suite(path: Path | None = None) -> Suite:
    """Read a suite.

    Raises
    ------
    ConfigError
        One sentence with file and key.
    """
    path = path or default_suite_path()
    try:
        return Suite.model_validate(read_yaml(path))
    except ValidationError as fault:
        raise ConfigError(one_sentence(path, fault)) from fault
