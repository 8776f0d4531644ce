"""Results for the tests of the report."""

from __future__ import annotations

import pytest

from tests.report.made_results import misfit, pipelined_result, small_wafer, streaming_result
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.hardware.wafer import load_wafer


@pytest.fixture(scope="session")
def wafer_result() -> Result:
    """60 regions on a whole WSE-2."""
    return pipelined_result(load_wafer("wse2"), 60)


@pytest.fixture(scope="session")
def small_result() -> Result:
    """Five regions on 4 x 4 cores."""
    return pipelined_result(small_wafer(), 5)


@pytest.fixture(scope="session")
def streamed() -> Result:
    """A weight-streaming result of two systems."""
    return streaming_result()


@pytest.fixture(scope="session")
def infeasible() -> Infeasible:
    """A model that does not fit."""
    return misfit()
