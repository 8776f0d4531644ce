"""The run's interface for older trainers: its environment, tracked tensors, callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.appliance.messages import FullConfig
from wse_sim.cstorch.tensors import WaferTensor

if TYPE_CHECKING:
    from wse_sim.cstorch.rates import RateTracker

__all__ = ["Environment", "State", "Tracker", "env", "state"]


class Environment:
    """Settings of the older interface: the folders, and whether weights stream."""

    def __init__(self) -> None:
        self.service_workdir: str | None = None
        self.compile_dir: str | None = None
        self.compile_only = False
        self.use_appliance_data = True

    @property
    def weight_streaming_mode(self) -> bool:
        """Whether weights stream; they are stationary on the wafer only if the program says so."""
        return runtime.settings().mode != "pipelined"

    @weight_streaming_mode.setter
    def weight_streaming_mode(self, value: bool) -> None:
        runtime.settings().mode = "weight-streaming" if value else "pipelined"


class Tracker:
    """Names the client's work in captures of the run."""

    @contextmanager
    def entry(self, name: str) -> Iterator[None]:
        """Begin a part of the client's work."""
        with runtime.span("client", name):
            yield

    def start(self, name: str) -> None:
        """Mark the beginning of a part; the span in the capture comes from the step itself."""

    def stop(self, name: str = "") -> None:
        """Mark the end of a part."""


class Batches(Protocol):
    """Yields the device batches of a loop."""

    def batches(self, loader: Iterable[object]) -> Iterator[Any]: ...


class State:
    """Tensors that a program tracks, their values after the last step, and its callbacks."""

    def __init__(self) -> None:
        self.tracked: list[Any] = []
        self.callbacks: list[Callable[[], None]] = []
        self.named: dict[str, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self.pending: list[tuple[Any, Callable[[Any], None]]] = []
        self.appliance: Batches | None = None
        self.init_tracker = Tracker()
        self.num_csx = 1
        self.full_config = FullConfig()  # settings of the compiler: kept, without effect

    @property
    def outputs(self) -> list[Any]:
        """Tensors that the program tracks."""
        return self.tracked

    @property
    def is_inside_execution_loop(self) -> bool:
        """True if a step is running."""
        return runtime.current_execution() is not None

    @property
    def rate_tracker(self) -> RateTracker | None:
        """Rates of the last execution in wafer time; None before there is one."""
        execution = runtime.current_execution() or runtime.run().last_execution
        return None if execution is None or not runtime.executes() else execution.profiler.rate_tracker

    def set_num_csx(self, number: int) -> None:
        """Set the number of systems that share the batch."""
        self.num_csx = number
        runtime.set_cluster({"num_csx": number})

    def track_object(self, structure: object, force: bool = False) -> None:
        """Make the tensors of a structure results of the step."""
        self.tracked.append(structure)

    def register_activation_callback(self, function: Callable[[], None]) -> None:
        """Call `function` when the results of a step are there, at every step."""
        self.callbacks.append(function)

    def get_activation_for_output(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value of a tracked tensor after the step.

        Raises
        ------
        ProgramError
            If nothing tracks it.
        """
        if not isinstance(tensor, WaferTensor):
            return tensor
        found = self.values.get(id(tensor))
        if found is None:
            raise faults.program_error(
                "a tensor is fetched that the program does not track; pass it to state().track_object() in the first step"
            )
        return found

    def run_pending(self) -> None:
        """Run closures from before the loop when it starts."""
        for values, callback in self.pending:
            callback(values)
        self.pending.clear()

    def traced(self) -> list[WaferTensor]:
        """Tracked tensors that the step computes."""
        found = {id(leaf): leaf for leaf in pytree.tree_leaves(self.tracked) if isinstance(leaf, WaferTensor)}
        return list(found.values())


def env() -> Environment:
    """Return the environment of the older interface."""
    run = runtime.run()
    held = run.legacy_env
    if not isinstance(held, Environment):
        held = run.legacy_env = Environment()
    return held


def state() -> State:
    """Return the state of the older interface."""
    run = runtime.run()
    held = run.legacy_state
    if not isinstance(held, State):
        held = run.legacy_state = State()
    return held
