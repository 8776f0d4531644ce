"""These tests store measurements in their own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wse_sim.timing import open_store


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Leave the user's cache folder unchanged."""
    monkeypatch.setenv("WSE_SIM_CACHE", str(tmp_path / "cache"))
    open_store.cache_clear()
    yield tmp_path / "cache"
    open_store.cache_clear()
