"""Logs of training scripts: lines as three generations of the vendor's tools print them, and the rate of a steady step."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wse_sim.errors import ConfigError
from wse_sim.files import read_log
from wse_sim.validation.logs import (
    EVAL,
    TRAIN,
    TrainingLog,
    batch_of,
    parse_training_log,
    read_training_log,
    steady_rate,
)

LOG = Path("mytest.log")
START = datetime(2024, 3, 14, 3, 45, 40)


def parsed(*lines: str) -> TrainingLog:
    return parse_training_log("\n".join(lines), LOG)


def line(seconds: float, step: int, rate: float, **more: object) -> str:
    """Return a line of progress as releases 2.x print it, `seconds` after the start."""
    stamp = (START + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    rest = "".join(f", {key}={value}" for key, value in more.items())
    return f"{stamp} INFO:   | Train Device=CSX, Step={step}, Loss=7.9, Rate=1.00 samples/sec, GlobalRate={rate:.2f} samples/sec{rest}"


BEGIN = "2024-03-14 03:45:40,183 INFO:   Beginning appliance run"


@pytest.mark.parametrize(
    ("text", "phase", "device", "step", "rate"),
    [
        ("| Train Device=xla:0 Step=50 Loss=8.3 Rate=69.37 GlobalRate=69.37", TRAIN, "xla:0", 50, 69.37),
        ("2023-03-24 23:02:07,002 INFO:   | Train Device=xla:0, Step=100, Loss=9.64062, Rate=7657.52 samples/sec, GlobalRate=7657.51 samples/sec",
         TRAIN, "xla:0", 100, 7657.51),
        ("\x1b[32m2024-03-14 03:46:02,970 INFO:   | Train Device=CSX, Step=100, Loss=7.93750, Rate=492.40 samples/sec, GlobalRate=492.40 samples/sec\x1b[0m",
         TRAIN, "CSX", 100, 492.40),
        ("2025-10-10 20:05:52,476 INFO:   | Train Device=CSX, Step=50, Loss=9.44598, Rate=44.84 samples/sec, GlobalRate=44.70 samples/sec, "
         "LoopTimeRemaining=0:06:42, TimeRemaining>0:06:42", TRAIN, "CSX", 50, 44.70),
        ("2025-10-09 18:19:54,361 INFO:   | Eval Device=CSX, GlobalStep=400, Batch=20, Loss=5.94325, Rate=1163.27 samples/sec, GlobalRate=1173.27 samples/sec",
         EVAL, "CSX", 20, 1173.27),
        ("Saving checkpoint:  10%|#\r| Train Device=CSX, Step=7, Loss=1.0, Rate=0.998 samples/sec, GlobalRate=0.994 samples/sec\r", TRAIN, "CSX", 7, 0.994),
    ],
)  # fmt: skip
def test_lines_of_every_release_are_read(text, phase, device, step, rate):
    log = parsed(text)
    found = log.stretches[0].lines[0]
    assert (log.stretches[0].phase, found.step, found.global_rate) == (phase, step, rate)
    assert log.devices == {device}


@pytest.mark.parametrize("device", ["GPU", "CPU", "cuda:0", "gpu"])
def test_a_run_without_a_wafer_is_no_measurement_of_one(device):
    """The same training scripts run on a CPU or a GPU, and print the same lines."""
    with pytest.raises(ConfigError, match=f"line 1 is of a run on {device}, limit Device=CSX"):
        parsed(
            f"| Train Device={device}, Step=50, Loss=2.3, Rate=700.1 samples/sec, GlobalRate=702.5 samples/sec"
        )


def test_facts_of_the_run_are_read():
    log = parsed(
        "2024-03-14 03:18:49,079 INFO:   Effective batch size is 112.",
        "2024-03-14 03:42:56,272 INFO:   Preparing to execute using 2 CSX",
        "message='Warning: job image version 2.5.1-202507111115-6-48e76807 is inconsistent with cluster server version 3.0.1-2'",
        "2025-12-06 02:45:59,387 INFO:   Compile estimated performance: 34.1 samples/sec (34.1 samples/sec/system). Estimate may vary",
        line(10, 100, 5.0),
        "2024-03-14 04:30:00,000 INFO:   Processed 11200 training sample(s) in 304.403202469 seconds.",
    )
    assert (log.batches, log.systems, log.releases, log.estimate, log.processed) == (
        {112},
        {2},
        {"2.5.1"},
        34.1,
        {11200},
    )
    assert batch_of(log) == 112


def test_the_rate_is_that_before_the_first_checkpoint():
    """After a checkpoint the host catches up with outputs that waited: steps 220 and 240 take 4 s each, at 5.4 times
    the wafer's rate, and GlobalRate is low because of the checkpoint. Only 876.45, at step 200, is the wafer's rate.
    """
    log = parsed(
        BEGIN,
        line(26.65, 20, 879.99),
        line(266.6, 200, 876.45),
        "2025-10-13 21:47:35,276 INFO:   Saving checkpoint at step 200",
        line(451.6, 220, 569.10),
        line(455.4, 240, 615.72),
    )
    found = steady_rate(log, TRAIN, 1168)
    assert found.samples_per_s == 876.45
    assert "step 200 (line 3)" in found.how


def test_an_excerpt_is_measured_by_its_time_stamps():
    """50 steps of 128 samples in 0.053 s are 120,755 samples/s; GlobalRate, 34,805, includes the slow start."""
    log = parsed(
        line(0.0, 9950, 34681.55),
        line(0.053, 10000, 34805.53),
        "Training Complete. Completed 1280000 sample(s) in 42.468820095062256 seconds.",
    )
    assert batch_of(log) == 128
    assert steady_rate(log, TRAIN, 128).samples_per_s == pytest.approx(128 * 50 / 0.053)


def test_a_batch_that_the_time_stamps_contradict_is_refused():
    """10 steps a second at GlobalRate 1,000 make a batch of 100; 400 and 25 are wrong, 104 is within the band."""
    log = parsed(BEGIN, line(10, 100, 1000.0), line(20, 200, 1000.0))
    assert steady_rate(log, TRAIN, 104).samples_per_s == 1000.0
    for wrong in (25, 400):
        with pytest.raises(ConfigError, match=r"state the `batch`.*about 100"):
            steady_rate(log, TRAIN, wrong)


def test_of_two_batches_the_one_is_taken_that_the_time_stamps_allow():
    """The params file states 3,200 and 40,000 samples in 200 steps are 200: 10 steps per second at 2,000 samples/s are
    200.
    """
    lines = [
        BEGIN,
        line(10, 100, 2000.0),
        line(20, 200, 2000.0),
        "Processed 40000 sample(s) in 20.0 seconds.",
    ]
    assert batch_of(parsed(*lines), 3200) == 200
    unstamped = [text.partition(" INFO")[2] if "Device" in text else text for text in lines]
    with pytest.raises(ConfigError, match="states a batch of 3200, its samples over its steps make 200"):
        batch_of(parsed(*unstamped), 3200)


@given(
    batch=st.integers(1, 4096),
    step_s=st.floats(0.01, 20.0),
    every=st.integers(1, 200),
    count=st.integers(2, 12),
    checkpoint_at=st.integers(2, 12),
    saving_s=st.floats(1.0, 600.0),
)
def test_a_run_with_checkpoints_gives_the_rate_of_its_steps(
    batch, step_s, every, count, checkpoint_at, saving_s
):
    """A host that sees outputs as the wafer makes them until the checkpoint: the rate is batch / step, to the digits printed."""
    lines, rate = [BEGIN], batch / step_s
    for number in range(1, count + 1):
        waited = saving_s if number > checkpoint_at else 0.0
        seconds = number * every * step_s + waited
        lines.append(line(seconds, number * every, number * every * batch / seconds))
        if number == checkpoint_at:
            lines.append(f"2024-03-14 03:45:40,183 INFO:   Saving checkpoint at step {number * every}")
    if rate < 0.01:
        return
    assert steady_rate(parsed(*lines), TRAIN, batch).samples_per_s == pytest.approx(rate, abs=0.0051)


def test_evaluation_has_a_clock_of_its_own():
    """The excerpt has training that was slowed by checkpoints, then evaluation from its 240th batch on, with its own
    GlobalRate.
    """
    log = parsed(
        line(0, 1670, 8.67),
        "2026-07-27 18:26:09,913 INFO:   Saving checkpoint at step 1680",
        "2026-07-27 18:41:53,674 INFO:   | Eval Device=CSX, GlobalStep=1680, Batch=240, Loss=0.5, Rate=59.43 samples/sec, GlobalRate=58.71 samples/sec",
        "2026-07-27 18:41:55,040 INFO:   | Eval Device=CSX, GlobalStep=1680, Batch=250, Loss=0.3, Rate=58.74 samples/sec, GlobalRate=58.70 samples/sec",
    )
    assert steady_rate(log, EVAL, 8).samples_per_s == 58.70
    with pytest.raises(ConfigError, match="give the log from its beginning"):
        steady_rate(log, TRAIN, 8)


def test_two_runs_in_one_file_are_told_apart_by_their_samples():
    first = [BEGIN, line(10, 100, 2000.0), "Processed 20000 sample(s) in 20.0 seconds."]
    second = [BEGIN, line(10, 100, 1000.0), "Processed 10000 sample(s) in 20.0 seconds."]
    with pytest.raises(ConfigError, match="holds runs of 10,000 and 20,000 samples"):
        batch_of(parsed(*first, *second))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([BEGIN, line(10, 100, float("nan"))], "GlobalRate is nan; a positive number is needed"),
        ([BEGIN, line(10, 100, 0.0)], "GlobalRate is 0.0"),
        ([BEGIN, line(0, 0, 5.0)], "its last step is 0"),
        ([line(10, 700, 5.0)], "give the log from its beginning"),
        (
            [BEGIN, "| Train Device=CSX, Step=x, GlobalRate=5 samples/sec"],
            "line 2 has no integer number of steps",
        ),
        ([BEGIN, "| Train Device=CSX, Loss=2"], "line 2 has no integer number of steps"),
        ([BEGIN, "| Train Device=CSX, Step=100"], "GlobalRate is None"),
    ],
)
def test_lines_that_say_nothing_are_refused_by_name(lines, sentence):
    with pytest.raises(ConfigError, match=sentence) as fault:
        steady_rate(parsed(*lines), TRAIN, 1)
    assert str(fault.value).startswith("mytest.log: ")


def test_logs_of_other_encodings_are_read_and_huge_ones_refused(tmp_path, monkeypatch):
    text = f"{BEGIN}\n{line(10, 100, 5.0)}\n"
    for name, data in (
        ("windows.log", text.encode("utf-16")),
        ("mark.log", b"\xef\xbb\xbf" + text.encode()),
        ("cut.log", "bar \u2588".encode()[:-1] + b"\n" + text.encode()),
    ):
        (tmp_path / name).write_bytes(data)
        assert read_training_log(tmp_path / name).stretches[0].lines[0].step == 100
    (tmp_path / "binary.log").write_bytes(b"\x7fELF\0\0")
    with pytest.raises(ConfigError, match="not text"):
        read_log(tmp_path / "binary.log")
    monkeypatch.setattr("wse_sim.files.MAX_TEXT_BYTES", 10)
    with pytest.raises(ConfigError, match="the limit is 10; keep only these lines: grep"):
        read_log(tmp_path / "mark.log")
    monkeypatch.undo()
    (tmp_path / "other.log").write_text("epoch 1 loss 2\n")
    with pytest.raises(ConfigError, match=r"other.log: contains no line '\| Train Device=CSX"):
        read_training_log(tmp_path / "other.log")
