"""Names of the modes of a run."""

from __future__ import annotations

__all__ = ["EVAL", "EVAL_ALL", "INFERENCE", "PREDICT", "TRAIN", "TRAIN_AND_EVAL", "get_modes", "is_valid"]

TRAIN = "train"
EVAL = "eval"
EVAL_ALL = "eval_all"
TRAIN_AND_EVAL = "train_and_eval"
INFERENCE = "inference"
PREDICT = "predict"


def get_modes() -> list[str]:
    """Return all modes."""
    return [TRAIN, EVAL, EVAL_ALL, TRAIN_AND_EVAL, INFERENCE, PREDICT]


def is_valid(mode: str) -> bool:
    """Return whether a mode has that name."""
    return mode in get_modes()
