"""Every name of the interface that public code of eleven releases uses exists; the walk over other code is the benchmark's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cstorch_walk

NAMES = Path(__file__).with_name("zoo_names.txt")
WALK = """
import sys
from pathlib import Path
from benchmarks import cstorch_walk
from wse_sim.cstorch import doors

doors.install_aliases()
names = Path(sys.argv[1]).read_text(encoding="utf-8").split()
print("\\n".join(sorted({gone for name in names if (gone := cstorch_walk.missing(name))})))
"""


@pytest.mark.slow
def test_names_that_public_code_uses_exist() -> None:
    lacking = subprocess.run(
        [sys.executable, "-c", WALK, str(NAMES)], capture_output=True, text=True, check=True
    ).stdout.split()
    # The only ones without a counterpart belong to a release for TensorFlow.
    assert [name for name in lacking if not name.startswith("cerebras_appliance.cs_run_config")] == []


def test_the_walk_follows_imports_and_attributes() -> None:
    source = """
import cerebras.pytorch as cstorch
from cerebras.pytorch import optim as o
from cerebras.appliance.errors import ApplianceNanError as E
import numpy.linalg
x = cstorch.utils.data.DataLoader(o.NoSuch, numpy.linalg.norm)
"""
    assert cstorch_walk.used(source) == {
        "cerebras.pytorch",
        "cerebras.pytorch.optim",
        "cerebras.pytorch.optim.NoSuch",
        "cerebras.pytorch.utils",
        "cerebras.pytorch.utils.data",
        "cerebras.pytorch.utils.data.DataLoader",
        "cerebras.appliance.errors.ApplianceNanError",
    }


@pytest.mark.slow
@pytest.mark.skipif("WSE_SIM_ZOO" not in os.environ, reason="WSE_SIM_ZOO names a folder of releases")
def test_the_walk_over_a_folder_finds_nothing_missing() -> None:
    table = subprocess.run(
        [sys.executable, "-m", "benchmarks.cstorch_walk", os.environ["WSE_SIM_ZOO"]],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    print(table)
    missing = [row.split("|")[3].strip() for row in table.splitlines()[2:]]
    assert missing
    assert set(missing) == {"0"}
