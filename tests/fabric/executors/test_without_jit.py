"""All executors run as plain Python, in which a kernel can be followed with a debugger."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.fabric.without_jit import digests


@pytest.mark.slow
def test_ten_programs_come_out_the_same_without_the_jit() -> None:
    """Cycles, counters, deadlocks and values of three executors are equal, interpreted and compiled, without overflow."""
    out = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.fabric.without_jit"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    interpreted = json.loads(out.stdout)
    assert interpreted["jit"] is False
    compiled = json.loads(json.dumps(digests()))
    assert len(compiled) == 40
    assert len({str(digest) for digest in compiled.values()}) >= 10
    assert interpreted["digests"] == compiled
