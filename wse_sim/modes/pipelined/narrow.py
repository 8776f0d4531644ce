"""Help where one kernel sets the pace on few cores: it has nothing more to divide."""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.compiler.plan import Stage
from wse_sim.compiler.sizing import Sizer
from wse_sim.kernels import family

FEW = 0.02  # of the cores of a wafer: below it, the rest of the wafer is not what the pace lacks
SAME = 1.02  # times the least cycles of the kernel on any rectangle: more cores would not shorten it


def narrow_note(sizer: Sizer, stages: Sequence[Stage], fed_per_s: float) -> tuple[str, ...]:
    """A note if the slowest stage is on few cores and as fast as it can be on any number; none otherwise.

    Parameters
    ----------
    sizer
        The shapes that each stage was chosen from.
    stages
        Those of the plan, copy by copy.
    fed_per_s
        Samples per second of the host: where it is the slower one, cores are not what the rate lacks.
    """
    slowest = max(range(len(sizer.groups)), key=lambda number: stages[number].cycles_per_sample)
    stage, group = stages[slowest], sizer.groups[slowest]
    cores, every = stage.region.compute_cores, sizer.wafer.program_cores
    rate = sizer.replicas * sizer.wafer.clock_hz / stage.cycles_per_sample
    if cores > FEW * every or rate > fed_per_s:
        return ()
    shapes = sizer.candidates(group)
    fitting = shapes.time[shapes.fits(float(sizer.wafer.sram_usable_bytes), sizer.spread)]
    if not fitting.size or stage.cycles_per_sample > SAME * float(fitting.min()):
        return ()
    ways = []
    one_copy = sum(one.region.cores for one in stages[: len(sizer.groups)])
    if sizer.replicas < (most := every // one_copy):
        ways.append(f"parallel copies of the model, each with other samples (replicas up to {most})")
    if cheaper := family(group.forward.family).cheaper:
        ways.append(f"another model ({cheaper})")
    ways = ways or ["a model that gives this kernel less to do"]
    return (
        f"kernel '{group.name}' sets the pace on {cores:,} of {every:,} cores: it has no more to divide, and more "
        f"cores would not shorten its {stage.cycles_per_sample:.6g} cycles per sample; what helps: {'; or '.join(ways)}",
    )
