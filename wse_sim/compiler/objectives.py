"""What a placement of a model can make small, and by whom it is made unless asked."""

THROUGHPUT, DELTA_T_WIRE, LATENCY = "throughput", "delta-t+wire", "latency"
OBJECTIVES = {
    THROUGHPUT: "the slowest kernel, then wire",
    DELTA_T_WIRE: "slowest time (cycles) + wire L1 (cores), the contest's cost",
    LATENCY: "the time of one sample alone",
}

SHELVES = "shelves"
"""The placer of a plan unless asked."""
