"""Serving over time: requests arrive, wait, are read, and are answered token by token by a decoder resident
on wafers.

base.py       requests in, times out
latency.py    time of a turn: a table, from a plan or a file
scheduler.py  which requests take part in a turn, and the blocks of the cache
line.py       the reference engine: the scheduler before a line of regions, in SimPy
fast_engine.py       the fast engine: the same rules in machine code
bounds.py     closed forms for every run
workload.py   drawn requests, traces.py  requests of files
metrics.py    the keys of `vllm bench serve`
run.py        all of it in one call
"""
