"""The max-plus executor equals the oracle on random programs, with or without contention, values and counters included."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from tests.fabric.executors.maxplus.compare import differences, solve_run
from tests.fabric.executors.maxplus.generate import random_program
from tests.generated import cases, seeds
from wse_sim.fabric.executors.maxplus import executor as maxplus
from wse_sim.fabric.executors.maxplus import solve
from wse_sim.fabric.executors.maxplus.solve import groups_of
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.run import run_program
from wse_sim.hardware.wafer import load_wafer

WSE2 = FabricConfig.from_wafer(load_wafer("wse2"))
# two cycles a hop, dear turns, edges of dies, deeper queues, a ring that is no power of two, fixed arbitration
OTHER = FabricConfig.from_wafer(
    load_wafer("wse2"),
    hop_cycles=2,
    turn_cycles=3,
    ring_wavelets=10,
    router_queue_wavelets=3,
    ramp_cycles=3,
    die_crossing_cycles=7,
    die_edge_rows=(2, 3, 7),
    round_robin=False,
)


@pytest.fixture(autouse=True)
def order_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order every contended component, even if stepping it would be faster."""
    monkeypatch.setattr(maxplus, "ORDERED_COST", 0.0)


def fuzz(seeds: range, config: FabricConfig) -> collections.Counter[str]:
    """Compare random programs; a third of them without speculation, a fifth with merges."""
    seen: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        program, inputs = random_program(seed, config, merges=0.3 if seed % 5 == 0 else 0.0)
        reference = run_program(program, config, executor="oracle", inputs=inputs, strict=False)
        result = solve_run(
            program, config, inputs=inputs, strict=False, speculate=seed % 3 > 0, delegate="oracle"
        )
        wrong = differences(result, reference, ("x",))
        assert not wrong, f"seed {seed}: {wrong}, certificate {result.certificate}"
        seen["programs"] += 1
        seen["clean"] += result.certificate.clean
        seen["deadlock"] += reference.deadlock is not None
        seen["clean deadlock"] += reference.deadlock is not None and result.certificate.clean
        seen["time-ordered"] += any(c.kind == "time-ordered" for c in result.certificate.components)
        seen["extrapolated"] += result.certificate.extrapolated_rounds > 0
    return seen


def test_random_programs_equal_the_oracle() -> None:
    """No certificate is wrongly clean in 500 programs (2,000 in total), and every kind of outcome occurs."""
    seen = fuzz(seeds(0, 1500), WSE2) + fuzz(seeds(1500, 500), OTHER)
    programs = seen["programs"]
    assert programs == cases(1500) + cases(500)
    assert seen["clean"] > programs // 2
    assert (
        min(seen["deadlock"], seen["clean deadlock"], seen["time-ordered"], seen["extrapolated"])
        > programs // 40
    )


@pytest.mark.slow
def test_contended_components_are_stepped_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate states this, and the result is the same."""
    monkeypatch.setattr(maxplus, "ORDERED_COST", 1e9)
    seen = fuzz(range(100), WSE2)
    assert seen["time-ordered"] == 0
    assert seen["clean"] < seen["programs"] - 20


@pytest.mark.slow
def test_components_side_by_side_equal_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of components run on two to four threads."""
    made = []

    def watched(*arguments: Any) -> Any:
        made.append(groups_of(*arguments))
        return made[-1]

    monkeypatch.setattr(solve, "groups_of", watched)
    for seed in range(200):
        program, inputs = random_program(seed, WSE2)
        reference = run_program(program, WSE2, executor="oracle", inputs=inputs, strict=False)
        result = solve_run(
            program, WSE2, inputs=inputs, strict=False, speculate=seed % 3 > 0, delegate="oracle", steady=False,
            fold=False, threads=2 + seed % 3,
        )  # fmt: skip
        wrong = differences(result, reference, ("x",))
        assert not wrong, f"seed {seed}: {wrong}"
    assert sum(group is not None for group in made) > 30


def test_components_are_dealt_by_their_cores_at_work() -> None:
    """Components 0, 3 and 4 have 3, 1 and 2 active cores: half of 6 is the first one; a component without work, 6,
    stays with the first.
    """
    label = np.array([0, 0, 0, 3, 4, 4, 6])
    at_work = np.array([True] * 6 + [False])
    assert groups_of(label, at_work, 2).tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert groups_of(label, at_work, 9).tolist() == [0, 0, 0, 1, 2, 2, 0]
    assert groups_of(label[:3], at_work[:3], 2) is None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_many_random_programs_equal_the_oracle(part: int) -> None:
    """1,600 programs, half of them on the other machine."""
    seen = fuzz(seeds(100_000 + 5000 * part, 800), WSE2 if part % 2 else OTHER)
    assert seen["programs"] == cases(800)
