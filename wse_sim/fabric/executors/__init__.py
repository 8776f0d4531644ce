"""Executors of fabric programs: one file or folder each, behind the contract in :mod:`~wse_sim.fabric.executors.base`."""
