"""The fabric engine: one program format, executors that agree on it; see :mod:`wse_sim.fabric.format.program`."""
