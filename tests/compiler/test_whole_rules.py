"""Rules of the compiler that make a plan possible on the fabric."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.drawn_models import Gated
from tests.whole.plans import corner
from tests.whole.test_dense_chain import graph_of, network, plan_of
from tests.whole.test_regions import Block, Heads
from wse_sim import api
from wse_sim.compiler.coloring import assign_colors, colors_for_streams, conflicts
from wse_sim.compiler.nets import Net, bundle_width, edge_channel
from wse_sim.compiler.plan import Infeasible, Region
from wse_sim.compiler.routing import Router
from wse_sim.compiler.sizing import make_groups
from wse_sim.compiler.streams import HOST
from wse_sim.graph import KernelGraph
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.coverage import forward_kernel
from wse_sim.whole.network import network_program
from wse_sim.whole.regions import region_of
from wse_sim.whole.trained import trained_network, trained_region_of

WSE2 = load_wafer("wse2")


class Skip(nn.Module):
    """Two layers with a skip around them, which becomes a residual of the second product, and a function of the sum."""

    def __init__(self, features: int, after: nn.Module | None = None) -> None:
        super().__init__()
        self.after = after or nn.Identity()
        self.first, self.second = nn.Linear(features, features), nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.after(x + self.second(torch.relu(self.first(x))))


def laid(model: nn.Module, *shape: int) -> KernelGraph:
    """Return the graph of a model on samples of a shape, laid as on the fabric."""
    return inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),)))


@pytest.fixture(scope="module")
def heads() -> PipelinedPlan:
    """Attention of two heads on four layers: three of them read the input."""
    return plan_of(laid(Heads(32, 2), 8, 32), 64, mode_options={"replicas": 1})


# ---- links side by side ----------------------------------------------------------------------------------------------


def test_a_stream_is_as_wide_as_regions_have_ways_in_and_out():
    """With 12 rows and 45 columns, 32 of which compute, a stream has 12 links over rows, 32 over columns, and 45 if the
    kind is open.
    """
    region = Region(0, 0, 12, 45, 12 * 32)
    found = [bundle_width([region], 100, [over]) for over in ("rows", "cols", "")]
    assert found == [12, 32, 45]
    assert bundle_width([region], 7, ["rows"]) == 7  # as many as wanted, where there are more
    low = Region(20, 0, 2, 7, 2 * 5)
    assert bundle_width([region, low], 100, ["cols", "rows"]) == 2  # the fewest of both ends


def test_streams_of_a_laid_chain_fit_rows_and_columns():
    """Outputs leave over the columns of one region and arrive over the rows of the next."""
    graph = graph_of(network((196, 64, 64, 10)), 196)
    plan = plan_of(inputs_over_rows(graph), 48)
    by_name = {stage.name: stage.region for stage in plan.stages}
    for stream in plan.streams:
        out, into = by_name[stream.producer], by_name[stream.consumer]
        assert stream.width <= min(out.compute_cores // out.rows, into.rows)


# ---- colors ----------------------------------------------------------------------------------------------------------


def test_a_stream_does_not_cross_the_region_of_another_on_its_color():
    """The trees are disjoint: one ends in the middle of a region of nine rows, the other crosses its first row."""
    ends = {(6, 2): Region(2, 0, 9, 5, 27), (6, 20): Region(2, 18, 9, 5, 27)}
    first = Net("first", (6, 2), ((6, 20),), 1.0, 1, False, ends)
    second = Net("second", (2, 12), ((2, 28),), 1.0, 1, False)
    router = Router(np.zeros((30, 30, 4)), 1e9)
    router.route([first, second])
    assert not conflicts([first, second], 30, 30, whole_ends=False).edges
    assert conflicts([first, second], 30, 30).edges
    colors, _ = assign_colors(router, [first, second], 4)
    assert colors[0] != colors[1]


def test_all_tensors_find_a_way_on_the_color_of_the_plan(heads: PipelinedPlan):
    """Check core by core: three trees from the host to the layers that read the input, two for each of the four tensors
    of attention, which has two bands, and one to the host.
    """
    made = network_program(heads, 1)
    assert len(made.trees) == 3 + 2 * 4 + 1
    for tree in made.trees:
        if (
            tree.bundle == 0
        ):  # the plan has one stream for a tensor; its other bundles have their own colors where ways cross
            assert tree.color == tree.streams[0].color, tree.tensor


def test_a_region_takes_no_color_that_the_plan_gives_a_stream(heads: PipelinedPlan):
    """A kind's family states its colors in addition to three, and streams use the remaining ones."""
    more = {stage.name: 0 for stage in heads.stages}
    for group in make_groups(heads.graph, heads.wafer):
        more[group.name] = group.lay.more_colors
    for stage in heads.stages:
        kernel = forward_kernel(heads, stage.name)
        assert region_of(heads.graph, kernel, stage, heads.wafer).own_colors <= 3 + more[stage.name]
    used = max(stream.color for stream in heads.streams) + 1
    assert max(more.values()) == 2
    assert used <= colors_for_streams(heads.wafer.colors, training=False) - 2


# ---- the edge --------------------------------------------------------------------------------------------------------


def test_readers_of_an_input_have_a_channel_each(heads: PipelinedPlan):
    """Queries, keys and values read x: a core at the edge sends in one order, and they read their words at their own
    pace.
    """
    inward = [stream for stream in heads.host_streams if stream.producer == HOST]
    assert len(inward) == 3
    assert len({stream.route[0] for stream in inward}) == 3
    # Channels 4 rows apart; the nearest one is taken, then the next free one, and the nearest again where none is left.
    assert edge_channel((9, 3), 16, 20, 4) == (10, 0)
    assert edge_channel((9, 3), 16, 20, 4, {(10, 0)}) == (6, 0)
    assert edge_channel((9, 3), 16, 20, 4, {(row, 0) for row in (2, 6, 10, 14)}) == (10, 0)


# ---- room ------------------------------------------------------------------------------------------------------------


def test_a_region_has_the_rows_that_its_parts_need(heads: PipelinedPlan):
    """Attention receives queries and keys next to two rows; a layer has a row without inputs.

    In training 10 outputs of 84 inputs had one row on 16 x 16 cores before.
    """
    found = {group.forward.family: group.least_rows for group in make_groups(heads.graph, heads.wafer)}
    assert found == {"gemm": 2, "attention": 2}
    assert [group.least_rows for group in make_groups(laid(Skip(32), 8, 32), WSE2)] == [2, 2]
    graph = graph_of(network((400, 120, 84, 10)), 400, training=True, optimizer="sgd")
    plan = plan_of(inputs_over_rows(graph), 16, phase="training", optimizer="sgd")
    assert min(stage.region.rows for stage in plan.stages) >= 2


def test_a_region_has_the_columns_that_its_parts_need():
    """The collectors of attention need one more moving column instead of one that computes.

    Regions with three columns that compute have two moving ones, so none is taken from their price. A layer that sends gradients
    of its inputs has two: other cores collect them. Before, one that had no more than one was refused after the compiler was done.
    """
    graph = inputs_over_rows(
        api.lower(Block(16, 2), (torch.zeros(1, 4, 16),), training=True, optimizer="sgd")
    )
    least = {group.name: group.least_cols for group in make_groups(graph, WSE2)}
    collecting = [name for name in least if name.startswith("heads.")] + ["up", "down"]
    assert least == dict.fromkeys(least, 1) | dict.fromkeys(collecting, 2) | {"heads.attention": 3}
    sums = make_groups(laid(Gated(8, 16), 4, 8), WSE2)[-2]
    assert (sums.forward.family, sums.least_rows, sums.least_cols) == ("generated", 2, 1)
    plan = plan_of(graph, 24, phase="training", optimizer="sgd", batch=8, mode_options={"placer": "snake"})
    for stage in plan.stages:
        assert stage.region.compute_cores // stage.region.rows >= least[stage.name]
    assert trained_network(plan, 8).batch.in_flight


@pytest.mark.slow
def test_a_residual_that_no_core_can_store_has_several_stores():
    """One store has two samples of T x N in fp16: 61 x 256 take 62 KiB of 48, so several bundles have separate stores. A GELU of the
    sum has its own region, and that of the sum stores the residual.
    """
    for after in ((), (nn.GELU(),)):
        plan = api.compile(
            laid(Skip(256, *after), 61, 256), corner(32), mode="pipelined", batch=8, replicas=1
        )
        assert isinstance(plan, PipelinedPlan)
        assert max(stage.memory.total_bytes for stage in plan.stages) <= plan.wafer.sram_usable_bytes


def test_an_image_that_no_inlet_can_hold_does_not_fit():
    """An inlet stores at least six lines of two channels, three under a window of stride 2 and two that arrive, in whole strides: lines
    of 4 x 4,096 elements arrive in two bundles of 96 KiB each, those of 4 x 1,024 take 24.
    """
    for side, fits in ((4096, False), (1024, True)):
        model = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU())
        found = api.compile(laid(model, 4, 8, side), corner(48), mode="pipelined", batch=8, replicas=1)
        assert isinstance(found, PipelinedPlan) is fits
        if isinstance(found, Infeasible):
            assert found.binding == "SRAM"
            assert 6 * 2 * 2 * side <= found.need <= 6 * 2 * 2 * side + 2048  # and its code


def test_a_token_that_no_core_can_norm_does_not_fit():
    """A core has two tokens, two results, scale and shift: 6 x 2 bytes of 8,192 features are 96 KiB of 48, of 1,024 12."""
    for features, fits in ((8192, False), (1024, True)):
        found = api.compile(
            laid(nn.LayerNorm(features), 4, features), corner(32), mode="pipelined", batch=8, replicas=1
        )
        assert isinstance(found, PipelinedPlan) is fits
        assert isinstance(found, PipelinedPlan) or (found.binding, found.need >= 6 * 2 * features) == (
            "SRAM",
            True,
        )


@pytest.mark.slow
def test_a_skip_has_room_for_what_it_goes_around() -> None:
    """In x + o(attention(norm(x))) a norm holds a sample until its tokens leave, and attention holds one before it
    starts and one until then.

    So the skip has room for 3 samples more than the branch, or 4 with words on a longer way, where rows that flow one by one leave
    it attention's one.
    """
    model = nn.Sequential(nn.Linear(32, 32), Block(32, 2, nn.ReLU()))
    plain = api.lower(model, (torch.zeros(1, 8, 32),))
    room = {}
    for graph in (plain, inputs_over_rows(plain)):
        plan = plan_of(graph, 96, mode_options={"prices": "plain"})
        by_end = {(stream.producer, stream.consumer): stream for stream in plan.streams}
        skip = by_end["0", "1.heads.o"]
        names = {stream.producer for stream in plan.streams if stream.consumer == "1.heads.o"} - {"0"}
        branch = by_end[names.pop(), "1.heads.o"]
        room[graph is plain] = skip.capacity_samples - branch.capacity_samples
    assert room[True] == 1
    assert room[False] in (3, 4)


def test_the_last_row_of_a_convolution_that_trains_has_room():
    """256 pixels of 16 outputs on one column take 10 bytes each, 40,960 bytes and the code; the fabric needs no more
    than stated.

    On two columns the last row holds 8 outputs.  With as many images in flight as then fit, the program has room.
    """
    model = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10))
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 4, 16, 16),), training=True, optimizer="sgd"))
    kernel = next(kernel for kernel in graph.kernels if kernel.family == "conv2d")
    of = family("conv2d")
    held = [
        float(
            of.footprint(
                kernel.dims, Tiling(4, cols, "stationary"), corner(32), attrs=kernel.attrs
            ).total_bytes
        )
        for cols in (1, 2)
    ]
    assert held == [256 * 16 * 10 + WSE2.kernel_code_bytes, 256 * 8 * 10 + WSE2.kernel_code_bytes]
    stage = next(
        stage
        for stage in plan_of(graph, 48, phase="training", optimizer="sgd", batch=14).stages
        if stage.name == "0"
    )
    for compute in (1, 2, 4):
        region = dataclasses.replace(stage.region, rows=5, cols=compute + 1, compute_cores=5 * compute)
        narrow = dataclasses.replace(stage, region=region)
        kind = trained_region_of(graph, kernel, narrow, corner(48), frozenset())
        usable = corner(48).sram_bytes - corner(48).sram_reserved_bytes
        last = kind.products.last_row_bytes(kind.most_in_flight())
        assert 0 < last <= usable
