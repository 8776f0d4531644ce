"""Oracle, wavelet and max-plus executor give one result, or one fault, on random programs of all kinds and constants."""

from __future__ import annotations

import collections

import pytest

from tests.fabric.agreement import disagreements
from tests.fabric.random_constants import config_of
from tests.fabric.random_programs import Features, random_program
from wse_sim.errors import ProgramError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import T_KIND, TaskKind
from wse_sim.fabric.run import FabricResult, run_program

# All ingredients; few that are stepped, so that solved components lie beside switches; nearly only switches.
KINDS = (
    Features(forks=0.4),
    Features(forks=0.3, switches=0, tasks=0, threads=0, merges=0, half=0),
    Features(forks=0.9, tasks=0.1, threads=0, merges=0.1, half=0),
)


def outcome(seed: int, executor: str, config: FabricConfig) -> FabricResult | str:
    """Return the result or fault."""
    made = random_program(seed, config, KINDS[seed // 2 % 3])
    try:
        return run_program(
            made.program,
            config,
            executor=executor,
            inputs=made.inputs,
            strict=seed % 4 == 0,
            max_cycles=200_000,
        )
    except ProgramError as fault:
        return str(fault)


def compare(seed: int) -> set[str]:
    """Require equal cycles, counters, values, deadlocks and faults; return the kind of the program and of the method."""
    config = config_of(seed)
    expected = outcome(seed, "oracle", config)
    for executor in ("wavelet", "max-plus"):
        found = outcome(seed, executor, config)
        if isinstance(expected, str) or isinstance(found, str):
            assert expected == found, f"seed {seed}, {executor}"
            continue
        differ = disagreements(expected, found)
        assert not differ, f"seed {seed}, {executor}: {differ}"
    program = random_program(seed, config, KINDS[seed // 2 % 3]).program
    seen = {"switches"} if program.has_switches else set()
    seen |= {"control tasks"} if (program.tasks[:, T_KIND] == TaskKind.CONTROL).any() else set()
    if isinstance(expected, str):
        return seen | {"fault"}
    assert not isinstance(found, str)
    assert found.certificate is not None
    seen |= {"deadlock" if expected.deadlock else "end"} | {c.kind for c in found.certificate.components}
    return seen | {check.name for check in found.certificate.premises if check.broken}


def test_all_executors_agree_on_sixty_programs() -> None:
    """Programs have switches that turn, tasks that commands start, both wafers, and constants that no wafer has."""
    seen = collections.Counter(name for seed in range(60) for name in compare(seed))
    for name in (
        "switches",
        "deadlock",
        "end",
        "clean",
        "wavelet",
        "rate",
        "depth",
        "thread",
        "command",
        "switch",
    ):
        assert seen[name] >= 2, seen


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_all_executors_agree_on_many_programs(part: int) -> None:
    """4,000 programs; no stepped word ever leaves its component."""
    first = 10_000 + 500 * part
    seen = collections.Counter(name for seed in range(first, first + 500) for name in compare(seed))
    assert (
        min(
            seen[name]
            for name in ("control tasks", "time-ordered", "room", "meeting", "merge", "pair", "fault")
        )
        > 0
    )
    assert seen["closed"] == 0
