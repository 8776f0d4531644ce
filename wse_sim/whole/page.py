"""Counters of a run on the fabric for its report page: maps of all cores, regions compared with the plan, the
pace."""

from __future__ import annotations

from wse_sim.fabric.result import FabricResult
from wse_sim.report.fabric_counters import MeasuredCounters, MeasuredMap, laid_maps, measured_maps
from wse_sim.whole.run import Compared
from wse_sim.whole.streaming import ComparedStreaming
from wse_sim.whole.training_run import ComparedTraining

HEADINGS = (
    "Region",
    "Planned busy",
    "Busiest core",
    "Difference",
    "Mean core",
    "Stalled on input",
    "Stalled on output",
    "Idle",
)
OF_REGIONS = "Cycles of every region, per sample in inference and of the batch in training; waits are those of its busiest core."
PHASES = ("Phase", "Planned", "On the fabric", "Difference")
OF_PHASES = (
    "Cycles of every phase: as planned, and as added to the step on the fabric. Below: the time of a core, which is that of "
    "every core in the plan, and of the mean core of the programs on the fabric."
)
STATES = ("busy", "stalled on input", "stalled on output", "idle")
SMALL = 0.01
"""Fraction of a step below which no percentage difference is shown."""


def measured(found: Compared | ComparedTraining | ComparedStreaming) -> MeasuredCounters:
    """Return the counters for the page: cycles per sample in inference, per batch in training; waits of the
    busiest core.

    For a weight-streaming step: cycles of its phases, and the time of the mean core by state.
    """
    if isinstance(found, ComparedStreaming):
        return _streamed(found)
    rows = tuple(
        (
            region.name,
            _cycles(region.engine),
            _cycles(region.busiest),
            f"{100 * (region.busiest / region.engine - 1):+.1f} %",
            _cycles(region.mean),
            *(
                f"{_cycles(core)} ({_cycles(plan)} planned)"
                for core, plan in zip(region.waits, region.engine_waits, strict=True)
            ),
        )
        for region in found.regions
    )
    sentence = found.text().splitlines()[0]
    laid = laid_maps(found.link_words.streams / found.cycles_per_sample)
    return MeasuredCounters(
        sentence[0].upper() + sentence[1:], OF_REGIONS, HEADINGS, rows, (*_maps(found.fabric), *laid)
    )


def _streamed(found: ComparedStreaming) -> MeasuredCounters:
    lines = [(one.name, one.engine, one.fabric) for one in found.passes]
    lines.append(("step", found.engine_step, found.fabric_step))
    lines += [
        (f"a core {state}", engine, fabric)
        for state, engine, fabric in zip(STATES, found.engine_times, found.times, strict=True)
    ]
    rows = tuple(
        (
            name,
            _cycles(plan),
            _cycles(fabric),
            f"{100 * (fabric / plan - 1):+.1f} %" if plan > SMALL * found.engine_step else "",
        )
        for name, plan, fabric in lines
    )
    sentence = found.text().splitlines()[0]
    return MeasuredCounters(sentence[0].upper() + sentence[1:], OF_PHASES, PHASES, rows, _maps(found.fabric))


def _maps(run: FabricResult) -> tuple[MeasuredMap, ...]:
    states = (run.busy, run.stalled_in, run.stalled_out, run.idle)
    return measured_maps(run.cycles, states, run.link_wavelets)


def _cycles(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
