"""The step that the CPU trains is the one that is lowered: calls that return their argument, several models, operators
without a rule, checks.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import wse_sim.cstorch as cstorch
from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.execution import begin_execution

WIDTH, BATCH, CLASSES = 8, 4, 6


class Taught(nn.Module):
    """A layer whose result passes through `change` with its own weight."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.weight = nn.Parameter(torch.full((WIDTH,), 1.5))
        self.register_buffer("table", torch.arange(WIDTH).float() / WIDTH)

    def forward(self, x):
        return self.last(self.change(self, self.first(x)))


def data(steps: int):
    draw = torch.Generator().manual_seed(3)
    for _ in range(steps):
        yield torch.randn(BATCH, WIDTH, generator=draw), torch.randint(0, CLASSES, (BATCH,), generator=draw)


def trained(kind: str, make, steps: int = 2, **backend):
    """Return (losses, graph of the last compile) of models, a function of a batch that gives a loss."""
    runtime.reset()
    cstorch.backend(kind, **backend)
    torch.manual_seed(0)
    models, loss_of = make()
    for model in models:
        cstorch.compile(model)
    optimizer = cstorch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1, momentum=0.9)

    @cstorch.trace
    def step(x, y):
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses: list[float] = []
    read = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    execution = begin_execution(None, num_steps=steps, checkpoint_steps=steps)
    try:
        for x, y in data(steps):
            read(step(*execution.feed((x, y))))
            execution.end_step()
    finally:
        execution.finish()
    compiled = runtime.run().compiled
    return losses, compiled[-1].graph if compiled else None


def lowered(make):
    """Return the graph of a step; nothing is simulated or executed."""
    return trained("CSX", make, steps=1, validate_only=True)[1]


def classified(change):
    def make():
        model = Taught(change)
        return [model], lambda x, y: functional.cross_entropy(model(x), y)

    return make


SAME = {
    "float": lambda m, x: x.float() * m.weight.float() + m.table.float(),
    "to": lambda m, x: x * m.weight.to(x.dtype).to(x.device),
    "contiguous": lambda m, x: x.contiguous() * m.weight.contiguous(),
    "type_as": lambda m, x: x * m.weight.type_as(x),
    "flatten": lambda m, x: x * torch.flatten(m.weight),
    "no dropout": lambda m, x: functional.dropout(x, 0.0) * functional.dropout(m.weight, 0.5, False),
    "ravel": lambda m, x: x * m.weight.ravel() * torch.atleast_1d(m.weight),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_calls_that_return_their_argument_lose_no_parameter(name):
    """The parameters are first 8 x 8 + 8, last 8 x 6 + 6, weight 8."""
    assert lowered(classified(SAME[name])).parameters == 72 + 54 + 8


def test_two_models_of_equal_shapes_have_parameters_of_their_own():
    def make():
        first, second = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))
        return [first, second], lambda x, y: second(first(x)).sum()

    graph = lowered(make)
    assert graph.parameters == 2 * 72
    assert {k.layer for k in graph if k.parameters} == {"sequential_1.0", "sequential_2.0"}


def test_one_model_of_several_keeps_its_plain_names():
    def make():
        first, second = nn.Sequential(nn.Linear(WIDTH, CLASSES)), nn.Sequential(nn.Linear(WIDTH, CLASSES))
        cstorch.compile(second)
        return [first], lambda x, y: functional.cross_entropy(first(x), y)

    assert {k.layer for k in lowered(make) if k.parameters} == {"0"}


def test_every_backward_pass_counts():
    """A discriminator and a generator, each with a loss, have the FLOPs that torch counts in eager mode."""

    def make():
        maker, judge = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

        def loss_of(x, y):
            fake = maker(x)
            functional.softplus(judge(fake.detach())).mean().backward()
            return functional.softplus(-judge(fake)).mean()

        return [maker, judge], loss_of

    with FlopCounterMode(display=False) as counter:
        trained("CPU", make, steps=1)
    graph = lowered(make)
    assert sum(k.flops for k in graph) == counter.get_total_flops()


def test_a_pass_without_gradients_has_none():
    """A teacher under no_grad has only its forward pass, 2 b n m."""

    def make():
        teacher, pupil = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

        def loss_of(x, y):
            with torch.no_grad():
                wanted = teacher(x)
            return functional.mse_loss(pupil(x), wanted)

        return [teacher, pupil], loss_of

    # teacher forward, pupil forward, gradient of the pupil's weights
    assert sum(k.flops for k in lowered(make)) == 3 * 2 * BATCH * WIDTH * CLASSES


LOSSES = {
    "poisson": lambda y, t: functional.poisson_nll_loss(y, y.detach().abs()),
    "gaussian": lambda y, t: functional.gaussian_nll_loss(y, torch.zeros_like(y), y.exp()),
    "margin": functional.multi_margin_loss,
    "cosine": lambda y, t: functional.cosine_embedding_loss(y, -y.detach(), 2.0 * (t > 2) - 1),
    "triplet": lambda y, t: functional.triplet_margin_loss(y, y.detach() + 1, -y.detach()),
    "ctc": lambda y, t: functional.ctc_loss(
        y.view(BATCH, 1, CLASSES).log_softmax(-1),
        t[None, :2] % 5 + 1,
        torch.full((1,), BATCH),
        torch.full((1,), 2),
    ),
    "cdist": lambda y, t: torch.cdist(y, y.detach() + 1).mean(),
    "quantile": lambda y, t: y.quantile(0.5, 1).mean(),
    "rfft": lambda y, t: torch.fft.rfft(y).abs().mean(),
    "cholesky": lambda y, t: torch.linalg.cholesky(y.T @ y + torch.eye(CLASSES)).sum(),
    "covariance": lambda y, t: torch.cov(y).sum(),
    "distribution": lambda y, t: torch.distributions.kl_divergence(
        torch.distributions.Normal(y, 1.0), torch.distributions.Normal(0.0, 1.0)
    ).sum(),
    "three operands": lambda y, t: torch.einsum("bi,ij,bj->b", y, torch.ones(CLASSES, CLASSES), y).mean(),
}


def made_with(loss):
    def make():
        model = nn.Linear(WIDTH, CLASSES)
        return [model], lambda x, y: loss(model(x), y)

    return make


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["poisson", "gaussian", "ctc", "quantile"])
def test_losses_without_a_rule_are_lowered(name):
    graph = lowered(made_with(LOSSES[name]))
    assert graph.parameters == 54
    assert any("without a rule: aten::_ctc_loss" in note for note in graph.notes) == (name == "ctc")


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_losses_without_a_rule_are_those_of_eager(name, tmp_path):
    make = made_with(LOSSES[name])
    assert trained("CSX", make, artifact_dir=tmp_path)[0] == trained("CPU", make)[0]


LAYERS = {
    "gru cell": lambda: nn.GRUCell(WIDTH, CLASSES),
    "rnn": lambda: nn.RNN(WIDTH, CLASSES),
    "gru": lambda: nn.GRU(WIDTH, CLASSES, 2),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)),
    "spectral": lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "dropout": lambda: nn.Dropout(0.3),
    "half": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH).bfloat16(), nn.Identity()),
}


def layered(name):
    def make():
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), LAYERS[name]())

        def loss_of(x, y):
            x = model[0](x)
            out = model[1](x.bfloat16() if name == "half" else x)
            return (out[0] if isinstance(out, tuple) else out).float().pow(2).mean()

        return [model], loss_of

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_as_in_eager(name, tmp_path):
    assert trained("CSX", layered(name), artifact_dir=tmp_path)[0] == trained("CPU", layered(name))[0]


@pytest.mark.slow
def test_random_numbers_of_the_script_are_those_of_eager(tmp_path):
    """The capture draws its own random numbers, which must not affect dropout."""
    make = layered("dropout")
    assert trained("CSX", make, artifact_dir=tmp_path)[0] == trained("CPU", make)[0]


FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "mamba",
    "gpt2",
    "openai-gpt",
    "bert",
    "bart",
    "data2vec-text",
    "gte",
    "distilbert",
)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_families_lower_from_a_recorded_step(family, monkeypatch):
    """With a padded mask, which libraries read unless they are traced; parameters as in the model."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers.models.auto import configuration_auto, modeling_auto

    tables = [
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ]
    table = tables[{"bert": 1, "bart": 2, "data2vec-text": 3, "gte": 3, "distilbert": 3}.get(family, 0)]
    plain = getattr(transformers, configuration_auto.CONFIG_MAPPING_NAMES[family])()
    tiny = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "d_model": 32,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "n_positions": 64, "num_local_experts": 4, "state_size": 8,
        "time_step_rank": 4, "pad_token_id": 0, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "head_dim": 8,
    }  # fmt: skip
    config = type(plain)(**{k: v for k, v in tiny.items() if hasattr(plain, k)})
    config.use_cache = False

    runtime.reset()
    cstorch.backend("CSX", validate_only=True)
    model = cstorch.compile(getattr(transformers, table[family])(config).train())
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)

    @cstorch.trace
    def step(ids, labels, mask):
        loss = model(input_ids=ids, labels=labels, attention_mask=mask).loss
        loss.backward()
        optimizer.step()
        return loss

    ids, mask = torch.randint(3, 60, (2, 16)), torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0
    labels = torch.randint(0, 2, (2,)) if table is tables[3] else ids.clone()
    execution = begin_execution(None, num_steps=1)
    try:
        step(*execution.feed((ids, labels, mask)))
        execution.end_step()
    finally:
        execution.finish()
    graph = runtime.run().compiled[-1].graph
    assert graph.parameters == sum(p.numel() for p in model.parameters())


# -- programs that do not do what they say -----------------------------------------------------------------------


def warnings_of(make, monkeypatch, between=lambda optimizer: None):
    said: list[str] = []
    monkeypatch.setattr(faults, "warn_once", lambda key, text: said.append(text))
    from wse_sim.cstorch import step as steps

    monkeypatch.setattr(steps, "prepare", lambda run, program, seconds: None)
    runtime.reset()
    cstorch.backend("CSX")
    model = cstorch.compile(nn.Linear(WIDTH, CLASSES))
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    change = make()

    @cstorch.trace
    def step(x, y):
        loss = functional.cross_entropy(model(x), y) * change()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    execution = begin_execution(None, num_steps=2)
    try:
        for x, y in data(2):
            step(*execution.feed((x, y)))
            execution.end_step()
            between(optimizer)
    finally:
        execution.finish()
    return said


def a_list():
    seen = []

    def change():
        seen.append(1)
        return 2.0 if len(seen) > 1 else 1.0

    return change


def an_attribute():
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

    counter = Counter()

    def change():
        counter.calls += 1
        return float(counter.calls)

    return change


def a_dictionary():
    """State by tensors, as optimizers store it: the comparison reads no tensor."""
    state = {cstorch.make_constant(torch.ones(1)): 0}

    def change():
        for key in state:
            state[key] += 1
        return 1.0

    return change


def a_draw():
    def change():
        return random.random()

    return change


@pytest.mark.parametrize(
    ("make", "word"),
    [(a_list, "seen"), (an_attribute, "counter.calls"), (a_dictionary, "state"), (a_draw, "random")],
)
def test_python_that_a_step_sees_once_is_a_warning_with_its_line(make, word, monkeypatch):
    said = warnings_of(make, monkeypatch)
    assert len(said) == 1
    assert f"'{word}'" in said[0]
    assert said[0].startswith("tests/cstorch/test_what_the_cpu_trains.py:") or __file__ in said[0]


def test_a_rate_that_is_set_between_steps_is_a_warning(monkeypatch):
    def slower(optimizer):
        optimizer.param_groups[0]["lr"] = 0.01

    said = []
    for count, between in ((0, lambda optimizer: None), (1, slower)):
        said = warnings_of(lambda: lambda: 1.0, monkeypatch, between)
        assert len(said) == count
    assert "0.1 to 0.01" in said[0]


def test_suspicions_are_faults_where_the_user_wants_it(monkeypatch):
    runtime.reset()
    monkeypatch.setattr(faults, "strict", True)
    with pytest.raises(faults.ProgramError, match="count"):
        faults.suspect("key", "'count' changed inside the step")


def test_outputs_are_fetched_on_activation_steps_only(monkeypatch):
    from wse_sim.cstorch import step as steps

    monkeypatch.setattr(steps, "prepare", lambda run, program, seconds: None)
    runtime.reset()
    cstorch.backend("CSX")
    model = cstorch.compile(nn.Linear(WIDTH, CLASSES))
    step = cstorch.trace(lambda x, y: functional.cross_entropy(model(x), y))
    at: list[int] = []
    saved: list[int] = []
    execution = begin_execution(None, num_steps=5, activation_steps=2, checkpoint_steps=3)
    read = cstorch.step_closure(lambda loss: at.append(execution.iteration))
    save = cstorch.checkpoint_closure(lambda: saved.append(execution.iteration))
    try:
        for x, y in data(5):
            read(step(*execution.feed((x, y))))
            save()
            execution.end_step()
    finally:
        execution.finish()
    assert (at, saved) == ([2, 4, 5], [3, 5])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", ["Conv1d", "ConvTranspose2d"])
def test_a_convolution_of_half_typed_images_computes_in_fp32(tmp_path, kind: str) -> None:
    """Input pipelines of public trainers give half-precision images, weights are fp32: the wafer computes as if the
    images were cast by hand.
    """

    def make(cast):
        def models():
            layer = getattr(torch.nn, kind)(1, 2, 3)
            shape = (-1, 1, WIDTH) if kind == "Conv1d" else (-1, 1, 2, WIDTH // 2)
            return (layer,), lambda x, y: layer(cast(x.to(torch.bfloat16)).reshape(shape)).square().mean()

        return models

    mixed = trained("CSX", make(lambda x: x), artifact_dir=tmp_path)[0]
    assert mixed == trained("CPU", make(lambda x: x.float()), artifact_dir=tmp_path)[0]


@pytest.mark.parametrize("module", ["a_library", "__main__"])
def test_a_check_of_values_is_skipped_in_imported_code_and_refused_in_the_script(
    tmp_path, module: str
) -> None:
    """`if x.max() < -9: raise` does not change the graph; the author of the script can move it, but those who import it
    cannot.
    """
    file = tmp_path / "checked.py"
    file.write_text(
        "def checked(x):\n    if x.max() < -9:\n        raise ValueError('small')\n    return x\n"
    )
    names = {"__name__": module}
    exec(compile(file.read_text(), str(file), "exec"), names)

    def make():
        layer = torch.nn.Linear(WIDTH, CLASSES)
        return (layer,), lambda x, y: functional.cross_entropy(layer(names["checked"](x)), y)

    if module == "__main__":
        with pytest.raises(cstorch.ProgramError, match=r"checked\.py:2.*torch\.where"):
            trained("CSX", make, artifact_dir=tmp_path)
    else:
        assert trained("CSX", make, artifact_dir=tmp_path)[0] == trained("CPU", make)[0]
