"""A kernel of ours as a program in CSL: layout, programs of the PEs, a host script.

A fabric program is a list of vector instructions per class of cores, with routes per core.  Each instruction becomes one operation on data
structure descriptors; its colors become parameters of the file, so classes that differ in colors alone share one file.  Cycles of
scalar code (``BUSY``) are not written: the code that causes them is in the program itself.

What can be written: loops, moves, sums, differences, products, maxima, multiply-accumulates and maps around them in f32 and f16, microthreads
that nobody waits for before the end, control wavelets, switches.
"""

from wse_sim.bench.emit.write import stamp_difference, write_csl

__all__ = ["stamp_difference", "write_csl"]
