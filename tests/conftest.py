"""What all tests share: no test reads a graph or a plan that an earlier run kept on disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wse_sim import kept


@pytest.fixture(scope="session", autouse=True)
def _no_kept_graphs() -> Iterator[None]:
    """Every model is read and compiled anew, but where a test asks for what is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "is_used", lambda: False)
        yield
