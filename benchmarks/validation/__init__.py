"""Suites of published measurements, installed as package data ``wse_sim.suites``."""
