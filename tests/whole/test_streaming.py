"""Weight streaming as one fabric program: values against PyTorch, cycles on paper and compared with the event engine's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import weights_of
from tests.whole.test_dense_chain import graph_of, network
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import ModelError
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole import compare_streaming, inputs_over_rows, run_streamed, train_streamed
from wse_sim.whole.streaming.edges import arriving_blocks

CASES = {
    # layers, rows and columns, outer rows above and below, lanes, batch
    "tokens of whole cores": ((64, 64, 32, 10), 8, 8, 1, 1, 32),
    "two lanes": ((48, 24, 10), 8, 10, 2, 2, 40),
    "odd sizes, tokens that fill up": ((33, 21, 7), 6, 6, 1, 1, 20),
    "more columns than features": ((12, 5), 4, 16, 1, 1, 4),
    "lanes of one column": ((6, 4, 3), 4, 3, 1, 3, 12),
    "three lanes, two outer rows": ((20, 30, 9), 5, 12, 2, 3, 30),
}
Built = tuple[nn.Sequential, WeightStreamingPlan]


def wafer(rows: int, cols: int, outer: int = 1, **constants: Any) -> Wafer:
    """Return a small wafer of the second generation with rows of cores outside the programs."""
    size = {"rows": rows + 2 * outer, "cols": cols, "program_rows": rows, "program_cols": cols}
    return load_wafer("wse2").derive(**size, io_channels_per_edge=outer, **constants)


def plan_of(
    model: nn.Sequential, on: Wafer, batch: int, *, training: bool = False, **how: Any
) -> WeightStreamingPlan:
    """Return the plan of a batch."""
    trained = {"training": True, "optimizer": "sgd"} if training else {}
    graph = inputs_over_rows(graph_of(model, model[0].in_features, **trained), streamed=True)
    plan = api.compile(graph, mode="weight-streaming", wafer=on, batch=batch, **how)
    assert isinstance(plan, WeightStreamingPlan), isinstance(plan, Infeasible) and plan.message
    return plan


def build(name: str, *, training: bool) -> Built:
    """Model and plan of a case; its weights are fp16 numbers, so that both round the same."""
    sizes, rows, cols, outer, lanes, batch = CASES[name]
    model = network(sizes).half().float()
    return model, plan_of(model, wafer(rows, cols, outer), batch, training=training, lanes=lanes)


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_pytorch(name: str) -> None:
    """Every layer rounds to fp16 once (2^-11 relative); sums are fp32 in both."""
    model, plan = build(name, training=False)
    torch.manual_seed(1)
    x = torch.randn(plan.batch, model[0].in_features).half()
    run = run_streamed(plan, weights_of(model), x.float().numpy())
    with torch.no_grad():
        wanted = model.half()(x).float().numpy()
    bound = 4 * len(run.made.layout.layers) * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert np.abs(run.outputs).max() > 100 * bound  # the bound would tell values from none
    assert run.fabric.words_left == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_gradients_and_updated_weights_equal_those_of_pytorch(name: str) -> None:
    """Loss, gradients and the update in MemoryX are compared with fp32 in PyTorch.

    Activations, gradients of activations and what leaves the wafer are fp16: a few roundings of 2^-11 per layer.
    """
    model, plan = build(name, training=True)
    torch.manual_seed(1)
    x = torch.randn(plan.batch, model[0].in_features).half().float()
    labels = np.arange(plan.batch) % model[-1].out_features
    before = {name: value.copy() for name, value in weights_of(model).items()}
    run = train_streamed(plan, before, x.numpy(), labels, rate=0.5)
    outputs = model(x)
    loss = ((outputs - nn.functional.one_hot(torch.tensor(labels), outputs.shape[1])) ** 2).sum() / 2
    (loss / plan.batch).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    assert run.loss == pytest.approx(loss.item() / plan.batch, rel=1e-3)
    for parameter, value in model.named_parameters():
        assert value.grad is not None
        largest = float(value.grad.abs().max())
        assert np.abs(run.gradients[parameter] - value.grad.numpy()).max() < 2e-3 * largest, parameter
        assert np.abs(run.weights[parameter] - value.detach().numpy()).max() < 1e-3 * largest, parameter
        assert np.abs(run.weights[parameter] - before[parameter]).max() > 0.4 * largest
    assert run.fabric.words_left == 0


@pytest.mark.parametrize("lanes", [1, 2])
def test_layers_without_bias_and_other_functions(lanes: int) -> None:
    """GELU and tanh on the cores that hold the outputs, rounded to fp16 before and after as PyTorch does it."""
    torch.manual_seed(2)
    layers = [
        nn.Linear(24, 17, bias=False),
        nn.GELU(),
        nn.Linear(17, 12),
        nn.Tanh(),
        nn.Linear(12, 5, bias=False),
    ]
    model = nn.Sequential(*layers).half().float()
    plan = plan_of(model, wafer(4, 8), 20, lanes=lanes)
    x = torch.randn(20, 24).half()
    run = run_streamed(plan, weights_of(model), x.float().numpy())
    with torch.no_grad():
        wanted = model.half()(x).float().numpy()
    bound = 4 * 3 * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert run.fabric.words_left == 0


FUNCTIONS = {
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "relu": nn.ReLU(),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("function", "lanes"), [(name, 1 + n % 2) for n, name in enumerate(FUNCTIONS)])
def test_functions_train(function: str, lanes: int) -> None:
    """Loss, gradients and updates are compared with PyTorch in fp32, with a function between layers and one after the
    last.

    Sums, outputs, slopes and gradients are fp16: some roundings of 2^-11 per layer.  A slope left out would be off by a
    third and more of the largest gradient.
    """
    torch.manual_seed(3)
    bends = FUNCTIONS[function]
    layers = [nn.Linear(24, 17, bias=False), bends, nn.Linear(17, 12), bends, nn.Linear(12, 5), bends]
    model = nn.Sequential(*layers).half().float()
    plan = plan_of(model, wafer(4, 8), 22, training=True, lanes=lanes)
    x = torch.randn(22, 24).half().float()
    labels = np.arange(22) % 5
    before = {name: value.copy() for name, value in weights_of(model).items()}
    run = train_streamed(plan, before, x.numpy(), labels, rate=0.5)
    for layer in layers[::2]:  # a sum near zero has the same slope in both
        layer.register_forward_hook(lambda _, __, out: out + (out.half().float() - out).detach())
    outputs = model(x)
    wanted = nn.functional.one_hot(torch.tensor(labels), 5)
    loss = ((outputs - wanted) ** 2).sum() / 2 / 22
    loss.backward()
    assert run.loss == pytest.approx(loss.item(), rel=1e-3)
    assert run.fabric.words_left == 0
    for name, p in model.named_parameters():
        assert p.grad is not None
        largest = float(p.grad.abs().max())
        assert np.abs(run.gradients[name] - p.grad.numpy()).max() < 3e-3 * largest, name
        moved = before[name] - 0.5 * p.grad.numpy()
        assert np.abs(run.weights[name] - moved).max() < 2e-3 * largest, name


def test_a_function_that_trains_takes_as_long_as_the_engine_says() -> None:
    """The engine has 240 cycles per element forward and a quarter of that backward; the cores do both forward.

    On 8 x 8 cores a core has 4 tokens and 4 outputs: GELU and its slope take 16 x 304 cycles, where the engine has 16 x 300.
    """
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 32))
    found = compare_streaming(plan_of(model, wafer(8, 8, 2), 32, training=True, lanes=1))
    assert abs(found.difference) < 0.1
    model[1] = nn.ReLU()  # whose derivative a region prices with its product
    of_regions = inputs_over_rows(graph_of(model, 64, training=True, optimizer="sgd"))
    plan = api.compile(of_regions, mode="weight-streaming", wafer=wafer(8, 8), batch=32)
    assert isinstance(plan, WeightStreamingPlan)
    with pytest.raises(ModelError, match="streamed=True"):
        compare_streaming(plan)


@pytest.mark.slow
def test_two_steps_of_training_follow_pytorch() -> None:
    """The second step starts from the weights of the first one: both are in fp32, rounded to fp16 in transfer.

    PyTorch rounds weights and outputs of layers likewise.  A step that forgot the update would be off by all of it.
    """
    model, plan = build("two lanes", training=True)
    exact = network(CASES["two lanes"][0])
    exact.load_state_dict(model.state_dict())
    sizes, rate = CASES["two lanes"][0], 0.5
    held = weights_of(model)
    losses = []
    for step in range(2):
        torch.manual_seed(10 + step)
        x = torch.randn(plan.batch, sizes[0]).half().float()
        labels = np.arange(plan.batch) % sizes[-1]
        before = {name: value.copy() for name, value in held.items()}
        run = train_streamed(plan, before, x.numpy(), labels, rate=rate)
        value = x
        for layer in exact:
            if isinstance(layer, nn.Linear):
                weight, bias = (p + (p.half().float() - p).detach() for p in (layer.weight, layer.bias))
                value = nn.functional.linear(value, weight, bias)
                value = value + (value.half().float() - value).detach()
            else:
                value = layer(value)
        wanted = nn.functional.one_hot(torch.tensor(labels), sizes[-1])
        loss = ((value - wanted) ** 2).sum() / 2 / plan.batch
        exact.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in exact.parameters():
                p -= rate * p.grad
        assert run.loss == pytest.approx(loss.item(), rel=1e-3)
        for name, p in exact.named_parameters():
            largest = float(p.grad.abs().max())
            assert (
                np.abs(run.weights[name] - p.detach().numpy()).max() < (step + 1) * 2e-3 * rate * largest
            ), name
            assert np.abs(run.weights[name] - before[name]).max() > 0.9 * rate * largest, name
        held = dict(run.weights)
        losses.append(run.loss)
    assert losses[1] < losses[0]


def test_cycles_of_a_core_on_paper() -> None:
    """64 to 32 on 8 x 8 cores, 32 rows of samples: t = 4 tokens, f = 8 inputs, s = 4 outputs on a core.

    A round of one output: 8 x 4 products, two a cycle, and 4 sums: 20 cycles.  32 rounds, and 2 words of bias: 642.
    Results: s t words come in, and s times t sums with the bias, two a cycle.  Three columns differ: the first adds the
    bias to the last of its results as it comes (t), the last has its results, and sends a word that ends each of four turns.
    """
    model = network((64, 32))
    plan = plan_of(model, wafer(8, 8), 32, lanes=1)
    run = run_streamed(plan, weights_of(model), np.ones((32, 64), np.float32))
    cells = run.fabric.busy[1:9]
    assert np.all(cells[:, 1:7] == 642 + 4 * 4 + 4 * 2)
    assert np.all(cells[:, 0] == 642 + 3 * 4 + 3 * 2 + 4)
    assert np.all(cells[:, 7] == 642 + 4 * 2 + 4)
    # Beside that a step waits for the first words, and once for sums to pass 8 cores, 6 cycles each, and come back.
    assert 666 + 7 * 6 + 7 < run.fabric.cycles < 666 + 8 * 6 + 8 + 60


@pytest.mark.parametrize("lanes", [1, 2])
def test_every_weight_crosses_the_edge_once(lanes: int) -> None:
    """64 x 32 weights and 32 biases of 16 bits are 1,040 words, as the plan states, however many lanes meet them."""
    plan = plan_of(network((64, 32)), wafer(8, 8), 32, lanes=lanes)
    run = run_streamed(plan, weights_of(network((64, 32))), np.ones((32, 64), np.float32))
    layout = run.made.layout
    words = sum(layout.cols * size * times for size, times in arriving_blocks(layout))
    sent = sum(run.made.program.buffers[f"weights {stream.number}"].length for stream in layout.streams)
    assert words == sent == sum(phase.weight_bytes for phase in plan.phases) / 4 == 1040


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("training", "band"), [(False, 0.05), (True, 0.10)])
def test_step_is_near_the_engines(training: bool, band: float) -> None:
    """The engine counts per phase, the fabric overlaps their ends: single phases differ by more than the step."""
    plan = plan_of(network((64, 64, 32)), wafer(8, 8, 2), 64, training=training, lanes=1)
    found = compare_streaming(plan)
    assert abs(found.difference) < band
    assert sum(one.fabric for one in found.passes) == pytest.approx(found.fabric_step)
    assert sum(one.engine for one in found.passes) == pytest.approx(found.engine_step, rel=0.02)


def test_slow_links_bind_both() -> None:
    """At 2 GB/s the edge gives 1.8 bytes a cycle: 4,160 bytes of weights take 2,288 cycles.

    Then the last ones cross 8 x 8 cores and climb two ramps (19), and their sums pass 7 cores, 6 cycles each.
    """
    plan = plan_of(network((64, 32)), wafer(8, 8, io_bytes_per_s=2e9), 16, lanes=1)
    found = compare_streaming(plan)
    assert found.engine_step == pytest.approx(4160 * 1.1e9 / 2e9 + 19 + 7 * 6, rel=1e-6)
    assert found.fabric_step == pytest.approx(found.engine_step, rel=0.03)


def test_what_is_not_covered_is_refused_in_one_sentence() -> None:
    """Every refusal names the fault and the remedy."""
    model = network((16, 8))
    good = plan_of(model, wafer(8, 8), 16)
    x = np.zeros((16, 16), np.float32)
    with pytest.raises(ModelError, match=r"weights '0\.weight, 0\.bias' are missing"):
        run_streamed(good, {}, x)
    with pytest.raises(ModelError, match="made for inference"):
        train_streamed(good, weights_of(model), x, np.zeros(16, np.int64), rate=0.1)
    with pytest.raises(ModelError, match=r"shape \(3, 16\), the plan is of \(16, 16\)"):
        run_streamed(good, weights_of(model), x[:3])
    trains = plan_of(model, wafer(8, 8), 16, training=True)
    with pytest.raises(ModelError, match="made for training"):
        run_streamed(trains, weights_of(model), x)
    for changed, sentence in (
        ({"systems": 2}, "limit 1 on the fabric; plan with systems=1"),
        ({"micro_batches": 2}, "limit 1 on the fabric; use a batch of 16"),
        ({"weight_density": 0.5}, "leave density out"),
        ({"recompute": "full"}, "use a smaller batch"),
        ({"wafer": good.wafer.derive(program_rows=9)}, "program_rows of at most 8"),
        ({"wafer": load_wafer("wse2")}, "on at most 40,000"),
    ):
        with pytest.raises(ModelError, match=sentence):
            compare_streaming(dataclasses.replace(good, **changed))


def test_the_command_shows_the_passes_and_writes_json(
    wse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of two layers has a line for the step and one for every pass."""
    (tmp_path / "nets.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef small():\n"
        "    return nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5)), (torch.zeros(1, 16),)\n"
    )
    counts = {"rows": 8, "cols": 6, "program_rows": 6, "program_cols": 6, "io_channels_per_edge": 1}
    lines = [
        f"  {k}: {{value: {n}, unit: '1', source: a corner, evidence: assumed}}" for k, n in counts.items()
    ]
    (tmp_path / "small.yaml").write_text("\n".join(["name: small", "base: wse2", "constants:", *lines]))
    monkeypatch.chdir(tmp_path)
    words = "run nets.py:small --mode weight-streaming --phase inference --batch 12 --wafer small.yaml --whole-fabric"
    shown = wse(*words.split(), "--quiet")
    assert shown.status == 0, shown.err
    assert "cycles for a step of 12 rows" in shown.out
    data = json.loads(wse(*words.split(), "--json", "--quiet").out)["whole_fabric"]
    assert [one["name"] for one in data["passes"]] == ["0", "2"]
    assert data["fabric_step"] == sum(one["fabric"] for one in data["passes"])
