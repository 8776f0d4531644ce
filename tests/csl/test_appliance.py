"""Scripts written for a cluster: compile, run and launch by `cerebras.sdk.client`, on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.host.commands import run_commands

LAYOUT = """
param n: i16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0), .n = n });
  @export_name("y", [*]f32, false);
  @export_name("f", fn()void);
}
"""
PROGRAM = """
param memcpy_params: comptime_struct;
param n: i16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var y = @zeros([n]f32);
const y_ptr: [*]f32 = &y;
fn f() void { for (@range(i16, n)) |i| { y[i] = @as(f32, i * i); } sys.unblock_cmd_stream(); }
comptime { @export_symbol(y_ptr, "y"); @export_symbol(f); }
"""
COPY = """
    y = np.zeros(4, np.float32)
    runner.memcpy_d2h(y, runner.get_id("y"), 0, 0, 1, 1, 4, streaming=False, order=MemcpyOrder.ROW_MAJOR,
                      data_type=MemcpyDataType.MEMCPY_32BIT, nonblock=False)
"""
CLUSTER = f"""
import os
import numpy as np
from cerebras.appliance.pb.sdk.sdk_common_pb2 import MemcpyDataType, MemcpyOrder
from cerebras.sdk.client import SdkCompiler, SdkLauncher, SdkRuntime

with SdkCompiler(disable_version_check=True) as compiler:
    path = compiler.compile("src", "layout.csl", "--arch wse3 --fabric-dims=8,3 --fabric-offsets=4,1 --params=n:4 -o latest --memcpy --channels=1", "made")
assert path.startswith(os.path.abspath("made") + "/cs_") and path.endswith(".tar.gz"), path
os.rename(path, "moved.tar.gz")
path = "moved.tar.gz"
with SdkRuntime(path, simulator=True) as runner:
    runner.launch("f", nonblock=False)
{COPY}
np.testing.assert_array_equal(y, [0, 1, 4, 9])
with SdkLauncher(path, simulator=True) as launcher:
    launcher.stage("run.py")
    print(launcher.run("cs_python run.py --name latest --cmaddr %CMADDR%").strip())
    launcher.download_artifact("said.txt", "fetched/said.txt")
"""
RUN = f"""
import argparse
import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
parser = argparse.ArgumentParser()
parser.add_argument("--name")
parser.add_argument("--cmaddr")
given = parser.parse_args()
runner = SdkRuntime(given.name, cmaddr=given.cmaddr)
if True:
    runner.load()
    runner.run()
    runner.launch("f", nonblock=False)
{COPY}
    runner.stop()
open("said.txt", "w").write(str(y.sum()))
print("sum", y.sum())
"""


@pytest.mark.slow  # three processes
def test_a_script_for_a_cluster_runs_here(tmp_path: Path) -> None:
    """`python FILE.py` in a command file, as the scripts of clusters are started; y = 0, 1, 4, 9."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "layout.csl").write_text(LAYOUT)
    (tmp_path / "src" / "pe.csl").write_text(PROGRAM)
    (tmp_path / "cluster.py").write_text(CLUSTER)
    (tmp_path / "run.py").write_text(RUN)
    (tmp_path / "plain.py").write_text("print('plain')\n")
    (tmp_path / "commands.sh").write_text(
        "set -e\npython cluster.py\npython3 plain.py\necho $CSLC $CS_PYTHON\n"
    )
    done = run_commands(tmp_path / "commands.sh", quiet=True, timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert "sum 14.0" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["plain", "cslc cs_python"]
    assert (tmp_path / "fetched" / "said.txt").read_text() == "14.0"
    assert (tmp_path / "made" / "latest" / "out.json").is_file()


def test_what_is_no_artifact_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wse_sim.csl.host.appliance import SdkCompiler, SdkLauncher

    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        HostError, match=r"'none' is not an artifact; give what SdkCompiler\.compile returned"
    ):
        SdkLauncher("none")
    Path("wrong.tar.gz").write_text("no archive")
    with pytest.raises(HostError, match=r"'wrong\.tar\.gz' is not an artifact"):
        SdkLauncher("wrong.tar.gz")
    with pytest.raises(HostError, match=r"'src' is not a folder; give the one that holds 'layout\.csl'"):
        SdkCompiler().compile("src", "layout.csl")
