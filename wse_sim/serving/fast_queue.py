"""Queue of waiting requests in machine code: a list linked through the rows of requests, or a heap if
priorities count."""

from __future__ import annotations

from wse_sim.jit import inlined_kernel
from wse_sim.serving.base import NEVER
from wse_sim.serving.fast_state import HEAD, TAIL, WAITING, WAITING_BLOCKS, Limits, Replica, Requests


@inlined_kernel
def outranks(requests: Requests, limits: Limits, one: int, two: int) -> bool:
    """Return whether request `one` goes before `two` and keeps its blocks longer."""
    if not limits.by_priority:
        return requests.order[one] < requests.order[two]
    return comes_before(requests, one, two)


@inlined_kernel
def comes_before(requests: Requests, one: int, two: int) -> bool:
    """Return whether a request comes first: by priority, then arrival, then number."""
    if requests.priority[one] != requests.priority[two]:
        return requests.priority[one] < requests.priority[two]
    if requests.arrival[one] != requests.arrival[two]:
        return requests.arrival[one] < requests.arrival[two]
    return one < two


@inlined_kernel
def blocks_of(requests: Requests, limits: Limits, number: int) -> int:
    """Return the number of blocks for the current length of a request."""
    return (requests.input[number] + requests.emitted[number] + limits.block - 1) // limits.block


@inlined_kernel
def push(requests: Requests, replica: Replica, limits: Limits, number: int, is_first: bool) -> None:
    """Add a request to the queue: by rank if priorities count, else at the end or, if `is_first`, at the
    head."""
    at = replica.at
    at[WAITING] += 1
    at[WAITING_BLOCKS] += blocks_of(requests, limits, number)
    requests.behind[number] = NEVER
    if limits.by_priority:
        requests.other[number] = NEVER
        at[HEAD] = _merged(requests, at[HEAD], number)
    elif at[HEAD] == NEVER:
        at[HEAD] = at[TAIL] = number
    elif is_first:
        requests.behind[number] = at[HEAD]
        at[HEAD] = number
    else:
        requests.behind[at[TAIL]] = number
        at[TAIL] = number


@inlined_kernel
def pop(requests: Requests, replica: Replica, limits: Limits) -> None:
    """Remove and return the first request of the queue."""
    at = replica.at
    number = at[HEAD]
    at[WAITING] -= 1
    at[WAITING_BLOCKS] -= blocks_of(requests, limits, number)
    if limits.by_priority:
        at[HEAD] = _merged(requests, requests.behind[number], requests.other[number])
    else:
        at[HEAD] = requests.behind[number]


@inlined_kernel
def _merged(requests: Requests, one: int, two: int) -> int:
    """Merge two heaps and return the root: a skew heap, whose children are swapped on the merge path."""
    root, parent = NEVER, NEVER
    while one >= 0 and two >= 0:
        if comes_before(requests, two, one):
            one, two = two, one
        if parent < 0:
            root = one
        else:
            requests.behind[parent] = one
        rest = requests.other[one]
        requests.other[one] = requests.behind[one]
        parent = one
        one = rest
    last = one if one >= 0 else two
    if parent < 0:
        return last
    requests.behind[parent] = last
    return root
