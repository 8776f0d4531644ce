"""Options of a placement; help texts and choices are generated from the list of placers."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from wse_sim.compiler.objectives import OBJECTIVES, THROUGHPUT
from wse_sim.compiler.placers.registry import placer_named, placer_names, rectangle_placer
from wse_sim.errors import ConfigError
from wse_sim.options import (
    MOST_CORES,
    MOST_COUNT,
    MOST_SEED,
    ClusterOption,
    Declared,
    Phase,
    Real,
    WaferOption,
    Whole,
    option,
)

OWN = "your own package.module:NAME"


def listed(text: str) -> list[str]:
    """Return the comma-separated names in a text, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _contest_placer(name: str) -> str:
    """Return the name of a placer of rectangles, after a check that it exists."""
    return rectangle_placer(name).name


def _model_placers(text: str) -> str:
    """Return the names of placers in a text, after a check that they exist."""
    if not listed(text):
        raise ConfigError(f"--placers names no placer; use some of {', '.join(placer_names())}")
    return ",".join(placer_named(name).name for name in listed(text))


def _objectives(text: str) -> str:
    """Return the objectives in a text, after a check that they exist."""
    for name in listed(text) or [text]:
        if name not in OBJECTIVES:
            raise ConfigError(f"objective '{name}' is unknown; use some of {', '.join(OBJECTIVES)}")
    return ",".join(listed(text))


class PlaceOptions(Declared):
    """Options of a placement: of a contest instance by one placer, or of a model by several.

    Example
    -------
    >>> PlaceOptions(placers="shelves,peel", time_limit=15).placers
    'shelves,peel'
    """

    placer: Annotated[str, AfterValidator(_contest_placer)] = option(
        "portfolio", f"Contest: {', '.join(placer_names(contest=True))}, or {OWN}."
    )
    placers: Annotated[str, AfterValidator(_model_placers)] = option(
        "shelves,peel,portfolio",
        f"Model: {', '.join(placer_names())}, or {OWN}; comma-separated.",
    )
    mode: str | None = option(
        None, "Model: a mode that places stages on regions (default: the first with resident weights)."
    )
    objective: Annotated[str, AfterValidator(_objectives)] = option(
        THROUGHPUT, f"Model: {', '.join(OBJECTIVES)}; comma-separated."
    )
    batch: Whole = option(112, "Model: samples per step.", unit="samples", ge=1, le=MOST_COUNT)
    seq: Whole | None = option(None, "Model: sequence length.", unit="tokens", ge=1, le=MOST_COUNT)
    phase: Phase = option("training", "Model: training or inference.")
    replicas: Whole | None = option(
        None,
        "Model: replicas on one wafer (default: as many as the workers of the cluster feed).",
        unit="copies",
        ge=1,
        le=MOST_CORES,
    )
    wafer: WaferOption = "wse2"
    cluster: ClusterOption = "default"
    time_limit: Real | None = option(
        None,
        "Seconds for all searches together (default: 60 contest, 20 for each placer of a model).",
        unit="seconds",
        gt=0,
        le=10**7,
    )
    seed: Whole = option(0, "Seed; equal seeds give equal placements.", ge=0, le=MOST_SEED)
