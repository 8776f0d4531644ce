"""A second machine of CSL, written from the rules in words, in plain Python: it shares no line with the one that numba compiles.

What opcodes compute is read from :mod:`wse_sim.fabric.vm.semantics`; what they cost from the image and the wafer.  Cores are whole, but for
FIFOs, filters, teardown and registers by address; between them are straight channels, each with separate links.
"""
