"""``distributed.cluster_resolver``: resolves the task of a worker and its cluster."""

from wse_sim.cstorch.distributed import ClusterResolver, ClusterSpec, TaskSpec

__all__ = ["ClusterResolver", "ClusterSpec", "TaskSpec", "WorkerServiceClusterResolver"]

WorkerServiceClusterResolver = ClusterResolver
