"""A constant of the hardware: value, unit, source, evidence, and how a YAML file states it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from wse_sim.errors import ConfigError

Evidence = Literal["silicon", "vendor", "simulator", "paper", "assumed"]
EVIDENCE = get_args(Evidence)


class Constant(BaseModel):
    """One stated number: `value` in `unit`, from `source`, with the kind of `evidence` behind it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | int | str | tuple[int, ...]
    unit: str
    source: str
    evidence: Evidence


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises
    ------
    ConfigError
        If the file does not exist, is not YAML, or is not a mapping.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read ({fault.strerror}); give a path to a YAML file") from fault
    except yaml.YAMLError as fault:
        first_line = " ".join(str(fault).split())
        raise ConfigError(f"{path}: is not YAML ({first_line}); correct the syntax") from fault
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds a {type(data).__name__}, a mapping of keys is needed")
    return data


def one_sentence(path: object, fault: ValidationError) -> str:
    """The first fault of a validation as one sentence with file and key."""
    first = fault.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "(top level)"
    more = f" ({fault.error_count() - 1} more)" if fault.error_count() > 1 else ""
    given = "" if first["type"] == "missing" else f" (given {first['input']!r})"
    return f"{path}: key '{key}': {first['msg']}{given}{more}"
