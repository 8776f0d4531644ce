"""Made-up results: plans and numbers that add up, without compiler and engine."""

from __future__ import annotations

import numpy as np

from wse_sim.compiler.plan import CoreMemory, Infeasible, Region, Stage, Stream
from wse_sim.engine.result import Area, KernelUse, QueueUse, Result, Slice, areas_of, tracks_of
from wse_sim.graph.kernel_graph import KernelGraph, Phase, frozen
from wse_sim.hardware.cluster import load_cluster
from wse_sim.hardware.wafer import Wafer, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan

KERNELS = ("ln_1", "attn.c_attn", "attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.act", "mlp.c_proj")
FAMILIES = ("norm", "gemm", "attention", "gemm", "norm", "gemm", "activation", "gemm")
SAMPLES = 6


def tiles(rows: int, cols: int, count: int, seed: int) -> list[Region]:
    """`count` rectangles that fill a part of the fabric without overlap (repeated halving)."""
    rng = np.random.default_rng(seed)
    found = [(0, 0, rows, cols)]
    while len(found) < count:
        found.sort(key=lambda area: area[2] * area[3])
        row, col, height, width = found.pop()
        if height >= width:
            cut = max(1, min(height - 1, round(height * rng.uniform(0.35, 0.65))))
            found += [(row, col, cut, width), (row + cut, col, height - cut, width)]
        else:
            cut = max(1, min(width - 1, round(width * rng.uniform(0.35, 0.65))))
            found += [(row, col, height, cut), (row, col + cut, height, width - cut)]
    found.sort()
    return [Region(*area, compute_cores=max(1, int(area[2] * area[3] * 0.72))) for area in found]


def small_wafer() -> Wafer:
    """Return a wafer of 4 x 4 cores."""
    return load_wafer("wse2").derive(
        rows=4, cols=4, program_rows=4, program_cols=4, rows_per_die=2, cols_per_die=2
    )


def pipelined_result(wafer: Wafer, count: int, seed: int = 7) -> Result:
    """Return a pipelined result of `count` regions on `wafer`."""
    rng = np.random.default_rng(seed)
    cluster = load_cluster("default")
    margin = 2 if wafer.rows > 100 else 0
    regions = tiles(wafer.rows - margin, wafer.cols - margin, count, seed)
    names = [f"transformer.h.{i // 8}.{KERNELS[i % 8]}" for i in range(count)]
    families = [FAMILIES[i % 8] for i in range(count)]
    links = np.zeros((wafer.rows, wafer.cols, 4), np.float32)
    streams = []
    for i in range(count - 1):
        (row, col), (end_row, end_col) = (
            (int(regions[i].center[0]), int(regions[i].center[1])),
            (int(regions[i + 1].center[0]), int(regions[i + 1].center[1])),
        )
        load = float(rng.integers(1000, 20000))
        lane = slice(row, min(row + 4, wafer.rows))
        links[lane, min(col, end_col) : max(col, end_col), 1 if end_col > col else 3] += load
        links[min(row, end_row) : max(row, end_row), end_col : end_col + 4, 2 if end_row > row else 0] += load
        streams.append(
            Stream(
                f"t{i}",
                names[i],
                names[i + 1],
                load * 4,
                load * 4,
                ((row, col), (row, end_col), (end_row, end_col)),
                abs(row - end_row) + abs(col - end_col),
                4,
                i % 24,
            )
        )
    memories = [
        CoreMemory(float(rng.integers(4000, 20000)), float(rng.integers(2000, 12000)), 3000.0, 5000.0)
        for _ in range(count)
    ]
    forward = rng.integers(40_000, 60_000, count).astype(float)
    clock = wafer.clock_hz
    longest = forward.max() * 3
    step_s = float(((SAMPLES + count // 20) * longest + count * 2000) / clock)
    timeline = []
    for i in range(count):
        for sample in range(SAMPLES):
            start = (i * 2000 + sample * longest) / clock
            timeline.append(
                Slice(
                    names[i],
                    f"forward {sample}",
                    "compute",
                    start,
                    forward[i] / clock,
                    0.0,
                    sample,
                    "forward",
                    "forward",
                    sample,
                )
            )
            lag = (count - i) // 20  # the backward wave runs the other way; whole periods keep slices apart
            start = (i * 2000 + (sample + lag) * longest + forward.max()) / clock
            timeline.append(
                Slice(
                    names[i],
                    f"backward {sample}",
                    "compute",
                    start,
                    1.9 * forward[i] / clock,
                    0.0,
                    -1,
                    "backward",
                    "backward",
                    sample,
                )
            )
    for sample in range(SAMPLES):
        timeline.append(
            Slice(
                "input",
                f"input {sample}",
                "input",
                sample * longest / clock,
                9000 / clock,
                65536.0,
                role="input",
            )
        )
    uses = []
    for i in range(count):
        busy = SAMPLES * 2.9 * forward[i] / clock
        rest = step_s - busy
        uses.append(
            KernelUse(
                name=names[i],
                family=families[i],
                layer=names[i].rsplit(".", 1)[0],
                phase="training",
                count=SAMPLES,
                cores=regions[i].cores,
                busy_s=busy,
                stalled_input_s=rest * 0.5,
                stalled_output_s=rest * 0.3,
                idle_s=rest * 0.2,
                flops=1e12 * (families[i] in {"gemm", "attention"}),
                utilization=float(0.3 + 0.4 * rng.random()),
                bound=str(rng.choice(["compute", "sram", "fabric"])),
                bound_fraction=float(0.5 + 0.4 * rng.random()),
                parts=frozen(compute=busy * 0.7, special=busy * 0.1, fabric=busy * 0.15, startup=busy * 0.05),
                memory=memories[i],
                region=regions[i],
                block=f"transformer.h.*.{KERNELS[i % 8]}",
            )
        )
    stages = tuple(
        Stage(
            names[i], families[i], uses[i].layer, (names[i],), regions[i], forward[i], 1.9 * forward[i], 500.0,
            frozen(compute=forward[i]), frozen(compute=1.9 * forward[i]), 128, families[i] == "attention",
            4, memories[i], 10**10,
        )
        for i in range(count)
    )  # fmt: skip
    plan = PipelinedPlan(
        graph=KernelGraph("made-up", (), frozen(), training=True, facts=frozen(seq=1024)),
        wafer=wafer,
        cluster=cluster,
        batch=SAMPLES,
        replicas=1,
        stages=stages,
        streams=tuple(streams),
        link_bytes_per_sample=links * 4 / SAMPLES,
        input_bytes_per_sample=65536.0,
        in_flight=4,
        binding="cores",
        lower_bound_cycles=float(longest * 0.9),
        notes=("dropout masks are recomputed in the backward pass",),
    )
    covered = sum(region.cores for region in regions)
    queues = tuple(QueueUse(names[i], i % 3, 2, 4096.0 * (i % 3)) for i in range(count))
    areas = areas_of(uses, queues)
    return Result(
        model="made-up",
        mode="pipelined",
        phase="training",
        systems=1,
        batch=SAMPLES,
        samples_per_s=SAMPLES / step_s,
        compute_samples_per_s=SAMPLES / step_s,
        transmission_samples_per_s=3.1 * SAMPLES / step_s,
        active_pe_fraction=covered / wafer.cores,
        compute_utilization=0.47,
        step_s=step_s,
        mfu=0.213,
        binding="compute of transformer.h.3.mlp.c_fc",
        bindings=frozen({"compute": step_s, "fabric": step_s * 0.4, "input": step_s / 3.1}),
        kernels=tuple(uses),
        timeline=tuple(timeline),
        link_wavelets=links,
        conservation=frozen(
            {"streams sent": 1.25e9, "streams received": 1.25e9, "input sent": 4e5, "input received": 4e5}
        ),
        plan=plan,
        flops_per_step=float(sum(use.flops for use in uses)),
        events=12345,
        extrapolated_samples=0,
        counters=frozen({"samples in flight": tuple((i * step_s / 20, float(min(i, 4))) for i in range(20))}),
        notes=("input is read by 4 workers",),
        queues=queues,
        areas=areas,
        tracks=tracks_of(timeline, areas),
        streams=tuple(streams),
    )


def streaming_result() -> Result:
    """Return a weight-streaming result: phases on the whole wafer, no regions."""
    wafer, cluster = load_wafer("wse2"), load_cluster("default")
    names = [f"transformer.h.{i // 8}.{KERNELS[i % 8]}" for i in range(16)]
    phases, uses, timeline, clock_s = [], [], [], 0.0
    for i, name in enumerate(names):
        span = 1e-3 * (1 + i % 3)
        phases.append(
            StreamedPhase(
                name, name, FAMILIES[i % 8], "transformer", Phase.FORWARD, False, span * wafer.clock_hz,
                frozen(compute=span * wafer.clock_hz), 1e7, 0.0, 0.0, 2.8e-4, 10**12,
            )
        )  # fmt: skip
        timeline.append(Slice("wafer", name, "compute", clock_s, span, flow=i))
        timeline.append(
            Slice("MemoryX", f"weights {name}", "weights", max(0.0, clock_s - 5e-4), 4e-4, 1e7, i)
        )
        timeline.append(Slice("gradients out", name, "gradients", clock_s + 0.7 * span, 0.2 * span, 1e7))
        clock_s += span
        uses.append(
            KernelUse(
                name, FAMILIES[i % 8], "transformer", "forward", 1, wafer.program_cores, span, 0.0, 0.0, 0.0,
                1e12, 0.4, "compute", 0.8, frozen(compute=span), CoreMemory(2000.0, 20000.0, 4000.0, 5000.0),
            )
        )  # fmt: skip
    compute_s = clock_s
    timeline.append(Slice("gradients out", "last", "gradients", clock_s + 1e-3, 1e-3, 1e7))
    clock_s += 2e-3  # nothing for a millisecond, then gradients alone
    plan = WeightStreamingPlan(
        graph=KernelGraph("made-up", (), frozen()),
        wafer=wafer,
        cluster=cluster,
        systems=2,
        batch=64,
        batch_per_system=32,
        micro_batch=32,
        micro_batches=1,
        lanes=4,
        recompute="none",
        phases=tuple(phases),
        memory=CoreMemory(2000.0, 20000.0, 4000.0, 5000.0),
        spilled_bytes=0.0,
        optimizer_bytes_per_parameter=12.0,
    )
    times = (compute_s, 0.0, 2e-3, 0.0)
    areas = (Area("all cores in use", Region(1, 3, 994, 750, 994 * 750), "wafer", times, plan.memory),)
    return Result(
        model="made-up",
        mode="weight-streaming",
        phase="training",
        systems=2,
        batch=64,
        samples_per_s=64 / clock_s,
        compute_samples_per_s=64 / clock_s,
        transmission_samples_per_s=640 / clock_s,
        active_pe_fraction=0.98,
        compute_utilization=0.4,
        step_s=clock_s,
        mfu=0.3,
        binding="compute",
        bindings=frozen(compute=clock_s, io=clock_s / 4),
        kernels=tuple(uses),
        timeline=tuple(timeline),
        link_wavelets=np.zeros((wafer.rows, wafer.cols, 4), np.float32),
        conservation=frozen({"weights sent": 1.6e8, "weights received": 1.6e8}),
        plan=plan,
        flops_per_step=1.6e13,
        events=64,
        extrapolated_samples=0,
        areas=areas,
        tracks=tracks_of(timeline, areas),
    )


def misfit() -> Infeasible:
    """A model that does not fit."""
    return Infeasible(
        "pipelined", "gpt3-175b", "SRAM", 2.8e12, 4.18e10, "bytes", "the wafer", "use mode='weight-streaming'"
    )
