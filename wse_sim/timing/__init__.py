"""Timing of a plan from fabric programs instead of formulas.

A phase or stage is far too large to be run wavelet by wavelet, so each part of a kernel is measured on a
probe of its rectangle (:class:`wse_sim.kernels.contract.family.Probe`): a few cores that hold the same tile as the
cores of the plan, for n and for 2 n turns.  Symbols: c_m and c_f cycles of a probe by formula and on the
fabric, C cycles of the kernel by formula, P those of the part that the probe stands for::

    ratio       r = (c_f(2n) - c_f(n)) / (c_m(2n) - c_m(n))      the steady state, without fill
    kernel      C + sum over its probes of (r - 1) P
    factor      of a stage or phase: sum over its kernels / sum of their formulas

Every distinct probe runs once and is kept on disk (:mod:`wse_sim.timing.store`).  What no probe stands for
keeps its formula and is listed with the reason.

probes   one probe on the fabric            store   measurements kept on disk
plans     the kernels of a plan, factors      rows    what is reported
"""

from wse_sim.timing.plans import Timed, fabric_factors, run_timed, simulate_fabric
from wse_sim.timing.probes import Measured
from wse_sim.timing.rows import TimingReport, TimingRow
from wse_sim.timing.store import MeasurementStore, open_store

__all__ = [
    "Measured",
    "MeasurementStore",
    "Timed",
    "TimingReport",
    "TimingRow",
    "fabric_factors",
    "open_store",
    "run_timed",
    "simulate_fabric",
]
