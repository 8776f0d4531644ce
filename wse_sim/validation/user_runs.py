"""Reads a folder with runs of the user's machine as points of a suite.

A run is a folder in it, or ``NAME.log`` (``.txt``) next to ``NAME.yaml``; a folder with one log of its own is one run.  Of a run's files are read: a log of training
(:mod:`wse_sim.validation.logs`), ``performance.json`` and ``compile_report.txt`` (:mod:`wse_sim.validation.vendor_files`),
a params file of the Model Zoo (:mod:`wse_sim.validation.zoo_params`), ``run.json`` with the captured graph of a script that
ran here, and ``run.yaml`` for what these do not say (:mod:`wse_sim.validation.statement`).  What was measured is taken from
the first of: the statement, ``run.json``, the log, ``performance.json``.

A run that cannot be read is a point with its fault, so that it is listed and others are predicted all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from wse_sim.errors import ConfigError, WseError
from wse_sim.files import Values, is_file, is_folder, read_log, read_yaml, sha256_of
from wse_sim.frontend.parameters import model_names, read_model_file
from wse_sim.modes import streaming
from wse_sim.validation.kernel_runs import kernel_point
from wse_sim.validation.logs import (
    EVAL,
    TRAIN,
    TrainingLog,
    batch_of,
    has_progress,
    parse_training_log,
    steady_rate,
)
from wse_sim.validation.predict import VALUE_FAULTS
from wse_sim.validation.script_runs import RUN, own_runs
from wse_sim.validation.statement import FILE, Statement, read_statement
from wse_sim.validation.suite import Point, Suite
from wse_sim.validation.vendor_files import (
    COMPILE_REPORT,
    PERFORMANCE,
    Performance,
    read_compile_report,
    read_performance,
)
from wse_sim.validation.zoo_params import ZooParams, is_zoo_params, read_zoo_params

MOST_FILES = 4000  # of one run: a folder with more is not one run
MOST_RUNS = 1000
MOST_PARAMS_BYTES = 2**20  # of a YAML file that may be a params file
LOGS = (".log", ".txt", ".out")
PASSED_ON = (
    "mode", "batch", "seq", "systems", "workers", "micro_batch", "lanes", "recompute", "optimizer", "precision", "sparsity",
    "cluster", "clock_hz",
)  # fmt: skip


def load_mine(folder: Path, results: Path | None = None) -> Suite:
    """Return the runs of a folder, in the order of their names; `results`, the folder of this command's own files, is
    none.

    Raises
    ------
    ConfigError
        If there is no such folder, or no run in it.
    """
    if not is_folder(folder, "--mine"):
        raise ConfigError(f"--mine {folder} is not a folder; give the folder around your runs")
    runs = [run for run in _runs(folder) if results is None or run.resolve() != results.resolve()]
    if not runs:
        raise ConfigError(
            f"--mine {folder} contains no run; put the files of each run into its own folder there"
        )
    if len(runs) > MOST_RUNS:
        raise ConfigError(
            f"--mine {folder} holds {len(runs)} runs, the limit is {MOST_RUNS}; split the folder"
        )
    points = tuple(point for run in runs for point in _points(run, folder))
    return Suite(points=points)


def _runs(folder: Path) -> list[Path]:
    """Return folders and logs, by name; a folder with a record of a run, or one log without a statement next to it, is
    itself the run.
    """
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise ConfigError(
            f"--mine {folder} cannot be listed ({error.strerror}); check its permissions"
        ) from None
    if any((folder / name).is_file() for name in (RUN, PERFORMANCE)):
        return [folder]
    logs = [entry for entry in entries if entry.suffix in LOGS and entry.is_file()]
    alone = [log for log in logs if not log.with_suffix(".yaml").is_file()]
    if len(alone) == 1 and has_progress(read_log(alone[0])):
        return [folder]
    # what this command wrote (--out) is no run
    folders = [entry for entry in entries if entry.is_dir() and not (entry / "validation.json").is_file()]
    return sorted([*folders, *(log for log in logs if not folders or log not in alone)])


def _points(run: Path, folder: Path) -> Iterator[Point]:
    """Yield the points of one run; a fault yields a separate point."""
    try:
        yield from _Run(run, folder).points()
        return
    except WseError as found:
        fault = str(found)
    except (OSError, *VALUE_FAULTS) as found:
        fault = f"{run}: a file has contents that no tool writes ({type(found).__name__}: {' '.join(str(found).split())[:120]}); give the files unchanged"
    name = run.stem if run.is_file() else run.name
    yield Point(id=name, subject="", quantity="", measured=None, fault=fault)


class _Run:
    """The files of one run, and their combined statements."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        single = path.is_file()
        self.name = path.stem if single else path.resolve().name
        own = path.with_suffix(".yaml") if single else path / FILE
        self.stated: Statement = read_statement(own, None if path == folder else folder / FILE)
        self.files = [path] if single else _files(path)
        self.home = path.parent if single else path
        self.notes: list[str] = []

    def points(self) -> Iterator[Point]:
        """Yield the measurement, and the compiler's estimate where there is one."""
        stated = self.stated
        if stated.kernel is not None or stated.program is not None:
            yield kernel_point(stated, self.name, self.home, self._wafer())
            return
        record = self._one(RUN)
        if record is not None:
            yield from own_runs(record, stated, self.name)
            return
        log = self._log()
        performance = self._performance(needed=log is None and self.stated.samples_per_s is None)
        phase = stated.phase or ("evaluation" if log is not None and log.phase() == EVAL else "training")
        zoo = self._zoo(phase)
        params = self._params(log, zoo)
        measured, how, seen = self._measured(log, performance, phase, params)
        yield self._point(phase, params, measured, how, seen)
        yield from self._estimates(phase, params, log, performance)

    def _point(
        self, phase: str, params: Values, rate: float, how: str, seen: list[Path], **changes: object
    ) -> Point:
        stated = self.stated
        sums = ", ".join(f"{os.path.relpath(file, self.home)} sha256 {sha256_of(file)[:16]}" for file in seen)
        source = "; ".join(part for part in (stated.source, how, sums, stated.release) if part)
        fields: Values = {
            "id": self.name, "system": self._wafer(), "subject": f"model.{phase}", "params": params,
            "quantity": "samples_per_s", "measured": rate, "unit": "samples/s", "evidence": stated.evidence,
            "source": source, "note": "; ".join(self.notes), "gate": stated.gate,
        }  # fmt: skip
        return Point(**(fields | changes))

    def _estimates(
        self, phase: str, params: Values, log: TrainingLog | None, performance: Performance | None
    ) -> Iterator[Point]:
        """Estimates of the vendor's compiler for the run; they are shown but not counted."""
        report = self._one(COMPILE_REPORT)
        said: list[tuple[float | None, Path | None, str]] = [
            (
                read_compile_report(report) if report is not None else None,
                report,
                "the vendor's compile report",
            ),
            (
                log.estimate if log is not None else None,
                log.path if log is not None else None,
                "compile estimated performance",
            ),
            (
                performance.estimate if performance is not None else None,
                performance.path if performance is not None else None,
                "est_samples_per_sec",
            ),
        ]
        for rate, file, how in said:
            if rate and file is not None:
                name = f"{self.name} (compiler)"
                yield self._point(phase, params, rate, how, [file], id=name, evidence="vendor", gate=False)
                return

    def _measured(
        self, log: TrainingLog | None, performance: Performance | None, phase: str, params: Values
    ) -> tuple[float, str, list[Path]]:
        """Samples per second, how they were determined, and the files they come from."""
        if self.stated.samples_per_s is not None:
            return self.stated.samples_per_s, f"stated in {FILE}", []
        if log is not None:
            found = steady_rate(log, TRAIN if phase == "training" else EVAL, params["batch"])
            self.stated = self.stated.model_copy(
                update={"release": self.stated.release or ", ".join(sorted(log.releases))}
            )
            return found.samples_per_s, found.how, [log.path]
        if performance is not None:
            self.notes.append(
                "the rate of performance.json counts checkpoints and evaluation; a log tells more"
            )
            return performance.samples_per_s, "samples_per_sec", [performance.path]
        raise ConfigError(
            f"{self.path}: contains no log of training, {PERFORMANCE} or {RUN}; put one there, or state `samples_per_s` in {FILE}"
        )

    def _wafer(self) -> str:
        if self.stated.wafer is None:
            raise ConfigError(
                f"{self.path}: no file states which wafer ran; state `wafer: wse2` (CS-2) or `wafer: wse3` (CS-3) in {FILE}"
            )
        return _beside(self.stated.wafer, self.home)

    def _params(self, log: TrainingLog | None, zoo: ZooParams | None) -> Values:
        """Return the parameters of a point: the statement first, then the log, then the params file."""
        stated = self.stated
        params: Values = self._model(zoo)
        if zoo is not None:
            self.notes += zoo.notes if stated.seq is None else ()
            if zoo.sparse and stated.sparsity is None:
                raise ConfigError(
                    f"{zoo.path}: trains with zero weights; state the fraction of them as `sparsity` in {FILE}"
                )
            found = {
                "batch": zoo.batch,
                "systems": zoo.systems,
                "workers": zoo.workers,
                "optimizer": zoo.optimizer,
                "precision": zoo.precision,
            }
            params |= {key: value for key, value in found.items() if value is not None}
        if log is not None:
            if stated.batch is None and (batch := batch_of(log, params.get("batch"))):
                params["batch"] = batch
            params |= {"systems": max(log.systems)} if log.systems else {}
            if log.devices == {"CSX"}:  # releases with this name stream weights, and nothing else
                params["mode"] = streaming().name
        params |= {key: value for key in PASSED_ON if (value := getattr(stated, key)) is not None}
        if "cluster" in params:
            params["cluster"] = _beside(str(params["cluster"]), self.home)
        for key, remedy in (
            ("batch", "the samples of a step over all systems"),
            ("systems", "the number of wafers"),
            ("mode", "pipelined or weight-streaming"),
        ):
            if key not in params:
                raise ConfigError(f"{self.path}: no file states `{key}`; state it in {FILE}: {remedy}")
        return params

    def _model(self, zoo: ZooParams | None) -> Values:
        stated = self.stated
        if stated.graph is not None:
            return {"graph": str((self.home / stated.graph).resolve())}
        if isinstance(stated.model, dict):
            return {"model": stated.model}
        if stated.model is not None:
            file = self.home / stated.model
            if stated.model.endswith((".yaml", ".yml")):
                found = read_model_file(file)
                return {"model": {"name": found.name, **found.model.model_dump(exclude_none=True)}}
            return {"model": stated.model}
        if zoo is not None:
            return {"model": zoo.model.model_dump(exclude_none=True)}
        names = ", ".join(model_names()[:3])
        raise ConfigError(
            f"{self.path}: no file states which model ran; put the params file of the Model Zoo there, or state `model:` in {FILE} "
            f"({names} and so on, or sizes)"
        )

    def _zoo(self, phase: str) -> ZooParams | None:
        """Return the params file: the one that is named, or the only one there."""
        if self.stated.params is not None:
            return read_zoo_params(self.home / self.stated.params, phase)
        if self.stated.model is not None or self.stated.graph is not None:
            return None
        found = [
            file
            for file in self.files
            if file.suffix in (".yaml", ".yml") and file.name != FILE and _is_params(file)
        ]
        distinct = {sha256_of(file): file for file in found}
        if len(distinct) > 1:
            shown = ", ".join(str(file.relative_to(self.home)) for file in distinct.values())
            raise ConfigError(
                f"{self.path}: holds {len(distinct)} params files ({shown}); state the right one as `params` in {FILE}"
            )
        return read_zoo_params(found[0], phase) if found else None

    def _log(self) -> TrainingLog | None:
        """Return the log of training: the one that is named, or the only one there; copies count once."""
        if self.stated.log is not None:
            return _training_log(self.home / self.stated.log, named=True)
        if self.path.is_file():
            return _training_log(self.path, named=True)
        logs, faults = [], []
        for file in self.files:
            try:
                log = _training_log(file) if file.suffix in LOGS else None
            except ConfigError as fault:  # a log of the cluster's own, too large to be that of a script
                faults.append(fault)
                continue
            logs += [log] if log is not None else []
        if faults and not logs:
            raise faults[0]
        first = logs[0] if logs else None
        other = next((log for log in logs[1:] if log.progress() != logs[0].progress()), None)
        if first is not None and other is not None:
            names = f"{first.path.relative_to(self.home)} and {other.path.relative_to(self.home)}"
            raise ConfigError(
                f"{self.path}: {names} are logs of two runs; give each a folder, or state `log` in {FILE}"
            )
        return max(logs, key=lambda log: len(log.batches) + len(log.systems)) if logs else None

    def _performance(self, needed: bool) -> Performance | None:
        """Return the content of performance.json; if there is a log, faults of this file become notes."""
        try:
            found = self._one(PERFORMANCE)
            return None if found is None else read_performance(found)
        except ConfigError as fault:
            if needed:
                raise
            self.notes.append(str(fault))
            return None

    def _one(self, name: str) -> Path | None:
        """Return the file with this name anywhere in the run's folder, or None."""
        found = {sha256_of(file): file for file in self.files if file.name == name}
        if len(found) > 1:
            shown = ", ".join(str(file.relative_to(self.home)) for file in found.values())
            raise ConfigError(
                f"{self.path}: holds {len(found)} different files {name} ({shown}); give each run its own folder"
            )
        return next(iter(found.values()), None)


def _files(folder: Path) -> list[Path]:
    """Return the files of a run, in the order of their paths."""
    found = []
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found.append(file)
        if len(found) > MOST_FILES:
            raise ConfigError(
                f"{folder}: holds more than {MOST_FILES:,} files; keep the log, params file and performance.json alone"
            )
    return found


def _training_log(file: Path, named: bool = False) -> TrainingLog | None:
    """Return the log in a file, or None where no line of progress is there."""
    text = read_log(file)
    if not has_progress(text):
        if not named:
            return None
        raise ConfigError(
            f"{file}: contains no line '| Train Device=CSX, Step=..., GlobalRate=... samples/sec'; give the log of a training script"
        )
    return parse_training_log(text, file)


def _is_params(file: Path) -> bool:
    """Return whether a YAML file has the form of a params file; read errors are reported where the file is needed."""
    try:
        if file.stat().st_size > MOST_PARAMS_BYTES:
            return False
        data = read_yaml(file)
    except ConfigError:
        return file.name.startswith("params")
    return isinstance(data, dict) and is_zoo_params(data)


def _beside(name: str, home: Path) -> str:
    """Return a name as it is, and a path next to the run relative to this folder."""
    return str(home / name) if name.endswith((".yaml", ".yml")) and is_file(home / name, "path") else name
