"""Names of a cluster's management, which does not exist here."""

from __future__ import annotations

from wse_sim.cstorch.appliance.cluster import client

__all__ = ["client"]
