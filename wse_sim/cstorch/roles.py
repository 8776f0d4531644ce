"""What the run of a process knows of the machine and of the execution at work.

Both stand above the run and import it; the run names them by these protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


class BackendRole(Protocol):
    """The machine; see :class:`wse_sim.cstorch.machine.Backend`."""

    artifact_dir: Path
    compile_only: bool
    validate_only: bool
    fake_mode: FakeTensorMode
    cluster_config: Any
    cluster: SimpleNamespace

    @property
    def is_csx(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def torch_device(self) -> torch.device: ...


class ExecutionRole(Protocol):
    """One pass over an executor; see :class:`wse_sim.cstorch.execution.Execution`."""

    executor: Any
    num_steps: int | None
    checkpoint_steps: Any
    activation_steps: int
    iteration: int
    batch_samples: int
    wrote_state: bool
    free_fetch: bool
    writer: Any
    listeners: Any
    program: Any
    profiler: Any

    @property
    def is_checkpoint_step(self) -> bool: ...
    @property
    def may_fetch_after(self) -> bool: ...
    def enqueue(self, values: object, callback: Callable[[Any], None]) -> None: ...
    def execute(self, program: Any, batch: Any) -> Any: ...
    def stepped_eagerly(self, args: object, kwargs: object) -> None: ...
    def drain(self) -> None: ...
    def finish(self) -> None: ...
