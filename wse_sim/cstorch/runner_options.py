"""Options of the runner of training scripts, ``wse-sim script``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from wse_sim.options import (
    MOST_COUNT,
    MOST_SYSTEMS,
    ClusterOption,
    Declared,
    JitterSeed,
    Real,
    StorageRate,
    WaferOption,
    Whole,
    option,
)


class RunnerOptions(Declared):
    """Options of the runner; in plain Python the defaults, or those of ``configure`` and ``backend``."""

    model_config = ConfigDict(frozen=False, extra="forbid", arbitrary_types_allowed=True)

    wafer: WaferOption = "wse2"
    cluster: ClusterOption = "default"
    systems: Whole | None = option(
        None,
        "Wafers that share the batch (default: from the script).",
        unit="systems",
        ge=1,
        le=MOST_SYSTEMS,
    )
    mode: str | None = option(
        None, "pipelined, weight-streaming or auto (default: from the script, else auto)."
    )
    numerics: Literal["fp32", "mixed", "compiled"] = option(
        "fp32", "Arithmetic of the CPU: fp32, mixed (the half type), or compiled (fp32 by Inductor)."
    )
    measure_input: bool = option(False, "Feed the wafer at the measured rate of the script's own loader.")
    real_workers: bool = option(False, "Run the input workers as processes.")
    report: Path | None = option(None, "Folder for the page, maps and traces of the run.", writes="folder")
    compile_only: bool = option(
        False, "Stop after the plan; execute nothing.", flag="--compile_only --compile-only"
    )
    validate_only: bool = option(
        False, "Stop after kernels are matched.", flag="--validate_only --validate-only"
    )
    port: Whole | None = option(None, "Port for captures (default: a free one).", ge=0, le=65535)
    no_port: bool = option(False, "Open no port.")
    metrics: bool = option(False, "Print the metrics report at the end.")
    progress: bool = option(False, "Log rates while the script runs.")
    log_steps: Whole = option(
        0, "Steps between lines of --progress (0: about ten lines a run).", unit="steps", ge=0, le=MOST_COUNT
    )
    jitter: Real = option(0.0, "Relative spread of step times.", ge=0, le=1)
    seed: JitterSeed = 0
    strict: bool = option(
        False, "Turn this warning into an error: Python values of a step that later steps do not see."
    )
    check_values: bool = option(False, "Name the first operator with a result that is not finite.")
    checkpoint_gbytes_per_s: StorageRate = 10.0
    async_checkpoints: bool = option(
        False, "Write checkpoints while training continues; only the part that does not overlap takes time."
    )
    rate_smoothing: float = 0.6  # fraction of the newest rate in `Rate`

    @property
    def storage_bytes_per_s(self) -> float:
        """Rate of the storage behind checkpoints."""
        return 1e9 * self.checkpoint_gbytes_per_s
