"""5,000 malformed inputs over all doors (500 in the quick tests), and a proof for each generator that it reaches its reader."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.doors.all_doors import all_doors
from tests.doors.strangers import Door, campaign
from tests.generated import WHICH

pytestmark = pytest.mark.generated
SHARE = {"quick": 0.1, "all": 1.0, "random": 5.0}[WHICH]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Door]]:
    folder = tmp_path_factory.mktemp("strangers")
    with contextlib.chdir(folder):
        yield all_doors(folder)


def test_every_malformed_input_is_answered(doors: list[Door]) -> None:
    """The answer, "does not fit", or one sentence; never a fault of the simulator, never accepted where it must not be."""
    assert sum(door.count for door in doors) >= 5000
    seed = int.from_bytes(os.urandom(4)) if WHICH == "random" else 0
    faults = [
        fault
        for door in doors
        for fault in campaign(door, Path.cwd(), round(door.count * SHARE), seed).faults
    ]
    assert not faults, (seed, faults[:20])
