"""Equality of a stream run with a stepped run, field by field."""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.run import FabricResult

FIELDS = (
    "cycles", "halt_cycles", "busy", "stalled_in", "stalled_out", "idle", "sent", "received", "link_wavelets", "words_left",
)  # fmt: skip


def differences(stream: FabricResult, reference: FabricResult, buffers: tuple[str, ...] = ()) -> list[str]:
    """Names of fields that differ; the deadlock report counts as one field."""
    found = [name for name in FIELDS if not np.array_equal(getattr(stream, name), getattr(reference, name))]
    found += [
        name
        for name in buffers
        if not np.array_equal(stream.read(name), reference.read(name), equal_nan=True)
    ]
    if stream.deadlock != reference.deadlock:
        found.append("deadlock")
    return found
