"""Names of a cluster's management, of which there is none here."""

from __future__ import annotations

from wse_sim.cstorch.appliance.cluster import client

__all__ = ["client"]
