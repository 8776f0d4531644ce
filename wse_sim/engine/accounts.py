"""Accounts for core time, and for the SRAM accesses of an operation, in all modes."""

from __future__ import annotations

BUSY, STALLED_INPUT, STALLED_OUTPUT, IDLE = range(4)
"""Columns of every table of times; they add up to the total time of a core."""

# What a stationary multiply-accumulate moves in SRAM: reads a 16-bit weight and an fp32 sum, writes the sum.
READ_BYTES_PER_MAC = 6
WRITE_BYTES_PER_MAC = 4
