"""Expands a study's description to its settings, in a fixed order.

The settings are the product of all axes: each entry of `grid`, each group of `zip`, the rows of `sample`. The first axis in the file
changes slowest.  Latin hypercubes and Sobol sequences are those of :mod:`scipy.stats.qmc`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wse_sim.errors import ConfigError
from wse_sim.studies.parameters import parameter, parameters
from wse_sim.studies.schema import MOST_RUNS, Axis, AxisRange, Sample, StudySpec, axis_values

Setting = Mapping[str, Any]


def dimensions(spec: StudySpec) -> list[list[dict[str, Any]]]:
    """Return the axes whose product gives the settings.

    Raises
    ------
    ConfigError
        If there are more than a million settings.
    """
    found = [[{name: value} for value in axis_values(name, axis)] for name, axis in spec.grid.items()]
    for group in spec.zip:
        columns = [axis_values(name, axis) for name, axis in group.items()]
        found.append([dict(zip(group, row, strict=True)) for row in zip(*columns, strict=True)])
    count = math.prod(len(axis) for axis in found) * (spec.sample.runs if spec.sample else 1)
    if count > MOST_RUNS:
        raise ConfigError(f"the study has {count:,} runs, the limit is {MOST_RUNS:,}; vary less at a time")
    if spec.sample is not None:
        found.append(sampled(spec.sample))
    return found


def settings(spec: StudySpec) -> Iterator[dict[str, Any]]:
    """Yield all settings of a sweep that meet the constraints on parameters.

    Raises
    ------
    ConfigError
        If there are too many, or a constraint cannot be computed.
    """
    conditions = [c for c in spec.conditions if c.names <= set(parameters())]
    asked = set().union(*(c.names for c in conditions)) if conditions else set()
    unset = defaults(asked - set(spec.fixed) - set(spec.varied))
    for parts in itertools.product(*dimensions(spec)):
        setting = dict(spec.fixed)
        for part in parts:
            setting |= part
        if all(condition.holds({**unset, **setting}) for condition in conditions):
            yield setting


def defaults(names: set[str]) -> dict[str, Any]:
    """Return default values of parameters that a study does not state, for use in constraints."""
    from wse_sim.hardware import load_cluster, load_wafer
    from wse_sim.hardware.chip import load_chip
    from wse_sim.options import RunOptions
    from wse_sim.serving.options import ServingOptions

    owners: dict[str, Any] = {"wafer": load_wafer(), "cluster": load_cluster(), "chip": load_chip()}
    found = {}
    for name in names:
        known = parameter(name)
        if known.owner in owners and known.field:
            found[name] = getattr(owners[known.owner], known.field)
        elif known.owner == "run":
            found[name] = RunOptions.model_fields[known.field].default
        elif known.owner == "serve":
            stated = ServingOptions.model_fields.get(known.field)
            found[name] = None if stated is None else stated.default
        else:
            found[name] = None
    return found


def sampled(sample: Sample) -> list[dict[str, Any]]:
    """Return the rows of a Latin hypercube or a Sobol sequence over the axes."""
    import numpy as np
    from scipy.stats import qmc

    names = list(sample.over)
    rng = np.random.default_rng(sample.seed)
    if sample.method == "latin":
        unit = qmc.LatinHypercube(len(names), rng=rng).random(sample.runs)
    else:
        power = max(1, math.ceil(math.log2(sample.runs)))
        unit = qmc.Sobol(len(names), scramble=True, rng=rng).random_base2(power)[: sample.runs]
    return [
        {
            name: _at(name, sample.over[name], float(fraction))
            for name, fraction in zip(names, row, strict=True)
        }
        for row in unit
    ]


def _at(name: str, axis: Axis, fraction: float) -> object:
    """Return the value of an axis at a fraction of its range; for a list, the item at that position."""
    known = parameter(name)
    if isinstance(axis, AxisRange) and axis.steps is None and axis.step is None:
        value = axis.at(fraction)
        return known.check(round(value) if known.kind is int else value)
    values: Sequence[Any] = axis_values(name, axis)
    return values[min(len(values) - 1, int(fraction * len(values)))]
