"""The program format that every executor reads; :mod:`wse_sim.fabric.format.program` defines it."""
