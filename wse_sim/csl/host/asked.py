"""Numbers that environment variables set for a run: threads, and the time limit of a standstill."""

from __future__ import annotations

import os

from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.host.record import THREADS_VARIABLE
from wse_sim.units import counted

STILL_VARIABLE = "WSE_SIM_CSL_STILL_CYCLES"
"""Environment variable with the cycles after which a program that moves no word and changes no memory is stopped; 0: never."""
STILL_CORE_CYCLES, LEAST_STILL_CYCLES, MOST_STILL_CYCLES = 2_000_000_000, 1_000_000, 20_000_000
"""Cycles times cores without a change, and the limits of the cycles: some seconds to minutes of simulation."""


def asked_threads() -> int:
    """Return the threads that the environment sets, 1 by default.

    Raises
    ------
    HostError
        If it is not a number, or 0.
    """
    wanted = "the number of free processor cores, 1 or more"
    found = _number(THREADS_VARIABLE, 1, wanted)
    if found < 1:
        raise HostError(f"{THREADS_VARIABLE} is '0'; use {wanted}")
    return found


def asked_still_cycles(cores: int) -> int:
    """Cycles without a change after which a program on that many cores is stopped; 0: never.

    Raises
    ------
    HostError
        If the environment gives no number.
    """
    default = min(MOST_STILL_CYCLES, max(LEAST_STILL_CYCLES, STILL_CORE_CYCLES // max(1, cores)))
    return _number(
        STILL_VARIABLE, default, "the cycles without a change after which a program is stopped, 0 for never"
    )


def _number(variable: str, default: int, what: str) -> int:
    text = os.environ.get(variable, str(default))
    number = counted(text)
    if number is None:
        raise HostError(f"{variable} is '{text[:80]}'; use {what}")
    return number
