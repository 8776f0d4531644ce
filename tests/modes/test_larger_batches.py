"""More samples are never slower: if the activations of a large micro-batch would spill, smaller ones are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.modes.weight_streaming import micro_batch
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan

NO_ROOM = Infeasible("weight-streaming", "m", "SRAM", 2.0, 1.0, "bytes", "here", "less")


@dataclass(frozen=True)
class Made:
    """The facts of a plan that the choice reads."""

    micro_batch: int
    micro_batches: int
    spilled_bytes: float
    notes: tuple[str, ...] = ()


class Machine:
    """Attempts on a machine in which a pass takes 10 + b seconds, and `spilled_s` per sample more above `rests`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fits: int, rests: int, spilled_s: float) -> None:
        self.fits, self.rests, self.spilled_s, self.batch = fits, rests, spilled_s, 0
        self.tried: list[int] = []
        monkeypatch.setattr(micro_batch, "free_seconds", self.seconds)

    def attempt(self, size: int) -> Any:
        self.tried.append(size)
        made = Made(size, -(-self.batch // size), float(size > self.rests))
        return made if size <= self.fits else NO_ROOM

    def seconds(self, plan: Any) -> float:
        each = 1 + (self.spilled_s if plan.spilled_bytes else 0.0)
        return float(plan.micro_batches * (10 + plan.micro_batch * each))

    def chosen(self, batch: int, **how: Any) -> Any:
        self.batch = batch
        return micro_batch.with_micro_batch(self.attempt, StreamingChoice(batch=batch, **how), batch)

    def rate(self, batch: int) -> float:
        return batch / self.seconds(self.chosen(batch))


@pytest.mark.parametrize(
    ("fits", "rests", "spilled_s"),
    [(999, 40, 2.0), (100, 33, 2.0), (60, 60, 0.0), (25, 7, 5.0), (999, 40, 0.1)],
)
def test_no_multiple_of_a_batch_is_slower(
    monkeypatch: pytest.MonkeyPatch, fits: int, rests: int, spilled_s: float
) -> None:
    """A batch that fits costs one attempt, as before."""
    machine = Machine(monkeypatch, fits, rests, spilled_s)
    for batch in (5, 16, 33, 40, 100):
        for times in (2, 3, 4, 7, 8):
            assert machine.rate(batch * times) >= (1 - micro_batch.LEAST_GAIN) * machine.rate(batch)
    machine.tried.clear()
    machine.rate(min(fits, rests))
    assert machine.tried == [min(fits, rests)]


def test_the_rule_of_published_runs_is_the_largest_half_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 100, 33, 2.0)
    assert machine.chosen(240, choose_micro_batch="largest").micro_batch == 60
    assert machine.chosen(240, micro_batch=80).micro_batch == 80
    assert machine.chosen(240).micro_batch == 30


def _plan(graph: object, **how: object) -> WeightStreamingPlan:
    plan = api.compile(graph, mode="weight-streaming", **how)  # type: ignore[arg-type]
    assert isinstance(plan, WeightStreamingPlan)
    return plan


@pytest.mark.slow
def test_twice_a_batch_that_just_fits_is_no_slower() -> None:
    """The largest micro-batch would spill and lose in the simulation, and the note states the choice."""
    pytest.importorskip("torch")
    graph = api.load_model("gpt2-small", seq=1024, training=True)
    once, twice = _plan(graph, batch=128), _plan(graph, batch=256)
    largest = _plan(graph, batch=256, choose_micro_batch="largest")
    assert largest.spilled_bytes > 0
    rates = [api.simulate(plan).compute_samples_per_s for plan in (largest, once, twice)]
    assert rates[0] < 0.99 * rates[1]
    assert rates[2] >= 0.995 * rates[1]
    assert not any("micro-batches of" in note for note in (*once.notes, *largest.notes))
    assert any("2 micro-batches of 128 instead of 1 of 256" in note for note in twice.notes)
