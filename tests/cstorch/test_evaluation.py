"""Metrics against their definitions counted by hand; summaries; rates; the metrics report."""

from __future__ import annotations

import json
import math
import weakref

import pytest
import torch

from wse_sim.cstorch import counters as report
from wse_sim.cstorch import metrics, summaries
from wse_sim.cstorch.experimental import metrics as legacy
from wse_sim.cstorch.faults import ProgramError
from wse_sim.cstorch.metrics import metric
from wse_sim.cstorch.metrics.metric import reset_all
from wse_sim.cstorch.utils.tensorboard import JsonLinesWriter
from wse_sim.cstorch.utils.tracker import RateTracker

LABELS = torch.tensor([0, 1, 2, 1, 0, 2])
PREDICTED = torch.tensor([0, 1, 1, 1, 2, 2])
# class 0: tp 1 fp 0 fn 1; class 1: tp 2 fp 1 fn 0; class 2: tp 1 fp 1 fn 1


def run(metric, parts: int = 2, **more) -> float:
    for labels, predicted in zip(LABELS.chunk(parts), PREDICTED.chunk(parts), strict=True):
        metric(labels=labels, predictions=predicted, **more)
    return float(metric)


def test_values_over_several_batches() -> None:
    assert run(metrics.AccuracyMetric("a")) == pytest.approx(4 / 6)
    weighted = metrics.AccuracyMetric("w")
    weighted(labels=LABELS, predictions=PREDICTED, weights=torch.tensor([1.0, 1, 0, 1, 1, 0]))
    assert float(weighted) == pytest.approx(3 / 4)
    # micro F1 = 2 * 4 / (2 * 4 + 2 + 2); macro: F of the classes 2/3, 4/5, 1/2
    assert run(metrics.FBetaScoreMetric(3)) == pytest.approx(8 / 12)
    assert run(metrics.FBetaScoreMetric(3, average_type="macro")) == pytest.approx(
        (2 / 3 + 4 / 5 + 1 / 2) / 3
    )
    # beta 2, class 0 left out with the samples that it labels: class 1: tp 2 fp 1; class 2: tp 1 fn 1
    assert run(metrics.FBetaScoreMetric(3, beta=2.0, ignore_labels=[0])) == pytest.approx(
        15 / (15 + 4 * 1 + 1)
    )
    assert run(metrics.DiceCoefficientMetric(3)) == pytest.approx((2 / 3 + 4 / 5 + 2 / 4) / 3)
    assert run(metrics.MeanIOUMetric(4)) == pytest.approx((1 / 2 + 2 / 3 + 1 / 3) / 3)
    # Of the samples that class 1 labels all are right; both keywords leave classes out.
    both = metrics.MeanIOUMetric(3, ignore_labels=[0], ignore_classes=[2])
    assert run(both) == run(metrics.MeanIOUMetric(3, ignore_classes=[0, 2])) == 1.0
    perplexity = metrics.PerplexityMetric("p")
    for loss in (2.0, 4.0):
        perplexity(labels=torch.zeros(3), loss=torch.tensor(loss))
    assert float(perplexity) == pytest.approx(math.exp(6 / 6))
    mean = metrics.MeanMetric("m")
    mean(torch.tensor([1.0, 3.0]), weights=torch.tensor([1.0, 3.0]))
    assert float(mean) == pytest.approx(10 / 4)


class Largest(metrics.Metric):
    def reset(self):
        self.best = torch.tensor(-1.0)

    def update(self, values):
        self.best = torch.maximum(self.best, values.max())

    def compute(self):
        return self.best


def test_own_metric_keeps_one_tensor_and_starts_anew() -> None:
    largest = Largest("largest")
    held = largest.best
    largest(torch.tensor([3.0, 9.0]))
    largest(torch.tensor([4.0]))
    assert largest.best is held
    assert float(largest) == 9.0
    reset_all()
    assert float(largest) == -1.0
    assert largest.best is held


def test_all_metrics_by_name(monkeypatch) -> None:
    monkeypatch.setattr(
        metric, "_live", weakref.WeakSet()
    )  # those of other tests live until they are collected
    first, second = metrics.AccuracyMetric("twice"), metrics.AccuracyMetric("twice")
    first(labels=LABELS, predictions=LABELS)
    second(labels=LABELS, predictions=PREDICTED)
    found = metrics.compute_all_metrics()
    assert found[first.name] == 1.0
    assert second.name != first.name
    assert (first.name, 1.0) in legacy.compute_all_metrics()
    with pytest.raises(ProgramError, match="average_type"):
        metrics.FBetaScoreMetric(3, average_type="median")


def test_summaries_carry_their_scope(tmp_path) -> None:
    writer = JsonLinesWriter(tmp_path)
    with summaries.name_scope("train"), summaries.name_scope("norm"):
        summaries.summarize_scalar("grad", torch.tensor(2.5))
    summaries.summarize_tensor("weight", torch.tensor([1.0, -2.0]))
    summaries.save_summaries(writer, 7)
    writer.add_scalars("two", {"a": 1, "b": 2}, 8)
    writer.close()
    rows = [json.loads(line) for line in (tmp_path / "summaries.jsonl").read_text().splitlines()]
    assert [(r["tag"], r["step"]) for r in rows] == [
        ("train/norm/grad", 7),
        ("weight", 7),
        ("two/a", 8),
        ("two/b", 8),
    ]
    assert rows[0]["value"] == 2.5
    assert rows[1]["value"]["min"] == -2.0
    assert rows[1]["value"]["rms"] == pytest.approx(math.sqrt(2.5))


def test_rates_are_smoothed_over_looks() -> None:
    now = [0.0]
    tracker = RateTracker(clock=lambda: now[0])
    seen = []
    for seconds, samples in ((1.0, 100), (2.0, 100), (1.0, 400)):
        now[0] += seconds
        tracker.add(samples)
        seen.append(tracker.rate)
    # 100; 0.4 * 100 + 0.6 * 50 = 70; 0.4 * 70 + 0.6 * 400 = 268
    assert seen == pytest.approx([100.0, 70.0, 268.0])
    assert tracker.rate() == tracker.rate == pytest.approx(268.0)
    assert tracker.global_rate == pytest.approx(600 / 4)
    assert (tracker.total_samples, tracker.total_time) == (600, 4.0)


def test_metrics_report_in_words() -> None:
    report.clear_all()
    for ms in range(100):
        report.timed("ReplayTime", ms / 1e3)
    report.timed("CompileTime", 3723.004005)
    report.count("StepsDone", 3)
    report.count("StepsDone")
    text = report.metrics_report()
    assert "Metric: CompileTime\n  TotalSamples: 1\n  Accumulator: 01h02m03s004ms005.000us\n" in text
    assert "50%=050ms000.000us" in text
    assert "Counter: StepsDone\n  Value: 4" in text
    assert report.counter_value("StepsDone") == 4
    assert report.counter_value("Nothing") is None
    assert report.metric_data("ReplayTime")[0] == 100
    assert "CompileTime" in report.short_metrics_report()
    assert (
        report.short_metrics_report(counter_names=["StepsDone"], metric_names=["None"])
        == "Counter: StepsDone\n  Value: 4\n"
    )
    report.clear_all()
    assert report.metrics_report() == ""
