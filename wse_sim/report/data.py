"""The numbers of a run for other programs: JSON with units in the keys, and a data frame."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from wse_sim.compiler.plan import CoreMemory, Infeasible
from wse_sim.engine.result import KernelUse, Result
from wse_sim.errors import WseError
from wse_sim.report import views

if TYPE_CHECKING:
    import pandas


def as_json(result: Result | Infeasible) -> dict[str, Any]:
    """Return all numbers of a run with units in the keys, as strict JSON data (no NaN, no infinity)."""
    if isinstance(result, Infeasible):
        data = {
            "feasible": False,
            "model": result.model,
            "mode": result.mode,
            "binding": result.binding,
            "need": result.need,
            "limit": result.limit,
            "unit": result.unit,
            "where": result.where,
            "remedy": result.remedy,
            "message": result.message,
            "facts": dict(result.facts),
        }
        return {key: _plain(value) for key, value in data.items()}
    wafer = result.plan.wafer
    most, place, link_fraction = views.busiest_link(result)
    spent = views.energy(result)
    fullest = views.fullest_core(result)
    data = {
        "feasible": True,
        "model": result.model,
        "mode": result.mode,
        "phase": result.phase,
        "wafer": wafer.name,
        "clock_hz": wafer.clock_hz,
        "systems": result.systems,
        "batch": result.batch,
        "samples_per_s": result.samples_per_s,
        "compute_samples_per_s": result.compute_samples_per_s,
        "transmission_samples_per_s": result.transmission_samples_per_s,
        "active_pe_fraction": result.active_pe_fraction,
        "compute_utilization": result.compute_utilization,
        "compute_binding": result.compute_binding,
        "binding": result.binding,
        "bindings_s": dict(result.bindings),
        "step_s": result.step_s,
        "mfu": result.mfu,
        "flops_per_step": result.flops_per_step,
        "memory": {**_memory(fullest), "usable_bytes": wafer.sram_usable_bytes},
        "links": {
            "wavelets_per_step": views.link_totals(result),
            "busiest_wavelets_per_step": most,
            "busiest_row_col_direction": [place[0], place[1], "NESW"[place[2]]],
            "busiest_fraction_of_capacity": link_fraction,
        },
        "energy": {
            "step_joules": spent.step_joules,
            "sample_joules": spent.sample_joules,
            "token_joules": spent.token_joules or None,
            "system_power_w": spent.power_w,
            "busy_fraction": spent.busy_fraction,
            "step_joules_if_idle": spent.idle_joules,
            "step_joules_if_at_work": spent.work_joules,
            "evidence": spent.statement,
        },
        "conservation_bytes": dict(result.conservation),
        "kernels": [_kernel(use) for use in result.kernels],
        "queues": [
            {
                "name": queue.name,
                "high_water_samples": queue.samples,
                "capacity_samples": queue.capacity,
                "high_water_bytes": queue.bytes,
            }
            for queue in result.queues
        ],
        "figures": dict(result.figures),
        "facts": dict(result.facts),
        "events": result.events,
        "extrapolated_samples": result.extrapolated_samples,
        "notes": views.notes(result),
    }
    return {key: _plain(value) for key, value in data.items()}


def _kernel(use: KernelUse) -> dict[str, Any]:
    area = use.region
    return {
        "name": use.name,
        "family": use.family,
        "layer": use.layer,
        "phase": use.phase,
        "count": use.count,
        "cores": use.cores,
        "busy_s": use.busy_s,
        "stalled_input_s": use.stalled_input_s,
        "stalled_output_s": use.stalled_output_s,
        "idle_s": use.idle_s,
        "flops": use.flops,
        "utilization": use.utilization,
        "bound": use.bound,
        "bound_fraction": use.bound_fraction,
        "parts_s": dict(use.parts),
        "memory": _memory(use.memory),
        "region": None
        if area is None
        else {
            "row": area.row,
            "col": area.col,
            "rows": area.rows,
            "cols": area.cols,
            "compute_cores": area.compute_cores,
        },
    }


def _memory(memory: CoreMemory) -> dict[str, float]:
    return {
        "weights_bytes": memory.weights_bytes,
        "activations_bytes": memory.activations_bytes,
        "buffers_bytes": memory.buffers_bytes,
        "code_bytes": memory.code_bytes,
        "streams_bytes": memory.streams_bytes,
        "total_bytes": memory.total_bytes,
    }


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # numpy scalars
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_dataframe(result: Result) -> pandas.DataFrame:
    """Return a data frame with one row per kernel.

    Raises
    ------
    WseError
        If pandas is not installed.
    """
    try:
        import pandas
    except ImportError as fault:
        raise WseError("a data frame needs pandas, which is not installed; pip install pandas") from fault
    return pandas.json_normalize([_kernel(use) for use in result.kernels])
