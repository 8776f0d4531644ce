"""The search for a placement: the problem, its curves, trees, windows, and the algorithms of the placers."""
