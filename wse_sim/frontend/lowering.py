"""Options of lowering, for every entry point of the frontend."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypedDict

from wse_sim.errors import ModelError
from wse_sim.frontend.partial import ADAPTED
from wse_sim.frontend.precision import Precision, precision_of


class LoweringOptions(TypedDict, total=False):
    """Keywords of :func:`wse_sim.frontend.load_model` and :func:`wse_sim.frontend.lower`.

    Attributes
    ----------
    training
        Whether backward and optimizer kernels are added; default False.
    optimizer, recompute
        See :func:`wse_sim.frontend.training.add_training`; default "adamw" and "none".
    precision
        "mixed" (default), "fp16", "bf16", "cbfloat16", "fp32", a level 0, 1, 2, or "TYPE:LEVEL".
    skip
        Names of fusion rules that are left out.
    train
        Patterns of the parameters that train, separated by commas; None: as the module states by
        ``requires_grad``.
    lora
        Rank of the adapters that are added to linear layers; all other parameters are frozen, except those
        that `train` matches. None: no adapters.
    lora_on
        Patterns of the linear layers that get an adapter; default: those inside attention.
    """

    training: bool
    optimizer: str
    recompute: str
    precision: str | int
    skip: Sequence[str]
    train: str | None
    lora: int | None
    lora_on: str


@dataclasses.dataclass(frozen=True)
class Lowering:
    """Options of lowering with their defaults."""

    training: bool = False
    optimizer: str = "adamw"
    recompute: str = "none"
    precision: Precision = dataclasses.field(default_factory=Precision)
    skip: frozenset[str] = frozenset()
    train: str | None = None
    lora: int | None = None
    lora_on: str = ADAPTED

    @classmethod
    def of(cls, how: LoweringOptions) -> Lowering:
        """Return the options in the keywords of a call.

        Raises
        ------
        ModelError
            If a keyword is unknown.
        ConfigError
            If the precision is unknown.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in how:
            if name not in known:
                raise ModelError(f"lowering has no option '{name}'; use {', '.join(known)}")
        values: dict[str, object] = dict(how)
        if "precision" in how:
            values["precision"] = precision_of(how["precision"])
        if "skip" in how:
            values["skip"] = frozenset(how["skip"])
        return cls(**values)  # type: ignore[arg-type]
