"""What all tests share: nothing that an earlier run kept on disk but machine code, one queue for the workers, examples
that are generated the same in every run, and what `make test` leaves to `make test-all`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.generated import PERCENT, WHICH
from wse_sim import api
from wse_sim.door import GARBAGE
from wse_sim.files import CACHE

gc.set_threshold(*GARBAGE)  # as a command does: torch alone leaves 700,000 lasting objects to look through

# Generated examples: few or all of them, the same in every run and order of tests; or many, drawn anew.
# A profile says nothing of time: machines differ.
COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile(WHICH, derandomize=WHICH != "random", max_examples=PERCENT, **COMMON)
settings.load_profile(WHICH)
# Hypothesis draws now and then a constant that is in the source of some module which happens to be loaded.  So
# examples would depend on which tests a worker has run before, and on every edit.  It has no setting for that;
# tests/test_generated.py would say if this did no longer help.
NO_CONSTANTS = providers.Constants(integers=set(), floats=set(), bytes=set(), strings=set())
providers._get_local_constants = lambda: NO_CONSTANTS

# Machine code is compiled by the worker that needs it first and read from disk by those that need it later.  These
# two sets of files need nearly all of it, and hardly any of each other's: they go first, one on each worker.
COMPILED_FIRST = {
    "machine": ("csl/test_agreement.py", "compiler/test_pipelined_options.py"),
    "executors": (
        "fabric/executors/maxplus/test_fold.py",
        "fabric/executors/test_threads.py",
        "fabric/executors/gpu/test_agreement.py",
        "compiler/test_block_recompute.py",
        "serving/test_engines.py",
    ),
}
FIRST = {file: name for name, files in COMPILED_FIRST.items() for file in files}
# Long tests that share nothing follow one by one, then files of tests that need no compiled programs.
ONE_BY_ONE = ("doors", "numbers", "studies", "validation", "examples")
LAST = ("fabric", "csl", "kernels", "timing", "whole")


# A plan for a short batch tries hundreds of layouts.  Only here do results of that search count; elsewhere a dozen do.
SEARCHING = ("numbers", "validation", "placement", "studies", "test_short_batches.py", "test_constants.py")
FOUND_BY_FEW: dict[Any, Any] = {}  # what the short searches found
kept_plan = api._kept_plan  # as users have it


def work_unit(nodeid: str) -> str:
    """The tests that one worker runs in a row: those of a file, a test alone, or the files that compile first."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    return FIRST.get(path) or (nodeid if path.split("/")[0] in ONE_BY_ONE else path)


def place_in_queue(nodeid: str) -> tuple[int, str]:
    """Units start in this order."""
    unit = work_unit(nodeid)
    if unit in COMPILED_FIRST:
        return list(COMPILED_FIRST).index(unit), ""
    folder = nodeid.removeprefix("tests/").split("/")[0]
    return 10 + (folder not in ONE_BY_ONE) + (folder in LAST), unit


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take units from one queue.  (Marks for ``--dist loadgroup`` do nothing under pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return work_unit(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """The test that ended a worker has failed; the others of the worker continue elsewhere.  (It would run again.)"""
            left = self.assigned_work.pop(node)
            crashed = next((name for unit in left.values() for name, done in unit.items() if not done), None)
            if crashed is not None:
                left[work_unit(crashed)][crashed] = True
                self.workqueue.update({name: unit for name, unit in left.items() if not all(unit.values())})
                for other in self.assigned_work:
                    self._reschedule(other)
            return crashed

    return Units(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in the order of the queue; of a thinned test all cases but some become slow."""
    items.sort(key=lambda item: place_in_queue(item.nodeid))
    of_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thinned"):
            of_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in of_test.values():
        (count,) = found[0].get_closest_marker("thinned").args  # type: ignore[union-attr]
        left = {round(k * (len(found) - 1) / max(1, count - 1)) for k in range(count)}
        for k, item in enumerate(found):
            if k not in left:
                item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def _few_layouts(request: pytest.FixtureRequest) -> Iterator[None]:
    """The search for layouts of short batches is short, but where it is the subject."""
    with pytest.MonkeyPatch.context() as patch:
        if not set(request.path.parts) & set(SEARCHING):
            from wse_sim.modes.pipelined import batches

            patch.setattr(batches, "MOST_TRIALS", 12)
            own = batches.reference_wafers
            patch.setattr(batches, "reference_wafers", lambda wafer: own(wafer)[:1])
            patch.setattr(batches, "_found_before", FOUND_BY_FEW)  # or a longer search would find these later
        yield


@pytest.fixture(scope="session", autouse=True)
def _kept_for_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Graphs of named models are captured once for all workers of this run; plans are made anew, here."""
    mine = tmp_path_factory.getbasetemp()
    shared = mine.parent if os.environ.get("PYTEST_XDIST_WORKER") else mine
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(shared / "kept"))
        patch.setattr(
            api,
            "_kept_plan",
            lambda graph, wafer, cluster, **how: api.compile(graph, wafer, cluster=cluster, **how),
        )
        yield
