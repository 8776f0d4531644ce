"""``distributed.cluster_resolver``: which task of which cluster a worker is."""

from wse_sim.cstorch.distributed import ClusterResolver, ClusterSpec, TaskSpec

__all__ = ["ClusterResolver", "ClusterSpec", "TaskSpec", "WorkerServiceClusterResolver"]

WorkerServiceClusterResolver = ClusterResolver
