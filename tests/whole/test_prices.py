"""The prices of a plan: those of the programs that the fabric steps, and otherwise the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.drawn_models import Around, drawn
from benchmarks.whole_images import Residual
from tests.whole.plans import corner
from tests.whole.test_regions import Heads
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.frontend import pin_kernels
from wse_sim.frontend.hints import Pin
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.loss import loss_cycles
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.run import free_step_cycles
from wse_sim.whole import compare_training, compare_with_engine, inputs_over_rows, prices
from wse_sim.whole.bundles import late_paces, regions_with_bundles
from wse_sim.whole.trained import trained_network
from wse_sim.whole.trained.rounds import in_program_rounds

WAFER = corner(32)


class Words(nn.Module):
    """Words that are looked up, dropout, a layer and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(40, 16), nn.Linear(16, 8)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.words(ids), 0.1, self.training)
        y = self.layer(x).flatten(0, 1)
        return nn.functional.cross_entropy(y, labels.flatten())


class Sums(nn.Module):
    """A layer, then sums along the rows, for which there is no program."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).cumsum(1)


def block(training: bool = False) -> KernelGraph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    how = {"training": True, "optimizer": "sgd"} if training else {}
    return api.lower(model, (torch.zeros(1, 6, 16),), **how)


def planned(graph: KernelGraph, wafer: Wafer = WAFER, **options: object) -> PipelinedPlan:
    found = api.compile(graph, wafer, mode="pipelined", batch=8, **options)
    assert isinstance(found, PipelinedPlan), found
    return found


@pytest.mark.parametrize("training", [False, True])
def test_a_plan_without_an_option_is_the_plan_of_the_programs_that_are_stepped(training):
    graph = block(training)
    found, stepped = planned(graph), planned(inputs_over_rows(graph))
    assert [(one.name, one.cycles_per_sample, one.region) for one in found.stages] == [
        (one.name, one.cycles_per_sample, one.region) for one in stepped.stages
    ]
    assert found.notes[-1] == "prices: from the programs that the fabric runs"


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_the_fabric_keeps_the_times_of_a_plan_without_an_option(training):
    plan = planned(block(training), replicas=1)
    if training:
        found = compare_training(plan)
        assert found.fabric_step == pytest.approx(found.engine_step, rel=0.1)
    else:
        assert compare_with_engine(plan, 8).difference == pytest.approx(0, abs=0.05)


def test_a_network_trains_in_the_rounds_of_its_program():
    """Without an option: as many samples per round as the cores of the program store, which the comparison counts from
    the program itself.  A round fills and drains the pipeline, so 1F1B, which a user can ask for, takes no more cycles.
    """
    plan = planned(block(training=True), replicas=1, loss="squared error")
    stepped = trained_network(
        planned(inputs_over_rows(block(training=True)), replicas=1), plan.batch, 0.0, "squared error"
    )
    assert plan.round_samples == stepped.batch.in_flight == {one.in_flight for one in plan.stages}.pop()
    assert any("as the programs of the fabric train" in note for note in plan.notes)
    alternating = planned(block(training=True), replicas=1, loss="squared error", schedule="1f1b")
    assert alternating.round_samples == 0
    assert free_step_cycles(alternating) < 1.01 * free_step_cycles(plan)


@pytest.mark.slow
def test_the_losses_of_samples_of_one_row_keep_the_pace():
    """A chain has as many cores for its loss, in turn, as its program: the loss is no slower than the slowest layer.

    A difference of 64 outputs takes 2.5 x 64 cycles and its start on one core, layers of 16 columns far less.
    """
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 64))
    graph = api.lower(model, (torch.zeros(1, 16),), training=True, optimizer="sgd")
    plan = planned(graph, replicas=1, loss="squared error")
    *layers, loss = plan.stages
    alone, out = loss_cycles("squared error", 64, WAFER)
    assert alone + out > 1.5 * max(one.cycles_per_sample for one in layers)
    assert loss.cycles_per_sample < 1.1 * max(one.cycles_per_sample for one in layers)
    found = compare_training(planned(inputs_over_rows(graph), replicas=1), "squared error")
    assert free_step_cycles(plan) == pytest.approx(found.engine_step, rel=0.05)


def test_a_plan_for_rounds_shortens_the_slowest_forward_plus_the_slowest_backward_pass():
    """Norms and layers divide a sample's time differently between the passes, so regions with equal sums leave one pass of
    each too slow in rounds.  A plan for alternating passes keeps a pace that is no longer, the plan for rounds has shorter ones.
    """
    case = drawn(74)
    graph = api.lower(case.model, (torch.zeros(1, *case.shape),), training=True, optimizer="sgd")
    how = {"replicas": 1, "placer": case.placer, "prices": "composed"}
    plan, other = (planned(graph, case.wafer(), **how, schedule=one) for one in (None, "1f1b"))
    turned = in_program_rounds(other)
    assert plan.round_samples == turned.round_samples == 8
    longest = [
        sum(max(getattr(one, f"{name}_cycles") for one in found.stages) for name in ("forward", "backward"))
        for found in (plan, turned)
    ]
    assert longest[0] < 0.9 * longest[1]
    assert free_step_cycles(plan) < 0.9 * free_step_cycles(turned)
    assert other.pace_cycles <= plan.pace_cycles


def around(features: int, tokens: int) -> KernelGraph:
    model = Around(
        features, nn.Sequential(nn.LayerNorm(features), nn.Linear(features, features)), nn.Identity()
    )
    return api.lower(model, (torch.zeros(1, tokens, features),), training=True, optimizer="sgd")


@pytest.mark.parametrize("tokens", [48, 192])
def test_a_tensor_has_as_many_streams_as_its_holders_have_room_for(tokens):
    """The core that sums the gradients of a skip holds two samples of a stream: of T x 256 fp16 numbers, 4 T bytes for each
    word of a token, in 44,976 bytes less 1,536 of instructions.  So of 128 words 113 fit for 48 tokens, 28 for 192: 2 and 5
    streams; a norm divides the words of a token, so 8.
    """
    plan = planned(around(256, tokens), replicas=1)
    words = (44_976 - 1_536) // (2 * 4 * tokens)
    least = next(count for count in range(-(-128 // words), 129) if 128 % count == 0)
    assert least == {48: 2, 192: 8}[tokens]
    skips = [one for one in plan.streams if one.tensor == "first.out"]
    assert len(skips) == 2
    assert all(one.width >= least for one in skips)
    assert plan.round_samples > 0
    assert any("all forward passes before the backward passes" in note for note in plan.notes)


def test_a_skip_of_too_many_tokens_is_named():
    """Two samples of 1,024 tokens with one word each are 8,192 bytes, more than a core of 12 KiB has beside what is reserved
    and 1,536 bytes of instructions.  Then there is no program, and the plan says why."""
    small = WAFER.derive(sram_bytes=12_288)
    plan = planned(around(8, 1_024), small, replicas=1, prices="composed")
    room = 12_288 - (49_152 - 44_976) - 1_536
    note = next(note for note in plan.notes if note.startswith("schedule: "))
    assert plan.round_samples == 0
    assert "passes alternate" in note
    assert (
        "the core that adds its gradients, of tensor 'first.out' in 4 parallel streams, needs 8,192 bytes"
        in note
    )
    assert f"limit {room:,}" in note


@pytest.mark.parametrize("loss", ["squared error", "cross entropy"])
def test_cores_in_rotation_are_those_of_the_program(loss):
    """Every core takes one of the eight samples of a round.  The pace alone would need nine or 16 cores, and the last layer
    has four rows.
    """
    model = nn.Sequential(nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 20))
    graph = api.lower(model, (torch.zeros(1, 16),), training=True, optimizer="sgd")
    plan = planned(graph, replicas=1, loss=loss)
    stepped = trained_network(planned(inputs_over_rows(graph), replicas=1), plan.batch, 0.0, loss)
    assert plan.stages[-1].region.cores == len(stepped.loss_place.cores) == plan.round_samples == 8
    assert all(0 <= one.region.row <= WAFER.rows - one.region.rows for one in plan.stages)


def test_layers_around_attention_have_columns_for_its_bands():
    """Two heads are two bands, whose queries come in two bundles. With one column of outputs the layers around could send only
    one, and the bands would be 37 % slower than their price; so the layers get two columns.
    """
    torch.manual_seed(0)
    graph = inputs_over_rows(api.lower(Heads(16, 2, is_causal=True), (torch.zeros(1, 8, 16),)))
    assert graph.kernel("attention").attrs["bands"] == 2
    wafer = WAFER.derive(rows=40, cols=40, program_rows=40, program_cols=40)
    plan = planned(graph, wafer, replicas=1, placer="snake")
    attention = next(one for one in regions_with_bundles(plan) if one.kernel.family == "attention")
    assert set(attention.bundles.values()) == {2}
    assert late_paces(plan, regions_with_bundles(plan)) == {}
    assert compare_with_engine(plan, 4).difference == pytest.approx(0, abs=0.01)


def test_plain_prices_are_those_of_the_fewest_cycles_whatever_is_composed():
    graph = block()
    plain, found = planned(graph, prices="plain"), planned(graph)
    assert {one.name: one.attrs for one in plain.graph.kernels} == {
        one.name: one.attrs for one in graph.kernels
    }
    assert plain.pace_cycles < found.pace_cycles
    assert plain.notes[-1].endswith("because prices=plain is set")


@pytest.mark.parametrize("training", [False, True])
def test_a_kernel_without_a_program_keeps_its_plain_price(training: bool):
    """The layer before the sums is priced from its program, and the note states the part of the time that it is."""
    how = {"training": True, "optimizer": "sgd"} if training else {}
    graph = api.lower(Sums(), (torch.zeros(1, 4, 16),), **how)
    plan, plain = (planned(graph, replicas=1, prices=prices) for prices in ("composed", "auto"))
    assert [one.attrs for one in plain.graph.kernels] == [one.attrs for one in graph.kernels]
    assert plain.notes[-1].startswith(
        "prices: plain (closed forms, not composed fabric programs), because kernel '"
    )
    assert plan.graph.kernel("layer").attrs["orientation"] == "kn"
    (sums,) = (one for one in graph.kernels if one.family == "scan" and not one.forward)
    assert plan.graph.kernel(sums.name) == sums
    stages = {stage.name: stage.cycles_per_sample * stage.region.cores for stage in plan.stages}
    assert set(stages) == {"layer", sums.name} == {stage.name for stage in plain.stages}
    part = stages["layer"] / sum(stages.values())
    assert f"({part:.0%} of the cores' time), except for '{sums.name}', which have none" in plan.notes[-1]


@pytest.mark.parametrize("training", [False, True])
def test_a_product_of_constants_and_weights_keeps_its_plain_price(training: bool):
    """No sample enters it, so it has no streams of inputs; the layers around it are priced from their programs."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)
            self.register_buffer("left", torch.randn(16, 16))
            self.right = nn.Parameter(torch.randn(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) @ (self.left @ self.right))

    how = {"training": True, "optimizer": "sgd"} if training else {}
    plan = planned(api.lower(Made(), (torch.zeros(1, 4, 16),), **how), replicas=1, prices="composed")
    products = {
        one.name: "orientation" in one.attrs
        for one in plan.graph.kernels
        if one.family == "gemm" and not one.forward
    }
    assert products["first"]
    assert products["last"]
    assert not all(products.values())


def test_attention_that_a_convolution_reads_has_composed_prices():
    """The convolution has a plain price, which limits no links, so attention may have a band for each of its two heads."""

    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.made, self.conv = nn.Linear(16, 48), nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (one.unflatten(-1, (2, 8)).transpose(1, 2) for one in self.made(x).chunk(3, -1))
            return self.conv(nn.functional.scaled_dot_product_attention(q, k, v))

    plan = planned(api.lower(Read(), (torch.zeros(1, 8, 16),)), replicas=1, prices="composed")
    assert "made" in {stage.name.partition(".")[0] for stage in plan.stages}
    assert "except for 'conv', which have none" in plan.notes[-1]
    assert [one.attrs["bands"] for one in plan.graph.kernels if one.family == "attention"] == [2]


def test_a_model_without_any_program_is_priced_plain_and_told_why():
    class OnlySums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1)

    graph = api.lower(OnlySums(), (torch.zeros(1, 4, 16),))
    plan = planned(graph)
    assert plan.graph == graph
    assert plan.notes[-1].startswith(
        "prices: plain (closed forms, not composed fabric programs), because kernel '"
    )
    with pytest.raises(ModelError, match=r"is of family scan, .* so the model has no composed prices"):
        planned(graph, prices="composed")


def test_an_image_that_no_core_has_room_for_is_convolved_at_the_plain_price():
    """A core of the program of this convolution stores its image of 128 x 128 pixels, and the sum behind it a residual of
    262,144 bytes; both are one kernel again, and the layer at the end is priced from its program.
    """
    model = nn.Sequential(Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    graph, small = (api.lower(model, (torch.zeros(1, 8, side, side),)) for side in (128, 8))
    plan, fits = (planned(one, load_wafer("wse2"), replicas=1, prices="composed") for one in (graph, small))
    (summed,) = (one for one in graph.kernels if "residual" in str(one.attrs.get("fused", "")))
    assert plan.graph.kernel(summed.name) == summed
    assert plan.graph.kernel("3").attrs["orientation"] == "kn"
    assert {summed.name, f"{summed.name}.sum"} <= {stage.name for stage in fits.stages}
    assert fits.graph.kernel(summed.name).attrs["orientation"] == "kn"


@pytest.mark.parametrize("training", [False, True])
def test_a_laid_graph_without_programs_is_planned_as_it_is(training: bool) -> None:
    """Sums along rows have no program: no bundles and no rounds are looked for, and the simulation names the kernel."""
    how = {"training": True, "optimizer": "sgd"} if training else {}
    plan = planned(inputs_over_rows(api.lower(Sums(), (torch.zeros(1, 4, 16),), **how)), replicas=1)
    assert plan.round_samples == 0
    with pytest.raises(ModelError, match="kernel '"):
        (compare_training if training else compare_with_engine)(plan)


def test_look_ups_dropout_and_a_loss_keep_their_plain_price_on_the_wafer():
    torch.manual_seed(0)
    ids = torch.zeros(1, 6, dtype=torch.long)
    graph = api.lower(Words().train(), (ids, ids), training=True)
    plan = planned(graph)
    families = {one.family for one in plan.stages}
    assert families >= {"embedding", "gemm", "cross_entropy"}
    assert plan.graph.kernel("layer").attrs["orientation"] == "kn"
    note = plan.notes[-1]
    assert note.startswith("prices: from the programs that the fabric runs (")
    assert note.endswith("except for 'words', 'dropout', 'cross_entropy', updates by adamw, which have none")


@pytest.mark.thinned(1)
@pytest.mark.parametrize("training", [False, True])
def test_on_a_wafer_too_large_to_step_a_wider_model_is_never_faster(training: bool):
    """In training, composed prices of small models next to plain ones of large models would make 512 features slower than 2,048."""
    paces = []
    for width in (64, 512, 2048):
        layers = [nn.Linear(width, width, device="meta") for _ in range(2)]
        how = {"training": True, "optimizer": "sgd"} if training else {}
        graph = api.lower(nn.Sequential(*layers), (torch.zeros(1, width, device="meta"),), **how)
        plan = api.compile(graph, load_wafer("wse2"), mode="pipelined", batch=8, replicas=1)
        assert isinstance(plan, PipelinedPlan)
        told = "the wafer has 996 x 757 cores" if training else "prices: from the programs"
        assert told in plan.notes[-1]
        paces.append(plan.pace_cycles)
    assert paces == sorted(paces)


def test_what_does_not_fit_as_composed_is_priced_plain():
    """A residual of 32 rows of 1,024 waits on moving cores of the fabric, which are too few here."""
    graph = block()

    def compiler(one: KernelGraph) -> api.Infeasible | PipelinedPlan:
        if one is not graph:
            return api.Infeasible("pipelined", "x", "SRAM", 2.0, 1.0, "bytes", "a core", "use more")
        return planned(one, prices="plain")

    found = prices.plan_with("auto", graph, WAFER, compiler)
    assert isinstance(found, PipelinedPlan)
    assert "because the programs of the fabric do not fit" in found.notes[-1]


def test_a_layer_that_is_pinned_keeps_its_pin_or_the_plan_is_plain():
    torch.manual_seed(0)
    graph = api.lower(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), (torch.zeros(1, 4, 16),))
    with pytest.raises(ModelError, match="is pinned"):
        prices.composed_graph(pin_kernels(graph, Pin(module="self_attn", rows=4, cols=6)))


def test_a_norm_has_as_many_streams_as_the_residual_sum_behind_it_needs():
    """A residual of 96 features in one stream takes 2 x 48 + 1 cycles a token; in four 2 x 12 + 1, as the norm that makes
    it then sends it.  Without that, the layers of the skip set the pace, whatever cores they have.
    """
    torch.manual_seed(0)

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(96), nn.Linear(96, 192), nn.Linear(192, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(x)
            return x + self.down(torch.relu(self.up(x)))

    graph = inputs_over_rows(api.lower(Skip(), (torch.zeros(1, 24, 96),)))
    wafer = WAFER.derive(rows=96, cols=96, program_rows=96, program_cols=96)
    plan = planned(graph, wafer, replicas=1)
    regions = {region.name: region for region in regions_with_bundles(plan)}
    norm = regions["norm"]
    assert norm.bundles["norm.out"] >= 4
    assert plan.pace_cycles <= 24 * 25
    assert max(region.pace() for region in regions.values()) <= 1.01 * plan.pace_cycles


@pytest.mark.parametrize(
    ("width", "heads", "tokens", "layers"), [(64, 4, 32, 8), (96, 4, 48, 3), (128, 8, 24, 5)]
)
def test_composed_plans_of_encoders_reach_the_bound_of_their_area(
    width: int, heads: int, tokens: int, layers: int
):
    """Attention needs high regions, dense layers low ones: with stacks of one width they waste a third of the cores or more
    (1.49 to 1.67 times the bound). No region is slower than the pace for want of links."""
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    wafer = WAFER.derive(rows=200, cols=200, program_rows=200, program_cols=200, io_channels_per_edge=50)
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, tokens, width),)))
    plan = planned(graph, wafer, replicas=1)
    assert plan.lower_bound_cycles <= plan.pace_cycles <= 1.45 * plan.lower_bound_cycles
    assert max(region.pace() for region in regions_with_bundles(plan)) <= 1.01 * plan.pace_cycles


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("bert-base", 1.15), ("bert-large", 1.1)])
def test_encoders_on_a_full_wafer_run_at_about_their_plain_pace_with_composed_prices(name: str, more: float):
    """What the host does in a simulation has its plain price, and the note names it."""
    graph = api.load_model(name)
    composed, plain = (
        expect(api.compile(graph, "wse2", mode="pipelined", batch=64, prices=prices), PipelinedPlan)
        for prices in ("composed", "plain")
    )
    assert any("except for 'words', 'places', 'types', 1 more" in note for note in composed.notes)
    assert plain.pace_cycles <= composed.pace_cycles <= more * plain.pace_cycles


def test_streams_of_the_host_need_no_more_cells_than_an_edge_has():
    """114 inputs in a stream per row, and two streams of results, are more than the 16 cells of an edge: one has fewer."""
    graph = inputs_over_rows(api.lower(nn.Linear(114, 18), (torch.zeros(1, 114),)))
    small = WAFER.derive(rows=16, cols=16, program_rows=16, program_cols=16, wavelet_cycles=2.0)
    plan = planned(graph, small, replicas=1)
    (region,) = regions_with_bundles(plan)
    assert sum(region.bundles.values()) <= 16
    assert compare_with_engine(plan, 8).difference == pytest.approx(0, abs=0.1)


def test_a_stage_that_takes_no_cycles_has_links() -> None:
    """A reading of pairs as complex numbers moves nothing; the layers around it keep the pace of their programs."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pairs = torch.view_as_complex(self.first(x).unflatten(-1, (-1, 2)).contiguous())
            return self.last(torch.view_as_real(pairs).flatten(2))

    graph = api.lower(Pairs(), (torch.zeros(1, 6, 16),))
    plan = api.compile(graph, WAFER, mode="pipelined", batch=4, replicas=1, prices="composed")
    first, *views, last = (stage.cycles_per_sample for stage in plan.stages)
    assert views == [0, 0]
    assert first == last == plan.pace_cycles > 0
