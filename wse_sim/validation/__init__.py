"""Predictions compared with published measurements; see :func:`wse_sim.validation.run.validate`."""
