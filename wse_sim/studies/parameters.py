"""The parameters of studies: options of runs, modes and models, and constants of wafer, cluster and chip.

The names are derived from the declarations themselves, so that a new option or constant can be varied as soon
as it is declared:

    batch, seq, mode, optimizer ...     options of a run                  (:class:`wse_sim.options.RunOptions`)
    model, model.layers ...             the model, and its sizes          (ModelParameters of the front end)
    pipelined.placer, generation.grid   options of a single mode          (the options of the mode)
    wafer.sram_bytes ...                constants of the wafer            (:class:`wse_sim.hardware.Wafer`)
    cluster.swarmx_hop_s ...            constants of the cluster          (:class:`wse_sim.hardware.Cluster`)
    serve.rate, serve.arrivals ...      options of serving                (:class:`wse_sim.serving.options.ServingOptions`)
    chip, chip.core_logic_mm2 ...       the wafer's process technology    (:class:`wse_sim.hardware.chip.Chip`)
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from wse_sim.errors import ConfigError
from wse_sim.frontend.parameters import ModelParameters
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.hardware.chip import Chip, load_chip
from wse_sim.hardware.constants import Constant
from wse_sim.modes import MODES, option_names
from wse_sim.options import RunOptions
from wse_sim.serving.options import ServingOptions
from wse_sim.studies import serving_parameters

RUN, MODEL, WAFER, CLUSTER, CHIP, MODE, SERVE = "run", "model", "wafer", "cluster", "chip", "mode", "serve"
UNVARIED = frozenset({"cache"})
"""Run options that change where something is stored but not the result."""
SAID_ELSEWHERE = frozenset({"batch"})
"""Options of modes that every run has."""
NOT_CONSTANTS = frozenset({"name", "provenance", "correlations"})


@dataclass(frozen=True)
class StudyParameter:
    """One thing that a study can vary."""

    name: str
    owner: str  # run, model, wafer, cluster, chip, mode, serve
    field: str
    kind: type  # int, float, str, bool or tuple
    unit: str = ""
    help: str = ""
    mode: str = ""  # the mode whose option it is
    optional: bool = False

    def check(self, value: object) -> Any:
        """Return `value` converted as the declaration requires: numbers to integers, lists to tuples.

        Raises
        ------
        WseError
            One sentence with value and limit.
        """
        if value is None:
            if not self.optional:
                raise ConfigError(f"parameter '{self.name}' cannot be empty; give a value")
            return None
        if self.kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"parameter '{self.name}' {value} is not finite; give a finite number")
        if isinstance(value, list):
            value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
        self._try(value)
        return float(value) if self.kind is float and isinstance(value, int) else value

    def _try(self, value: object) -> None:
        if self.owner == RUN:
            given: dict[str, Any] = {self.field: value}
            RunOptions(**given)
        elif self.owner == SERVE:
            self._serve(value)
        elif self.owner == WAFER:
            _known(_stated(WAFER), self, value)
        elif self.owner == CLUSTER:
            _known(_stated(CLUSTER), self, value)
        elif self.owner == CHIP and self.field:
            _known(_stated(CHIP), self, value)
        elif not isinstance(value, _accepted(self.kind)) or (
            isinstance(value, bool) and self.kind is not bool
        ):
            raise ConfigError(f"parameter '{self.name}' {value!r} is not a {_word(self.kind)}; give one")

    def _serve(self, value: object) -> None:
        if self.field not in (serving_parameters.USERS, serving_parameters.THINK):
            given: dict[str, Any] = {self.field: value}
            ServingOptions(**given)
            return
        least = 1 if self.field == serving_parameters.USERS else 0
        if isinstance(value, bool) or not isinstance(value, _accepted(self.kind)) or value < least:  # type: ignore[operator]
            raise ConfigError(
                f"parameter '{self.name}' {value!r} is too small or no number; give a {_word(self.kind)} from {least}"
            )


@lru_cache(maxsize=3)
def _stated(owner: str) -> Wafer | Cluster | Chip:
    """Return the shipped part of the machine whose types and limits are used to check a constant."""
    return load_wafer() if owner == WAFER else load_cluster() if owner == CLUSTER else load_chip()


def _known(base: Wafer | Cluster | Chip, parameter: StudyParameter, value: object) -> None:
    """Check a single constant: type and limits; conditions on several constants are checked per setting."""
    # Sources of the constants were checked when the file was read.
    fields = {name: getattr(base, name) for name in type(base).model_fields} | {
        parameter.field: value,
        "provenance": {},
    }
    try:
        type(base).model_validate(fields)
    except ValueError as fault:  # pydantic's
        errors = fault.errors() if hasattr(fault, "errors") else []
        why = errors[0]["msg"] if errors else str(fault)
        raise ConfigError(f"parameter '{parameter.name}' {value!r}: {why}; correct the value") from None


def _accepted(kind: type) -> tuple[type, ...]:
    return (int, float) if kind is float else (kind,)


def _word(kind: type) -> str:
    return {int: "integer", float: "number", str: "text", bool: "true or false", tuple: "list"}[kind]


@lru_cache(maxsize=1)
def parameters() -> Mapping[str, StudyParameter]:
    """Return all parameters by name, in the order of declaration."""
    found = [StudyParameter("model", MODEL, "", str, help="A model, as for wse-sim run.")]
    for stated in RunOptions.options():
        if stated.name not in UNVARIED:
            found.append(
                StudyParameter(
                    stated.name,
                    RUN,
                    stated.name,
                    stated.type,
                    stated.unit,
                    stated.help,
                    optional=stated.optional,
                )
            )
    found += [
        StudyParameter(f"model.{name}", MODEL, name, *_kind(field.annotation))
        for name, field in ModelParameters.model_fields.items()
        if name != "seq"  # the option of a run
    ]
    found += _of_modes({one.name for one in found})
    found += [
        StudyParameter(f"{serving_parameters.PREFIX}{one.name}", SERVE, one.name, one.type, one.unit, one.help, optional=one.optional)
        for one in serving_parameters.options()
    ]  # fmt: skip
    found += [
        StudyParameter(f"{serving_parameters.PREFIX}{serving_parameters.USERS}", SERVE, serving_parameters.USERS, int, "users", "Users of a closed loop.", optional=True),
        StudyParameter(f"{serving_parameters.PREFIX}{serving_parameters.THINK}", SERVE, serving_parameters.THINK, float, "s", "Think time of the users of a closed loop.", optional=True),
    ]  # fmt: skip
    found += _of_set(WAFER, Wafer, load_wafer().provenance)
    found += _of_set(CLUSTER, Cluster, load_cluster().provenance)
    found.append(
        StudyParameter("chip", CHIP, "", str, help="What the wafer is built in, by name or a YAML file.")
    )
    found += _of_set(CHIP, Chip, load_chip().provenance)
    return types.MappingProxyType({one.name: one for one in found})


def _of_modes(taken: set[str]) -> list[StudyParameter]:
    found = []
    for mode in MODES:
        hints = get_type_hints(mode.options)
        for field in option_names(mode):
            if field in taken or field in SAID_ELSEWHERE:
                continue
            kind, unit, text = _kind(hints[field])
            name = f"{mode.name.replace('-', '_')}.{field}"
            found.append(StudyParameter(name, MODE, field, kind, unit, text, mode.name, optional=True))
    return found


def _of_set(owner: str, model: type[BaseModel], provenance: Mapping[str, Constant]) -> list[StudyParameter]:
    found = []
    for name, field in model.model_fields.items():
        if name in NOT_CONSTANTS:
            continue
        stated = provenance.get(name)
        unit = stated.unit if stated is not None and stated.unit != "1" else ""
        found.append(StudyParameter(f"{owner}.{name}", owner, name, _kind(field.annotation)[0], unit))
    return found


def _kind(annotation: object) -> tuple[type, str, str]:
    """Return the plain type of an annotation, without unit and help text."""
    pending: list[Any] = [annotation]
    plain: set[type] = set()
    while pending:
        kind = pending.pop(0)
        if get_origin(kind) is Annotated:
            pending.append(get_args(kind)[0])
        elif get_origin(kind) is Literal:
            plain.add(str)
        elif get_origin(kind) in (Union, types.UnionType):
            pending += get_args(kind)
        else:
            plain.add(get_origin(kind) or kind)
    return next((kind for kind in (tuple, bool, float, int, str) if kind in plain), str), "", ""


def parameter(name: str) -> StudyParameter:
    """Look up a parameter by name.

    Raises
    ------
    ConfigError
        If there is none; the message suggests names with similar spelling.
    """
    known = parameters()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "'wse-sim study parameters' lists them"
    raise ConfigError(f"parameter '{name}' is unknown; {hint}")
