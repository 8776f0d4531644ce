"""The elder helper ``cm``: which machine, which worker, closures, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wse_sim.cstorch import helpers, runtime
from wse_sim.cstorch.step import step_closure

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
    """The device of the run."""
    return helpers.current_torch_device()


def mark_step() -> None:
    """The end of a step: here the loader's next batch ends it."""


def master_print(*values: Any, **options: Any) -> None:
    """Print on the client."""
    print(*values, **options)


def is_master_ordinal(local: bool = False) -> bool:
    """Whether this process is the client."""
    return True


def is_streamer() -> bool:
    """Whether this process is an input worker."""
    from wse_sim.cstorch import distributed

    return distributed.is_streamer()


def num_streamers() -> int:
    """Input workers of the run."""
    from wse_sim.cstorch import distributed

    return distributed.num_streamers()


def get_streaming_rank() -> int:
    """Rank of this input worker."""
    from wse_sim.cstorch import distributed

    return distributed.get_streaming_rank()


def num_receivers() -> int:
    """Systems that receive batches."""
    return runtime.options().systems or runtime.settings().num_csx


def get_run_step() -> int:
    """Steps that this process has executed."""
    return runtime.run().global_step


def set_run_config(*args: Any, **kwargs: Any) -> None:
    """Keep a configuration in the run's record."""
    runtime.settings().without_effect.update({"run_config": {**kwargs, **({"args": args} if args else {})}})


def add_step_closure(function: Callable[..., Any], args: Any = (), **_: Any) -> None:
    """Call a function with the values of tensors at the end of this step."""
    runtime.step_output(tuple(args), lambda given: function(*given))


def save(data: Any, path: Any, **_: Any) -> None:
    """Save a checkpoint."""
    from wse_sim.cstorch.checkpoint import save as save_checkpoint

    save_checkpoint(data, path)


def to_cpu(value: Any) -> Any:
    """Tensors of a pytree on the CPU, where they may be read."""
    return torch.utils._pytree.tree_map(
        lambda t: runtime.host_value(t) if isinstance(t, torch.Tensor) else t, value
    )


def print_metrics_report() -> None:
    """Print the metrics report."""
    from wse_sim.cstorch.monitor import metrics

    print(metrics.metrics_report())


def metrics_counter_value(name: str) -> int:
    """Value of a counter of the metrics report."""
    from wse_sim.cstorch.monitor import metrics

    return metrics.counter_value(name) or 0


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"cb_model.{name} is not part of the interface here; supported names: docs/cstorch.md"
    )
