"""The numbers of a result that a study stores in a row.

All of them are stored for every run, so that another study can request others without a new run. A row of a
setting that does not fit has only the numbers of the silicon.
"""

from __future__ import annotations

import math
from typing import Any

from wse_sim.engine.result import Result
from wse_sim.hardware.chip import Silicon
from wse_sim.report import views
from wse_sim.studies import serving_parameters

RESULT = (
    "samples_per_s", "step_s", "mfu", "compute_samples_per_s", "transmission_samples_per_s", "active_pe_fraction",
    "compute_utilization", "flops_per_step",
)  # fmt: skip
"""Numbers that every result states itself."""
GENERATION = (
    "tokens_per_s", "tokens_per_s_per_user", "time_to_first_token_s", "prefill_tokens_per_s", "max_context",
    "max_context_wafer", "cache_bytes_per_token",
)  # fmt: skip
"""Figures of generation; `tokens_per_s` is computed for models of sequences too."""
DERIVED = ("parameters", "step_joules", "sample_joules", "system_power_w", "fullest_core_bytes")
"""Numbers that are computed from a result."""
SILICON = (
    "core_mm2",
    "cores_mm2",
    "area_fraction",
    "power_w",
    "dead_cores",
    "yield_fraction",
    "cores",
    "sram_total_bytes",
)
"""Outputs about the silicon of the wafer (:mod:`wse_sim.hardware.chip`)."""
MISS = "need_over_limit"
"""Output of a setting that does not fit: need divided by limit for the binding resource."""
OUTPUTS = tuple(dict.fromkeys((*RESULT, *GENERATION, *DERIVED, *serving_parameters.OUTPUTS, *SILICON, MISS)))
"""All names of outputs, besides `bindings.NAME` (seconds that a resource alone would need) and
`figures.NAME`."""
PREFIXES = ("bindings.", "figures.")
UNITS = {
    "samples_per_s": "samples/s", "tokens_per_s": "tokens/s", "tokens_per_s_per_user": "tokens/s", "step_s": "s",
    "prefill_tokens_per_s": "tokens/s", "time_to_first_token_s": "s", "step_joules": "J", "sample_joules": "J",
    "system_power_w": "W", "power_w": "W", "fullest_core_bytes": "bytes", "core_mm2": "mm²", "cores_mm2": "mm²",
    "sram_total_bytes": "bytes", "max_context": "tokens", "cache_bytes_per_token": "bytes",
    **serving_parameters.UNITS, "compute_samples_per_s": "samples/s", "transmission_samples_per_s": "samples/s", "flops_per_step": "FLOP",
}  # fmt: skip


def is_output(name: str) -> bool:
    """Return whether a study can request this output."""
    return name in OUTPUTS or (name.startswith(PREFIXES) and name.partition(".")[2].isidentifier())


def of_result(result: Result) -> dict[str, float]:
    """Return the numbers of a result by name; values that are not finite are omitted."""
    graph = result.plan.graph
    found: dict[str, Any] = {name: getattr(result, name) for name in RESULT}
    energy = views.energy(result)
    found |= {
        "parameters": graph.parameters,
        "step_joules": energy.step_joules,
        "sample_joules": energy.sample_joules,
        "system_power_w": energy.power_w,
        "fullest_core_bytes": views.fullest_core(result).total_bytes,
    }
    if "seq" in graph.facts and "tokens_per_s" not in result.figures:
        found["tokens_per_s"] = result.samples_per_s * float(graph.facts["seq"])  # type: ignore[arg-type]
    for name, value in result.figures.items():
        found[name if name in OUTPUTS else f"figures.{name}"] = value
    found |= {f"bindings.{name}": value for name, value in result.bindings.items()}
    return finite(found)


def of_silicon(silicon: Silicon, cores: int, sram_bytes: int) -> dict[str, float]:
    """Return the numbers about the silicon of the wafer, by name."""
    found: dict[str, Any] = {name: getattr(silicon, name) for name in SILICON[:6]}
    return finite(found | {"cores": cores, "sram_total_bytes": cores * sram_bytes})


def of_misfit(need: float, limit: float) -> dict[str, float]:
    """Return need divided by limit for a setting that does not fit; empty without a positive limit."""
    return finite({MISS: need / limit}) if limit > 0 else {}


def finite(numbers: dict[str, Any]) -> dict[str, float]:
    """Return the finite numbers, as plain floats."""
    return {name: float(value) for name, value in numbers.items() if math.isfinite(float(value))}
