"""Evaluation metrics, summed on the wafer.

accuracy    sum(w [label = prediction]) / sum(w)
perplexity  exp(sum(loss) / number of tokens)
F-beta      (1 + b^2) tp / ((1 + b^2) tp + b^2 fn + fp)
Dice        2 tp / (2 tp + fp + fn), mean over classes
IoU         tp / (tp + fp + fn), mean over classes that occur
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wse_sim.cstorch import faults
from wse_sim.cstorch.metrics.metric import Metric, compute_all_metrics, get_all_metrics

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


class AccuracyMetric(Metric):
    """Fraction of predictions that equal their labels."""

    def reset(self) -> None:
        self.total_correct_predictions = torch.tensor(0.0)
        self.total_num_tokens = torch.tensor(0.0)

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        right = (labels == predictions).float()
        if weights is None:
            self.total_correct_predictions += right.sum()
            self.total_num_tokens += float(right.numel())
        else:
            self.total_correct_predictions += (right * weights.float()).sum()
            self.total_num_tokens += weights.float().sum()

    def compute(self) -> torch.Tensor:
        return self.total_correct_predictions / self.total_num_tokens


class PerplexityMetric(Metric):
    """The exponential of the mean loss per token; ``loss`` is the sum over the batch's tokens."""

    def reset(self) -> None:
        self.total_loss = torch.tensor(0.0)
        self.total_num_tokens = torch.tensor(0.0)

    def update(
        self,
        labels: torch.Tensor,
        loss: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.total_loss += loss.float()
        self.total_num_tokens += float(labels.numel()) if weights is None else weights.float().sum()

    def compute(self) -> torch.Tensor:
        return torch.exp(self.total_loss / self.total_num_tokens)


class MeanMetric(Metric):
    """The weighted mean of a value."""

    def reset(self) -> None:
        self.total = torch.tensor(0.0)
        self.weight = torch.tensor(0.0)

    def update(
        self, value: torch.Tensor, weights: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> None:
        if weights is None:
            self.total += value.float().sum()
            self.weight += float(value.numel())
        else:
            self.total += (value.float() * weights.float()).sum()
            self.weight += weights.float().expand_as(value).sum()

    def compute(self) -> torch.Tensor:
        return self.total / self.weight


class _PerClass(Metric):
    """Counts of right, predicted and labelled samples for each class."""

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        ignore_labels: Sequence[int] | None = None,
        compute_on_system: bool = True,
    ) -> None:
        if num_classes < 1:
            raise faults.program_error(f"{type(self).__name__}: num_classes={num_classes} must be at least 1")
        self.num_classes = num_classes
        self.classes = [c for c in range(num_classes) if c not in set(ignore_labels or ())]
        super().__init__(name, compute_on_system)

    def reset(self) -> None:
        self.right = torch.zeros(self.num_classes)
        self.predicted = torch.zeros(self.num_classes)
        self.labelled = torch.zeros(self.num_classes)

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        classes = torch.arange(self.num_classes, device=labels.device)
        flat = labels.reshape(-1, 1)
        is_label, is_prediction = (flat == classes).float(), (predictions.reshape(-1, 1) == classes).float()
        # A prediction counts only where the label does: ignored labels are no samples.
        counted = torch.zeros_like(is_label[:, :1])
        for c in self.classes:
            counted = counted + is_label[:, c : c + 1]
        if weights is not None:
            counted = counted * weights.reshape(-1, 1).float()
        self.right += (is_label * is_prediction * counted).sum(0)
        self.predicted += (is_prediction * counted).sum(0)
        self.labelled += (is_label * counted).sum(0)

    def _counts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (true positives, false positives, false negatives) of the classes that count."""
        tp, predicted, labelled = (
            torch.stack([t[c] for c in self.classes]) for t in (self.right, self.predicted, self.labelled)
        )
        return tp, predicted - tp, labelled - tp


class FBetaScoreMetric(_PerClass):
    """F-beta score, over all classes together ("micro") or as the mean of the classes ("macro")."""

    def __init__(
        self,
        num_classes: int,
        beta: float = 1.0,
        average_type: str = "micro",
        ignore_labels: Sequence[int] | None = None,
        name: str | None = None,
        compute_on_system: bool = True,
    ) -> None:
        if average_type not in ("micro", "macro"):
            raise faults.program_error(
                f"FBetaScoreMetric: average_type='{average_type}' is neither 'micro' nor 'macro'"
            )
        if beta <= 0:
            raise faults.program_error(f"FBetaScoreMetric: beta={beta} must be positive")
        self.beta, self.average_type = beta, average_type
        super().__init__(num_classes, name, ignore_labels, compute_on_system)

    def compute(self) -> torch.Tensor:
        tp, fp, fn = self._counts()
        if self.average_type == "micro":
            tp, fp, fn = tp.sum(), fp.sum(), fn.sum()
        square = self.beta**2
        whole = (1 + square) * tp + square * fn + fp
        return torch.where(whole > 0, (1 + square) * tp / whole.clamp(min=1e-30), 0.0).mean()


class DiceCoefficientMetric(_PerClass):
    """Dice coefficient, mean over classes."""

    def compute(self) -> torch.Tensor:
        tp, fp, fn = self._counts()
        whole = 2 * tp + fp + fn
        return torch.where(whole > 0, 2 * tp / whole.clamp(min=1e-30), 0.0).mean()


class MeanIOUMetric(_PerClass):
    """Intersection over union, mean over the classes that occur and are not among `ignore_classes`."""

    def __init__(
        self,
        num_classes: int,
        name: str | None = None,
        ignore_labels: Sequence[int] | None = None,
        compute_on_system: bool = True,
        ignore_classes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            num_classes, name, [*(ignore_labels or ()), *(ignore_classes or ())], compute_on_system
        )

    def compute(self) -> torch.Tensor:
        tp, fp, fn = self._counts()
        union = tp + fp + fn
        occurs = (union > 0).float()
        return (tp / union.clamp(min=1e-30) * occurs).sum() / occurs.sum().clamp(min=1.0)
