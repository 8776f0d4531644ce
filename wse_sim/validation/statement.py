"""Reads ``run.yaml``, whose statements complement the files of a run.

A folder of runs may have one, whose keys apply to all runs; a run's own (in its folder, or ``NAME.yaml`` next
to ``NAME.log``) takes precedence. Keys are those of a point of a suite (:mod:`wse_sim.validation.predict`),
and

    wafer     wse2, wse3 or a wafer file: logs do not state it
    params    the params file of the vendor's Model Zoo, if the folder contains several
    graph     folder of a compile that ``wse-sim script`` wrote: the model is what was captured of a training script
    log       the log, if the folder contains several
    samples_per_s   the measured rate, if no file states it
    kernel, sizes, cycles, quantity      a kernel of ``wse-sim kernel`` and its measurement
    program, stamps, output, cycles      a CSL program (:mod:`wse_sim.csl.timed`) and where its own cycles are stored
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim.errors import ConfigError
from wse_sim.files import Values, is_file, read_yaml
from wse_sim.hardware.constants import one_sentence

FILE = "run.yaml"
Count = Annotated[int, Field(gt=0, le=10**9, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Statement(BaseModel):
    """The keys of ``run.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wafer: str | None = None
    cluster: str | None = None
    model: str | Values | None = None
    params: str | None = None
    graph: str | None = None
    log: str | None = None
    phase: Literal["training", "evaluation"] | None = None
    mode: str | None = None
    batch: Count | None = None
    seq: Count | None = None
    systems: Count | None = None
    workers: Count | None = None
    micro_batch: Count | None = None
    lanes: Count | None = None
    recompute: str | None = None
    optimizer: str | None = None
    precision: str | None = None
    sparsity: Annotated[float, Field(ge=0, lt=1)] | None = None
    clock_hz: Positive | None = None
    samples_per_s: Positive | None = None
    kernel: str | None = None
    sizes: Values = Field(default_factory=dict)
    program: Values | None = None
    cycles: Positive | None = None
    quantity: str = "cycles"
    stamps: str | None = None
    output: str | None = None
    release: str = ""
    source: str = ""
    evidence: str = "silicon"
    gate: bool = True


def read_statement(path: Path, common: Path | None = None) -> Statement:
    """Return the statement in a file over that which all runs share; either may be missing.

    Raises
    ------
    ConfigError
        One sentence with file and key.
    """
    data: Values = {}
    for file in (common, path):
        if file is None or not is_file(file, "statement"):
            continue
        stated = read_yaml(file)
        try:
            Statement.model_validate(stated)
        except ValidationError as fault:
            known = ", ".join(Statement.model_fields)
            hint = f"; use {known}" if fault.errors()[0]["type"] == "extra_forbidden" else ""
            raise ConfigError(f"{one_sentence(file, fault)}{hint}") from fault
        data |= stated
    return Statement.model_validate(data)
