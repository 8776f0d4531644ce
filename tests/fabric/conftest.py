"""Constants of the two wafers as the fabric executors read them."""

from __future__ import annotations

import pytest

from wse_sim.fabric.format.config import FabricConfig
from wse_sim.hardware import load_wafer


@pytest.fixture(scope="session")
def wse2() -> FabricConfig:
    return FabricConfig.from_wafer(load_wafer("wse2"))


@pytest.fixture(scope="session")
def wse3() -> FabricConfig:
    return FabricConfig.from_wafer(load_wafer("wse3"))
