"""Facts with one source: bytes of optimizers, results of streamed products, and the options of each mode."""

from __future__ import annotations

import configparser
from pathlib import Path

import numpy as np
import pytest

from wse_sim.compiler.defects import whole_rectangle
from wse_sim.compiler.plan import Infeasible
from wse_sim.frontend import load_model, lower
from wse_sim.graph import Phase
from wse_sim.graph.optimizers import OPTIMIZERS, optimizer_of
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.weight_streaming.links import streaming_wavelets
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.steps import compile_streaming

WAFER, CLUSTER = load_wafer("wse2"), load_cluster("default")


@pytest.fixture(scope="module")
def gpt2():
    return load_model("gpt2-small", training=True)


def streamed(graph, **choice) -> WeightStreamingPlan:
    plan = compile_streaming(graph, WAFER, CLUSTER, batch=8, choice=StreamingChoice(micro_batch=8, **choice))
    assert isinstance(plan, WeightStreamingPlan)
    return plan


@pytest.mark.parametrize("density", [1.0, 0.1])
def test_a_streamed_product_states_how_many_results_it_adds_up(gpt2, density):
    """GPT-2 small, 8 samples of 1,024 tokens: M = 8,192 rows; N of its four products as in the paper."""
    plan = streamed(gpt2, density=density)
    found = {p.name: p.output_elements for p in plan.phases if p.phase is Phase.FORWARD and not p.recompute}
    assert found["h.0.attn.qkv"] == 8192 * 2304
    assert found["h.0.attn.out"] == 8192 * 768
    assert found["h.0.mlp.up"] == 8192 * 3072
    assert found["h.0.mlp.down"] == 8192 * 768
    assert found["h.0.ln_1"] == found["wte"] == 0  # no product: nothing is added up over columns
    back = {p.kernel: p.output_elements for p in plan.phases if p.phase is Phase.INPUT_GRADIENT}
    assert sum(size for name, size in back.items() if name.startswith("h.0.mlp.up.")) == 8192 * 768


def test_partial_sums_do_not_move_with_the_density_of_the_weights(gpt2):
    """Zero weights send no words, but every result is added up all the same."""
    dense, sparse = streamed(gpt2), streamed(gpt2, density=0.1, lanes=streamed(gpt2).lanes)
    maps = [streaming_wavelets(plan, 0.0) for plan in (dense, sparse)]
    sums = [sum(p.output_elements for p in plan.phases) for plan in (dense, sparse)]
    assert sums[0] == sums[1] > 0
    # Eastward links carry weights, gradients, spill and partial sums; only the last does not shrink.
    words = [
        plan.micro_batches * total / (WAFER.program_rows * plan.lanes)
        for plan, total in zip((dense, sparse), sums, strict=True)
    ]
    assert maps[1][:, :, 1].max() >= words[1]
    assert np.median(maps[1][:, :, 1][maps[1][:, :, 1] > 0]) < np.median(
        maps[0][:, :, 1][maps[0][:, :, 1] > 0]
    )


@pytest.mark.parametrize(
    ("name", "resident", "server", "checkpoint", "traffic", "state"),
    [
        # 16-bit copy 2, fp32 weight 4, fp32 gradient 4, 4 per moment; an update reads and writes 4-byte
        # weight and moments and reads a 2-byte gradient.
        ("sgd", 10, 8, 4, 10, 0),
        ("momentum", 14, 12, 8, 18, 4),
        ("adam", 18, 16, 12, 26, 8),
        ("adamw", 18, 16, 12, 26, 8),
    ],
)
def test_one_table_says_what_an_optimizer_keeps_and_moves(name, resident, server, checkpoint, traffic, state):
    found = OPTIMIZERS[name]
    assert (found.resident_bytes, found.server_bytes, found.checkpoint_bytes) == (
        resident,
        server,
        checkpoint,
    )
    assert (found.traffic_bytes, found.state_bytes) == (traffic, state)


@pytest.mark.slow
def test_every_optimizer_of_the_table_trains_a_model():
    """The compiler and the kernels had adam, but the front end refused it."""
    for name in OPTIMIZERS:
        graph = load_model("gpt2-small", seq=64, training=True, optimizer=name)
        assert optimizer_of(graph) is OPTIMIZERS[name]
    assert optimizer_of(load_model("gpt2-small", seq=64, training=False)) is None


def test_the_contract_forbids_what_its_title_names():
    """The title said "without torch and matplotlib", the rule named neither."""
    contracts = configparser.ConfigParser()
    contracts.read(Path(__file__).parents[2] / ".importlinter")
    light = contracts["importlinter:contract:light"]
    forbidden = light["forbidden_modules"].split()
    assert {"torch", "matplotlib"} <= set(forbidden)
    assert all(name.split(".")[-1] in light["name"] for name in forbidden)
    assert contracts["importlinter"].getboolean("include_external_packages")


def test_dead_cores_take_rows_and_columns_from_kernels_on_the_whole_wafer():
    """2 spare rows and 3 spare columns replace five scattered dead cores; the sixth costs a row or a column of the ten.

    Three dead cores in one row are one line: its row.  A second look finds the same rectangle.
    """
    small = WAFER.derive(rows=12, cols=13, program_rows=10, program_cols=10)
    diagonal = tuple((k, k) for k in range(12))

    def size(dead, **more):
        found, note = whole_rectangle(small.model_copy(update={"dead_cores": dead, **more}))
        assert whole_rectangle(found)[0] == found
        assert bool(note) == bool(dead or more.get("dead_rows"))
        return found.program_rows, found.program_cols

    assert size(()) == (10, 10)
    assert size(diagonal[:5]) == (10, 10)
    assert sorted(size(diagonal[:6])) == [9, 10]
    assert size(((0, 1), (0, 5), (0, 9)), dead_rows=(3, 4)) == (9, 10)
    assert size((), dead_rows=tuple(range(12))) == (0, 10)
    assert size(diagonal[:8], defect_repair="shift") == (10, 10)  # one in each row: its own spare columns


def test_fewer_cores_make_weight_streaming_slower_and_none_says_what_binds():
    """A wafer with 16 of its rows streams more slowly; one without a row answers that the model does not fit."""
    graph = load_model(
        {"family": "mlp", "layers": 2, "hidden": 2048, "input": 2048, "classes": 2048}, training=True
    )

    def plan(rows):
        wafer = WAFER.model_copy(update={"dead_rows": tuple(range(rows))})
        return compile_streaming(graph, wafer, CLUSTER, batch=4096)

    whole, few, none = plan(0), plan(WAFER.rows - 16), plan(WAFER.rows)
    assert sum(p.compute_cycles for p in few.phases) > 2 * sum(p.compute_cycles for p in whole.phases)
    assert any("dead rows" in note for note in few.notes)
    assert isinstance(none, Infeasible)
    assert none.binding == "cores"


def test_lanes_of_least_time_give_way_where_their_buffers_do_not_fit():
    """A norm over 64 x 64 x 64 positions is fastest with three lanes, which hold three times the buffers of one.

    On a wafer whose cores lack the room for three, one sample, which cannot be halved, takes the next fastest number; two
    samples are halved first.
    """
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        graph = lower(torch.nn.InstanceNorm3d(16, affine=True), (torch.zeros(2, 16, 64, 64, 64),))

    def plan(wafer, batch=1, lanes=None):
        choice = StreamingChoice(lanes=lanes, rectangle=(wafer.program_rows, wafer.program_cols))
        return compile_streaming(graph, wafer, CLUSTER, batch=batch, choice=choice)

    best = plan(WAFER)
    cycles = {n: sum(p.compute_cycles for p in plan(WAFER, lanes=n).phases) for n in range(1, 6)}
    assert best.lanes == min(cycles, key=cycles.get) == 3
    lacking = WAFER.sram_usable_bytes - best.memory.total_bytes + 1
    small = WAFER.derive(sram_bytes=int(WAFER.sram_bytes - lacking))
    assert isinstance(plan(small, lanes=3), Infeasible)
    assert plan(small).lanes == min((1, 2, 4, 5), key=cycles.get) == 2
    assert (plan(small, batch=2).micro_batch, plan(small, batch=2).lanes) == (1, 2)
