"""Wafers, clusters, models and sweeps as YAML, installed as package data ``wse_sim.configs``."""
