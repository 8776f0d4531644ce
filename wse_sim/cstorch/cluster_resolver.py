"""Which task of which cluster a worker is: the records of ``distributed.cluster_resolver``."""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.cstorch import distributed, runtime

__all__ = ["ClusterResolver", "ClusterSpec", "TaskSpec", "WorkerServiceClusterResolver"]


@dataclass
class TaskSpec:
    """One input worker: its rank, its rank at its system, its system."""

    rank: int
    local_rank: int
    wse_id: int
    node_name: str = "client"


@dataclass
class ClusterSpec:
    """All input workers."""

    tasks: list[TaskSpec]
    rank: int
    num_csx: int
    num_workers_per_csx: int

    def task(self, rank: int | None = None) -> TaskSpec:
        """The task of a rank (this worker's by default)."""
        return self.tasks[self.rank if rank is None else rank]

    def num_tasks(self) -> int:
        """Input workers."""
        return len(self.tasks)


class ClusterResolver:
    """Resolves the cluster of this process."""

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The cluster as this worker sees it."""
        systems = runtime.options().systems or runtime.settings().num_csx
        workers = runtime.settings().num_workers_per_csx
        tasks = [TaskSpec(i, i % workers, i // workers) for i in range(systems * workers)]
        rank = distributed.get_streaming_rank() if distributed.is_streamer() else 0
        return ClusterSpec(tasks, rank, systems, workers)


WorkerServiceClusterResolver = ClusterResolver
