"""A plan on a wafer with dead cores: longer routes, and the loads of links next to a defect."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from wse_sim.compiler.defects import Repair
from wse_sim.compiler.detours import AROUND, extra_hops, links_of_way, moved_loads, runs_met, runs_of
from wse_sim.compiler.plan import Stage, Stream
from wse_sim.modes.pipelined.plan import PipelinedPlan


def with_detours(plan: PipelinedPlan, mended: Repair) -> PipelinedPlan:
    """Return the plan with routes over shifted rows, and over or around the remaining dead cores."""
    return _round_dead_cores(_over_shifted_rows(plan, mended))


def _over_shifted_rows(plan: PipelinedPlan, mended: Repair) -> PipelinedPlan:
    """Return the plan on a repaired wafer: words take extra hops over the shifted rows, nothing else changes."""
    if not mended.repaired:
        return plan
    hop = plan.wafer.hop_cycles
    more = [mended.extra_hops(stream.route) for stream in plan.streams]
    fill = [mended.fill_hops(stage.region) for stage in plan.stages]
    note = (
        f"{mended.repaired} dead cores are replaced by spare columns, row by row (assumed): no kernel is slower; "
        f"streams take up to {max(more, default=0)} extra hops{_words_longer(plan.streams, more)}, regions fill up to "
        f"{max(fill)} hops later"
    )
    return dataclasses.replace(
        plan,
        streams=_longer(plan.streams, more),
        host_streams=_longer(
            plan.host_streams, [mended.extra_hops(stream.route) for stream in plan.host_streams]
        ),
        stages=tuple(
            _filled_later(stage, extra * hop) for stage, extra in zip(plan.stages, fill, strict=True)
        ),
        notes=(*plan.notes, note),
    )


def _filled_later(stage: Stage, cycles: float) -> Stage:
    there, back = (stage.fill_cycles(backward=backward) + cycles for backward in (False, True))
    return dataclasses.replace(stage, latency_cycles=there, gradient_latency_cycles=back)


def _round_dead_cores(plan: PipelinedPlan) -> PipelinedPlan:
    """Return the plan with detours around dead cores and their loads, or with a note on streams that pass
    over them."""
    wafer = plan.wafer
    if not wafer.dead_cores:
        return plan
    runs, streams = runs_of(wafer), (*plan.streams, *plan.host_streams)
    meeting = sum(any(runs_met(stream, runs, wafer.rows, wafer.cols)) for stream in streams)
    met = f"{meeting} of {len(streams)} streams meet dead cores"
    if wafer.defect_links != AROUND or not meeting:
        note = f"{met} and pass over them by redundant links (assumed): no word takes longer"
        return dataclasses.replace(plan, notes=(*plan.notes, note)) if meeting else plan
    more = [extra_hops(stream, runs, wafer.rows, wafer.cols) for stream in streams]
    loads = moved_loads(plan.link_bytes_per_sample, runs)
    beside = [
        float(loads[link]) for run in runs for way in (run.way, run.way[::-1]) for link in links_of_way(way)
    ]
    taken = max(beside, default=0.0) / wafer.link_bytes_per_cycle * wafer.wavelet_cycles / plan.pace_cycles
    note = (
        f"{met} and go around them: up to {max(more)} extra hops{_words_longer(streams, more)}; the busiest link of these "
        f"routes is occupied {100 * taken:.1f} % of the time"
    )
    return dataclasses.replace(
        plan,
        streams=_longer(plan.streams, more[: len(plan.streams)]),
        host_streams=_longer(plan.host_streams, more[len(plan.streams) :]),
        link_bytes_per_sample=loads,
        notes=(*plan.notes, note),
    )


def _longer(streams: Sequence[Stream], extra: Sequence[int]) -> tuple[Stream, ...]:
    return tuple(
        dataclasses.replace(stream, hops=stream.hops + more)
        for stream, more in zip(streams, extra, strict=True)
    )


def _words_longer(streams: Sequence[Stream], extra: Sequence[int]) -> str:
    """Return how much longer the routes of all words are; "" if they are not."""
    sizes = [stream.bytes_per_sample + stream.backward_bytes_per_sample for stream in streams]
    plain = sum(size * stream.hops for size, stream in zip(sizes, streams, strict=True))
    more = sum(size * hops for size, hops in zip(sizes, extra, strict=True))
    return f" ({100 * more / plain:.3f} % of the hops of all words)" if more and plain else ""
