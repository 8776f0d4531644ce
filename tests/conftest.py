"""What all tests share: nothing is read that an earlier run kept on disk, and which tests stay on one worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wse_sim import kept

TESTS = Path(__file__).parent

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
