"""Reads logs of training scripts on a Cerebras system, and the rate of a steady step from them.

Lines that are read, as the vendor's Model Zoo prints them in releases 1.6 to 2.10::

    | Train Device=CSX, Step=50, Loss=2.30259, Rate=7023.11 samples/sec, GlobalRate=7020.50 samples/sec
    | Eval Device=CSX, GlobalStep=400, Batch=20, Loss=5.9, Rate=1163.27 samples/sec, GlobalRate=1173.27 samples/sec
    Beginning appliance run  (older releases: Finished sending initial weights)
    Saving checkpoint at step 1000
    Effective batch size is 112.
    Compile estimated performance: 34.1 samples/sec (34.1 samples/sec/system). ...
    Preparing to execute using 1 CSX
    Processed 1024000 sample(s) in 304.4 seconds.

``GlobalRate`` is all samples over the time since the program was loaded (the vendor's page "Measure throughput of your
model").  ``Rate`` is that of outputs as they reach the host: after a checkpoint it shows how fast the host catches up,
up to seven times the wafer's rate, so it is not used.  A steady step is measured in a *stretch*: lines between which
nothing but steps took place.

* A stretch from the beginning of a run, or of evaluation: the GlobalRate of its last line.
* A stretch from the middle, of an excerpt: the batch times the steps between its first line and its last, over the
  time between their time stamps.  Not behind a checkpoint, where the host catches up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from wse_sim.errors import ConfigError
from wse_sim.files import read_log
from wse_sim.units import counted

TRAIN, EVAL = "Train", "Eval"
BATCH_BAND = 0.10
"""Allowed relative difference between the rate of the time stamps and GlobalRate; beyond it the batch size is
called wrong."""
EXCERPT_BAND = 0.25
"""The same for an excerpt without the beginning, whose GlobalRate has only two decimals."""
LEAST_S = 5.0  # time stamps closer than this do not determine a rate
STAMP_FORMAT = "%Y-%m-%d %H:%M:%S,%f"

_PROGRESS = re.compile(r"\|\s*(Train|Eval)\s+(Device=.*)")
_PAIR = re.compile(r"(\w+)[=>]\s*([^\s,]+)")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\b")
_OTHERS = re.compile(
    r"cpu|gpu|cuda|mps", re.IGNORECASE
)  # where the same training scripts run without a wafer
_COLORS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_BEGINS = re.compile(r"Beginning appliance run|Finished sending initial weights")
_STOPS = re.compile(r"Saving checkpoint at (?:global )?step|Evaluation completed successfully")
_BATCH = re.compile(r"Effective batch size is (\d+)\b")
_SYSTEMS = re.compile(r"Preparing to execute using (\d+) CSX")
_PROCESSED = re.compile(
    r"(?:Processed|Training Complete\. Completed) (\d+) (?:training )?sample\(s\) in ([\d.]+) seconds"
)
_ESTIMATE = re.compile(r"Compile estimated performance: ([\d.]+) samples/sec")
_RELEASE = re.compile(r"job image version (\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class StepLine:
    """One line of progress: its number in the file, steps (of Eval: batches) so far, GlobalRate, time stamp."""

    number: int
    step: int
    global_rate: float | None
    stamp: datetime | None


@dataclass
class Stretch:
    """Consecutive lines of one phase with only steps between them."""

    phase: str
    from_beginning: bool
    after_stop: bool
    lines: list[StepLine] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Time between the stamps of the first line and the last; 0 without them."""
        first, last = self.lines[0].stamp, self.lines[-1].stamp
        return (last - first).total_seconds() if first is not None and last is not None else 0.0

    @property
    def steps(self) -> int:
        """Steps between the first line and the last."""
        return self.lines[-1].step - self.lines[0].step

    def starts(self) -> bool:
        """Return whether its GlobalRate counts steps only: in evaluation, which has its own clock, or where the first
        line is that of the beginning (as many steps from 0 as to the next line).
        """
        if self.from_beginning or self.phase == EVAL:
            return True
        if self.after_stop or len(self.lines) < 2:
            return False
        return self.lines[0].step <= self.lines[1].step - self.lines[0].step


@dataclass
class TrainingLog:
    """The content of a log; `stretches` are in the order of the file."""

    path: Path
    stretches: list[Stretch] = field(default_factory=list)
    batches: set[int] = field(default_factory=set)
    systems: set[int] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    releases: set[str] = field(default_factory=set)
    processed: set[int] = field(default_factory=set)
    estimate: float | None = None

    def phase(self) -> str:
        """Train where anything trained, else Eval."""
        return TRAIN if any(s.phase == TRAIN for s in self.stretches) else EVAL

    def progress(self) -> list[tuple[str, int, float | None]]:
        """Return the lines of progress as values: equal in two copies of one log."""
        return [(s.phase, line.step, line.global_rate) for s in self.stretches for line in s.lines]


@dataclass(frozen=True)
class SteadyRate:
    """Samples per second of steady steps, and how they were read."""

    samples_per_s: float
    how: str


def has_progress(text: str) -> bool:
    """Return whether a text contains a line of progress."""
    return _PROGRESS.search(text) is not None


def read_training_log(path: Path) -> TrainingLog:
    """Read a log.

    Raises
    ------
    ConfigError
        If it cannot be read, contains no line of progress, or one that cannot be read.
    """
    log = parse_training_log(read_log(path), path)
    if not log.stretches:
        raise ConfigError(
            f"{path}: contains no line '| Train Device=CSX, Step=..., GlobalRate=... samples/sec'; give the log of a training script"
        )
    return log


def parse_training_log(text: str, path: Path) -> TrainingLog:
    """Parse the text of a log; `path` names it in faults.

    Raises
    ------
    ConfigError
        If a line of progress lacks its step, or is of a run on a CPU or GPU.
    """
    log = TrainingLog(path)
    current: Stretch | None = None
    began, after_stop = False, False
    for number, line in _lines(text):
        _facts(log, line)
        if _BEGINS.search(line):
            current, began, after_stop = None, True, False
            continue
        found = _PROGRESS.search(line)
        if found is None:
            if _STOPS.search(line):
                current, began, after_stop = None, False, bool(log.stretches)
            continue
        phase, values = found[1], dict(_PAIR.findall(found[2]))
        if _OTHERS.match(values["Device"]):
            raise ConfigError(
                f"{path}: line {number} is of a run on {values['Device']}, limit Device=CSX (xla:0 before release 1.7); give the "
                "log of a run on a wafer"
            )
        progress = _progress_line(values, phase, number, line, path)
        if current is None or current.phase != phase or progress.step <= current.lines[-1].step:
            started = began and current is None
            current = Stretch(phase, started, after_stop or (current is not None))
            log.stretches.append(current)
        current.lines.append(progress)
        log.devices.add(values["Device"])
        began = False
    return log


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; overwritten states of a progress bar have the same number."""
    for number, line in enumerate(text.split("\n"), start=1):
        for part in line.split("\r"):
            yield number, _COLORS.sub("", part) if "\x1b" in part else part


def _facts(log: TrainingLog, line: str) -> None:
    """Collect facts of the whole run from a line."""
    for pattern, known in ((_BATCH, log.batches), (_SYSTEMS, log.systems)):
        if found := pattern.search(line):
            known.add(int(found[1]))
    if found := _RELEASE.search(line):
        log.releases.add(found[1])
    if found := _PROCESSED.search(line):
        log.processed.add(int(found[1]))
    if found := _ESTIMATE.search(line):
        log.estimate = _number(found[1])


def _progress_line(values: dict[str, str], phase: str, number: int, line: str, path: Path) -> StepLine:
    key = "Step" if phase == TRAIN else "Batch"
    if key not in values:
        # Releases 1.9 and 2.0 count evaluated batches as Step.
        key = "Step" if "Step" in values else "GlobalStep"
    step = counted(values.get(key, ""))
    if step is None:
        raise ConfigError(
            f"{path}: line {number} has no integer number of steps ('{line.strip()[:80]}'); remove the line or give the whole log"
        )
    rate = _number(values.get("GlobalRate", ""))
    stamp = _STAMP.search(line)
    return StepLine(number, step, rate, _time(stamp[1]) if stamp else None)


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, STAMP_FORMAT)
    except ValueError:  # 30 February
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def batch_of(log: TrainingLog, stated: int | None = None) -> int | None:
    """Return the samples per step: the effective batch size of the log, else one of the candidates below.

    Candidates are the batch of the params file and samples over steps; they must agree with GlobalRate and
    the time stamps.

    Raises
    ------
    ConfigError
        If it says two, and nothing tells which is right.
    """
    if len(log.batches) > 1:
        shown = ", ".join(map(str, sorted(log.batches)))
        raise ConfigError(f"{log.path}: states batches of {shown}; state `batch` in run.yaml")
    if log.batches:
        return next(iter(log.batches))
    candidates = {batch for batch in (stated, _processed_batch(log)) if batch is not None}
    if len(candidates) < 2:
        return next(iter(candidates), None)
    likely = _likely_batch(log)
    fitting = [batch for batch in candidates if likely and abs(batch / likely - 1.0) <= EXCERPT_BAND]
    if len(fitting) != 1:
        raise ConfigError(
            f"{log.path}: its params file states a batch of {stated}, its samples over its steps make {_processed_batch(log)}; state `batch` in run.yaml"
        )
    return fitting[0]


def _processed_batch(log: TrainingLog) -> int | None:
    """Samples over steps of the training, if that is an integer."""
    if len(log.processed) > 1:
        shown = " and ".join(f"{samples:,}" for samples in sorted(log.processed))
        raise ConfigError(f"{log.path}: holds runs of {shown} samples; give each run its own file")
    trained = [s for s in log.stretches if s.phase == TRAIN]
    if not log.processed or not trained or not trained[-1].lines[-1].step:
        return None
    batch, rest = divmod(next(iter(log.processed)), trained[-1].lines[-1].step)
    return batch if batch and not rest else None


def _likely_batch(log: TrainingLog) -> float | None:
    """Return the batch that GlobalRate and the time stamps of the longest stretch make together."""
    stamped = [s for s in log.stretches if s.phase == log.phase() and s.steps > 0 and s.seconds > 0]
    if not stamped:
        return None
    best = max(stamped, key=lambda s: s.steps)
    if best.starts():
        return (best.lines[-1].global_rate or 0.0) * best.seconds / best.steps or None
    return _excerpt_batch(best)


def _excerpt_batch(stretch: Stretch) -> float | None:
    """Return the batch size of a stretch without the beginning: with GlobalRate g, step s takes place batch s / g after
    loading.
    """
    first, last = stretch.lines[0], stretch.lines[-1]
    if not first.global_rate or not last.global_rate:
        return None
    elapsed = last.step / last.global_rate - first.step / first.global_rate
    return stretch.seconds / elapsed if elapsed > 0 else None


def steady_rate(log: TrainingLog, phase: str, batch: int, check: bool = True) -> SteadyRate:
    """Return the rate of steady steps of a phase; with `check` the batch size is compared with the time stamps.

    Raises
    ------
    ConfigError
        If the log holds no stretch that tells it, a rate is not a positive number, or the batch contradicts the time stamps.
    """
    mine = [s for s in log.stretches if s.phase == phase]
    if not mine:
        raise ConfigError(
            f"{log.path}: contains no line of {phase}; state the `phase` of the run in run.yaml"
        )
    if max(s.lines[-1].step for s in mine) < 1:
        raise ConfigError(f"{log.path}: its last step is 0; give a log with at least one step")
    whole = [s for s in mine if s.starts()]
    if whole:
        best = max(whole, key=lambda s: s.lines[-1].step)
        last = best.lines[-1]
        if last.global_rate is None or not math.isfinite(last.global_rate) or last.global_rate <= 0:
            raise ConfigError(
                f"{log.path}: line {last.number}: GlobalRate is {last.global_rate}; a positive number is needed; remove the line or give another run"
            )
        if check:
            _check_batch(log.path, best, batch, last.global_rate)
        return SteadyRate(last.global_rate, f"GlobalRate at {_unit(phase)} {last.step} (line {last.number})")
    parts = [s for s in mine if not s.after_stop and s.steps > 0 and s.seconds > 0]
    if not parts:
        raise ConfigError(
            f"{log.path}: shows neither the beginning of the run nor two lines with time stamps before a checkpoint; give the log from its beginning"
        )
    best = max(parts, key=lambda s: s.steps)
    first, last = best.lines[0], best.lines[-1]
    if check:
        _check_excerpt(log.path, best, batch)
    return SteadyRate(
        batch * best.steps / best.seconds,
        f"time stamps of {_unit(phase)}s {first.step} to {last.step} (lines {first.number} to {last.number})",
    )


def _check_excerpt(path: Path, stretch: Stretch, batch: int) -> None:
    likely = _excerpt_batch(stretch)
    if likely is not None and abs(batch / likely - 1.0) > EXCERPT_BAND:
        raise ConfigError(
            f"{path}: batch {batch} contradicts GlobalRate and time stamps, which make it about {likely:.3g}; "
            "state the `batch` of a step over all systems in run.yaml"
        )


def _unit(phase: str) -> str:
    return "step" if phase == TRAIN else "batch"


def _check_batch(path: Path, stretch: Stretch, batch: int, global_rate: float) -> None:
    if stretch.seconds < LEAST_S:
        return
    stamped = batch * stretch.steps / stretch.seconds
    if abs(stamped / global_rate - 1.0) > BATCH_BAND:
        raise ConfigError(
            f"{path}: with batch {batch} the time stamps give {stamped:.4g} samples/s, GlobalRate is {global_rate:.4g}; "
            f"state the `batch` of a step over all systems in run.yaml (about {global_rate * stretch.seconds / stretch.steps:.4g})"
        )
