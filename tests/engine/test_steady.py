"""A batch is steady if the slowest region is as busy in one window as in the window before."""

from __future__ import annotations

import numpy as np
import pytest

from wse_sim.engine.steady import (
    MAX_CYCLE,
    MIN_EVEN_WINDOW,
    MIN_WINDOW,
    Look,
    Steady,
    SteadyWatch,
    find_pattern,
)

SLOWEST, CYCLES = 1, 80.0  # of two regions, and its work per sample
WINDOW = MIN_EVEN_WINDOW


def look(rows: int, now: float, busy: float) -> Look:
    """Make a look in which the slowest region was busy for `busy` cycles of `now`, and region 0 for half as many."""
    books = np.zeros((2, 4))
    books[SLOWEST, 0], books[0, 0] = busy, busy / 2
    books[SLOWEST, 1] = now - busy
    return Look(rows, now, 8, lambda: [], lambda: [], lambda: books)


def watched(marks: list[tuple[float, float]]) -> Steady | None:
    """Return the finding of a watch after looks at (time, busy time), a window of samples apart."""
    watch, found = SteadyWatch(SLOWEST, CYCLES), None
    for number, (now, busy) in enumerate(marks):
        found = watch.look(look(number * WINDOW, now, busy))
    return found


def test_two_windows_that_are_equally_busy_are_steady() -> None:
    """Busy for 0.8 of the time, the pipeline takes a sample every 80 / 0.8 = 100 cycles; the region stalls 20 of them,
    and the other works 40.
    """
    found = watched([(1000.0, 500.0), (3400.0, 2420.0), (5800.0, 4340.0)])
    assert found is not None
    assert found.period == pytest.approx(100.0)
    assert found.rates[SLOWEST, :2] == pytest.approx([80.0, 20.0])
    assert found.rates[0, 0] == pytest.approx(40.0)


def test_windows_that_differ_by_more_than_a_thousandth_are_not() -> None:
    """The region is busy for 0.8 and then 0.802 of the time, so more samples are simulated."""
    assert watched([(0.0, 0.0), (2400.0, 1920.0), (4800.0, 1920.0 + 0.802 * 2400)]) is None
    assert watched([(0.0, 0.0), (2400.0, 1920.0), (4800.0, 1920.0 + 0.8005 * 2400)]) is not None


def repeated(gaps: list[float], count: int) -> list[float]:
    """Return `count` times whose differences repeat `gaps`."""
    return [0.0, *np.cumsum(np.resize(gaps, count - 1))]


def pattern_of(times: list[float], depth: int = 3) -> int:
    """Return the pattern of a pipeline of one region, whose samples leave when they start."""
    return find_pattern(times, lambda: [times], depth)


@pytest.mark.parametrize("cycle", range(1, MAX_CYCLE + 1))
def test_the_length_of_a_pattern_is_found(cycle: int) -> None:
    """One long gap and then short ones: no shorter number of samples repeats."""
    times = repeated([20.0] + [10.0] * (cycle - 1), 60)
    assert pattern_of(times) == cycle


def test_a_pattern_longer_than_the_longest_is_none() -> None:
    """The last of nine gaps was a long one, so the eight before it were short."""
    times = repeated([10.0] * MAX_CYCLE + [20.0], 1 + 9 * (MAX_CYCLE + 1))
    assert pattern_of(times) == 0


def test_a_pattern_must_hold_for_the_samples_in_flight_and_one_more() -> None:
    """Equal gaps of depth + 1 samples, and a sample before them to compare with, are enough; a sample fewer is not."""
    for depth in (3, MIN_WINDOW + 4):
        needed = max(depth + 1, MIN_WINDOW) + 2
        times = repeated([10.0], needed)
        assert pattern_of(times, depth) == 1
        assert pattern_of(times[1:], depth) == 0


def test_a_region_that_still_fills_its_stream_has_no_pattern() -> None:
    """Samples leave evenly, but start earlier and earlier in the first region: what waits there still grows."""
    leaves, starts = repeated([10.0], 60), repeated([9.0], 60)
    assert find_pattern(leaves, lambda: [starts, leaves], depth=3) == 0


@pytest.mark.parametrize("gaps", [[10.0], [20.0, 10.0], [30.0, 10.0, 20.0, 10.0, 10.0]])
def test_a_pattern_gives_the_mean_of_its_gaps(gaps: list[float]) -> None:
    """A sample adds the mean gap, and a region that works in a quarter of the time a quarter of that."""
    times, watch = repeated(gaps, 60), SteadyWatch(SLOWEST, CYCLES)
    looks = (
        Look(
            k + 1,
            now,
            3,
            lambda k=k: times[: k + 1],
            lambda: [times],
            lambda now=now: np.full((2, 4), now / 4),
        )
        for k, now in enumerate(times)
    )
    found = next(filter(None, map(watch.look, looks)))
    assert found.is_exact
    assert found.cycle == len(gaps)
    assert found.period == pytest.approx(np.mean(gaps))
    assert found.rates == pytest.approx(np.full((2, 4), np.mean(gaps) / 4))
