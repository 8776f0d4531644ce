"""Reads a training script that ran here (``wse-sim script``): its ``run.json`` and the captured graph next to it.

What was "measured" is the step that the runner simulated, without the kernels on top of it that no graph holds
(clipping, scaling, schedule).  So such a run tests this reader and the graph, not the machine: its evidence is "simulator".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from wse_sim.errors import ConfigError
from wse_sim.files import Values, read_json, sha256_of
from wse_sim.validation.statement import Statement
from wse_sim.validation.suite import Point

RUN = "run.json"
DEFAULTS = {"max_act_per_csx": 1, "max_wgt_servers": 24}
"""Settings that affect the cluster in ways that a point does not model, with their defaults."""
REMEDY = "give the folder that 'wse-sim script' wrote"


def own_runs(path: Path, stated: Statement, name: str) -> Iterator[Point]:
    """Yield a point for each compile of a run.

    Raises
    ------
    ConfigError
        If the file is not one that the runner writes, or its settings cannot be stated by a point.
    """
    data = read_json(path)
    compiles = data.get("compiles") if isinstance(data, Mapping) else None
    if (
        not isinstance(compiles, list)
        or not compiles
        or not all(isinstance(one, Mapping) for one in compiles)
    ):
        raise ConfigError(f"{path}: names no compile; {REMEDY}")
    options, settings = _mapping(path, data, "options"), _mapping(path, data, "with_effect")
    odd = next((key for key, value in DEFAULTS.items() if settings.get(key, value) != value), None)
    if odd is not None:
        raise ConfigError(
            f"{path}: ran with {odd} {settings[odd]}, which a point cannot state; run the script with {DEFAULTS[odd]}"
        )
    for number, one in enumerate(compiles):
        step_s = _number(path, one, "step_s")
        seconds = step_s - (_number(path, one, "on_top_s") if one.get("on_top_s") else 0.0)
        if seconds <= 0:
            raise ConfigError(f"{path}: key 'step_s' is not above 'on_top_s'; {REMEDY}")
        batch = _count(path, one, "batch")
        systems = _count(path, {"num_csx": options.get("systems") or settings.get("num_csx") or 1}, "num_csx")
        params = {
            "graph": str(path.parent / f"compile_{number}_{one.get('name')}"),
            "mode": str(one.get("mode")), "batch": batch, "systems": systems, "cluster": str(options.get("cluster", "default")),
            "workers": _count(path, settings, "num_workers_per_csx"),
            **_streaming(settings, batch // systems),
        }  # fmt: skip
        yield Point(
            id=name if len(compiles) == 1 else f"{name} {one.get('name')}",
            system=str(stated.wafer or options.get("wafer")),
            subject="model.training" if one.get("training") else "model.evaluation",
            params=params,
            quantity="samples_per_s",
            measured=batch / seconds,
            unit="samples/s",
            evidence="simulator",
            source=f"{path.name} of wse-sim script, sha256 {sha256_of(path)[:16]}",
        )


def _streaming(settings: Values, share: int) -> Values:
    """Return the settings of weight streaming that a point can state; `share`: samples of one system."""
    micro, density = settings.get("micro_batch_size"), settings.get("density")
    found: Values = {}
    if isinstance(micro, int):
        found["micro_batch"] = micro
    elif micro == "disable":
        found["micro_batch"] = share
    else:
        found["choose_micro_batch"] = "no-spill" if micro in (None, "auto") else "search"
    if isinstance(density, Mapping) and density:
        found["sparsity"] = 1.0 - min(1.0, statistics.fmean(float(value) for value in density.values()))
    return found


def _mapping(path: Path, data: Values, key: str) -> Values:
    found = data.get(key)
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: key '{key}' is missing; {REMEDY}")
    return found


def _count(path: Path, data: Values, key: str) -> int:
    number = _number(path, data, key)
    if number != int(number):
        raise ConfigError(f"{path}: key '{key}' is {number:g}; an integer is needed; {REMEDY}")
    return int(number)


def _number(path: Path, data: Values, key: str) -> float:
    value = data.get(key)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (math.isfinite(value) and value > 0)
    ):
        raise ConfigError(f"{path}: key '{key}' is {value!r}; a positive number is needed; {REMEDY}")
    return float(value)
