"""Every test starts without a run, and opens no port unless it requests one."""

from __future__ import annotations

import pytest
from torch.overrides import _get_current_function_mode_stack

from wse_sim.cstorch import runtime
from wse_sim.cstorch.device import WaferDeviceMode


@pytest.fixture(autouse=True)
def no_run(monkeypatch, tmp_path):
    monkeypatch.setenv("WSE_SIM_NO_PORT", "1")
    monkeypatch.setenv("WSE_SIM_RUNS", str(tmp_path / "state"))
    runtime.reset()
    yield
    runtime.reset()
    left = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, WaferDeviceMode)]
    assert not left, "the device of the wafer would receive the calls of later tests"
