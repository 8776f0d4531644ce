"""Summarizes the differences of random models: rows of :mod:`benchmarks.random_models` by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.measurements import Row

FIT = "does not fit"
Groups = tuple[tuple[str, Callable[[Row], bool]], ...]
GROUPS: Groups = (
    ("all", lambda row: True),
    ("inference", lambda row: row["phase"] == "inference"),
    ("training", lambda row: row["phase"] == "training"),
    ("WSE-2", lambda row: row["base"] == "wse2"),
    ("WSE-3", lambda row: row["base"] == "wse3"),
)
SIZES_AND_MODES: Groups = (
    ("pipelines", lambda row: row["kind"] != "streamed"),
    ("streamed weights", lambda row: row["kind"] == "streamed"),
    ("16 to 24 columns", lambda row: row["side"] <= 24),
    ("32 to 40 columns", lambda row: 24 < row["side"] <= 40),
    ("48 to 64 columns", lambda row: row["side"] > 40),
)
PLANS = ("composed", "run", "plain")
BOUNDS = (0.05, 0.10, 0.30)


def distribution(differences: Sequence[float]) -> Row:
    """Return, for the sizes of differences: median, 90th percentile, fractions within bounds; and the worst, with its
    sign.
    """
    sizes = np.abs(differences)
    return {
        "n": len(sizes),
        "median": float(np.median(sizes)),
        "p90": float(np.percentile(sizes, 90)),
        "worst": float(differences[int(sizes.argmax())]),
        "within": [float((sizes <= bound).mean()) for bound in BOUNDS],
    }


def summary(rows: Sequence[Row], groups: Groups = GROUPS) -> list[Row]:
    """Return a line for every group and plan."""
    return [
        {"group": name, "plan": plan, **distribution(found)}
        for plan in PLANS
        for name, chosen in groups
        if (found := [row[plan] for row in rows if plan in row and chosen(row)])
    ]


def outcomes(rows: Sequence[Row]) -> dict[str, int]:
    """Count the models that were run, refused and so on."""
    counted = Counter(row["outcome"] for row in rows)
    return {name: counted[name] for name in ("run", "refused", FIT, "stalled", "crashed")}
