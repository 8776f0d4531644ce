"""The machine of CSL against the second machine: random programs end with equal memories, counters and cycles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fabric.vm.assembler import Assembly, line
from tests.fabric.vm.plain.machine import Machine
from tests.fabric.vm.plain.programs import Program
from tests.generated import seeds
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.opcodes import Form
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

LIMIT = 20_000


def plain(image: Image) -> dict[str, Any]:
    """What the second machine says of a program."""
    machine = Machine(image)
    for core, cls in enumerate(image.classes):
        machine.launch(core, next(s.address for s in cls.symbols if s.name == "main"))
    cycles = machine.run(LIMIT)
    return {
        "is_nan": machine.met_nan, "cycles": cycles, "memory": [core.memory for core in machine.cores],
        "armed": [core.is_armed for core in machine.cores], **machine.counters(),
    }  # fmt: skip


def shipped(image: Image) -> dict[str, Any]:
    """What the machine of the package says."""
    session = Session(image, load_wafer(image.arch), strict=False)
    for core in range(image.n_cores):
        session.launch(core % image.cols, core // image.cols, 1, 1, "main")
    outcome = session.advance(cycles=LIMIT)
    assert outcome.fault is None, outcome.fault
    machine = session.machine
    words = machine.memory.reshape(image.n_cores, -1)
    counters = {name: values.reshape(-1).tolist() for name, values in session.counters().items() if name in ("busy", "stalled_in", "stalled_out", "sent", "received", "opcodes")}  # fmt: skip
    return {
        "reason": outcome.reason,
        "cycles": outcome.quiet if outcome.reason == "idle" else LIMIT,
        "memory": words.tolist(),
        **counters,
    }


def differences(image: Image) -> list[str] | None:
    """What differs; None if something does, and some float was not a number, whose bits no rule fixes."""
    mine, theirs = plain(image), shipped(image)
    found = []
    for name, value in theirs.items():
        if name != "reason" and mine[name] != value:
            found.append(f"{name}: {mine[name]} and {value}" if name != "memory" else str(np.argwhere(np.array(mine[name]) != np.array(value))[:6].tolist()))  # fmt: skip
    return None if found and mine["is_nan"] else found


def check(numbers: list[int]) -> None:
    """Programs agree; of nearly all it can be said."""
    skipped = 0
    for seed in numbers:
        found = differences(Program(seed).image)
        skipped += found is None
        assert not found, (seed, found)
    assert skipped < len(numbers) / 4


@pytest.mark.thinned(1)
@pytest.mark.parametrize("block", range(6))
def test_random_programs(block: int) -> None:
    """60 programs."""
    check(list(range(10 * block, 10 * block + 10)))


def test_an_operation_in_place_begins_after_its_loads() -> None:
    """`@fadds(d, d, e)` on a microthread began without the cycles of its start and its loads, beside the code before it."""
    a = Assembly()
    vectors = (line(100, 8), line(200, 8))
    issue = a.issue("fadds", Form.DSD, Form.DSD, Form.DSD, thread=0, **{"async": 1})
    a.add(f"main:\nLDK 0 0 0\nLDK 1 0 0\nLDK 2 0 1\nVEC -1 0 {issue}\nSYS -1 0 14\nRET", constants=vectors)
    assert differences(a.image()) == []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_random_programs(block: int) -> None:
    """1,000 programs."""
    check(list(seeds(20_000 + 100 * block, 100)))
