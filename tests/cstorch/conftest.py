"""Every test starts without a run, and opens no port unless it requests one."""

from __future__ import annotations

import pytest

from wse_sim.cstorch import runtime


@pytest.fixture(autouse=True)
def no_run(monkeypatch, tmp_path):
    monkeypatch.setenv("WSE_SIM_NO_PORT", "1")
    monkeypatch.setenv("WSE_SIM_RUNS", str(tmp_path / "state"))
    runtime.reset()
    yield
    runtime.reset()
