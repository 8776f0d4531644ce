"""Constants of the hardware with value, unit, source and evidence, and the YAML format for a set of them.

A set (a wafer, a cluster) is a frozen model whose fields carry plain numbers, each with its :class:`Unit`,
and whose `provenance` keeps the statements behind them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from wse_sim.errors import ConfigError
from wse_sim.files import exists, read_yaml

Evidence = Literal["silicon", "vendor", "simulator", "paper", "assumed"]


class Constant(BaseModel):
    """One constant: `value` in `unit`, from `source`, with the kind of `evidence` for it.

    `range` (low, high) holds the true value with a probability of 90 %, `because` says why.  A number without
    a range is exact: a count or a width of the design.  `acts` says what it moves: "models" (rates of models and
    prices of kernels), "programs" (what programs of the fabric may do, and their cycles) or "report" (pictures,
    energy, reported fractions: no cycle depends on it).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | int | str | tuple[int, ...]
    unit: str
    source: str
    evidence: Evidence
    range: tuple[float, float] | None = None
    because: str = ""
    acts: Literal["models", "programs", "report"] = "models"

    @field_validator("value", mode="before")
    @classmethod
    def _is_a_number(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("true and false are not numbers")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a finite number is needed")
        return value

    @model_validator(mode="after")
    def _range_holds_value(self) -> Constant:
        if self.range is not None:
            low, high = self.range
            if not isinstance(self.value, (int, float)) or not low <= self.value <= high:
                raise ValueError(f"range {low:g} to {high:g} does not contain the value {self.value}")
            if not math.isfinite(low) or not math.isfinite(high):
                raise ValueError(f"range {low:g} to {high:g} is not finite")
        return self


MOST_BASES = 32
"""Files that a set may be derived over."""

DUST = 1e-18


@dataclasses.dataclass(frozen=True)
class Unit:
    """The unit in which a field must be stated."""

    name: str


def no_dust(value: float) -> float:
    """Reject positive values below 10^-18: no time is that short, and products with it vanish."""
    if 0 < value < DUST:
        raise ValueError(f"{value:g} is neither 0 nor at least {DUST:g}")
    return value


# Limits of what a number may be: far beyond every machine one can think of, and near enough that products of a few of
# them stay finite.
Count = Annotated[int, Field(gt=0, le=10**6), Unit("1")]
Bytes = Annotated[int, Field(ge=0, le=10**18), Unit("bytes")]
BytesPerSecond = Annotated[float, Field(ge=1e-3, le=1e21), Unit("bytes/s")]
Seconds = Annotated[float, Field(ge=0, le=1e6), AfterValidator(no_dust), Unit("s")]


def limits_of(model: type[BaseModel]) -> dict[str, tuple[float, float]]:
    """Return the least and largest value of every constant of a set that has limits, by name."""
    found = {}
    for key, field in model.model_fields.items():
        low = [getattr(item, end) for item in field.metadata for end in ("ge", "gt") if hasattr(item, end)]
        high = [getattr(item, end) for item in field.metadata for end in ("le", "lt") if hasattr(item, end)]
        found[key] = (max(low, default=-math.inf), min(high, default=math.inf))
    return found


def units_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the unit of every constant of a set, by name."""
    return {
        key: item.name
        for key, field in model.model_fields.items()
        for item in field.metadata
        if isinstance(item, Unit)
    }


@functools.lru_cache
def _shipped(folder: str) -> tuple[str, ...]:
    """Return the names of the files in a folder of the package."""
    found = resources.files("wse_sim.configs").joinpath(folder)
    return tuple(sorted(item.name[:-5] for item in found.iterdir() if item.name.endswith(".yaml")))


@dataclasses.dataclass(frozen=True)
class ConstantSet:
    """The file format of one kind of constants: its noun, its folder in ``wse_sim.configs`` and its units.

    `limits` are the limits of the constants; `extra` lists keys allowed besides name, base and constants;
    `show` is the command that lists the constants; `renamed` maps removed constants to what replaces them.
    """

    noun: str
    folder: str
    units: Mapping[str, str]
    show: str
    limits: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    extra: tuple[str, ...] = ()
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def names(self) -> list[str]:
        """Return the names of the sets shipped with the package."""
        return list(_shipped(self.folder))

    def path_of(self, name_or_path: str) -> Path:
        """Return the file of a shipped set, or the path itself.

        Raises
        ------
        ConfigError
            If it is neither a name nor a path to a YAML file.
        """
        if name_or_path in self.names():
            return Path(str(resources.files("wse_sim.configs").joinpath(self.folder, f"{name_or_path}.yaml")))
        path = Path(name_or_path)
        if path.suffix in {".yaml", ".yml"}:
            return path
        raise ConfigError(
            f"{self.noun} '{name_or_path}' is unknown; use one of {', '.join(self.names())} or a path to a YAML file"
        )

    def read(self, path: Path, load: Callable[[str], BaseModel]) -> dict[str, Any]:
        """Return the fields that a file states, provenance included; `load` reads its base, which may be next to it.

        Raises
        ------
        ConfigError
            One sentence with file and key: unknown key, wrong unit, unknown base.
        """
        data = read_yaml(path)
        keys = ("name", "base", "constants", *self.extra)
        unknown = sorted(set(data) - set(keys))
        if unknown:
            raise ConfigError(f"{path}: key '{unknown[0]}' is unknown; use {', '.join(keys)}")
        fields: dict[str, Any] = {"provenance": {}}
        if "base" in data:
            base_name = str(data["base"])
            near = path.parent / f"{base_name}.yaml"
            self.bases_of(path)
            base = load(str(near) if exists(near, "base") and near != path else base_name)
            fields |= {key: getattr(base, key) for key in type(base).model_fields}
        constants = data.get("constants") or {}
        if not isinstance(constants, dict):
            raise ConfigError(f"{path}: key 'constants' must be a mapping of constant names")
        stated = {key: self._constant(path, key, entry) for key, entry in constants.items()}
        fields |= {key: constant.value for key, constant in stated.items()}
        fields |= {key: data[key] for key in self.extra if key in data}
        fields["provenance"] = fields["provenance"] | stated
        fields["name"] = data.get("name", path.stem)
        return fields

    def bases_of(self, path: Path) -> list[Path]:
        """Return a file and the bases that it rests on, in order.

        Raises
        ------
        ConfigError
            If they form a loop, or are too many.
        """
        seen = [path]
        while True:
            name = read_yaml(seen[-1]).get("base")
            if name is None:
                return seen
            near = seen[-1].parent / f"{name}.yaml"
            following = near if exists(near, "base") and near != seen[-1] else self.path_of(str(name))
            if following in seen:
                circle = " -> ".join(str(one) for one in [*seen[seen.index(following) :], following])
                raise ConfigError(
                    f"{path}: key 'base' refers back to itself ({circle}); leave the base of one of them out"
                )
            seen.append(following)
            if len(seen) > MOST_BASES:
                raise ConfigError(
                    f"{path}: key 'base' leads over more than {MOST_BASES} files; state more in fewer"
                )

    def changed(self, model: BaseModel, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `model` with some constants changed: their evidence becomes "assumed".

        Raises
        ------
        ConfigError
            If a constant has another name now.
        """
        for key in changes:
            self._check_name(key, f"{self.noun} {getattr(model, 'name', '')}")
        fields = {key: getattr(model, key) for key in type(model).model_fields} | dict(changes)
        fields["provenance"] = fields["provenance"] | {
            key: Constant(value=value, unit=self.units[key], source="changed by the user", evidence="assumed")
            for key, value in changes.items()
            if key in self.units
        }
        return fields

    def _check_name(self, key: str, where: object) -> None:
        if key in self.renamed:
            raise ConfigError(f"{where}: key '{key}' is no longer a constant; {self.renamed[key]}")

    def _constant(self, path: Path, key: str, entry: object) -> Constant:
        self._check_name(key, path)
        if key not in self.units:
            raise ConfigError(
                f"{path}: key '{key}' is not a constant of a {self.noun}; '{self.show}' lists them"
            )
        try:
            stated = Constant.model_validate(entry)
        except ValidationError as fault:
            raise ConfigError(
                f"{one_sentence(path, fault)}; constant '{key}' needs value, unit, source, evidence"
            ) from fault
        if stated.unit != self.units[key]:
            raise ConfigError(
                f"{path}: key '{key}': unit '{stated.unit}' is wrong; state it in '{self.units[key]}'"
            )
        low, high = self.limits.get(key, (-math.inf, math.inf))
        if stated.range is not None and not low <= stated.range[0] <= stated.range[1] <= high:
            raise ConfigError(
                f"{path}: key '{key}': range {stated.range[0]:g} to {stated.range[1]:g} exceeds the allowed values of the constant, "
                f"{low:g} to {high:g}; correct it"
            )
        return stated


def one_sentence(path: object, fault: ValidationError) -> str:
    """Return the first fault of a validation as one sentence with file and key."""
    first = fault.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "(top level)"
    more = f" ({fault.error_count() - 1} more)" if fault.error_count() > 1 else ""
    shown = repr(first["input"])
    shown = shown if len(shown) <= 80 else f"{shown[:60]}...{shown[-15:]}"
    given = "" if first["type"] == "missing" else f" (given {shown})"
    return f"{path}: key '{key}': {first['msg']}{given}{more}"
