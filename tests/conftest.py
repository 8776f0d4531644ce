"""What all tests share: nothing is read that an earlier run kept on disk, which tests stay on one worker, and examples
that are generated the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from wse_sim import kept

TESTS = Path(__file__).parent

# Generated examples: "same" in every run and order of tests, or "random" and many more of them (make test-slow).
# A profile says nothing of time: machines differ.
COMMON = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("same", derandomize=True, **COMMON)
settings.register_profile("random", derandomize=False, max_examples=1000, **COMMON)
settings.load_profile("same")
# Hypothesis draws now and then a constant that stands in the source of some module which happens to be loaded.  So
# examples would depend on which tests a worker has run before, and on every edit.  It has no setting for that;
# tests/test_generated.py would say if this did no longer help.
NO_CONSTANTS = providers.Constants(integers=set(), floats=set(), bytes=set(), strings=set())
providers._get_local_constants = lambda: NO_CONSTANTS

# Machine code is compiled by the worker that needs it first.  Tests of these folders need the same code: on one worker
# it is compiled once, and the workers that need it later find it on disk.
TOGETHER = {
    **dict.fromkeys(("fabric", "csl", "kernels", "timing", "whole"), "programs"),
    **dict.fromkeys(("compiler", "placement", "modes", "engine"), "placers"),
}
# Long tests that share nothing: one by one they fill up whichever worker is free.
ONE_BY_ONE = ("doors", "numbers", "studies", "validation", "examples")


# A plan for a short batch tries hundreds of layouts.  Only here do results of that search count; elsewhere a dozen do.
SEARCHING = ("numbers", "validation", "placement", "studies", "test_short_batches.py", "test_constants.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say for ``--dist loadgroup`` which tests stay together: some folders, else those of a file."""
    for item in items:
        path = item.path.relative_to(TESTS)
        if path.parts[0] not in ONE_BY_ONE:
            group = TOGETHER.get(path.parts[0], path.as_posix())
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="module", autouse=True)
def _few_layouts(request: pytest.FixtureRequest) -> Iterator[None]:
    """The search for layouts of short batches is short, but where it is the subject."""
    with pytest.MonkeyPatch.context() as patch:
        if not set(request.path.parts) & set(SEARCHING):
            from wse_sim.modes.pipelined import batches

            patch.setattr(batches, "MOST_TRIALS", 12)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_kept_graphs() -> Iterator[None]:
    """Every model is read and compiled anew, but where a test asks for what is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "is_used", lambda: False)
        yield
