"""Table of random whole models on the fabric: the error of the event engine, with the plan of a run and with plain
prices.
"""

from __future__ import annotations

from benchmarks import measurements
from benchmarks.distribution import BOUNDS, GROUPS, SIZES_AND_MODES, Groups, outcomes, summary
from benchmarks.measurements import Row
from benchmarks.tables.base import markdown, percent, table

TAIL = 0.30
"""Rows beyond it are shown one by one."""


def _rows() -> list[Row]:
    found: list[Row] = measurements.read("random_models")["values"]["rows"]
    return found


@table("random.models")
def _random_models() -> str:
    return _differences(GROUPS)


@table("random.sizes_and_modes")
def _random_sizes_and_modes() -> str:
    return _differences(SIZES_AND_MODES)


def _differences(groups: Groups) -> str:
    lines = [
        (line["group"], line["plan"], str(line["n"]), percent(line["median"], sign=False), percent(line["p90"], 0, sign=False),
         percent(line["worst"], 0), *(percent(part, 0, sign=False) for part in line["within"]))
        for line in summary(_rows(), groups)
    ]  # fmt: skip
    bounds = (f"within {percent(bound, 0, sign=False)}" for bound in BOUNDS)
    return markdown(
        ("models", "plan", "number", "median of the size", "90th percentile", "worst", *bounds), lines
    )


@table("random.outcomes")
def _random_outcomes() -> str:
    rows = _rows()
    counted = outcomes(rows)
    worst = max(row["worst_error"] for row in rows if "worst_error" in row)
    ran = [row for row in rows if row["outcome"] == "run"]
    ordered = [row for row in ran if "same_order" in row]
    lines = [
        *((name, str(number)) for name, number in counted.items()),
        ("worst tensor beside a PyTorch that rounds alike", percent(worst, 2, sign=False)),
        (
            "starts of regions in the engine's order",
            f"{sum(row['same_order'] for row in ordered)} of {len(ordered)}",
        ),
        ("books closed", f"{sum(row['books_closed'] for row in ran)} of {len(ran)}"),
    ]
    return markdown(("outcome", "models"), lines)


@table("random.tail")
def _random_tail() -> str:
    rows = sorted(
        (row for row in _rows() if abs(row.get("composed", 0)) > TAIL), key=lambda row: -abs(row["composed"])
    )
    lines = [
        (str(row["seed"]), row["kind"], row["phase"], " x ".join(map(str, row["shape"])), f"{row['side']} x {row['side']}",
         row["base"].upper().replace("WSE", "WSE-"), f"{row['engine_cycles']:,.0f}", f"{row['fabric_cycles']:,.0f}",
         percent(row["composed"], 0))
        for row in rows
    ]  # fmt: skip
    return markdown(
        ("seed", "kind", "phase", "a sample", "cores", "wafer", "event engine", "fabric", "difference"), lines
    )
