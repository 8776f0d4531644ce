"""Settings of a run by environment variables: number of threads, and the cycles without progress after which
a run stops."""

from __future__ import annotations

import os

from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.host.record import THREADS_VARIABLE
from wse_sim.units import counted

STILL_VARIABLE = "WSE_SIM_CSL_STILL_CYCLES"
"""Environment variable: cycles without a moved word or changed memory after which a program is stopped; 0: never."""
STILL_CORE_CYCLES, LEAST_STILL_CYCLES, MOST_STILL_CYCLES = 2_000_000_000, 1_000_000, 20_000_000
"""Default of that limit as cycles times cores, and its bounds in cycles: seconds to minutes of simulation."""


def asked_threads() -> int:
    """Return the number of threads that the environment sets; 1 by default.

    Raises
    ------
    HostError
        If the variable is not an integer of at least 1.
    """
    wanted = "the number of free processor cores, 1 or more"
    found = _number(THREADS_VARIABLE, 1, wanted)
    if found < 1:
        raise HostError(f"{THREADS_VARIABLE} is '0'; use {wanted}")
    return found


def asked_still_cycles(cores: int) -> int:
    """Return the cycles without a change after which a program on `cores` cores is stopped; 0 means never.

    Raises
    ------
    HostError
        If the environment variable is not a number.
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
