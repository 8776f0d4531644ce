"""Sweeps: many runs in parallel processes; the sweep over model size finds where the modes cross.

A run of the sweep is one model in one mode.  The *largest pipelined* model is the largest that fits one
wafer; the *crossover* is the smallest size from which weight streaming is the faster mode for good.
"""

from __future__ import annotations

import csv
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wse_sim.errors import ModelError
from wse_sim.files import read_text
from wse_sim.modes import resting, streaming

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
    layers: int = 0
    hidden: int = 0


@dataclass(frozen=True)
class SizeSweep:
    """All rows by size, and what they say."""

    rows: tuple[SizeRow, ...]

    def of(self, mode: str) -> list[SizeRow]:
        """Rows of one mode by size."""
        return sorted((row for row in self.rows if row.mode == mode), key=lambda row: row.parameters)

    @property
    def largest_pipelined(self) -> SizeRow | None:
        """The largest model that fits the mode in which weights rest."""
        fitting = [row for row in self.of(resting().name) if row.feasible]
        return fitting[-1] if fitting else None

    @property
    def crossover_parameters(self) -> int | None:
        """Smallest size from which weight streaming stays ahead; None if it never is."""
        streamed = {row.model: row.samples_per_s for row in self.of(streaming().name)}
        answer = None
        for row in reversed(self.of(resting().name)):
            if streamed.get(row.model, 0.0) <= row.samples_per_s:
                break
            answer = row.parameters
        return answer

    @property
    def notes(self) -> tuple[str, ...]:
        """Why a curve over size is not smooth: models of a size differ in depth and width."""
        found = []
        for mode in dict.fromkeys(row.mode for row in self.rows):
            rows = [row for row in self.of(mode) if row.feasible]
            for before, row, after in zip(rows, rows[1:], rows[2:], strict=False):
                dips = row.mfu < 0.95 * min(before.mfu, after.mfu)
                if dips and row.layers * before.hidden > before.layers * row.hidden:
                    found.append(
                        f"{row.model}, {mode}: MFU {row.mfu:.1%} lies below {before.model} ({before.mfu:.1%}) and "
                        f"{after.model} ({after.mfu:.1%}): {row.layers} layers of width {row.hidden:,}, where "
                        f"{before.model} has {before.layers} of {before.hidden:,}: more phases with less work in each"
                    )
        return tuple(found)

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
                layers=int(graph.facts.get("layers") or 0),
                hidden=int(graph.facts.get("hidden") or 0),
            )
        )
    return rows


def _follow_parent(parent: int) -> None:
    """Prepare a worker: it ends when its parent does, and leaves interrupts to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # the kernel ends us in the moment in which the parent dies
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class KeptRuns:
    """Finished runs of a sweep in an append-only file: one line per model, named by a hash of what it depends on.

    A line that a crash cut short is left out when it is read.
    """

    def __init__(self, folder: Path | None, options: dict[str, Any]) -> None:
        self.path = None if folder is None else folder / "sweep.jsonl"
        self._base = {
            "options": {name: str(value) for name, value in sorted(options.items())},
            "files": [_content(options.get(name)) for name in ("wafer", "cluster")],
            "source": _sources(),
        }
        self._rows: dict[str, list[SizeRow]] = {}
        if self.path is not None and self.path.exists():
            for line in read_text(self.path, "the runs kept").splitlines():
                try:
                    data = json.loads(line)
                    self._rows[data["key"]] = [SizeRow(**row) for row in data["rows"]]
                except (ValueError, TypeError, KeyError):
                    continue

    def _key(self, model: str) -> str:
        return hashlib.sha256(json.dumps([self._base, model], sort_keys=True).encode()).hexdigest()[:32]

    def get(self, model: str) -> list[SizeRow] | None:
        """The rows of a model that ran before with equal options, sources and files."""
        return self._rows.get(self._key(model))

    def put(self, model: str, rows: list[SizeRow]) -> None:
        """Keep a model's rows on disk before anything else happens."""
        self._rows[self._key(model)] = rows
        if self.path is None:
            return
        text = json.dumps({"key": self._key(model), "model": model, "rows": [asdict(row) for row in rows]})
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + text + "\n")
            file.flush()
            os.fsync(file.fileno())


def _content(named: object) -> str:
    """What a wafer or cluster says: its file's text, or the object's own."""
    path = Path(str(named))
    return read_text(path) if path.suffix in {".yaml", ".yml"} and path.is_file() else str(named)


def _sources() -> str:
    """Hash of the package's sources and configurations: a run of other code is another run."""
    total = hashlib.sha256()
    package = Path(__file__).resolve().parent
    roots = [package, *(entry.resolve() for entry in sorted(package.iterdir()) if entry.is_symlink())]
    for root in roots:
        for file in sorted(root.rglob("*")):
            if file.suffix in {".py", ".yaml"} and file.is_file():
                total.update(file.read_bytes())
    return total.hexdigest()


def sweep_sizes(
    series: str = "gpt",
    *,
    models: Sequence[str] | None = None,
    workers: int = 2,
    seq: int | None = None,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **options: object,
) -> SizeSweep:
    """Run a series of models in both modes, all at one sequence length (default :data:`SWEEP_SEQ`).

    `options` are fields of :class:`wse_sim.api.RunOptions`.  `keep` is a folder in which finished runs are kept as they
    end; the same call goes on from there.  Workers end with this process, however it ends.

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
    kept = KeptRuns(keep, options)
    found = {model: kept.get(model) for model in models}
    rows = [row for known in found.values() if known is not None for row in known]
    # Largest first: the longest capture must not be the last to start.
    missing = [model for model in reversed(models) if found[model] is None]
    if missing:
        rows += _run_models(missing, options, min(workers, len(missing)), kept, progress)
    return SizeSweep(tuple(sorted(rows, key=lambda row: (row.parameters, row.mode))))


def _run_models(
    models: Sequence[str],
    options: dict[str, Any],
    workers: int,
    kept: KeptRuns,
    progress: Callable[[str], None],
) -> list[SizeRow]:
    rows: list[SizeRow] = []
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_follow_parent,
        initargs=(os.getpid(),),
    )
    try:
        jobs = {pool.submit(_one, model, options): model for model in models}
        for done, job in enumerate(as_completed(jobs), 1):
            found = job.result()
            kept.put(jobs[job], found)
            rows += found
            progress(f"{done} of {len(models)} models, {jobs[job]} done")
    except BrokenProcessPool:
        raise ModelError(
            "a process of the sweep ended by itself (out of memory?); use fewer --workers; finished runs are kept with --out"
        ) from None
    except BaseException:  # an interrupt, or a fault of one run: the others must not go on
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        raise
    pool.shutdown()
    return rows


def draw(sweep: SizeSweep, path: Path) -> None:
    """Rate and utilization against model size, both modes, with the crossover."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rests, streams = resting().name, streaming().name
    figure, (rate, use) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for mode, color, mark in ((rests, "tab:blue", "o"), (streams, "tab:orange", "s")):
        rows = [row for row in sweep.of(mode) if row.feasible]
        size = [row.parameters for row in rows]
        rate.loglog(size, [row.tokens_per_s for row in rows], color=color, marker=mark, label=mode)
        use.semilogx(size, [100 * row.mfu for row in rows], color=color, marker=mark, label=mode)
    largest, cross = sweep.largest_pipelined, sweep.crossover_parameters
    misfits = [row.parameters for row in sweep.of(rests) if not row.feasible]
    for axes in (rate, use):
        if misfits:
            axes.axvspan(
                min(misfits), max(misfits), color="tab:blue", alpha=0.07, label=f"{rests} does not fit"
            )
        # Where the next larger model both no longer fits and is faster streamed, one line says both.
        together = largest is not None and cross is not None and abs(cross / largest.parameters - 1) < 0.1
        if largest is not None and not together:
            axes.axvline(
                largest.parameters,
                color="tab:blue",
                linestyle=":",
                label=f"largest that fits {rests}: {largest.model}",
            )
        if cross is not None:
            axes.axvline(
                cross,
                color="tab:orange",
                linestyle="--",
                label=f"{streams.replace('-', ' ')} ahead from {cross / 1e9:.2g} G"
                + (f"; {largest.model} is the largest that fits {rests}" if together and largest else ""),
            )
        axes.set_xlabel("parameters")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.margins(x=0.03)
    rate.set_ylabel("tokens/s")
    use.set_ylabel("MFU (%)")
    use.set_ylim(bottom=0)
    rate.legend(fontsize=8)
    figure.suptitle("Pipelined against weight streaming over model size")
    if sweep.notes:
        figure.supxlabel("\n".join(textwrap.fill(note, 150) for note in sweep.notes), fontsize=7, ha="center")
    figure.savefig(path, dpi=130)
    plt.close(figure)
