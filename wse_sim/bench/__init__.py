"""Kernels by name: the parameters of ``wse-sim kernel NAME`` and the runs that it makes."""
