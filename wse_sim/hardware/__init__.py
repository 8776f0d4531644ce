"""Wafers and clusters: frozen constants read from ``configs``, each with unit, source and evidence."""

from wse_sim.hardware.cluster import Cluster, cluster_names, load_cluster
from wse_sim.hardware.wafer import Wafer, load_wafer, wafer_names

__all__ = ["Cluster", "Wafer", "cluster_names", "load_cluster", "load_wafer", "wafer_names"]
