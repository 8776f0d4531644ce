"""Order of the passes of a core that trains: what its loops do, and that no slot is written while its sums wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from wse_sim.whole.training.order import BACKWARD, FORWARD, WEIGHTS, WEST, steps_of, write_steps

ALL = (FORWARD, BACKWARD, WEST, WEIGHTS)


class Recorder:
    """Replaces a core class: a loop runs its body the given number of times and records its turn."""

    def __init__(self) -> None:
        self.tree: list[object] = []

    @contextmanager
    def loop(self, turns: int) -> Iterator[None]:
        """Run a loop."""
        outer, self.tree = self.tree, []
        yield
        outer.append((turns, self.tree))
        self.tree = outer

    def done(self) -> list[tuple[str, int]]:
        """Return the executed steps, with the slots that the innermost loops count."""
        return list(_run(self.tree, 0))


def _run(tree: list[object], turn: int) -> Iterator[tuple[str, int]]:
    for node in tree:
        if isinstance(node[0], str):
            yield node[0], node[1] + turn
        else:
            for each in range(node[0]):
                yield from _run(node[1], each)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 6))
def test_loops_do_the_steps_one_by_one(samples: int, flight: int, lag: int) -> None:
    """Expanded loops are the steps with samples as slots; every loop counts from a slot without passing the last."""
    flight = min(flight, samples)
    core = Recorder()
    write = {what: lambda slot, what=what: core.tree.append((what, slot)) for what in ALL}
    write_steps(core, samples, flight, lag, write)
    wanted = [(what, i % flight) for step in steps_of(samples, flight, lag) for what, i in step]
    assert core.done() == wanted


@given(st.integers(1, 40), st.integers(0, 6), st.integers(0, 6))
def test_every_sample_once_and_its_slot_until_its_sums_have_left(samples: int, lag: int, more: int) -> None:
    """A sample goes forward, back and west in order.  With two slots more than the lag, the products that come in while the
    sums of a sample leave (until the next sums are sent) have another slot."""
    flight = min(samples, lag + 2 + more)
    done = [each for step in steps_of(samples, flight, lag) for each in step]
    assert sorted(done) == sorted((what, i) for what in ALL for i in range(samples))
    assert [i for what, i in done if what == WEST] == list(range(samples))
    leaving: int | None = None
    for what, i in done:
        if what == BACKWARD and leaving is not None and leaving != i:
            assert (i - leaving) % flight or flight == samples
        elif what == WEST:
            assert done.index((BACKWARD, i)) < done.index((WEST, i))
            leaving = i
