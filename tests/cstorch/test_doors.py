"""The names under which public scripts import the interface exist only on request."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_doors_open_on_request_and_show_the_same_objects():
    program = (
        "import importlib.util, sys\n"
        "import wse_sim.cstorch as cstorch\n"
        "assert not any(n.startswith('cerebras') for n in sys.modules)\n"
        "assert importlib.util.find_spec('cerebras_pytorch') is None\n"
        "cstorch.install_aliases()\n"
        "import cerebras.pytorch as present, cerebras_pytorch as legacy\n"
        "from cerebras.pytorch.optim.lr_scheduler import LinearLR\n"
        "from cerebras.appliance.errors import ApplianceNanError\n"
        "assert present.trace is legacy.trace is cstorch.trace\n"
        "assert present.optim.AdamW is cstorch.optim.AdamW\n"
        "import cerebras_pytorch.backend\n"
        "assert callable(legacy.backend)\n"
        "try:\n"
        "    present.no_such_name\n"
        "except AttributeError as fault:\n"
        "    assert 'docs/cstorch.md' in str(fault)\n"
        "else:\n"
        "    raise SystemExit('a name that is missing was served')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
