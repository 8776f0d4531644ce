"""Options of weight streaming."""

from __future__ import annotations

from typing import ClassVar

from wse_sim.errors import ModelError, WseError
from wse_sim.options import Batch, ChooseMicroBatch, Declared, Density, Lanes, MicroBatch, Recompute, Send


class StreamingChoice(Declared):
    """Options of weight streaming; None leaves the choice to the compiler.

    `rectangle` is rows and columns of cores that kernels use: that of an earlier plan.
    """

    fault: ClassVar[type[WseError]] = ModelError

    batch: Batch = 1
    micro_batch: MicroBatch = None
    choose_micro_batch: ChooseMicroBatch = "no-spill"
    lanes: Lanes = None
    recompute: Recompute = None
    density: Density = 1.0
    send: Send = None
    rectangle: tuple[int, int] | None = None
