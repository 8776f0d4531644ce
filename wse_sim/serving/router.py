"""Routers: choose a replica for a request from the state of all replicas when it arrives.

    round-robin        one replica after the other; a user stays on its replica
    least-loaded       fewest blocks in use or needed by waiting requests
    least-outstanding  fewest waiting and running requests
    prefix-aware       most blocks of the prompt in the cache; ties, and prompts without any, go to the least loaded; replicas with
                       more than 1.5 times the mean load are skipped

A router sees the state at the instant of the arrival, after all returns and before the next turn. Ties go to
the first replica.
"""

from __future__ import annotations

from collections.abc import Sequence

ROUND_ROBIN, LEAST_LOADED, LEAST_OUTSTANDING, PREFIX_AWARE = (
    "round-robin",
    "least-loaded",
    "least-outstanding",
    "prefix-aware",
)
ROUTERS = (ROUND_ROBIN, LEAST_LOADED, LEAST_OUTSTANDING, PREFIX_AWARE)
MOST_OF_MEAN = 3, 2  # load over mean load of a replica whose cache still counts


def chosen_replica(router: str, loads: Sequence[int], outstanding: Sequence[int], hits: Sequence[int]) -> int:
    """Return the replica for a request; `hits` are blocks of its prompt in each cache.

    Example
    -------
    >>> chosen_replica("prefix-aware", [4, 1, 3], [1, 1, 1], [7, 0, 7]), chosen_replica("least-loaded", [4, 1, 3], [1, 1, 1], [7, 0, 7])
    (2, 1)
    """
    if router == LEAST_OUTSTANDING:
        return min(range(len(loads)), key=lambda one: outstanding[one])
    least = min(range(len(loads)), key=lambda one: loads[one])
    if router == LEAST_LOADED:
        return least
    over, under = MOST_OF_MEAN
    fair = [one for one, load in enumerate(loads) if under * load * len(loads) <= over * sum(loads)]
    best = max((hits[one] for one in fair), default=0)
    return min((one for one in fair if hits[one] == best), key=lambda one: loads[one]) if best else least
