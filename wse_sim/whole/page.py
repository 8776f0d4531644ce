"""What the page of a run shows of its steps on the fabric: counters of every core, regions compared with the plan, the pace."""

from __future__ import annotations

from wse_sim.fabric.result import FabricResult
from wse_sim.report.measured import MeasuredCounters, MeasuredMap, laid_maps, measured_maps
from wse_sim.whole.learn import ComparedTraining
from wse_sim.whole.run import Compared
from wse_sim.whole.streaming import ComparedStreaming

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
    "Cycles of every phase: as planned, and what it adds to the step on the fabric; below, the time of a core: of all in the "
    "plan, of the mean core of the programs on the fabric."
)
STATES = ("busy", "stalled on input", "stalled on output", "idle")
SMALL = 0.01
"""Of a step: a part below it has no difference in percent."""


def measured(found: Compared | ComparedTraining | ComparedStreaming) -> MeasuredCounters:
    """Cycles are per sample in inference, of the batch in training; waits are those of the busiest core.

    Of a streamed step: cycles of its phases, and what the mean core does meanwhile.
    """
    if isinstance(found, ComparedStreaming):
        return _streamed(found)
    rows = tuple(
        (
            region.name,
            _cycles(region.engine),
            _cycles(region.busiest),
            f"{region.busiest / region.engine - 1:+.1%}",
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
            f"{fabric / plan - 1:+.1%}" if plan > SMALL * found.engine_step else "",
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
