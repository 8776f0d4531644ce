"""Measurements kept on disk: one small JSON file per probe.

A file is named by a hash of what decides the answer: family, dimensions, tiling, step, precision, phase,
attributes and the wafer's constants.  It is in a folder named by a hash of the sources of kernels and
fabric, so a change of either asks again; folders of other sources are removed a month after their last use.
A file is written under another name and then renamed: writers at the same time do no harm, and one that
does not read is measured again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

from wse_sim.atomic_files import write_whole
from wse_sim.errors import WseError
from wse_sim.files import CACHE, cache_folder, read_json
from wse_sim.files import NOWHERE as NOWHERE_ON_DISK
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Probe
from wse_sim.kernels.contract.registry import family
from wse_sim.timing.probes import Measured

OWN_NAME = re.compile("[0-9a-f]{16}")  # what source_hash gives: nothing else is ever removed
KEEP_S = 30 * 24 * 3600.0  # folders of other sources, since their last use
NOWHERE = (
    f"{time.time_ns()}"  # stands for a source that cannot be read: its measurements hold for this process
)
SOURCES = ("wse_sim.kernels", "wse_sim.fabric")


@dataclass
class MeasurementStore:
    """Measurements by key, in memory and (unless `folder` is None) on disk; `fault` says why not on disk."""

    folder: Path | None
    fault: str = ""
    _known: dict[str, Measured] = field(default_factory=dict)

    def get(self, key: str) -> Measured | None:
        """The measurement, or None if there is none that reads."""
        if key not in self._known and self.folder is not None:
            found = _read(self.folder / f"{key}.json")
            if found is not None:
                self._known[key] = found
        return self._known.get(key)

    def put(self, key: str, measured: Measured) -> None:
        """Store a measurement; failed measurements are kept for this process only."""
        self._known[key] = measured
        if self.folder is None or measured.reason:
            return
        try:
            _write(self.folder / f"{key}.json", measured)
        except OSError as fault:
            self.fault = (
                f"measurements are not kept: {self.folder}: {fault.strerror}; name a folder with --cache"
            )
            self.folder = None


@cache
def open_store(folder: Path | str | None = None) -> MeasurementStore:
    """The store in a folder (default: the user's cache); "none" keeps nothing on disk."""
    if str(folder or os.environ.get(CACHE)) == NOWHERE_ON_DISK:
        return MeasurementStore(None)
    root = Path(folder or cache_folder()) / "wse_sim_timing"
    mine = root / source_hash()
    _forget_old(root, mine)
    return MeasurementStore(mine)


def key_of(probe: Probe, wafer: Wafer) -> str:
    """The name of a probe's measurement: equal for probes that run the same program on equal wafers."""
    tiling = probe.tiling
    shape = [int(tiling.rows), int(tiling.cols), tiling.mapping, tiling.algorithm, int(tiling.lanes)]
    data = {
        "family": probe.family,
        "dims": {name: int(size) for name, size in probe.dims.items() if name != probe.step},
        "tiling": [*shape, _plain(tiling.options)],
        "turns": [probe.step, int(probe.start)],
        "how": [str(probe.phase), probe.dtype, _plain(probe.attrs)],
        "wafer": wafer.model_dump(mode="json", exclude={"provenance", "name"}),
        "source": _family_hash(probe.family),
    }
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]


def _plain(attrs: Mapping[str, object]) -> dict[str, str]:
    return {str(name): repr(value) for name, value in attrs.items()}


@cache
def source_hash() -> str:
    """Hash of the sources of kernels and fabric, and of this package."""
    folders = [Path(str(resources.files(name))) for name in (*SOURCES, __package__)]
    return _hash(file.read_bytes() for folder in folders for file in sorted(folder.rglob("*.py")))


def _family_hash(name: str) -> str:
    """Hash of the file of a family that is outside the package; "" inside."""
    kind = type(family(name))
    if kind.__module__.startswith(SOURCES):
        return ""
    try:
        return _hash([Path(inspect.getsourcefile(kind) or "").read_bytes()])
    except (OSError, TypeError):
        return NOWHERE


def _hash(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()[:16]


def _read(path: Path) -> Measured | None:
    try:
        data = read_json(path)
        model, fabric, issue = (
            float(data[name]) for name in ("model_cycles", "fabric_cycles", "issue_cycles")
        )
    except (WseError, ValueError, KeyError, TypeError):
        return None
    sound = 0 < model < math.inf and 0 < fabric < math.inf and math.isfinite(issue)
    return Measured(model, fabric, issue) if sound else None


def _write(path: Path, measured: Measured) -> None:
    text = json.dumps({name: value for name, value in asdict(measured).items() if name != "reason"})
    write_whole(path, text + "\n", durable=False)


def _forget_old(root: Path, mine: Path) -> None:
    """Remove the folders of other sources that nobody wrote to for a month; mark mine as used."""
    try:
        if mine.is_dir():
            os.utime(mine)
        last = time.time() - KEEP_S
        others = [path for path in root.iterdir() if path != mine and OWN_NAME.fullmatch(path.name)]
        old = [path for path in others if path.stat().st_mtime < last]
    except OSError:
        return  # no folder yet, or another process is at it
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
