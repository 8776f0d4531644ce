"""What the page of a run shows of its steps on the fabric: counters of every core, regions beside the plan, the pace."""

from __future__ import annotations

from wse_sim.fabric.result import FabricResult
from wse_sim.report.measured import MeasuredCounters, MeasuredMap, measured_maps
from wse_sim.whole.learn import ComparedTraining
from wse_sim.whole.run import Compared

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


def measured(found: Compared | ComparedTraining) -> MeasuredCounters:
    """Cycles are per sample in inference, of the batch in training; waits are those of the busiest core."""
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
    return MeasuredCounters(sentence[0].upper() + sentence[1:], HEADINGS, rows, _maps(found.fabric))


def _maps(run: FabricResult) -> tuple[MeasuredMap, ...]:
    states = (run.busy, run.stalled_in, run.stalled_out, run.idle)
    return measured_maps(run.cycles, states, run.link_wavelets)


def _cycles(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
