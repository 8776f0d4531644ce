"""Submodules of ``cstorch.utils`` are there without an import of their own, as scripts use them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["data", "tensorboard", "benchmark"])
def test_a_submodule_is_loaded_when_it_is_first_used(name):
    program = f"import wse_sim.cstorch as cstorch; print(cstorch.utils.{name}.__name__)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"wse_sim.cstorch.utils.{name}"
