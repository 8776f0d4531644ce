"""Cluster settings of a program, and the role of this process in the cluster.

Input workers are processes that stream batches: ``num_workers_per_csx`` for each system.  In a worker
:func:`is_streamer` is true and its rank counts from 0; the client, which traces and trains, is no streamer and stands
alone (0 of 1).  By default the client also plays worker 0 while it calls ``input_fn`` and draws batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Self

from wse_sim.cstorch import faults, runtime


@dataclasses.dataclass
class ClusterConfig:
    """Settings of the cluster; those with a meaning for the simulation are checked, the others recorded."""

    mgmt_address: str | None = None
    mgmt_namespace: str | None = None
    credentials_path: str | None = None
    num_csx: int = 1
    max_wgt_servers: int = 24
    max_act_per_csx: int = 1
    num_workers_per_csx: int = 1
    transfer_processes: int | None = None
    job_labels: list[str] | None = None
    job_time_sec: int | None = None
    mount_dirs: list[str] | None = None
    python_paths: list[str] | None = None
    disable_version_check: bool = False
    precision_opt_level: int | None = None
    debug_args: object = None
    job_priority: str | None = None
    cbcore_task_spec: str | None = None
    workflow_id: str | None = None
    fabric_type_blacklist: list[str] | None = None

    def __hash__(self) -> int:
        """Hash the settings, by which trainers look backends up."""
        return hash(repr(self))

    def __post_init__(self) -> None:
        # Fields that differ from the defaults: only these ask for something of the cluster.
        self.given = {
            f.name for f in dataclasses.fields(self) if getattr(self, f.name) not in (None, f.default)
        }
        for name in ("num_csx", "max_wgt_servers", "max_act_per_csx", "num_workers_per_csx"):
            value = getattr(self, name)
            if value is None:
                setattr(self, name, next(f.default for f in dataclasses.fields(self) if f.name == name))
            elif name == "num_workers_per_csx" and value == 0:
                continue  # automatic
            elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise faults.program_error(
                    f"{type(self).__name__}: {name}={value!r} must be an integer of at least 1"
                )
        if self.precision_opt_level not in (None, 0, 1, 2):
            raise faults.program_error(
                f"{type(self).__name__}: precision_opt_level={self.precision_opt_level!r} is not a level; the levels are 0, 1, 2"
            )
        for label in self.job_labels or ():
            if "=" not in str(label):
                raise faults.program_error(f"{type(self).__name__}: job label '{label}' must read name=value")

    def copy(self) -> Self:
        return dataclasses.replace(self)


@dataclasses.dataclass
class CSConfig(ClusterConfig):
    """The cluster settings under the name of earlier releases, including the level of precision.

    `execution_strategy`: ES_PIPELINE keeps weights on the wafer, ES_WEIGHT_STREAMING streams them.
    """

    execution_strategy: int | None = None

    __hash__ = ClusterConfig.__hash__


@dataclasses.dataclass(frozen=True)
class WorkerState:
    """Identity of this input worker."""

    global_rank: int = 0
    local_rank: int = 0
    num_workers: int = 1
    system: int = 0
    streamer: bool = False
    # Batches that earlier executions of the run have drawn.
    run_step: int = 0
    # Samples of the batches that it has given since its position was loaded.
    samples_streamed: int = 0

    @property
    def current_rank(self) -> int:
        return self.global_rank


_state = WorkerState()


def get_worker_state() -> WorkerState | None:
    """This worker's place, or None in the client."""
    return _state if _state.streamer else None


@contextlib.contextmanager
def as_worker(state: WorkerState) -> Iterator[None]:
    """Act as that worker within the block."""
    global _state
    held, _state = _state, state
    try:
        yield
    finally:
        _state = held


def become_worker(state: WorkerState) -> None:
    """Act as that worker for the rest of the process (the first call in a worker process)."""
    global _state
    _state = state


def is_streamer() -> bool:
    return _state.streamer


def is_receiver() -> bool:
    return not _state.streamer


def num_streamers() -> int:
    return _state.num_workers


def get_streaming_rank() -> int:
    return _state.global_rank


def num_receivers() -> int:
    return 1


def get_ordinal() -> int:
    return _state.global_rank


def num_tasks() -> int:
    return _state.num_workers


def is_master_ordinal(local: bool = False) -> bool:
    return _state.global_rank == 0


def enable_distributed() -> bool:
    """Return whether several training processes run (never: one client drives the wafer)."""
    return False


def world_size() -> int:
    return 1


def get_rank() -> int:
    return 0


def rendezvous(tag: str = "") -> None:
    """Pass a barrier between training processes at once, because there is one process."""


def get_streaming_batch_size(effective_batch_size: int, global_rank: int | None = None) -> int:
    """Batch that a loader makes: the client's loader makes the batch of all systems, which divide it.

    It is the same for every `global_rank`.

    Raises
    ------
    ProgramError
        If the systems do not divide it.
    """
    systems = runtime.options().systems or runtime.settings().num_csx
    if effective_batch_size is not None and effective_batch_size % systems:
        raise faults.program_error(
            f"batch {effective_batch_size} does not divide among {systems} systems; make it a multiple of {systems}"
        )
    return effective_batch_size


WORKER_CACHE_ROOT = "/n0/cache"
"""Where a worker of a cluster keeps copies; no such folder is used here."""


def get_world_size() -> int:
    """Return the processes of torch's own distributed runs; one on the client."""
    return 1


@dataclasses.dataclass
class TaskSpec:
    """One input worker: its rank, its rank at its system, its system."""

    rank: int
    local_rank: int
    wse_id: int
    node_name: str = "client"


@dataclasses.dataclass
class ClusterSpec:
    """All input workers."""

    tasks: list[TaskSpec]
    rank: int
    num_csx: int
    num_workers_per_csx: int

    def task(self, rank: int | None = None) -> TaskSpec:
        """Return the task of a rank (this worker's by default)."""
        return self.tasks[self.rank if rank is None else rank]

    def num_tasks(self) -> int:
        """Return the number of input workers."""
        return len(self.tasks)


class ClusterResolver:
    """Resolves the cluster of this process."""

    @property
    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster as this worker sees it."""
        systems = runtime.options().systems or runtime.settings().num_csx
        workers = runtime.settings().num_workers_per_csx
        tasks = [TaskSpec(i, i % workers, i // workers) for i in range(systems * workers)]
        rank = get_streaming_rank() if is_streamer() else 0
        return ClusterSpec(tasks, rank, systems, workers)


def service_resolver() -> ClusterResolver:
    """Return the resolver of this worker's place in the cluster."""
    return ClusterResolver()


def hit_worker_cache_limit(source: str, target: str) -> tuple[bool, float, float]:
    """Return whether a copy would overfill a worker's cache (never), bytes of the copy and of the cache."""
    return False, 0.0, 0.0
