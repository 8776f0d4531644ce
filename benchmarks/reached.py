"""Which functions the tests call: a plugin of pytest for ``benchmarks.mutants``.

``$WSE_SIM_REACHED`` names a file that the plugin writes: for every unit of tests (a file, or one test of a folder whose
tests share nothing) the functions of this repository that it called, and its CPU time.  Answers that functions keep are
forgotten before each unit, so that a unit counts as a caller whatever ran before.  Jitted code calls nothing that Python
sees.  Without the variable the plugin puts the tests in the order of the arguments of pytest, unlike the suite's own, and
a test that takes over ``$WSE_SIM_TEST_LIMIT`` CPU seconds ends the process.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

import pytest

ROOT = Path(__file__).parent.parent
FILE, LIMIT = "WSE_SIM_REACHED", "WSE_SIM_TEST_LIMIT"
_Kept = type(functools.cache(len))
R = TypeVar("R")


@dataclass
class Unit:
    """Tests that run together: checksum of their file, CPU time in seconds, functions as ``file:qualified name``."""

    stamp: int
    seconds: float = 0.0
    functions: list[str] = field(default_factory=list)


def stamp(unit: str, tree: Path = ROOT) -> int:
    """Checksum of the file of a unit; 0 if it is gone."""
    path = tree / unit.partition("::")[0]
    return zlib.crc32(path.read_bytes()) if path.is_file() else 0


def unit_of(nodeid: str) -> str:
    """The unit of a test."""
    from tests.conftest import ONE_BY_ONE

    path = nodeid.partition("::")[0]
    return nodeid if path.split("/")[1] in ONE_BY_ONE else path


def read(path: Path) -> dict[str, Unit]:
    """Units of a file that the plugin wrote; none if there is no such file."""
    return {k: Unit(**v) for k, v in json.loads(path.read_text()).items()} if path.is_file() else {}


class Recorder:
    """Sees calls while tests run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.units: dict[str, Unit] = {}
        self.now = ""
        self.codes: set[CodeType] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record the setup of a test, the test and its end."""
        unit = unit_of(item.nodeid)
        if unit != self.now:
            self._end()
            self.now = unit
            for thing in gc.get_objects():
                if type(thing) is _Kept:
                    thing.cache_clear()
        began = time.process_time()
        seen = self.codes.add

        def called(frame: FrameType, event: str, argument: object) -> None:
            seen(frame.f_code)

        threading.settrace(called)
        sys.settrace(called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            found = self.units.setdefault(unit, Unit(stamp(unit)))
            found.seconds = round(found.seconds + time.process_time() - began, 3)

    def pytest_sessionfinish(self) -> None:
        """Write the last unit."""
        self._end()

    def _end(self) -> None:
        if not self.now:
            return
        own = [code for code in self.codes if code.co_filename.startswith(f"{ROOT}{os.sep}")]
        # The package's kernels are a link to a folder beside it.
        files = {name: Path(name).resolve().relative_to(ROOT) for name in {code.co_filename for code in own}}
        found = {f"{files[code.co_filename]}:{code.co_qualname}" for code in own}
        unit = self.units[self.now]
        unit.functions = sorted(found | set(unit.functions))
        self.codes.clear()
        kept = read(self.path) | self.units
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({name: asdict(one) for name, one in sorted(kept.items())}, indent=0))


class Ordered:
    """Puts tests in the order of the arguments."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Sort by unit; within one the order stays."""
        place = {unit: k for k, unit in enumerate(config.args)}
        items.sort(
            key=lambda item: place.get(unit_of(item.nodeid), place.get(item.nodeid.partition("::")[0], -1))
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Move the limit of the CPU time of the process ahead."""
        if limit := os.environ.get(LIMIT):
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            ahead = int(time.process_time()) + int(limit)
            own = ahead if hard == resource.RLIM_INFINITY else min(ahead, hard)
            resource.setrlimit(resource.RLIMIT_CPU, (own, hard))


def pytest_configure(config: pytest.Config) -> None:
    """Record or sort."""
    path = os.environ.get(FILE)
    config.pluginmanager.register(Recorder(Path(path)) if path else Ordered())
