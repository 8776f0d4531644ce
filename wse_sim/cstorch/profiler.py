"""Captures that the program itself starts, with the interface of torch's profiler."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.monitor import capture, timeline


@dataclass(frozen=True)
class Schedule:
    """The captured steps: the first and the last, counted from 1."""

    start_step: int = 1
    end_step: int | None = None

    @property
    def off(self) -> bool:
        """True if no step is captured, which trainers express as -1 to -1."""
        return self.start_step == -1 and self.end_step == -1

    def __post_init__(self) -> None:
        if self.off:
            return
        if self.start_step < 1 or (self.end_step is not None and self.end_step < self.start_step):
            raise faults.program_error(
                f"profiler: start_step={self.start_step} and end_step={self.end_step} are not a range of steps; count from 1"
            )


def schedule(
    start_step: int | None = None,
    end_step: int | None = None,
    *,
    wait: int = 0,
    warmup: int = 0,
    active: int | None = None,
    **_: object,
) -> Schedule:
    """Return the steps to capture: ``start_step`` to ``end_step``, or, as in torch, ``active`` ones after ``wait`` and
    ``warmup``.
    """
    if start_step is None:
        start_step = wait + warmup + 1
        end_step = None if active is None else start_step + active - 1
    return Schedule(start_step, end_step)


def tensorboard_trace_handler(
    folder: str | os.PathLike[str], worker_name: str | None = None
) -> Callable[[profile], None]:
    """Writes a Chrome trace into a folder, named as TensorBoard's plugin expects."""

    def write(profiler: profile) -> None:
        name = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        profiler.export_chrome_trace(Path(folder) / f"{name}.{time.time_ns() // 1_000_000}.pt.trace.json")

    return write


class profile:  # noqa: N801
    """Captures steps of the loop inside the block.

    Args:
        schedule: which steps; default all.
        on_trace_ready: called with this object when the last step is captured.
        host_activities: kept for programs that give it; the client is always captured.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        on_trace_ready: Callable[[profile], None] | None = None,
        host_activities: Iterable[str] | None = None,
        **_: object,
    ) -> None:
        self.schedule = schedule or Schedule()
        self.on_trace_ready = on_trace_ready
        self.host_activities = list(host_activities or ())
        self._capture: capture.Observation | None = None
        self._first = 0

    def __enter__(self) -> profile:
        self._first = runtime.run().global_step
        if self.schedule.off:
            return self
        wanted = self.schedule
        length = 1 << 30 if wanted.end_step is None else wanted.end_step - wanted.start_step + 1
        self._capture = capture.recorder.ask(length, after=self._first + wanted.start_step - 1)
        return self

    def __exit__(self, *fault: object) -> None:
        if self._capture is not None and not self._capture.done.is_set():
            self._capture.cut_short = True
            capture.recorder.finish(self._capture)
        if (
            fault[0] is None
            and self.on_trace_ready is not None
            and not self.schedule.off
            and self._held().whole_steps
        ):
            self.on_trace_ready(self)

    def step(self) -> None:
        """Do nothing; accepted for programs that call it, because steps are known."""

    def _held(self) -> capture.Observation:
        if self._capture is None:
            raise faults.program_error("profiler: nothing is captured; use it as a block around the loop")
        return self._capture

    @property
    def op_profiler_json(self) -> str:
        """Return an empty text: the vendor's own form of a capture is not supported; export_chrome_trace() writes a
        trace.
        """
        return ""

    @property
    def appliance_response(self) -> bool:
        """True if anything was captured."""
        return self._capture is not None and self._capture.whole_steps > 0

    def data(self) -> dict[str, Any]:
        """Return the capture as plain data."""
        return capture.as_data(self._held())

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the captured steps: Chrome JSON, or Perfetto if the name does not end in .json; nothing if
        none are wanted."""
        if self.schedule.off:
            return Path(path)
        return timeline.write(self.data(), Path(path))

    def export_hta(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the captured steps for Holistic Trace Analysis."""
        return timeline.write_hta(self.data(), Path(folder))

    def get_summary(self) -> str:
        """Return the seconds by kind, of the wafer and of the client."""
        data = self.data()
        totals: dict[str, float] = {}
        for kind, _, _, length in data["client"]:
            totals[kind] = totals.get(kind, 0.0) + length
        wafer = sum(row[4] for row in data["steps"] if row[4] is not None)
        client = sum(row[2] for row in data["steps"])
        lines = [f"{len(data['steps'])} steps: wafer {wafer:.6g} s, client {client:.6g} s"]
        lines += [
            f"  {kind:<12} {seconds:.6g} s" for kind, seconds in sorted(totals.items(), key=lambda kv: -kv[1])
        ]
        return "\n".join(lines)
