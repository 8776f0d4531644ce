"""Metrics with the experimental interface: ``compute_all_metrics`` returns pairs."""

from __future__ import annotations

from wse_sim.cstorch.metrics import (
    AccuracyMetric,
    DiceCoefficientMetric,
    FBetaScoreMetric,
    MeanIOUMetric,
    MeanMetric,
    Metric,
    PerplexityMetric,
    get_all_metrics,
)
from wse_sim.cstorch.metrics import compute_all_metrics as _as_dict

__all__ = [
    "AccuracyMetric",
    "DiceCoefficientMetric",
    "FBetaScoreMetric",
    "MeanIOUMetric",
    "MeanMetric",
    "Metric",
    "PerplexityMetric",
    "compute_all_metrics",
    "get_all_metrics",
]


def compute_all_metrics() -> list[tuple[str, float]]:
    """Return (name, value) of all metrics."""
    return list(_as_dict().items())
