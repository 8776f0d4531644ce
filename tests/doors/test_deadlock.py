"""A kernel that deadlocks causes one sentence on the command line and from the API, and a file with all waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doors.conftest import Ran
from tests.fabric.kernels import halo_sends_first
from wse_sim.bench.command import run_kernel
from wse_sim.bench.contract import KernelCommand
from wse_sim.errors import DeadlockError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.hardware import load_wafer
from wse_sim.kernels.contract.family import Case


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is 130 x 130 cores that send more than fits before they receive."""

    def build(self: KernelCommand, *of: Any) -> Case:
        config = FabricConfig.from_wafer(load_wafer("wse2"))
        return Case(halo_sends_first(config, 130, 8), config, {}, {})

    monkeypatch.setattr(KernelCommand, "build", build)


def check(told: str, path: Path) -> None:
    """Of 16,900 cores one is named, 16,899 are counted, and all are in the file."""
    assert told.count("\n") == 0
    assert len(told) < 700
    assert "kernel 'halo' stopped: deadlock at cycle " in told
    assert "core (0, 0) waits for " in told
    assert "and 16,899 other cores wait" in told
    assert told.endswith(f"all waits are listed in {path}")
    assert "core (129, 129) waits for " in path.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("stopping")
def test_the_command_line_says_who_waits_and_where_the_list_is(
    wse: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 2, as for any fault; the list is in the folder of the output, by default `out`."""
    monkeypatch.chdir(tmp_path)
    for words, path in (((), Path("out")), (("--out", "elsewhere"), Path("elsewhere"))):
        ran = wse("kernel", "halo", "--quiet", *words)
        assert ran.status == 2
        assert ran.out == ""
        check(ran.err.strip().splitlines()[-1], path / "deadlock.txt")


@pytest.mark.slow
@pytest.mark.usefixtures("stopping")
def test_the_api_says_the_same(tmp_path: Path) -> None:
    """The caller names the file, or receives the name of one."""
    path = tmp_path / "waits.txt"
    with pytest.raises(DeadlockError) as fault:
        run_kernel("halo", {}, load_wafer("wse2"), waits=path)
    check(str(fault.value), path)
    with pytest.raises(DeadlockError) as fault:
        run_kernel("halo", {}, load_wafer("wse2"))
    made = Path(str(fault.value).rpartition(" in ")[2])
    check(str(fault.value), made)
    made.unlink()
