"""A second simulator of fabric programs, written only from the text of the specification.

prices.py    what an instruction costs and computes
cores.py     cores: issue slot, threads, tasks
machine.py   routers, links, the run
compare.py   what it and an executor say of one program

The first three read the arrays of a program and the constants of a machine, and nothing of the executors.
"""
