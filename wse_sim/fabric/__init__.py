"""The fabric engine: one program format, and executors with equal results; see
:mod:`wse_sim.fabric.format.program`."""
