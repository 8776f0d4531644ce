"""A note for plans whose slowest kernel uses few cores because more cores would not make it faster."""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.compiler.plan import Stage
from wse_sim.compiler.sizing import Sizer
from wse_sim.kernels import family

FEW = 0.02  # fraction of a wafer's cores up to which a kernel uses few
SAME = 1.02  # ratio to the fewest cycles of the kernel on any rectangle that counts as equal


def narrow_note(sizer: Sizer, stages: Sequence[Stage], fed_per_s: float) -> tuple[str, ...]:
    """Return a note if the slowest stage uses few cores and is as fast as on any other rectangle.

    Parameters
    ----------
    sizer
        Candidate shapes of each stage.
    stages
        Stages of the plan, replica by replica.
    fed_per_s
        Samples per second that the host can feed; there is no note if the host is slower than the plan.
    """
    slowest = max(range(len(sizer.groups)), key=lambda number: stages[number].cycles_per_sample)
    stage, group = stages[slowest], sizer.groups[slowest]
    cores, every = stage.region.compute_cores, sizer.wafer.program_cores
    rate = sizer.replicas * sizer.wafer.clock_hz / stage.cycles_per_sample
    if cores > FEW * every or rate > fed_per_s:
        return ()
    shapes = sizer.candidates(group)
    fitting = shapes.time[shapes.need(sizer.columns) <= sizer.wafer.sram_usable_bytes]
    if not fitting.size or stage.cycles_per_sample > SAME * float(fitting.min()):
        return ()
    ways = []
    one_copy = sum(one.region.cores for one in stages[: len(sizer.groups)])
    if sizer.replicas < (most := every // one_copy):
        ways.append(f"parallel copies of the model, each with its own samples (replicas up to {most})")
    if cheaper := family(group.forward.family).cheaper:
        ways.append(f"another model ({cheaper})")
    ways = ways or ["a model with less work for this kernel"]
    return (
        f"kernel '{group.name}' is the slowest and uses {cores:,} of {every:,} cores; more cores would not reduce its "
        f"{stage.cycles_per_sample:.6g} cycles per sample; what helps: {'; or '.join(ways)}",
    )
