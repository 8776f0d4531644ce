"""Objectives that a placement of a model can minimize, and the default placer."""

THROUGHPUT, DELTA_T_WIRE, LATENCY = "throughput", "delta-t+wire", "latency"
OBJECTIVES = {
    THROUGHPUT: "the slowest kernel, then wire",
    DELTA_T_WIRE: "slowest time (cycles) + wire L1 (cores), the contest's cost",
    LATENCY: "the time of one sample alone",
}

SHELVES = "shelves"
"""Name of the default placer."""
