"""Chains that train do not deadlock: samples in flight of all regions fit together, and the last setting runs for any
chain.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.whole.test_dense_chain import graph_of, network, wafer
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.run import stepped
from wse_sim.whole.training import training_program
from wse_sim.whole.training.samples_in_flight import LEAST, flights
from wse_sim.whole.training.stream_layouts import NoWayError

SAFE = (0, 0)


def plan_of(sizes: tuple[int, ...], side: int, batch: int, placer: str) -> PipelinedPlan | None:
    """Return the plan of a chain that trains; None if it does not fit."""
    graph = graph_of(network(sizes), sizes[0], training=True, optimizer="sgd")
    plan = api.compile(
        inputs_over_rows(graph), wafer(side), mode="pipelined", replicas=1, batch=batch, placer=placer
    )
    return None if isinstance(plan, Infeasible) else expect(plan, PipelinedPlan)


def words_left(plan: PipelinedPlan, loss: str, room: tuple[int, int]) -> int:
    """Return the words that do not come through in a batch; raises where it stops."""
    made = training_program(plan, plan.batch, 0.0, loss, room)
    return stepped(made.program, made.config, None).words_left


@examples(100)
@given(
    samples=st.integers(1, 70),
    losses=st.integers(1, 16),
    spare=st.integers(0, 3),
    regions=st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(0, 60)), min_size=1, max_size=6
    ),
)
def test_samples_in_flight_fit_together(
    samples: int, losses: int, spare: int, regions: list[tuple[int, int, int]]
) -> None:
    """For any batch and memory, the previous region provides the samples that a region needs for its first gradient."""
    ahead, lags, fits = (list(each) for each in zip(*regions, strict=True))
    found = flights(samples, losses, spare, ahead, lags, fits)
    given_by_host = samples
    for one, most, lag, fit in zip(found, ahead, lags, fits, strict=True):
        assert min(LEAST, samples) <= one.rows <= max(LEAST, fit)
        assert 1 <= one.last_row <= one.rows <= min(samples, one.last_row + most)
        assert 0 <= one.lag <= min(lag, max(0, one.rows - LEAST))
        assert one.rows + one.lag <= given_by_host or given_by_host == samples
        given_by_host = one.last_row


@pytest.mark.slow
@pytest.mark.parametrize("room", [(2, 1), SAFE])
def test_a_small_batch_needs_no_more_samples_than_it_is_given(room: tuple[int, int]) -> None:
    """A region that held all eight samples gave four before it waited for a gradient; the next one waited for a fifth."""
    plan = plan_of((16, 32, 32, 2), 48, 8, "shelves")
    assert plan is not None
    assert words_left(plan, "cross entropy", room) == 0


@pytest.mark.slow
def test_cores_that_send_in_turn_let_their_sums_go_first() -> None:
    """Two columns with 16 outputs a core: gradients that waited for their turn held up the sums of the row above."""
    plan = plan_of((128, 128, 128, 32), 20, 16, "snake")
    assert plan is not None
    made = training_program(plan, 16, 0.0, "squared error", (1, 0))
    assert not made.layouts[-1].collects_apart
    assert stepped(made.program, made.config, None).words_left == 0


CHAINS = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.sampled_from((2, 3, 4, 10, 16, 32, 33, 64, 100, 128)), min_size=3, max_size=6),
        "side": st.sampled_from((16, 20, 24, 32)),
        "batch": st.sampled_from((1, 2, 3, 7, 8, 16)),
        "placer": st.sampled_from(("shelves", "snake", "peel")),
        "loss": st.sampled_from(("cross entropy", "squared error")),
    }
)


def check_safe(sizes: list[int], side: int, batch: int, placer: str, loss: str) -> None:
    """Check that a chain runs with the last setting; it may be refused if there is no route."""
    if plan := plan_of(tuple(sizes), side, batch, placer):
        try:
            assert words_left(plan, loss, SAFE) == 0
        except NoWayError:
            return


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("sizes", "side", "placer", "loss"),
    [
        ([32, 33, 16, 64, 2], 32, "peel", "cross entropy"),
        ([10, 3, 32, 33, 3], 48, "snake", "squared error"),
    ],
)
def test_no_chain_stops(sizes: list[int], side: int, placer: str, loss: str) -> None:
    """These random chains deadlocked with every setting."""
    check_safe(sizes, side, 8, placer, loss)


@pytest.mark.slow
@examples(50)
@given(case=CHAINS)
def test_no_chain_of_many_stops(case: dict[str, Any]) -> None:
    """Many random chains are run."""
    check_safe(**case)
