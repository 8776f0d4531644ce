"""Reports named values of a step through the writer of the run.

A summary inside a captured step is reported at every step; its name is prefixed by the open scopes
(:func:`name_scope`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from wse_sim.cstorch import runtime
from wse_sim.cstorch.kinds import Writer
from wse_sim.cstorch.stores import of_run

if TYPE_CHECKING:
    from wse_sim.cstorch.roles import ExecutionRole

_scopes: list[str] = of_run([])
# The last value of each summary, for programs that save them by hand.
_latest: dict[str, torch.Tensor] = of_run({})


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Set a prefix of names within a block; yields the full scope."""
    _scopes.append(str(name))
    try:
        yield "/".join(_scopes)
    finally:
        _scopes.pop()


def _full(name: str) -> str:
    return "/".join([*_scopes, str(name)])


def summarize_scalar(name: str, value: object) -> None:
    """Report a number of the step under a name."""
    _summarize(_full(name), value, "add_scalar")


def summarize_tensor(name: str, value: object) -> None:
    """Report a tensor of the step under a name."""
    _summarize(_full(name), value, "add_tensor")


scalar_summary = summarize_scalar
tensor_summary = summarize_tensor


def _summarize(name: str, value: object, how: str) -> None:
    def written(host: object) -> None:
        tensor = host.detach() if isinstance(host, torch.Tensor) else torch.as_tensor(host)
        _latest[name] = tensor
        execution = runtime.current_execution()
        if execution is None or execution.writer is None or not _is_activation_step(execution):
            return
        writer = execution.writer
        step = getattr(writer, "base_step", 0) + execution.iteration - 1
        if how == "add_scalar":
            writer.add_scalar(name, float(tensor), step)
        elif hasattr(writer, "add_tensor"):
            writer.add_tensor(name, tensor, step)
        else:
            cast(Any, writer).add_histogram(name, tensor, step)

    runtime.step_output(value.detach() if isinstance(value, torch.Tensor) else value, written)


def _is_activation_step(execution: ExecutionRole) -> bool:
    """Return whether outputs are fetched in this step, if the program limits them to some steps."""
    every = execution.activation_steps or 1
    return bool(execution.iteration % every == 0 or execution.on_final_iteration)


def save_summaries(writer: Writer, step: int) -> None:
    """Write the last value of every summary (inside a step closure of the experimental interface)."""
    for name, tensor in _latest.items():
        if tensor.numel() == 1:
            writer.add_scalar(name, float(tensor), step)
        elif hasattr(writer, "add_tensor"):
            writer.add_tensor(name, tensor, step)
    _latest.clear()
