"""The options of a run as keyword arguments: for type checkers and for completion at a prompt.

The declaration is :class:`wse_sim.options.RunOptions`; a test holds the names and types here to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from wse_sim.hardware import Cluster, Wafer
from wse_sim.options import Declared, RunOptions

F = TypeVar("F", bound=Callable[..., object])


OptionValues = Mapping[str, Any]


class RunKeywords(TypedDict, total=False):
    """Fields of :class:`wse_sim.options.RunOptions`, which documents their meaning and limits."""

    mode: str
    phase: Literal["training", "inference"]
    batch: int
    seq: int | None
    wafer: Wafer | str
    cluster: Cluster | str
    clock: Literal["nominal", "power-limited"]
    systems: int
    micro_batch: int | None
    choose_micro_batch: Literal["no-spill", "largest", "search"]
    lanes: int | None
    recompute: Literal["none", "attention", "full"] | None
    schedule: Literal["1f1b", "gpipe"] | None
    density: float
    send: str | None
    optimizer: Literal["sgd", "momentum", "adam", "adamw"]
    train: str | None
    lora: int | None
    lora_on: str | None
    precision: str
    timing: Literal["model", "fabric"]
    cache: Path | str | None
    jitter: float
    skew: float
    seed: int
    checkpoint_steps: int | None
    checkpoint_gbytes_per_s: float
    interval: float | None
    interval_workers: int
    interval_replans: bool
    model_options: OptionValues
    mode_options: OptionValues


def shows_options(function: F) -> F:
    """A function whose signature lists the options of a run instead of ``**changes``, with their defaults."""
    function.__signature__ = _listed(inspect.signature(function), RunOptions)  # type: ignore[attr-defined]
    return function


def _listed(signature: inspect.Signature, declared: type[Declared]) -> inspect.Signature:
    own = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    hints = get_type_hints(declared)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.get_default(call_default_factory=True),
            annotation=hints[name],
        )
        for name, field in declared.model_fields.items()
    ]
    return signature.replace(parameters=[*own, *options])
