"""Sweeps: many runs in parallel processes; the sweep over model size finds where the modes cross.

A run of the sweep is one model in one mode.  The *largest pipelined* model is the largest that fits one
wafer; the *crossover* is the smallest size from which weight streaming is the faster mode for good.
"""

from __future__ import annotations

import csv
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wse_sim.errors import ModelError

SERIES = {
    "gpt": (
        "gpt-100m", "gpt-300m", "gpt3-760m", "gpt-1b", "gpt3-1.3b", "gpt2-xl", "gpt3-2.7b", "gpt-3b", "gpt3-6.7b",
        "gpt-10b", "gpt3-13b", "gpt-neox-20b", "gpt-30b", "gpt-100b", "gpt3-175b", "gpt-300b", "gpt-1t",
    ),
}  # fmt: skip
"""Models of a size sweep, by family."""

SWEEP_SEQ = 512
"""Tokens of a sample unless asked.  At the models' own 2,048 tokens, attention scores exceed SRAM for every
model, so no pipelined plan exists to compare with."""


@dataclass(frozen=True)
class SizeRow:
    """One run of the sweep; rates are 0 where the mode does not fit."""

    model: str
    parameters: int
    mode: str
    feasible: bool
    binding: str
    samples_per_s: float
    tokens_per_s: float
    step_s: float
    mfu: float
    message: str = ""


@dataclass(frozen=True)
class SizeSweep:
    """All rows by size, and what they say."""

    rows: tuple[SizeRow, ...]

    def of(self, mode: str) -> list[SizeRow]:
        """Rows of one mode by size."""
        return sorted((row for row in self.rows if row.mode == mode), key=lambda row: row.parameters)

    @property
    def largest_pipelined(self) -> SizeRow | None:
        """The largest model that fits the pipelined mode."""
        fitting = [row for row in self.of("pipelined") if row.feasible]
        return fitting[-1] if fitting else None

    @property
    def crossover_parameters(self) -> int | None:
        """Smallest size from which weight streaming stays ahead; None if it never is."""
        streamed = {row.model: row.samples_per_s for row in self.of("weight-streaming")}
        answer = None
        for row in reversed(self.of("pipelined")):
            if streamed.get(row.model, 0.0) <= row.samples_per_s:
                break
            answer = row.parameters
        return answer

    def write_csv(self, path: Path) -> None:
        """One line per run."""
        names = list(SizeRow.__dataclass_fields__)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows({name: getattr(row, name) for name in names} for row in self.rows)


def _one(model: str, options: dict[str, Any]) -> list[SizeRow]:
    """Both modes of one model; runs in a process of its own."""
    from wse_sim import api
    from wse_sim.engine.result import Result

    chosen = api.RunOptions(**options)
    graph = api.read(model, chosen)
    rows = []
    for answer in api.compare(graph, chosen, trace=False):
        ran = isinstance(answer, Result)
        rate = answer.samples_per_s if isinstance(answer, Result) else 0.0
        rows.append(
            SizeRow(
                model=model,
                parameters=graph.parameters,
                mode=answer.mode,
                feasible=ran,
                binding=answer.binding,
                samples_per_s=rate,
                tokens_per_s=rate * int(graph.facts.get("seq", 1)),
                step_s=answer.step_s if isinstance(answer, Result) else 0.0,
                mfu=answer.mfu if isinstance(answer, Result) else 0.0,
                message="" if isinstance(answer, Result) else answer.message,
            )
        )
    return rows


def sweep_sizes(
    series: str = "gpt",
    *,
    models: Sequence[str] | None = None,
    workers: int = 2,
    seq: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> SizeSweep:
    """Run a series of models in both modes, all at one sequence length (default :data:`SWEEP_SEQ`).

    `options` are fields of :class:`wse_sim.api.RunOptions`.

    Raises
    ------
    ModelError
        If the series is unknown.
    """
    if models is None:
        if series not in SERIES:
            raise ModelError(f"series '{series}' is unknown; use one of {', '.join(SERIES)}")
        models = SERIES[series]
    options["seq"] = seq or SWEEP_SEQ
    rows: list[SizeRow] = []
    # Largest first: the longest capture must not be the last to start.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = {pool.submit(_one, model, options): model for model in reversed(models)}
        for done, job in enumerate(as_completed(jobs), 1):
            rows += job.result()
            progress(f"{done} of {len(models)} models, {jobs[job]} done")
    return SizeSweep(tuple(sorted(rows, key=lambda row: (row.parameters, row.mode))))


def draw(sweep: SizeSweep, path: Path) -> None:
    """Rate and utilization against model size, both modes, with the crossover."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (rate, use) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for mode, color, mark in (("pipelined", "tab:blue", "o"), ("weight-streaming", "tab:orange", "s")):
        rows = [row for row in sweep.of(mode) if row.feasible]
        size = [row.parameters for row in rows]
        rate.loglog(size, [row.tokens_per_s for row in rows], color=color, marker=mark, label=mode)
        use.semilogx(size, [100 * row.mfu for row in rows], color=color, marker=mark, label=mode)
    largest, cross = sweep.largest_pipelined, sweep.crossover_parameters
    misfits = [row.parameters for row in sweep.of("pipelined") if not row.feasible]
    for axes in (rate, use):
        if misfits:
            axes.axvspan(
                min(misfits), max(misfits), color="tab:blue", alpha=0.07, label="pipelined does not fit"
            )
        if largest is not None:
            axes.axvline(
                largest.parameters,
                color="tab:blue",
                linestyle=":",
                label=f"largest that fits pipelined: {largest.model}",
            )
        if cross is not None:
            axes.axvline(
                cross,
                color="tab:orange",
                linestyle="--",
                label=f"weight streaming ahead from {cross / 1e9:.2g} G",
            )
        axes.set_xlabel("parameters")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.margins(x=0.03)
    rate.set_ylabel("tokens/s")
    use.set_ylabel("MFU (%)")
    use.set_ylim(bottom=0)
    rate.legend(fontsize=8)
    figure.suptitle("Pipelined against weight streaming over model size")
    figure.savefig(path, dpi=130)
    plt.close(figure)
