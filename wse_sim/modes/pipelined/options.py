"""Options of the pipelined modes, on one wafer and over several."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from wse_sim.compiler.objectives import SHELVES, THROUGHPUT
from wse_sim.compiler.placers import placer_named
from wse_sim.errors import ModelError, WseError
from wse_sim.options import MOST_SEED, Batch, Declared, Real, Recompute, Schedule, Send, Whole, option


class PlacedOptions(Declared):
    """Options of every mode that places stages; None leaves the choice to the compiler.

    ``placer``, ``seed`` and ``time_limit_s`` are those of :func:`wse_sim.compiler.stage_placement.place_stages`.
    ``recompute`` "full" runs every repeated block forward again before its backward pass. "none" stores all
    that the backward pass reads. By default everything is stored; if memory is the bottleneck, attention
    scores are recomputed, then whole blocks.
    """

    fault: ClassVar[type[WseError]] = ModelError

    batch: Batch = 1
    placer: str = option(SHELVES, "A placer by name ('wse-sim place --help' lists them).")
    seed: Whole = option(0, "Seed of the placer.", ge=0, le=MOST_SEED)
    time_limit_s: Real | None = option(
        None, "Time limit in seconds of all searches of one compilation.", unit="seconds", ge=0
    )
    recompute: Recompute = None
    send: Send = None

    @field_validator("placer")
    @classmethod
    def _is_a_placer(cls, name: str) -> str:
        """Refuse an unknown placer before a model is read."""
        if name != SHELVES:
            placer_named(name)
        return name


class PipelinedOptions(PlacedOptions):
    """Options of a pipeline on one wafer.

    ``replicas`` are parallel copies of the model, each with separate samples and at least one input worker. By
    default there is one, or, for a model that uses less than half of the wafer, as many as the workers of the
    cluster can feed. ``schedule`` "gpipe"
    stores the activations of all samples of a batch, and keeps the layout for long batches.
    """

    replicas: Whole | None = option(
        None,
        "Replicas on one wafer, each with at least one input worker (default: as many as the cluster's workers feed).",
        unit="copies",
        ge=1,
    )
    objective: str = option(THROUGHPUT, "What the placer optimizes: throughput, delta-t+wire or latency.")
    layouts: bool = option(
        True, "Search layouts for short batches too (default: they use the layout for long ones)."
    )
    schedule: Schedule = None
    prices: Literal["auto", "composed", "plain"] = option(
        "auto",
        "Prices of the fabric programs (composed) or closed forms (plain); auto: composed, except training on wafers too large to step.",
    )
    loss: Literal["cross entropy", "squared error"] | None = option(
        None, "Loss to add in training, where the model returns its outputs (default: the loss of the model)."
    )
