"""The program format: what every executor reads; :mod:`wse_sim.fabric.format.program` defines it."""
