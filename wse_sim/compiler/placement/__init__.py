"""Algorithms of the placers, and their parts: problem, shape curves, slicing trees, annealing and windows."""
