"""Inspection of a running job: complete steps, both clocks, flows, the port and its token."""

from __future__ import annotations

import csv
import json
import os
import signal
import stat
import sys
import threading
import urllib.error
import urllib.request

import pytest
import torch
from typer.testing import CliRunner

from wse_sim import cstorch
from wse_sim.cli import app
from wse_sim.cstorch import profiler, runner, runtime, simulated
from wse_sim.cstorch.compiled import Compiled
from wse_sim.cstorch.monitor import capture, client, server, timeline
from wse_sim.errors import WseError

pytest.importorskip("perfetto")


def loader():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=draw)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16
    )


def trained(steps: int, kind: str = "CSX", artifacts=None, at=lambda number: None) -> list[float]:
    """Return the losses of a small run; ``at(n)`` is called in the closure of step n."""
    backend = cstorch.backend(kind, artifact_dir=str(artifacts))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    compiled = cstorch.compile(model, backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.05)
    losses: list[float] = []

    @cstorch.trace
    def step(x, y):
        loss = torch.nn.functional.mse_loss(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    @cstorch.step_closure
    def after(loss):
        losses.append(loss.item())
        at(len(losses))

    for x, y in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(loader), num_steps=steps):
        after(step(x, y))
    return losses


@pytest.fixture
def door(monkeypatch):
    monkeypatch.delenv("WSE_SIM_NO_PORT")
    yield
    server.stop()


@pytest.mark.slow
def test_a_capture_holds_whole_steps_and_changes_no_loss(tmp_path, door, monkeypatch) -> None:
    found: dict = {}

    def look(number: int) -> None:
        if number == 3:
            found["status"] = client.ask(client.find(), "/status")
            found["thread"] = threading.Thread(
                target=lambda: found.update(data=client.captured(client.find(), 4))
            )
            found["thread"].start()
            while not capture.recorder._waiting:
                pass

    losses = trained(12, artifacts=tmp_path, at=look)
    found["thread"].join(30)
    data = found["data"]
    # asked for in step 3: the next whole ones are 4 to 7
    assert [row[0] for row in data["steps"]] == [4, 5, 6, 7]
    assert found["status"]["step"] == 3
    # one step after another on both clocks, and the wafer's steps as long as the simulated one
    step_s = runtime.run().compiled[-1].step_s
    for (_, begin, length, start, wafer, _), after in zip(data["steps"], data["steps"][1:], strict=False):
        assert after[1] == pytest.approx(begin + length)
        assert after[3] == pytest.approx(start + wafer)
        assert wafer == pytest.approx(step_s)
    kinds = {row[0] for row in data["client"]}
    assert {"input", "replay", "closure"} <= kinds
    assert sum(row[0] == "replay" for row in data["client"]) == 4
    # The same losses without a capture, and without a simulation, which changes no number.
    runtime.reset()
    monkeypatch.setattr(
        simulated,
        "compile_program",
        lambda run, program, s: Compiled(program.name, None, None, 1, True, 0.0, 0.0),
    )
    assert trained(12, artifacts=tmp_path) == losses


def synthetic(steps: int = 3, systems: int = 2) -> dict:
    """Make a capture like that of a run: 2 ms of client and 1 ms of wafer per step, one kernel with one nested slice."""
    program = {
        "name": "step", "mode": "pipelined", "wafer": "wse2", "clock_hz": 850e6, "systems": systems, "step_s": 1e-3,
        "regions": 1, "tracks": ["layer", "host input"], "left_out": 0,
        "slices": [
            [0, "sample", "compute", 0.0, 8e-4, 0.0],
            [0, "inner", "compute", 1e-4, 2e-4, 0.0],
            [1, "batch", "input", 0.0, 1e-3, 4096.0],
        ],
    }  # fmt: skip
    return {
        "steps": [[n, 2e-3 * i, 2e-3, 1e-3 * i, 1e-3, 0] for i, n in enumerate(range(7, 7 + steps))],
        "client": [
            row
            for i in range(steps)
            for row in (["replay", "step", 2e-3 * i, 1e-3], ["closure", "", 2e-3 * i + 1.2e-3, 5e-4])
        ],
        "programs": {"0": program},
        "cut_short": False,
    }


def test_perfetto_reads_two_processes_with_flows(tmp_path) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    trace = Trace()
    trace.ParseFromString(timeline.write(synthetic(), tmp_path / "c.pftrace").read_bytes())
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }
    assert [t.process.process_name for t in tracks.values() if t.HasField("process")] == [
        "wafer: step, pipelined on 2 x wse2",
        "client",
    ]
    depth: dict[int, int] = {}
    opened: dict[int, list[str]] = {}
    starts, ends = {}, {}
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event, uuid = packet.track_event, packet.track_event.track_uuid
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            depth[uuid] = depth.get(uuid, 0) + 1
            opened.setdefault(uuid, []).append(event.name)
            starts.update((f, packet.timestamp) for f in event.flow_ids)
            ends.update((f, packet.timestamp) for f in event.terminating_flow_ids)
        else:
            depth[uuid] -= 1
            assert depth[uuid] >= 0
    assert set(depth.values()) == {0}, "every slice ends"
    names = [tracks[uuid].name for uuid in opened]
    assert names == ["steps", "layer", "host input", "steps", "replay", "closure"]
    # each of the three steps leads to its closure
    assert set(starts) == set(ends) == {7, 8, 9}
    assert ends[8] - starts[8] == 2_000_000 + 1_200_000 - 1_000_000


def test_chrome_and_holistic_trace_analysis_files(tmp_path) -> None:
    rows = json.loads(timeline.write(synthetic(), tmp_path / "c.json").read_text())["traceEvents"]
    marks = [
        (r["name"], r["ts"], r["dur"])
        for r in rows
        if r["ph"] == "X" and r["pid"] == 2 and r["cat"] == "step"
    ]
    assert marks == [(f"ProfilerStep#{n}", 2000.0 * i, 2000.0) for i, n in enumerate((7, 8, 9))]
    assert sum(r["ph"] == "s" for r in rows) == sum(r["ph"] == "f" for r in rows) == 3
    files = timeline.write_hta(synthetic(), tmp_path / "hta")
    assert [f.name for f in files] == ["rank0.json", "rank1.json"]
    held = json.loads(files[1].read_text())
    assert held["distributedInfo"] == {"backend": "nccl", "rank": 1, "world_size": 2}
    kinds = {r["cat"] for r in held["traceEvents"]}
    devices = {r["args"]["device"] for r in held["traceEvents"] if r["cat"] in ("kernel", "gpu_memcpy")}
    assert devices == {0}  # a rank has one, which is the first of its own
    assert kinds == {"kernel", "gpu_memcpy", "user_annotation", "cpu_op"}
    busy = sum(r["dur"] for r in held["traceEvents"] if r["cat"] == "kernel" and "sample" in r["name"])
    assert busy == 3 * 800.0  # microseconds
    table = list(csv.DictReader((tmp_path / "hta" / "durations.csv").read_text().splitlines()))
    sample = [r for r in table if "sample" in r["name"]]
    # 0.8 ms at 850 MHz, once a step, on both systems
    assert [(r["rank"], r["calls"], r["mean_cycles"]) for r in sample] == [
        ("0", "3", "680000.0"),
        ("1", "3", "680000.0"),
    ]
    with pytest.raises(WseError, match="no complete step"):
        timeline.write({**synthetic(), "steps": []}, tmp_path / "none.json")


def test_slices_that_overlap_get_a_track_of_their_own() -> None:
    rows = [["closure", "a", 0.0, 2e-3], ["closure", "b", 1e-3, 2e-3], ["closure", "c", 1.5e-3, 1e-4]]
    data = {**synthetic(1), "client": rows}
    tracks = timeline.groups(data)[1].tracks
    assert [e.name for e in tracks["closure"]] == ["a", "c"]
    assert [e.name for e in tracks["closure (overlapping)"]] == ["b"]


def test_a_program_captures_itself(tmp_path) -> None:
    handler = profiler.tensorboard_trace_handler(tmp_path, "worker")
    with profiler.profile(
        schedule=profiler.schedule(start_step=2, end_step=3), on_trace_ready=handler
    ) as prof:
        trained(5, kind="CPU", artifacts=tmp_path)
    assert [row[0] for row in prof.data()["steps"]] == [2, 3]
    assert "2 steps" in prof.get_summary()
    assert prof.appliance_response
    assert len(list(tmp_path.glob("worker.*.pt.trace.json"))) == 1
    assert profiler.schedule(wait=1, warmup=1, active=3) == profiler.Schedule(3, 5)
    with profiler.profile() as whole:
        trained(2, kind="CPU", artifacts=tmp_path)
    assert len(whole.data()["steps"]) == 2
    with pytest.raises(RuntimeError, match="not a range"):
        profiler.schedule(5, 3)


def test_the_door_asks_for_a_token(door, tmp_path) -> None:
    port = server.start()
    assert server.start() == port
    entry = client.find(port)
    file = server.registry() / f"{os.getpid()}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for token in ("", "wrong"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/status", headers={"Authorization": f"Bearer {token}"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        assert caught.value.code == 401
    assert client.ask(entry, "/status")["step"] == 0
    runtime.note("a line")
    log = client.ask(entry, "/log?after=0")
    assert log["lines"][-1] == "a line"
    assert client.ask(entry, f"/log?after={log['next']}")["lines"] == []
    client.ask(entry, "/stop", {})
    assert runtime.run().stop_requested
    for path, given, words in (
        ("/nothing", None, "there is no /nothing"),
        ("/capture", {"steps": 0}, "steps=0"),
        ("/capture", {"seconds": -1}, "seconds=-1"),
        ("/save", {}, "nothing is compiled"),
        ("/log?after=x", None, "not a line number"),
    ):
        with pytest.raises(WseError, match=words):
            client.ask(entry, path, given)
    server.stop()
    assert not file.exists()
    with pytest.raises(WseError, match="listens"):
        client.ask(client.find(port), "/status")


def test_the_entry_names_the_run_that_is_live_now(door, tmp_path, monkeypatch) -> None:
    """A second run of one process with a moved registry has the same port and one entry, with the second run's folder."""
    found = []
    for name in ("first", "second"):
        runtime.reset()
        monkeypatch.setenv("WSE_SIM_RUNS", str(tmp_path / name / "state"))
        trained(1, artifacts=tmp_path / name, at=lambda number: found.append(client.find()))
    assert found[0].port == found[1].port
    assert [entry.folder for entry in found] == [str(tmp_path / "first"), str(tmp_path / "second")]
    assert not list((tmp_path / "first" / "state" / "runs").iterdir())


def test_a_script_leaves_no_port_and_no_handler_behind(door, tmp_path, monkeypatch) -> None:
    """A notebook or a test runs a script in its own process."""
    script = tmp_path / "live.py"
    script.write_text(
        "from wse_sim.cstorch.monitor import client, start_server\nstart_server()\nprint(client.find().port)\n"
    )
    monkeypatch.setattr("sys.argv", list(sys.argv))
    monkeypatch.setattr("sys.path", list(sys.path))
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, own := lambda number, frame: found.append(number))
    try:
        assert runner.run_script(str(script), []) == 0
        assert client.live() == []
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stopped_run_ends_after_its_step(tmp_path) -> None:
    losses = trained(20, kind="CPU", artifacts=tmp_path, at=lambda n: n == 4 and runtime.run().request_stop())
    assert len(losses) == 4


def test_the_command_says_what_is_wrong(tmp_path) -> None:
    typer_runner = CliRunner()
    assert "no live run" in typer_runner.invoke(app, ["capture", "--list"]).output
    for arguments, words in (
        (["capture"], "no run is live"),
        (["capture", "12345"], "12345"),
        (["capture", "--steps", "0"], "--steps 0"),
        (["capture", "--seconds", "-1"], "--seconds -1"),
    ):
        done = typer_runner.invoke(app, arguments)
        assert isinstance(done.exception, WseError)
        assert words in str(done.exception)
