"""Counters and timings of a run."""

from __future__ import annotations


def count(name: str, n: int = 1) -> None:
    """Count an event."""


def timed(name: str, seconds: float) -> None:
    """Add a sample."""
