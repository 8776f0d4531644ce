"""Protocols through which the runtime of a process refers to the machine and the current execution.

Both are in higher layers that import the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wse_sim.cstorch.kinds import StepSchedule, Watcher, Writer
from wse_sim.cstorch.tensors import WaferTensor

if TYPE_CHECKING:
    from wse_sim.cstorch.compiled import Compiled
    from wse_sim.cstorch.program import StepProgram
    from wse_sim.cstorch.rates import RateTracker


class ClusterRole(Protocol):
    """The cluster's management; see :class:`wse_sim.cstorch.cluster.Cluster`."""

    config: object


class BackendRole(Protocol):
    """The machine; see :class:`wse_sim.cstorch.machine.Backend`."""

    artifact_dir: Path
    compile_only: bool
    validate_only: bool
    fake_mode: FakeTensorMode
    cluster_config: Any

    @property
    def cluster(self) -> ClusterRole: ...
    @property
    def is_csx(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def torch_device(self) -> torch.device: ...


class LegacyRole(Protocol):
    """What older trainers track; see :class:`wse_sim.cstorch.legacy.State`."""

    pending: list[tuple[Any, Callable[[Any], None]]]

    @property
    def appliance(self) -> object: ...


class ProfilerRole(Protocol):
    """The rates of an execution."""

    rate_tracker: RateTracker


class ExecutionRole(Protocol):
    """One pass over an executor; see :class:`wse_sim.cstorch.execution.Execution`."""

    executor: object
    num_steps: int | None
    checkpoint_steps: int | StepSchedule
    activation_steps: int
    iteration: int
    batch_samples: int
    wrote_state: bool
    free_fetch: bool
    writer: Writer | None
    listeners: Iterable[Watcher] | None
    program: StepProgram | None
    compiled: Compiled | None

    @property
    def profiler(self) -> ProfilerRole: ...
    @property
    def on_final_iteration(self) -> bool: ...

    @property
    def is_checkpoint_step(self) -> bool: ...
    @property
    def may_fetch_after(self) -> bool: ...
    def enqueue(self, values: object, callback: Callable[[Any], None]) -> None: ...
    def execute(self, program: StepProgram, batch: list[WaferTensor]) -> object: ...
    def stepped_eagerly(self, args: object, kwargs: object) -> None: ...
    def drain(self) -> None: ...
    def finish(self) -> None: ...
