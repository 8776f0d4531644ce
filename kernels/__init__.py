"""The kernel library, installed as ``wse_sim.kernels``: one file per kernel family, four faces each."""
