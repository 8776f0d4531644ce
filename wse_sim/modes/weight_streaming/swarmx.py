"""SwarmX: a tree of broadcast-reduce nodes between MemoryX and the systems.

Symbols: S systems, F fan-out of a node, h seconds per node::

    latency = ceil(log_F S) h        weights down, and gradients up (they are summed on the way)
    rate    = the line rate for any S: a node copies and adds at line rate
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.hardware import Cluster


@dataclass(frozen=True)
class SwarmX:
    """The tree for one number of systems."""

    levels: int
    latency_s: float
    bytes_per_s: float

    @staticmethod
    def of(cluster: Cluster, systems: int) -> SwarmX:
        """Return the tree for `systems` systems; a single system is connected directly to MemoryX."""
        levels, reach = 0, 1
        fanout = max(2, cluster.swarmx_fanout)
        while reach < systems:
            reach *= fanout
            levels += 1
        return SwarmX(levels, levels * cluster.swarmx_hop_s, cluster.swarmx_bytes_per_s)
