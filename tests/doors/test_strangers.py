"""2,000 malformed inputs at all entry points (250 in the quick tests), and a proof for each generator that it reaches
its reader.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.doors.all_doors import all_doors
from tests.doors.strangers import Broken, Door, campaign, fault_of
from tests.generated import WHICH
from wse_sim.errors import WseError
from wse_sim.files import CACHE, NOWHERE

pytestmark = pytest.mark.generated
SHARE = {"quick": 0.035, "all": 0.4, "random": 5.0}[WHICH]
Reader = Callable[..., object]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Door]]:
    folder = tmp_path_factory.mktemp("strangers")
    with contextlib.chdir(folder):
        yield all_doors(folder)


@pytest.mark.slow
def test_every_malformed_input_is_answered(doors: list[Door]) -> None:
    """The outcome is the answer, "does not fit", or one sentence; never a fault of the simulator, never wrongly
    accepted.
    """
    assert SHARE * sum(door.count for door in doors) >= (250 if WHICH == "quick" else 2000)
    seed = int.from_bytes(os.urandom(4), "big") if WHICH == "random" else 0
    faults = [
        fault
        for door in doors
        for fault in campaign(door, Path.cwd(), round(door.count * SHARE), seed).faults
    ]
    assert not faults, (seed, faults[:20])


@pytest.mark.slow
def test_what_cases_are_made_from_is_answered(doors: list[Door]) -> None:
    """A generator that starts from refused input would test nothing."""
    for door in doors:
        assert fault_of(door.sound, Path.cwd()) == ("answered", ""), door.name


def crashes(read: Reader) -> Reader:
    """Return a reader that stumbles where it should refuse."""

    def broken(*given: object, **named: object) -> object:
        try:
            found = read(*given, **named)
        except WseError:
            raise Broken(read.__name__) from None
        if found == 2 and read.__module__ == "wse_sim.door":  # it refuses by its status
            raise Broken(read.__name__)
        return found

    return broken


def accepts(read: Reader) -> Reader:
    """Simulate a reader that takes what it should refuse for what it read last."""
    last: list[object] = [None]

    def broken(*given: object, **named: object) -> object:
        try:
            found = read(*given, **named)
        except WseError:
            return copied(last[0])
        if found == 2 and read.__module__ == "wse_sim.door":
            return 0
        last[0] = copied(found)
        return found

    return broken


def copied(found: object) -> object:
    """Return what was read, unchanged, because some readers modify their answer."""
    return copy.deepcopy(found) if isinstance(found, dict | list) else found


@pytest.mark.slow
@pytest.mark.parametrize("broken", [crashes, accepts])
def test_each_generator_fails_on_a_broken_reader(
    doors: list[Door], broken: Callable[[Reader], Reader]
) -> None:
    """The readers of each entry point are broken in turn: the cases find it, so they reach what they claim to test."""
    for door in doors:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CACHE, NOWHERE)  # what a broken reader takes is not kept for others
            for place in door.readers:
                module, name = place.split(":")
                read = attrgetter(name)(importlib.import_module(module))
                patch.setattr(f"{module}.{name}", broken(read))
            fault_of(door.sound, Path.cwd())
            # Most cases of a few doors are refused before their reader, by Python or by transformers: these take more.
            found = any(campaign(door, Path.cwd(), count, seed=1).faults for count in (60, 240))
            assert found, (door.name, door.readers)
