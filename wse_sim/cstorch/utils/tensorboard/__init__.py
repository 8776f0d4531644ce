"""Writers of summaries: TensorBoard's where it is installed, otherwise one that writes JSON lines.

A line of the latter: ``{"tag": "loss", "step": 50, "value": 2.30, "wall_time": 1700000000.0}`` in ``summaries.jsonl``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, SupportsFloat, TextIO, cast

import numpy as np
import torch

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.summaries import summarize_scalar as summarize_scalar
from wse_sim.cstorch.summaries import summarize_tensor as summarize_tensor

try:
    from torch.utils.tensorboard import SummaryWriter as _TensorBoard
except ImportError:
    _TensorBoard = None  # type: ignore[assignment, misc]


def _host(value: object) -> object:
    return runtime.host_value(value) if isinstance(value, torch.Tensor) else value


class JsonLinesWriter:
    """The interface of TensorBoard's writer for numbers, tensors and text, as JSON lines."""

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, *_: object, **__: object) -> None:
        self.log_dir = str(log_dir or "runs")
        self._path = Path(self.log_dir) / "summaries.jsonl"
        self._file: TextIO | None = None
        self._lock = threading.Lock()

    def get_logdir(self) -> str:
        return self.log_dir

    def _get_file_writer(self) -> SimpleNamespace:
        """Return the object in which trainers look for the name of the file."""
        return SimpleNamespace(event_writer=SimpleNamespace(_file_name=str(self._path)))

    def _write(self, tag: str, step: int | None, value: object, walltime: float | None) -> None:
        row = {
            "tag": tag,
            "step": None if step is None else int(step),
            "value": value,
            "wall_time": walltime or time.time(),
        }
        with self._lock:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(json.dumps(row) + "\n")

    def add_scalar(
        self,
        tag: str,
        scalar_value: object,
        global_step: int | None = None,
        walltime: float | None = None,
        **_: object,
    ) -> None:
        self._write(tag, global_step, float(cast(SupportsFloat, _host(scalar_value))), walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, global_step, walltime)

    def add_tensor(
        self, tag: str, tensor: object, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        self._write(tag, global_step, _digest(tensor), walltime)

    def add_histogram(
        self, tag: str, values: object, global_step: int | None = None, *_: object, **__: object
    ) -> None:
        self._write(tag, global_step, _digest(values), None)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        self._write(tag, global_step, text_string, walltime)

    def add_hparams(
        self, hparam_dict: Mapping[str, Any], metric_dict: Mapping[str, Any], *_: object, **__: object
    ) -> None:
        self._write("hparams", None, {"hparams": dict(hparam_dict), "metrics": dict(metric_dict)}, None)

    def flush(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> JsonLinesWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def _digest(values: object) -> dict[str, Any]:
    """Return what a line stores of a tensor: shape, range, mean and root mean square."""
    data = np.asarray(_host(values), dtype=np.float64)
    if not data.size:
        return {"shape": list(data.shape)}
    return {
        "shape": list(data.shape),
        "min": float(data.min()),
        "max": float(data.max()),
        "mean": float(data.mean()),
        "rms": float(np.sqrt(np.mean(data**2))),
    }


_Base: type[Any] = JsonLinesWriter if _TensorBoard is None else _TensorBoard


class SummaryWriter(_Base):  # type: ignore[misc]
    """A writer whose steps start at ``base_step``: summaries of a captured step carry ``base_step`` + steps before it."""

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = None, base_step: int = 0, **keywords: object
    ) -> None:
        if _TensorBoard is None:
            faults.warn_once(
                "tensorboard",
                "TensorBoard is not installed: summaries are written as JSON lines (summaries.jsonl)",
            )
        self.base_step = base_step
        super().__init__(None if log_dir is None else os.fspath(log_dir), **keywords)

    @property
    def cs_events_dir(self) -> str:
        """Subfolder of the writer's folder for data that is not in TensorBoard's files."""
        folder = Path(self.get_logdir()) / "cs_events"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def add_scalar(
        self,
        tag: str,
        scalar_value: object,
        global_step: int | None = None,
        *args: object,
        **keywords: object,
    ) -> None:
        super().add_scalar(tag, _host(scalar_value), global_step, *args, **keywords)
