"""Submodules of ``cstorch.utils`` are available without their own import, as scripts use them."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = ("benchmark", "tensorboard", "data")
PROGRAM = f"import wse_sim.cstorch as c; print(*(getattr(c.utils, name).__name__ for name in {NAMES}))"


@pytest.mark.slow
def test_a_submodule_is_loaded_when_it_is_first_used():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [f"wse_sim.cstorch.utils.{name}" for name in NAMES]
