"""Tables of reliability: the files that killed commands left, and the answers to malformed input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks import measurements
from benchmarks.tables.base import markdown, table


@table("kills")
def _kills() -> str:
    found = measurements.read("kills")["values"]
    rows = [
        (f"`{name}`", *(str(row[key]) for key in ("kills", "writing", "earlier", "later", "lost")))
        for name, row in found.items()
    ]
    total = (
        str(sum(row[key] for row in found.values()))
        for key in ("kills", "writing", "earlier", "later", "lost")
    )
    head = (
        "command",
        "kills",
        "while it wrote",
        "left the earlier files",
        "left the new files",
        "lost or mixed",
    )
    return markdown(head, [*rows, ("all", *total)])


@table("strangers")
def _strangers() -> str:
    found = measurements.read("strangers")["values"]
    keys = ("answered", "does not fit", "refused", "wrong")

    def cells(rows: Iterable[Mapping[str, int]]) -> list[str]:
        sums = [sum(row[key] for row in rows) for key in keys]
        return [f"{sum(sums[:3]):,}", *(f"{number:,}" for number in sums)]

    rows = [(name, *cells([row])) for name, row in found.items()]
    head = ("input", "cases", "answered", "does not fit", "refused in a sentence", "answered wrongly")
    return markdown(head, [*rows, ("all", *cells(found.values()))])


@table("never-slower")
def _never_slower() -> str:
    found = measurements.read("never_slower")["values"]
    keys = ("changes", "hardware", "hardware lost", "batch", "batch lost")
    rows = [
        (name, *(f"{row.get(key, 0):,}" for key in keys), f"{100 * row['largest']:.1f} %")
        for name, row in found.items()
    ]
    head = (
        "micro-batch",
        "changes",
        "of hardware",
        "lost over 0.5 %",
        "of the batch",
        "lost over 0.5 %",
        "largest loss",
    )
    return markdown(head, rows)
