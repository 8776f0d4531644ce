"""The older helper module ``cm``: device, worker, closures, checkpoints."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import torch

from wse_sim.cstorch import counters, helpers, runtime, tensors
from wse_sim.cstorch.kinds import T, Writer
from wse_sim.cstorch.step import step_closure

if TYPE_CHECKING:
    from wse_sim.cstorch.rates import RateTracker as Tracker

__all__ = [
    "add_step_closure",
    "device",
    "get_run_step",
    "get_streaming_rank",
    "is_master_ordinal",
    "is_streamer",
    "mark_step",
    "master_print",
    "metrics_counter_value",
    "num_receivers",
    "num_streamers",
    "print_metrics_report",
    "save",
    "set_run_config",
    "step_closure",
    "to_cpu",
    "use_cs",
]  # fmt: skip

use_cs = runtime.use_cs


def device() -> torch.device:
    """Return the device of the run."""
    return helpers.current_torch_device()


def mark_step() -> None:
    """Do nothing: the loader's next batch ends a step."""


def master_print(
    *values: object,
    sep: str | None = " ",
    end: str | None = "\n",
    file: TextIO | None = None,
    flush: bool = False,
) -> None:
    """Print on the client."""
    print(*values, sep=sep, end=end, file=file, flush=flush)


def is_master_ordinal(local: bool = False) -> bool:
    """Return whether this process is the client."""
    return True


def is_streamer() -> bool:
    """Return whether this process is an input worker."""
    from wse_sim.cstorch import distributed

    return distributed.is_streamer()


def num_streamers() -> int:
    """Return the number of input workers of the run."""
    from wse_sim.cstorch import distributed

    return distributed.num_streamers()


def get_streaming_rank() -> int:
    """Return the rank of this input worker."""
    from wse_sim.cstorch import distributed

    return distributed.get_streaming_rank()


def num_receivers() -> int:
    """Return the systems that receive batches."""
    return runtime.options().systems or runtime.settings().num_csx


def get_run_step() -> int:
    """Return the steps that this process has executed."""
    return runtime.run().global_step


def set_run_config(*args: object, **kwargs: object) -> None:
    """Store a configuration in the run's record."""
    runtime.settings().without_effect.update({"run_config": {**kwargs, **({"args": args} if args else {})}})


def add_step_closure(function: Callable[..., Any], args: Iterable[object] = (), **_: object) -> None:
    """Call a function with the values of tensors at the end of this step."""
    runtime.step_output(tuple(args), lambda given: function(*given))


def save(data: object, path: str | os.PathLike[str], **_: object) -> None:
    """Save a checkpoint."""
    from wse_sim.cstorch.checkpoint import save as save_checkpoint

    save_checkpoint(data, path)


def to_cpu(value: T) -> T:
    """Return the tensors of a pytree on the CPU, where they may be read."""
    return torch.utils._pytree.tree_map(
        lambda t: runtime.host_value(t) if isinstance(t, torch.Tensor) else t, value
    )


def print_metrics_report() -> None:
    """Print the metrics report."""
    print(counters.metrics_report())


def metrics_counter_value(name: str) -> int:
    """Return a counter of the metrics report by name."""
    return counters.counter_value(name) or 0


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"cb_model.{name} is not part of the interface here; supported names: docs/cstorch.md"
    )


METRIC_NAME_PREFIX = "metric"


def is_appliance() -> bool:
    """Return whether a cluster runs the loop: the simulated one does."""
    return runtime.use_cs()


is_wse_device = is_appliance


def is_receiver() -> bool:
    """Return whether this process receives results."""
    return True


def get_ordinal() -> int:
    """Return the rank of this process."""
    return 0


def num_tasks() -> int:
    """Return the number of input workers and the client."""
    return num_streamers() + 1


def to_device(value: T, place: object = None) -> T:
    """Return the tensors of a pytree on the device of the run."""
    from wse_sim.cstorch import machine

    return torch.utils._pytree.tree_map(
        lambda t: machine.as_device_tensor(t) if isinstance(t, torch.Tensor) else t, value
    )


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """Return a constant of the compiled step."""
    return helpers.make_constant(tensor)


def set_rng_state(seed: int) -> None:
    """Seed torch's generator."""
    torch.manual_seed(seed)


def set_attribute(tensor: T, name: str, value: object) -> T:
    """Attach a hint to a tensor, without effect."""
    return tensor


def write_to_summary(
    writer: Writer | None,
    global_step: int | None = None,
    dict_to_write: dict[str, Any] | None = None,
    **values: object,
) -> None:
    """Write scalars of this step to a writer."""
    if writer is None:
        return
    step = get_run_step() if global_step is None else global_step

    def written(given: Mapping[str, object]) -> None:
        for name, value in given.items():
            writer.add_scalar(name, value.item() if isinstance(value, torch.Tensor) else value, step)

    scalars = {**(dict_to_write or {}), **values}
    if runtime.run().in_closure:
        written(scalars)
    else:
        runtime.step_output(scalars, written)


def run_step_closures() -> None:
    """Run the closures that are queued for this step."""
    execution = runtime.current_execution()
    if execution is not None:
        execution.drain()


def set_state_names(names: object) -> None:
    """Set the names of the program's state, by which a file is loaded into it."""
    from wse_sim.cstorch import checkpoint
    from wse_sim.cstorch.legacy import state

    flat = checkpoint._Flat()
    flat.walk(names, ())
    recorder = tensors.recorder
    # In a step state_dict() gives views that are made in it: what they show is meant.
    state().named.update(
        {n: t if recorder is None else recorder.shown_by(t) for n, t in flat.tensors.items()}
    )


def set_metric_state_names(names: object, metric: str = "") -> None:
    """Set the names of the state of a metric."""
    set_state_names({METRIC_NAME_PREFIX: {metric: names}})


def set_target_num_replicas(number: object) -> None:
    """Store the number of replicas in the run's record; the compiler chooses the replicas of a small model."""
    runtime.settings().without_effect["num_replicas"] = number


def mesh_reduce(tag: str, data: object, reduce: Callable[[list[object]], T]) -> T:
    """Reduce over the client processes; the simulator has one, so values stay as they are."""
    return reduce([data])


def rendezvous(tag: str, payload: bytes = b"", replicas: object = ()) -> list[bytes]:
    """Wait for client processes; there is only one, so this returns at once."""
    return [payload]


def print_update(
    device: object,
    step: int,
    loss: float,
    mode: str = "train",
    summary_writer: Writer | None = None,
    **other: object,
) -> None:
    """Log a step in the form that users know, with rates in wafer time."""
    rate, global_rate, _ = _extract_tracker_details(step)
    logging.info(
        f"| {str(mode).capitalize()} Device=CSX, Step={step}, Loss={loss:.5f}, Rate={rate:.2f} samples/sec, "
        f"GlobalRate={global_rate:.2f} samples/sec"
    )
    if summary_writer is not None:
        summary_writer.add_scalar("loss", loss, step)


def _extract_tracker_details(step: int) -> tuple[float, float, int]:
    """Return (rate, global rate, batch) of the execution at work."""
    execution = runtime.current_execution() or runtime.run().last_execution
    if execution is None:
        return 0.0, 0.0, 1
    tracker = execution.profiler.rate_tracker
    return float(tracker.rate), float(tracker.global_rate), execution.batch_samples


def RateTracker(*args: Any, **kwargs: Any) -> Tracker:  # noqa: N802  (the public name)
    """Return the rates in wafer time."""
    from wse_sim.cstorch.rates import RateTracker as Tracker

    kwargs.setdefault("clock", runtime.clock)
    return Tracker(*args, **kwargs)
