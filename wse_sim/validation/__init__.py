"""Predictions held against published measurements; see :func:`wse_sim.validation.run.validate`."""
