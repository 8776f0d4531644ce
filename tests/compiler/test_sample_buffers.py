"""Samples that wait in streams have memory: bytes by hand, in every plan, in the run, and where they do not fit."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict

import numpy as np
import pytest

from tests.engine.engine_plans import pipelined, stage, stream
from tests.generated import seeds
from tests.handmade import transformer
from wse_sim.compiler.plan import Infeasible, waiting_bytes
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.sample_buffers import stream_depth
from wse_sim.compiler.sizing import Sizer
from wse_sim.graph import KernelGraph, frozen
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.modes.simulation import simulate

CLUSTER = load_cluster()
SMALL = load_wafer("wse2").derive(rows=132, cols=137, program_rows=130, program_cols=130)
S = 64 * 256 * 2  # bytes of a sample between the blocks


def with_skips(graph: KernelGraph) -> KernelGraph:
    """Return the handmade transformer with its residuals as streams: around attention, and around the feed-forward
    layers.
    """
    skips = {}
    for name in (kernel.name for kernel in graph.kernels):
        if name.endswith(".qkv"):
            skips[f"{name[:-4]}.proj"] = graph.kernel(name).inputs[0]
            skips[f"{name[:-4]}.out"] = f"{name[:-4]}.proj.out"
    kernels = (
        dataclasses.replace(k, inputs=(*k.inputs, skips[k.name])) if k.name in skips else k
        for k in graph.kernels
    )
    return dataclasses.replace(graph, kernels=tuple(kernels))


@pytest.mark.parametrize("training", [False, True])
def test_bytes_by_hand(training: bool) -> None:
    """In samples of S = 64 x 256 halves: one waits in a stream of rows, two around attention and into it.

    Into attention come queries, keys and values, 2 (3 S) = 6 S; into the last layer 4 S from the wide one.  In training two wait
    between attention and the projection, too, because it gathers gradients.  They wait with the maker of the activation,
    those of the 512 = 2 x 256 results two by two.
    """
    sizer = Sizer(with_skips(transformer(training=training)), SMALL, Prices(SMALL, {"training": training}))
    reads = {"embed": 0, "qkv": 1, "attn": 6, "proj": 1 + training + 2, "fc": 1, "out": 4 + 1, "head": 1}
    gradients = {"embed": 1 + 2, "qkv": 6, "attn": 2, "proj": 1 + 1, "fc": 4, "out": 1 + 2, "head": 2 * 2}
    expected = {
        name: (reads[name.split(".")[-1]] + training * gradients[name.split(".")[-1]]) * S
        for name in (group.name for group in sizer.groups)
    }
    expected["h.1.out"] -= training * 2 * S  # one reader, the head, and no skip
    assert {group.name: sizer.stream_bytes(group) for group in sizer.groups} == expected


def test_the_depth_keeps_the_pace_and_less_does_not() -> None:
    """Stages of 64 cycles and routes of one cycle give a sample every 64 cycles. With one sample less in any deeper
    stream the pipeline is slower.
    """
    graph = with_skips(transformer(1, training=False))
    sizer = Sizer(graph, SMALL, Prices(SMALL, {"training": False}))
    depth = stream_depth(sizer.groups, sizer.edges, training=False)
    stages = [
        stage(group.name, 64.0, rows_per_sample=group.rows_per_sample, barrier=group.is_barrier)
        for group in sizer.groups
    ]

    def period(room: dict[tuple[str, str], int]) -> float:
        streams = [stream(a, b, capacity, hops=1) for (a, b), capacity in room.items()]
        return simulate(pipelined(stages, streams, batch=20, training=False)).step_s / 20

    assert period(depth) == pytest.approx(64)
    deep = [edge for edge, capacity in depth.items() if capacity > 1]
    assert deep == [("embed", "h.0.proj"), ("h.0.qkv", "h.0.attn")]
    for edge in deep:
        assert period(depth | {edge: depth[edge] - 1}) > 64.9


def test_one_tensor_read_twice_waits_once() -> None:
    """A layer that reads the same rows for two operands has one stream of them."""
    plain = transformer(training=True)
    twice = tuple(
        dataclasses.replace(k, inputs=k.inputs * 2) if k.name == "h.0.fc" else k for k in plain.kernels
    )
    sizers = [
        Sizer(graph, SMALL, Prices(SMALL, {"training": True}))
        for graph in (plain, dataclasses.replace(plain, kernels=twice))
    ]
    one, two = ({group.name: sizer.stream_bytes(group) for group in sizer.groups} for sizer in sizers)
    assert one == two


def plans(seed: int) -> PipelinedPlan:
    """Return a transformer of random size in inference or training, on a small wafer; with attention wide beside its
    SRAM.
    """
    draw = np.random.default_rng(seed)
    hidden, seq = int(draw.choice([32, 64, 128])), int(draw.choice([64, 128, 256]))
    graph = with_skips(transformer(int(draw.integers(1, 4)), hidden, 4, seq, training=bool(seed % 2)))
    how = {"recompute": str(draw.choice(["none", "full"])), "layouts": bool(draw.integers(2))}
    made = compile_pipelined(graph, SMALL, CLUSTER, batch=int(draw.integers(1, 40)), replicas=1, **how)
    assert isinstance(made, PipelinedPlan), made.message
    return made


@pytest.mark.parametrize("seed", seeds(0, 16))
def test_what_waits_has_room(seed: int) -> None:
    """In every plan the fullest core has room for all of its parts, and the run never has more waiting samples than
    there is room.
    """
    plan = plans(seed)
    limit, room = plan.wafer.sram_usable_bytes, waiting_bytes(plan.streams)
    on_way: dict[str, float] = defaultdict(float)
    for way in plan.streams:
        on_way[way.consumer] += way.on_way_samples * way.bytes_per_sample
        on_way[way.producer] += way.on_way_samples * way.backward_bytes_per_sample
    for one in plan.stages:
        assert one.memory.total_bytes <= limit
        assert one.memory.streams_bytes * one.region.cores >= room[one.name] * (1 - 1e-12)
    result = simulate(plan, trace=False)
    assert max(queue.bytes for queue in result.queues) > 0
    assert all(queue.bytes <= room[queue.name] + on_way[queue.name] for queue in result.queues)
    used = result.core_map("sram")
    for one in plan.stages:
        parts = dataclasses.astuple(one.memory)
        assert used[one.region.row, one.region.col] == pytest.approx(sum(parts))


def test_what_is_on_its_way_lies_on_links() -> None:
    """Streams of short samples over long routes have room for those in transit: at most two words per hop and one per
    cycle of the fill.
    """
    plan = compile_pipelined(transformer(1, 32, 2, 2, training=False), SMALL, CLUSTER, batch=8, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    stages = {one.name: one for one in plan.stages}
    assert any(way.on_way_samples for way in plan.streams)
    for way in plan.streams:
        words = way.width * (stages[way.producer].latency_cycles + 2 * way.hops)
        assert way.on_way_samples * way.bytes_per_sample <= 4 * words


def test_streams_alone_may_be_too_much() -> None:
    """8192 x 16 halves are 262 kB: 17 of them wait in a block, 4.5 MB; 64 cores have 2.9 MB, and the weights take 0.01.

    One for queries, keys and values, six of those, three at the projection, one and five at both layers, one at the head.
    """
    graph = with_skips(transformer(1, 16, 1, 8192, training=False))
    tiny = SMALL.derive(rows=10, cols=10, program_rows=8, program_cols=8)
    found = compile_pipelined(graph, tiny, CLUSTER, batch=4, replicas=1)
    assert isinstance(found, Infeasible)
    assert found.message.startswith(
        f"{graph.name} does not fit pipelined: SRAM of samples that wait in streams needs"
    )
    assert found.need == (1 + 6 + 3 + 1 + 5 + 1) * 8192 * 16 * 2
    assert found.limit == 64 * tiny.sram_usable_bytes


def test_a_pinned_region_without_room_for_its_streams_is_named() -> None:
    """The projection on 3 x 3 cores: 3 x 131 kB wait there, 44 kB a core beside the code and the weights."""
    graph = with_skips(transformer(1, 64, 1, 1024, training=False))
    pinned = tuple(
        dataclasses.replace(k, attrs=frozen({**k.attrs, "pin_rows": 3, "pin_cols": 3}))
        if k.name == "h.0.proj"
        else k
        for k in graph.kernels
    )
    found = compile_pipelined(dataclasses.replace(graph, kernels=pinned), SMALL, CLUSTER, batch=4, replicas=1)
    assert isinstance(found, Infeasible)
    assert "samples that wait in streams on a core of 'h.0.proj' on the 3 x 3" in found.message


@pytest.mark.slow
def test_more_sram_is_never_slower() -> None:
    """Memory sets the sizes, from SRAM that does not fit the model to SRAM that hardly matters."""
    graph, rates = with_skips(transformer(4, 128, 8, 256)), []
    for kib in (6, 8, 10, 12, 16, 48):
        wafer = SMALL.derive(sram_bytes=kib * 1024)
        made = compile_pipelined(graph, wafer, CLUSTER, batch=16, replicas=1, layouts=False)
        rates.append(0.0 if isinstance(made, Infeasible) else 1 / made.sample_cycles)
    assert rates[0] == 0 < rates[-1]
    assert all(more >= less * 0.999 for less, more in itertools.pairwise(rates))
