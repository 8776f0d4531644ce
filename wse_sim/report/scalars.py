"""Numbers of a sweep as TensorBoard scalars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import WseError

SCALARS = (
    "samples_per_s",
    "compute_samples_per_s",
    "transmission_samples_per_s",
    "active_pe_share",
    "compute_utilization",
    "step_s",
    "mfu",
)


def write_scalars(
    points: Sequence[tuple[int, Result | Infeasible]], folder: str | Path, tag: str = ""
) -> Path:
    """Write event files with one scalar per metric; `points` are (position in the sweep, result).

    A model that does not fit leaves a gap and a ``feasible`` of 0.

    Raises
    ------
    WseError
        If tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as fault:
        raise WseError("scalars need tensorboard, which is not installed; pip install tensorboard") from fault
    writer = EventFileWriter(str(folder))
    for step, result in points:
        values = {"feasible": float(isinstance(result, Result))}
        if isinstance(result, Result):
            values |= {name: float(getattr(result, name)) for name in SCALARS}
        summary = Summary(
            value=[
                Summary.Value(tag=f"{tag}/{name}" if tag else name, simple_value=v)
                for name, v in values.items()
            ]
        )
        # The position stands for the time too: equal sweeps give equal files.
        writer.add_event(Event(wall_time=float(step), step=step, summary=summary))
    writer.close()
    return Path(folder)
