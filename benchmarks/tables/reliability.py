"""Reliability: what kills of commands left."""

from __future__ import annotations

from benchmarks import measured
from benchmarks.tables.base import markdown, table


@table("kills")
def _kills() -> str:
    found = measured.read("kills")["values"]
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
