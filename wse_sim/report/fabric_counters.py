"""Counters measured on the fabric, for the page of a run: maps of cores next to the planned ones, and a table
of regions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wse_sim.report.heatmap import DIRECTIONS

OF_A_RUN = "fraction of the cycles stepped"


@dataclass(frozen=True)
class MeasuredMap:
    """One map: values (rows, cols) of the cores; `fold` is the rule by which cores become one when zoomed out."""

    key: str
    title: str
    unit: str
    fold: str
    values: NDArray[np.float32]


@dataclass(frozen=True)
class MeasuredCounters:
    """Maps, a sentence about the rate, and a table of text with headings; columns from the second on are
    numeric.

    `hint` describes the content of the table.
    """

    sentence: str
    hint: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    maps: tuple[MeasuredMap, ...] = field(repr=False)


def measured_maps(
    cycles: int,
    states: tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]],
    link_words: NDArray[np.integer],
) -> tuple[MeasuredMap, ...]:
    """Maps of a run of `cycles`.

    `states`: cycles (rows, cols) in which a core issued, waited for input, for output, and had nothing to do;
    `link_words` (rows, cols, 4 or more): words that left over the links north, east, south, west.
    """
    titles = (
        "Measured: issuing",
        "Measured: stalled on input",
        "Measured: stalled on output",
        "Measured: idle",
    )
    keys = ("busy", "stalled_input", "stalled_output", "idle")
    fractions = tuple(
        MeasuredMap(f"measured_{key}", title, OF_A_RUN, "mean", (state / cycles).astype(np.float32))
        for key, title, state in zip(keys, titles, states, strict=True)
    )
    return (*fractions, *_links("measured", "Measured", link_words[:, :, : len(DIRECTIONS)] / cycles))


def laid_maps(words_per_cycle: NDArray[np.floating]) -> tuple[MeasuredMap, ...]:
    """Return the words per link, (rows, cols, 4), of the streams alone, on the routes of the program."""
    return _links("laid", "Streams as laid", words_per_cycle)


def _links(key: str, title: str, words_per_cycle: NDArray[np.floating]) -> tuple[MeasuredMap, ...]:
    return tuple(
        MeasuredMap(
            f"link_{key}_{name[0]}",
            f"{title}: link {name}",
            "words per cycle",
            "max",
            words_per_cycle[:, :, i].astype(np.float32),
        )
        for i, name in enumerate(DIRECTIONS)
    )
