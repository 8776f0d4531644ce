"""What all tests share: no test reads a kernel graph that an earlier run kept on disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wse_sim.frontend import store


@pytest.fixture(scope="session", autouse=True)
def _no_kept_graphs() -> Iterator[None]:
    """Every model is read anew, but where a test asks for kept graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "is_used", lambda: False)
        yield
