"""Schema of a study's file; every fault is reported in one sentence before anything runs.

    about: SRAM against cores
    fixed: {model: llama2-7b, mode: weight-streaming, batch: 64}
    grid:
      wafer.sram_bytes: {from: 24576, to: 131072, steps: 8, scale: log}
      systems: [1, 2, 4]
    zip:
      - {seq: [1024, 2048], micro_batch: [16, 8]}
    sample: {method: sobol, runs: 64, seed: 1, over: {wafer.clock_hz: {from: 0.9e9, to: 1.2e9}}}
    derive: [equal-area]
    outputs: [samples_per_s, mfu]
    constraints: ["batch % systems == 0"]

`mode: search` takes a `search` instead of `grid`, `zip` and `sample`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from wse_sim.errors import ConfigError, WseError
from wse_sim.files import read_yaml
from wse_sim.studies.expressions import Constraint
from wse_sim.studies.parameters import parameter, parameters
from wse_sim.studies.quantities import OUTPUTS, is_output

MOST_RUNS = 1_000_000
MOST_VALUES = 100_000
DEFAULT_OUTPUTS = ("samples_per_s", "step_s", "mfu")

Values = list[Any]


class AxisRange(BaseModel):
    """Values from one number to another: the number of `steps`, or a `step` apart; `scale` log makes equal ratios."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    low: float = Field(alias="from", allow_inf_nan=False)
    high: float = Field(alias="to", allow_inf_nan=False)
    steps: Annotated[int, Field(ge=1, le=MOST_VALUES)] | None = None
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"from {self.low:g} is above to {self.high:g}; swap them")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"a log scale needs from above 0, {self.low:g} is given")
        if self.step is not None and (self.steps is not None or self.scale == "log"):
            raise ValueError("step cannot be combined with steps or with a log scale; leave one out")
        if self.step is not None and (self.high - self.low) / self.step > MOST_VALUES:
            raise ValueError(f"step {self.step:g} makes more than {MOST_VALUES:,} values; make it larger")
        return self

    def values(self, whole: bool) -> list[Any]:
        """Return the values in order; integers are rounded, and duplicates are removed."""
        if self.step is not None:
            count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
            found = [self.low + i * self.step for i in range(count)]
        else:
            steps = self.steps or 0
            found = [self.at(i / (steps - 1) if steps > 1 else 0.0) for i in range(steps)]
        return list(dict.fromkeys(round(value) for value in found)) if whole else found

    def at(self, fraction: float) -> float:
        """Return the value at a fraction (0 to 1) of the range."""
        if self.scale == "log":
            return self.low * (self.high / self.low) ** fraction
        return self.low + (self.high - self.low) * fraction


Axis = AxisRange | Values
Axes = dict[str, Axis]


def _axes(data: object) -> object:
    """Return axes with lists and ranges unchanged, and a single value as a list of one."""
    if not isinstance(data, dict):
        return data
    return {
        name: axis if isinstance(axis, dict | list | AxisRange) else [axis] for name, axis in data.items()
    }


class Sample(BaseModel):
    """Quasi-random settings: `runs` settings spread evenly `over` ranges and lists."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["latin", "sobol"] = "sobol"
    runs: Annotated[int, Field(ge=1, le=MOST_RUNS)]
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    over: Axes

    _lists = field_validator("over", mode="before")(_axes)


class Search(BaseModel):
    """Search for the best setting: objectives by output, each to `maximize` or `minimize`, and the number of
    `trials`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objectives: Annotated[dict[str, Literal["maximize", "minimize"]], Field(min_length=1, max_length=4)]
    trials: Annotated[int, Field(ge=1, le=MOST_RUNS)] = 100
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    over: Axes

    _lists = field_validator("over", mode="before")(_axes)


class StudySpec(BaseModel):
    """A study as stated in its file; all names and values are checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str = ""
    mode: Literal["sweep", "search"] = "sweep"
    fixed: dict[str, Any] = {}
    grid: Axes = {}
    zip: list[Axes] = []
    sample: Sample | None = None
    search: Search | None = None
    derive: list[Literal["equal-area"]] = []
    silicon: Literal["must-fit", "ignore"] = "must-fit"
    outputs: Annotated[list[str], Field(min_length=1)] = list(DEFAULT_OUTPUTS)
    constraints: list[str] = []
    draws: Annotated[int, Field(ge=0, le=1024)] = 8

    _lists = field_validator("grid", mode="before")(_axes)

    @field_validator("zip", mode="before")
    @classmethod
    def _zip_lists(cls, data: object) -> object:
        return [_axes(group) for group in data] if isinstance(data, list) else data

    @property
    def conditions(self) -> tuple[Constraint, ...]:
        """The parsed constraints."""
        return tuple(Constraint.parse(text) for text in self.constraints)

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the varied parameters, in the order of the file."""
        groups: list[Iterable[str]] = [self.grid, *self.zip]
        groups += [block.over for block in (self.sample, self.search) if block is not None]
        return tuple(dict.fromkeys(name for group in groups for name in group))

    def axes(self) -> Iterable[tuple[str, Axis]]:
        """Yield all varied parameters with their values."""
        yield from self.grid.items()
        for group in self.zip:
            yield from group.items()
        for block in (self.sample, self.search):
            if block is not None:
                yield from block.over.items()


def read_study(path: str | Path) -> StudySpec:
    """Read and check a study's file.

    Raises
    ------
    ConfigError
        One sentence with file and key.
    """
    return study_from(read_yaml(path, "study"), path)


def study_from(data: Mapping[str, Any], where: object = "study") -> StudySpec:
    """Validate the description of a study.

    Raises
    ------
    ConfigError
        For an unknown key or parameter, an invalid value, an empty axis, or a name that is given twice.
    """
    try:
        spec = StudySpec.model_validate(dict(data))
    except ValidationError as fault:
        raise ConfigError(_sentence(where, fault)) from None
    try:
        return _checked(spec)
    except WseError as fault:
        raise ConfigError(f"{where}: {fault}") from None


def _sentence(where: object, fault: ValidationError) -> str:
    """Return the message of the most specific fault; inside an axis, that about the range if a mapping was
    given."""
    errors = fault.errors()
    first = next(
        (e for e in errors if not isinstance(e["input"], dict) or "list[any]" not in e["loc"]), errors[0]
    )
    place = [str(part) for part in first["loc"] if part != "Range" and "[" not in str(part)]
    key = ".".join(place) or "(top level)"
    known = ", ".join(StudySpec.model_fields)
    if first["type"] == "extra_forbidden" and len(place) == 1:
        return f"{where}: key '{key}' is unknown; use some of {known}"
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = repr(first["input"])
    given = "" if first["type"] in ("missing", "value_error") or len(shown) > 80 else f" (given {shown})"
    return f"{where}: key '{key}': {message}{given}"


def _checked(spec: StudySpec) -> StudySpec:
    """Check names and values, and the consistency of the parts."""
    if spec.mode == "search":
        if spec.search is None:
            raise ConfigError("mode search needs a key 'search' with objectives and over; add it")
        if spec.grid or spec.zip or spec.sample:
            raise ConfigError(
                "mode search takes neither grid, zip nor sample; put what varies into search: over"
            )
    elif spec.search is not None:
        raise ConfigError("key 'search' needs mode: search; add it")
    given = [*spec.fixed, *(name for name, _ in spec.axes())]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"parameter '{twice}' is given twice; state it once")
    if "model" not in given:
        raise ConfigError("no model is named; add model to fixed or to grid")
    fixed = {name: parameter(name).check(value) for name, value in spec.fixed.items()}
    for name, axis in spec.axes():
        _check_axis(name, axis, search=spec.mode == "search")
    for group in spec.zip:
        lengths = {name: len(axis_values(name, axis)) for name, axis in group.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in lengths.items())
            raise ConfigError(f"zip needs lists of one length, {listed} are given; make them equal")
    outputs = [*spec.outputs, *(spec.search.objectives if spec.search else ())]
    for name in outputs:
        if not is_output(name):
            near = get_close_matches(name, OUTPUTS, 3) or list(OUTPUTS)[:8]
            raise ConfigError(
                f"output '{name}' is unknown; use some of {', '.join(near)} (wse-sim study parameters lists all {len(OUTPUTS)})"
            )
    for condition in spec.conditions:
        for name in condition.names:
            if name not in parameters() and not is_output(name):
                raise ConfigError(
                    f"constraint '{condition.text}' names '{name}', which is neither a parameter nor an output"
                )
    if ("equal-area" in spec.derive) and (clash := [n for n in SIZED if n in given]):
        raise ConfigError(f"equal-area computes {clash[0]} itself; leave it out")
    return spec.model_copy(update={"fixed": fixed})


SIZED = ("wafer.rows", "wafer.cols", "wafer.program_rows", "wafer.program_cols")
"""Parameters that `derive: [equal-area]` computes."""


def remarks(spec: StudySpec) -> list[str]:
    """Return remarks on statements of a study that may not have the expected effect."""
    given = {*spec.fixed, *spec.varied}
    return [
        f"'wafer.{size}' changes which cores a program may use; the area of the wafer follows 'wafer.{whole}', "
        f"which stays: vary both (key 'zip') if the area is meant to change"
        for size, whole in (("program_rows", "rows"), ("program_cols", "cols"))
        if f"wafer.{size}" in given and f"wafer.{whole}" not in given
    ]


def _check_axis(name: str, axis: Axis, *, search: bool) -> None:
    known = parameter(name)
    if isinstance(axis, list):
        if not axis:
            raise ConfigError(f"parameter '{name}' has an empty list; give at least one value")
        if len(axis) > MOST_VALUES:
            raise ConfigError(f"parameter '{name}' has {len(axis):,} values, the limit is {MOST_VALUES:,}")
        for value in axis:
            known.check(value)
        return
    if known.kind not in (int, float):
        raise ConfigError(f"parameter '{name}' is not a number and has no range; give a list")
    for end in (axis.low, axis.high):
        known.check(round(end) if known.kind is int else end)


def axis_values(name: str, axis: Axis) -> list[Any]:
    """Return the values of an axis, converted to the parameter's type.

    Raises
    ------
    ConfigError
        If a range has neither steps nor step.
    """
    known = parameter(name)
    if isinstance(axis, list):
        return [known.check(value) for value in axis]
    if axis.steps is None and axis.step is None:
        raise ConfigError(f"parameter '{name}' has a range without steps or step; add one of them")
    return [known.check(value) for value in axis.values(known.kind is int)]
