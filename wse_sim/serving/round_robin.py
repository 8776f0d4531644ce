"""Round-robin assignment of requests to replicas: by request in an open load, by user in a closed one."""

from __future__ import annotations

import numpy as np

from wse_sim.serving.base import Load, Ticks


def home_of(load: Load, replicas: int) -> Ticks:
    """Return the replica of each request, (requests,)."""
    number = np.arange(len(load))
    if load.is_closed:  # the user is the first request of the chain
        user = number.copy()
        for n, before in enumerate(load.after.tolist()):
            if before >= 0:
                user[n] = user[before]
        number = user
    return np.asarray(number % replicas, np.int64)


def shares(load: Load, replicas: int) -> list[Ticks]:
    """Return the rows of each replica, in order of arrival."""
    home = home_of(load, replicas)
    return [np.flatnonzero(home == which) for which in range(replicas)]
