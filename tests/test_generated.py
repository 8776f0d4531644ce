"""Generated examples are the same in every run of the tests, whatever a worker ran before."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.generated import WHICH


def drawn() -> list[tuple[str, int, float]]:
    """Return two hundred examples of possible constants of a source file."""
    seen = []

    @settings(settings.get_profile(WHICH), max_examples=200)
    @given(st.text(max_size=12), st.integers(), st.floats(allow_nan=False))
    def case(text: str, whole: int, real: float) -> None:
        seen.append((text, whole, real))

    case()
    return seen


def test_examples_do_not_depend_on_loaded_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with its own constants is loaded between two runs; without our setting nine of ten examples change."""
    before = drawn()
    body = "".join(
        f"a{number} = ({10**6 + number}, {number}.625, 'word {number}')\n" for number in range(300)
    )
    (tmp_path / "module_with_constants.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_with_constants")
    after = drawn()
    monkeypatch.delitem(sys.modules, "module_with_constants")
    assert after == before
    assert len({text for text, _, _ in before}) > 50
