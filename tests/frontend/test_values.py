"""Kernel graphs compute the model's values: each kernel alone, and all one after the other."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontend.execute import check_every_kernel, record, relative, run_whole  # noqa: E402
from tests.frontend.families import FAMILIES  # noqa: E402
from wse_sim.frontend.parameters import parse_parameters  # noqa: E402
from wse_sim.frontend.zoo import build  # noqa: E402
from wse_sim.graph import frozen  # noqa: E402


def filled(module: Any, tied: bool) -> Any:
    """Return a module of the zoo with weights: norms near one, variances positive, angles for rotary tables."""
    torch.manual_seed(0)
    module = module.to_empty(device="cpu")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        leaf, spread = name.rpartition(".")[2], tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.1
        if not tensor.is_floating_point():
            tensor.zero_()
        elif leaf == "running_var":
            tensor.uniform_(0.5, 1.5)
        elif leaf in ("cos", "sin"):
            turns = torch.arange(tensor.numel() // 2).reshape(tensor.shape[0], -1) * 0.1
            tensor.copy_(getattr(torch, leaf)(turns).repeat(1, 2))
        else:
            tensor.data.normal_(0.0, spread).add_(1.0 if tensor.ndim == 1 and leaf == "weight" else 0.0)
    if tied and hasattr(module, "wte"):
        module.lm_head.weight = module.wte.weight
    if tied and hasattr(module, "words"):
        module.decoder.weight = module.words.weight
    return module


def arguments(args: Any) -> list[Any]:
    """Return values for the example arguments: ids below 2 (also types), or normal numbers."""
    torch.manual_seed(1)
    return [torch.randn(a.shape) if a.is_floating_point() else torch.randint(0, 2, a.shape) for a in args]


SMALL = {"resnet": {"input": 32}}
ZOO = ["mlp", "gpt", "grouped", "bert", "resnet", "vit"]
ZOO += [pytest.param(n, marks=pytest.mark.slow) for n in ("llama", "gpt untied", "bert with 5 masked")]  # type: ignore[misc]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str) -> None:
    """Every kernel within 1e-4 of PyTorch in fp32, and the model's result within 1e-3 when chained."""
    parameters = dict(FAMILIES["llama" if name == "grouped" else name]) | SMALL.get(name, {})
    if name == "grouped":
        parameters["kv_heads"] = 2
    parsed = parse_parameters(parameters)
    module, args = build(parsed, batch=2)
    model = record(filled(module, parsed.is_sequence and parsed.is_tied), arguments(args))
    assert len(check_every_kernel(model)) == len(model.lowered.graph)
    assert relative(run_whole(model).numpy(), model.result) < 1e-3


SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
WRITTEN = {
    "GPT2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 99, "n_positions": 32},
    "Bert": {**SIZES, "vocab_size": 99, "max_position_embeddings": 32},
    "Llama": {**SIZES, "vocab_size": 99, "num_key_value_heads": 2},
    "ViT": {**SIZES, "image_size": 16, "patch_size": 4},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
}
HEADS = {"GPT2": "LMHeadModel", "Bert": "ForMaskedLM", "Llama": "ForCausalLM"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in ("Bert", "ViT", "ResNet") else n for n in WRITTEN],
)
def test_transformers(name: str) -> None:
    """The same for models that spell out norms, activations, rotary positions and masks."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**WRITTEN[name])
    if name in HEADS:
        config.use_cache = False
    module = getattr(transformers, name + HEADS.get(name, "ForImageClassification"))(config).eval()
    inputs = torch.randint(0, 99, (2, 12)) if name in HEADS else torch.randn(2, 3, 16, 16)
    model = record(module, (inputs,))
    assert len(check_every_kernel(model)) == len(model.lowered.graph)
    assert relative(run_whole(model).numpy(), model.result) < 1e-3


@pytest.mark.slow
def test_the_check_finds_faults() -> None:
    """A kernel that states something different from the model is found."""
    module, args = build(parse_parameters(FAMILIES["gpt"]))
    model = record(filled(module, True), arguments(args))
    graph, lowered = model.lowered.graph, model.lowered
    for name, attrs in (("h.0.attn.attention", {"causal": False}), ("h.0.mlp.up", {"fused": "bias"})):
        wrong = [
            dataclasses.replace(k, attrs=frozen({**k.attrs, **attrs})) if k.name == name else k for k in graph
        ]
        lowered.graph = dataclasses.replace(graph, kernels=tuple(wrong))
        with pytest.raises((AssertionError, ValueError)):
            check_every_kernel(model)
    lost = [dataclasses.replace(k, inputs=k.inputs[:1]) if len(k.inputs) > 1 else k for k in graph]
    lowered.graph = dataclasses.replace(graph, kernels=tuple(lost))
    with pytest.raises(AssertionError):
        check_every_kernel(model)
