"""CUDA kernels, whose threads step the fabric. Importing this module requires numba's CUDA target.

``run_cycles`` stays on the device for many cycles; its blocks wait for each other twice in a cycle, so all of them must
fit on the device at once.  Where they cannot wait, ``run_first`` and ``run_second`` are launched in every cycle.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs, allow-untyped-decorators

from __future__ import annotations

from numba import cuda

from wse_sim.fabric.executors.gpu.loop import ALIVE, first_half, has_fault, is_over, second_half


@cuda.jit
def run_cycles(routes, planes, payload, cores, tally, marks, settings, t, until):
    """Run cycles t .. until - 1, or fewer if the run ends before."""
    grid = cuda.cg.this_grid()
    i, n = cuda.grid(1), cuda.gridsize(1)
    going = not is_over(t, marks, settings.sets)
    while going and t < until:
        first_half(i, n, t, routes, planes, payload, cores, tally, marks, settings.sets)
        grid.sync()
        if has_fault(marks):  # two inputs: the cores do not take this cycle
            going = False
        else:
            second_half(i, n, t, routes, planes, payload, cores, tally, marks, settings.sets)
            grid.sync()
            t += 1
            going = not is_over(t, marks, settings.sets)


@cuda.jit
def run_first(routes, planes, payload, cores, tally, marks, settings, t):
    """Run the first half of cycle t, unless the run has ended."""
    if not is_over(t, marks, settings.sets):
        first_half(
            cuda.grid(1), cuda.gridsize(1), t, routes, planes, payload, cores, tally, marks, settings.sets
        )


@cuda.jit
def run_second(routes, planes, payload, cores, tally, marks, settings, t):
    """Run the second half of cycle t, unless the run has ended."""
    i = cuda.grid(1)
    if is_over(t, marks, settings.sets):
        if i == 0:
            marks.alive[(t + 1) % ALIVE] = 0  # it stays over
    elif not has_fault(marks):
        second_half(i, cuda.gridsize(1), t, routes, planes, payload, cores, tally, marks, settings.sets)
