"""Compiled schedule of two batches through a pipeline without a host: that of region.py, without time
accounting.

Symbols as in :mod:`wse_sim.modes.pipelined.region`.  Every stage k has two lanes, forward k and backward K +
k.  A pass starts when everything that it waits for is available: its rows, the previous pass of its lane,
space in its output streams and in its stage, and the update between two batches. All these times are known
once the corresponding passes have started, so the lane whose next pass can start first starts it. The
compiler compares layouts with this schedule; the event simulation determines the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Stage
from wse_sim.jit import inlined_kernel, kernel
from wse_sim.modes.pipelined.estimate import Link


def quick_step_cycles(
    stages: Sequence[Stage], links: Sequence[Link], samples: int, sums: Sequence[float] = ()
) -> float:
    """Return the cycles between the ends of two training batches of `samples` on each replica.

    `stages` are those of all replicas, replica by replica, `sums` the cycles in which the gradients of each
    stage of a replica are summed; without them there is one replica.
    """
    index = {stage.name: k for k, stage in enumerate(stages)}
    count = len(stages)
    forward = [(index[a], index[b], travel, room) for a, b, travel, room in links]
    backward = [(count + b, count + a, travel, room) for a, b, travel, room in forward]
    streams = sorted(forward + backward)
    there = np.array([stream[:2] for stream in streams], np.int64).reshape(-1, 2)
    travels = np.array([stream[2] for stream in streams], np.float64)
    rooms = np.array([stream[3] for stream in streams], np.int64)
    numbers = np.array(
        [
            (
                stage.forward_cycles,
                stage.backward_cycles,
                stage.update_cycles,
                stage.latency_cycles,
                stage.rows_per_sample,
                stage.barrier,
                stage.in_flight,
                stage.parallel,
                stage.row_cycles(backward=False),
                stage.row_cycles(backward=True),
                stage.fill_cycles(backward=True),
            )
            for stage in stages
        ],
        np.float64,
    )
    summed = np.array(sums or [0.0] * count, np.float64)
    first, second = two_batches(numbers, there, travels, rooms, samples, summed)
    return float(second - first)


@kernel
def two_batches(
    stages: NDArray[np.float64],
    there: NDArray[np.int64],
    travel: NDArray[np.float64],
    room: NDArray[np.int64],
    samples: int,
    sums: NDArray[np.float64],
) -> tuple[float, float]:
    """Return when each of two batches has updated all stages (cycles).

    `stages` (K, 11): forward, backward, update and fill cycles, rows, barrier flag, samples in flight, parallel flag,
    cycles of a row forward and backward, fill cycles backward. `there`
    (L, 2): lanes at both ends of every stream, sorted by the first, `travel` (L,) cycles, `room` (L,) samples. `sums` are the cycles in which the gradients of the stages of one replica are
    summed over all of them; the next replica begins after as many stages.
    """
    count, total, streams = stages.shape[0], 2 * samples, there.shape[0]
    own, ahead = sums.shape[0], 0
    for k in range(count):
        ahead = max(ahead, int(stages[k, 6]))
    inputs = np.zeros(2 * count, np.int64)
    outputs = np.zeros(2 * count, np.int64)
    for e in range(streams):
        outputs[there[e, 0]] += 1
        inputs[there[e, 1]] += 1
    missing = np.zeros((2 * count, total), np.int64)
    for lane in range(2 * count):
        missing[lane, :] = inputs[lane]
    for k in range(count):
        if outputs[k] == 0:  # a last stage: its forward pass starts the backward pass
            missing[count + k, :] = 1
    first = np.zeros((2 * count, total))
    last = np.zeros((2 * count, total))
    begin = np.full((2 * count, total), np.inf)
    end = np.full((2 * count, total), np.inf)
    taken = np.zeros(count)
    free = np.full(count, np.inf)  # when a stage has updated its weights after the first batch
    done = np.zeros(2 * count, np.int64)  # passes started
    out, into, before = _lanes_beside(there, 2 * count)
    sources = np.flatnonzero(inputs[:count] == 0)
    leaves = 2  # of a tree whose nodes hold the earlier of two starts; stage k has the leaves 2 k and 2 k + 1
    while leaves < 2 * count:
        leaves *= 2
    following = np.full(2 * leaves, np.inf)
    for lane in range(2 * count):
        at = _next_start(
            lane,
            done,
            missing,
            first,
            last,
            begin,
            end,
            stages,
            out,
            there,
            room,
            inputs,
            free,
            samples,
            own,
            ahead,
        )
        _set_start(following, leaves, lane, count, at)
    updated = np.zeros(2)
    while True:
        now = following[1]
        if now == np.inf:
            return updated[0], updated[1]
        lane = _first_lane(following, leaves, count)
        k, i = lane % count, done[lane]
        cycles, rows, fill = stages[k, lane // count], stages[k, 4], stages[k, 3 if lane < count else 10]
        row = stages[k, 8 + lane // count]
        stop = max(taken[k], now) + cycles
        taken[k] = stop
        if inputs[lane] > 0 or lane >= count:
            stop = max(stop, last[lane, i] + row)
        begin[lane, i], end[lane, i] = now, stop
        if stages[k, 7] > 0 and (i + 1) % samples != 0:  # the first core takes the next sample
            end[lane, i] = min(stop, max(now + cycles, taken[k]))
        done[lane] += 1
        start = now + (row + stages[k, 5] * fill if stages[k, 7] > 0 else (stop - now) / rows + fill)
        for e in range(out[lane], out[lane + 1]):
            to = there[e, 1]
            missing[to, i] -= 1
            first[to, i] = max(first[to, i], start + travel[e])
            last[to, i] = max(last[to, i], stop + fill + travel[e])
        if lane < count and outputs[k] == 0:
            missing[count + k, i] -= 1
            first[count + k, i] = last[count + k, i] = stop + fill
        copies = 0  # of this stage, if this pass was the last before their update
        if lane >= count and (i + 1) % samples == 0:
            copies = _update(k, i, done, end, stages, sums, free, taken)
            for copy in range(k % own, k % own + copies * own, own):
                updated[i // samples] = max(updated[i // samples], free[copy])
        # Lanes affected by this pass: both of its stage, those at the other ends of its streams, all sources.
        ends = out[lane + 1] - out[lane]
        starts = into[lane + 1] - into[lane]
        is_end = lane >= count and inputs[k] == 0
        for n in range(2 + ends + starts + copies + (sources.shape[0] if is_end else 0)):
            if n < 2:
                other = k + n * count
            elif n < 2 + ends:
                other = there[out[lane] + n - 2, 1]
            elif n < 2 + ends + starts:
                other = before[into[lane] + n - 2 - ends]
            elif n < 2 + ends + starts + copies:
                other = k % own + (n - 2 - ends - starts) * own
            else:
                other = sources[n - 2 - ends - starts - copies]
            at = _next_start(
                other, done, missing, first, last, begin, end, stages, out, there, room, inputs, free, samples, own, ahead
            )  # fmt: skip
            _set_start(following, leaves, other, count, at)


@kernel
def _lanes_beside(
    there: NDArray[np.int64], lanes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the streams and lanes next to each lane n, in three arrays.

    The streams out of it are those from out[n] to out[n + 1] - 1, the lanes before it before[into[n] : into[n + 1]].
    """
    out, into = np.zeros(lanes + 1, np.int64), np.zeros(lanes + 1, np.int64)
    for e in range(there.shape[0]):
        out[there[e, 0] + 1 :] += 1
        into[there[e, 1] + 1 :] += 1
    before = np.zeros(there.shape[0], np.int64)
    filled = into.copy()
    for e in range(there.shape[0]):
        before[filled[there[e, 1]]] = there[e, 0]
        filled[there[e, 1]] += 1
    return out, into, before


@inlined_kernel
def _set_start(following: NDArray[np.float64], leaves: int, lane: int, count: int, at: float) -> None:
    """Note when the next pass of a lane may start, in its leaf and in the nodes above it."""
    node = leaves + 2 * (lane % count) + (1 if lane < count else 0)
    following[node] = at
    while node > 1:
        earlier = min(following[node], following[node ^ 1])
        node //= 2
        if following[node] == earlier:
            return
        following[node] = earlier


@inlined_kernel
def _first_lane(following: NDArray[np.float64], leaves: int, count: int) -> int:
    """Return the lane that may start first.

    Of several, it is that of the first stage; of both of a stage the backward one, because it frees a sample.
    """
    node = 1
    while node < leaves:
        node *= 2
        if following[node] > following[node + 1]:
            node += 1
    leaf = node - leaves
    return leaf // 2 + (0 if leaf % 2 else count)


@inlined_kernel
def _update(
    k: int,
    i: int,
    done: NDArray[np.int64],
    end: NDArray[np.float64],
    stages: NDArray[np.float64],
    sums: NDArray[np.float64],
    free: NDArray[np.float64],
    taken: NDArray[np.float64],
) -> int:
    """Update the weights of all copies of stage k if each has started backward pass i, the last of a batch; return the
    number of copies, or 0."""
    count, own = stages.shape[0], sums.shape[0]
    latest = 0.0
    for copy in range(k % own, count, own):
        if done[count + copy] <= i:
            return 0
        latest = max(latest, end[count + copy, i])
    for copy in range(k % own, count, own):
        free[copy] = taken[copy] = latest + sums[k % own] + stages[copy, 2]
    return count // own


@inlined_kernel
def _next_start(
    lane: int,
    done: NDArray[np.int64],
    missing: NDArray[np.int64],
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    stages: NDArray[np.float64],
    out: NDArray[np.int64],
    there: NDArray[np.int64],
    room: NDArray[np.int64],
    inputs: NDArray[np.int64],
    free: NDArray[np.float64],
    samples: int,
    own: int,
    ahead: int,
) -> float:
    """Return when the next pass of a lane may start; infinite while a predecessor has not started.

    A stage without inputs begins at most `ahead` samples before the backward passes of all such stages."""
    count = stages.shape[0]
    k, i = lane % count, done[lane]
    if i >= 2 * samples or missing[lane, i] > 0:
        return np.inf
    at = last[lane, i] if stages[k, 5] > 0 else first[lane, i]
    if i > 0:
        at = max(at, end[lane, i - 1])
    if i >= samples:
        at = max(at, free[k])
    if lane < count:
        held = i - int(stages[k, 6])
        if held >= 0:
            at = max(at, end[count + k, held])
        if inputs[lane] == 0:
            held = i - ahead
            for other in range(k - k % own, k - k % own + own):
                if inputs[other] == 0 and held >= 0:
                    at = max(at, end[count + other, held])
    for e in range(out[lane], out[lane + 1]):
        if i >= room[e]:
            at = max(at, begin[there[e, 1], i - room[e]])
    return at
