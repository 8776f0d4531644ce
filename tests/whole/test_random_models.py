"""Random whole models: values compared with PyTorch, order of starts and times with the event engine, from the
generator of the docs.
"""

from __future__ import annotations

import pytest

from benchmarks import measurements
from benchmarks.distribution import distribution, outcomes, summary
from benchmarks.drawn_models import KINDS, drawn
from benchmarks.random_models import measure
from tests.generated import seeds

WORST = 2e-3
"""Of the largest element of a tensor, beside a PyTorch that rounds where the fabric does."""
QUICK = (9, 25)
"""Seeds of small models: depthwise in inference, layers of several tokens in training."""


def check(seed: int) -> None:
    """Check that the model of a seed runs and is right except for its time, which the page shows."""
    row = measure(drawn(seed))
    assert row["outcome"] == "run", row
    assert row["worst_error"] < WORST, row
    assert row["books_closed"], row
    assert row.get("same_order", True), row
    assert row["fabric_cycles"] > 0 < row["engine_cycles"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", QUICK)
def test_a_random_model_is_right(seed: int) -> None:
    """A few of the sixty are run."""
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(12))
def test_sixty_random_models_are_right(block: int) -> None:
    """There are five of every kind, about half of them in training, on wafers of 16 x 16 to 64 x 64 cores."""
    for seed in seeds(1 + 5 * block, 5):
        check(seed)


def test_the_models_of_the_page_are_those_of_their_seeds() -> None:
    """The row of the page has everything that is drawn from a seed; successive seeds alternate among the kinds."""
    kept = measurements.read("random_models")["values"]
    assert [row["seed"] for row in kept["rows"]] == list(
        range(kept["seed"], kept["seed"] + len(kept["rows"]))
    )
    for row in kept["rows"]:
        case = drawn(row["seed"])
        assert (case.kind, case.phase, case.side, case.base, case.batch, list(case.shape)) == (
            row["kind"], row["phase"], row["side"], row["base"], row["batch"], row["shape"],
        )  # fmt: skip
    assert {row["kind"] for row in kept["rows"]} == set(KINDS)
    assert sum(outcomes(kept["rows"]).values()) == len(kept["rows"])


def test_the_distribution_is_of_sizes_and_the_worst_keeps_its_sign() -> None:
    """0, 1, ... 10 %, odd ones below zero: median 5 %, nine tenths up to 9 %, six of 11 within 5 %, the worst of 12 is
    -50 %.
    """
    differences = [(-1) ** k * k / 100 for k in range(11)]
    found = distribution(differences)
    assert (found["n"], found["median"], found["p90"], found["worst"]) == (11, 0.05, pytest.approx(0.09), 0.1)
    assert found["within"] == [6 / 11, 1.0, 1.0]
    assert distribution([*differences, -0.5])["worst"] == -0.5
    rows = [
        {"kind": "chain", "phase": phase, "base": "wse2", "side": 16, "composed": size, "plain": 2 * size}
        for phase, size in (("inference", 0.1), ("training", 0.3))
    ]
    lines = {(line["group"], line["plan"]): line["median"] for line in summary(rows)}
    assert lines["training", "composed"] == 0.3
    assert lines["all", "plain"] == pytest.approx(0.4)
    assert ("WSE-3", "plain") not in lines
