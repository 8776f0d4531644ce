"""Debugger: stops, steps in both directions and the state of the cores, for a console and for editors."""
