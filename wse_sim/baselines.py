"""Other machines compared with simulated CS-2 systems: rates, MFU, and how many systems match.

Symbols: N parameters, T tokens of a step, t seconds of a step, D devices of peak F::

    MFU       = 6 N T / (t D F)        the same formula for every machine
    matching  = least number of systems whose step takes at most t, at the same batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim import api
from wse_sim.engine.result import Result
from wse_sim.errors import ConfigError, ModelError
from wse_sim.files import read_yaml
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.hardware.constants import one_sentence
from wse_sim.modes import streaming


class Accelerator(BaseModel):
    """A device of another machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    peak_flops_per_s: float = Field(gt=0)
    source: str
    evidence: str


class Baseline(BaseModel):
    """A published training step on other machines; `shape` tells whether the model's sizes are published."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    device: str
    devices: int = Field(gt=0)
    software: str
    model: dict[str, Any]
    shape: str = Field(pattern="^(published|assumed)$")
    parameters: float = Field(gt=0)
    batch: int = Field(gt=0)
    step_s: float = Field(gt=0)
    mfu: float | None = None
    note: str = ""
    source: str


class Baselines(BaseModel):
    """A file of baselines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: int = Field(alias="schema", ge=1, le=1)
    series: dict[str, tuple[str, ...]]
    devices: dict[str, Accelerator]
    points: tuple[Baseline, ...]


@dataclass(frozen=True)
class BaselineRow:
    """A published step, and the smallest number of simulated systems that is at least as fast.

    `system_*` are the figures of `systems` systems; without a match they are those of the largest number that
    the batch and the cluster allow, and `is_match` is false.
    """

    id: str
    device: str
    devices: int
    parameters: float
    shape: str
    batch: int
    samples_per_s: float
    tokens_per_s: float
    mfu: float
    mode: str
    systems: int
    is_match: bool
    system_samples_per_s: float
    system_tokens_per_s: float
    system_mfu: float
    binding: str
    devices_per_system: float
    source: str


def default_path() -> Path:
    """The baselines that ship with the package."""
    return Path(str(resources.files("wse_sim.suites").joinpath("baselines.yaml")))


def load_baselines(path: Path | None = None) -> Baselines:
    """Read baselines.

    Raises
    ------
    ConfigError
        One sentence with file and key.
    """
    path = path or default_path()
    try:
        data = Baselines.model_validate(read_yaml(path))
    except ValidationError as fault:
        raise ConfigError(one_sentence(path, fault)) from fault
    for point in data.points:
        if point.device not in data.devices:
            raise ConfigError(
                f"{path}: device '{point.device}' of '{point.id}' is not listed under 'devices'"
            )
    return data


def compare_baselines(
    series: str = "gpt2-series",
    *,
    data: Baselines | None = None,
    wafer: Wafer | str = "wse2",
    cluster: Cluster | str = "default",
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[BaselineRow, ...]:
    """Compare every baseline of a series (or "all") with simulated systems at the same batch.

    Raises
    ------
    ModelError
        If the series is unknown.
    """
    data = data or load_baselines()
    if series != "all" and series not in data.series:
        raise ModelError(f"series '{series}' is unknown; use one of {', '.join(data.series)} or all")
    wafer = load_wafer(wafer)
    wanted = None if series == "all" else data.series[series]
    rows = []
    for point in data.points:
        if wanted is None or point.id in wanted:
            progress(f"match {point.id}")
            rows.append(_row(point, data.devices[point.device], wafer, cluster))
    return tuple(rows)


def _row(point: Baseline, device: Accelerator, wafer: Wafer, cluster: Cluster | str) -> BaselineRow:
    host = load_cluster(cluster)
    # Published runs of wafers show no gain by smaller micro-batches, so no comparison with published runs may claim one.
    options = api.RunOptions(batch=point.batch, wafer=wafer, cluster=host, choose_micro_batch="largest")
    graph = api.read({"name": point.id, "model": point.model}, options)
    result = _match(graph, options, point, host.max_systems)
    tokens = point.batch * int(point.model.get("seq", 1))
    work = 6.0 * point.parameters * tokens
    rate = point.batch / point.step_s
    per_system = result.samples_per_s / result.systems
    return BaselineRow(
        id=point.id,
        device=point.device,
        devices=point.devices,
        parameters=point.parameters,
        shape=point.shape,
        batch=point.batch,
        samples_per_s=rate,
        tokens_per_s=tokens / point.step_s,
        mfu=work / point.step_s / (point.devices * device.peak_flops_per_s),
        mode=result.mode,
        systems=result.systems,
        is_match=result.samples_per_s >= rate,
        system_samples_per_s=result.samples_per_s,
        system_tokens_per_s=result.samples_per_s * tokens / point.batch,
        system_mfu=work / result.step_s / (result.systems * wafer.peak_fp16_flops_per_s),
        binding=result.binding,
        devices_per_system=per_system / (rate / point.devices),
        source=point.source,
    )


def _match(graph: KernelGraph, options: api.RunOptions, point: Baseline, most: int) -> Result:
    """The run of the least number of systems that keeps up; of the most systems if none does."""
    one = _run(graph, options, api.AUTO, 1)
    most = min(most, point.batch)
    if (one is not None and one.step_s <= point.step_s) or most == 1:
        if one is None:
            raise ModelError(f"'{point.id}' fits no mode on one system; give a larger batch or more systems")
        return one
    known: dict[int, Result | None] = {}
    low, high = 1, 2
    while True:
        high = min(high, most)
        known[high] = _run(graph, options, streaming().name, high)
        found = known[high]
        if high == most or (found is not None and found.step_s <= point.step_s):
            break
        low, high = high, 2 * high
    found = known[high]
    if found is None:
        raise ModelError(f"'{point.id}' does not fit {most} systems; use a smaller model or batch")
    if found.step_s > point.step_s:
        return found
    while high - low > 1:
        middle = (low + high) // 2
        known[middle] = _run(graph, options, streaming().name, middle)
        trial = known[middle]
        if trial is not None and trial.step_s <= point.step_s:
            high, found = middle, trial
        else:
            low = middle
    return found


def _run(graph: KernelGraph, options: api.RunOptions, mode: str, systems: int) -> Result | None:
    answer = api.run(graph, options, mode=mode, systems=systems)
    return answer if isinstance(answer, Result) else None


def as_dicts(rows: Sequence[BaselineRow]) -> list[Mapping[str, Any]]:
    """The rows as JSON data."""
    return [asdict(row) for row in rows]


def table(rows: Sequence[BaselineRow], wafer: str = "CS-2") -> str:
    """The rows as text of 100 columns."""
    lines = [
        f"{'baseline':<16} {'devices':>12} {'tokens/s':>11} {'MFU':>6} | {wafer + ' systems':>13} {'tokens/s':>11} "
        f"{'MFU':>6} {'devices each':>13}"
    ]
    for row in rows:
        sign = "" if row.is_match else "> "
        lines.append(
            f"{row.id:<16} {f'{row.devices} {row.device}':>12} {row.tokens_per_s:>11,.0f} {row.mfu:>6.1%} | "
            f"{f'{sign}{row.systems}':>13} {row.system_tokens_per_s:>11,.0f} {row.system_mfu:>6.1%} "
            f"{row.devices_per_system:>13.1f}"
        )
    lines.append("systems: the fewest that are as fast at the same batch; MFU = 6 N T / (step x peak)")
    assumed = [row.id for row in rows if row.shape == "assumed"]
    if assumed:
        lines.append(f"layers and hidden assumed from the number of parameters: {', '.join(assumed)}")
    return "\n".join(lines)
