"""Wafers and clusters: frozen constants read from ``configs``, each with unit, source and evidence."""

from wse_sim.hardware.wafer import Wafer, load_wafer, wafer_names

__all__ = ["Wafer", "load_wafer", "wafer_names"]
