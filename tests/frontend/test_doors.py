"""The entry points: files, factories, exported programs, torch.fx, transformers; table, picture and pins."""

from __future__ import annotations

import json
import sys
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.frontend import oracle  # noqa: E402
from tests.frontend.families import FAMILIES  # noqa: E402
from tests.frontend.test_forward import check_wired  # noqa: E402
from wse_sim.errors import ConfigError, ModelError  # noqa: E402
from wse_sim.frontend import (  # noqa: E402
    Pin,
    draw_graph,
    load_model,
    lower,
    lower_exported,
    lower_fx,
    pin,
    pin_kernels,
    read_pins,
    table_of,
)
from wse_sim.graph import KernelGraph, Phase  # noqa: E402


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def _same(a: KernelGraph, b: KernelGraph) -> None:
    assert [k.signature for k in a] == [k.signature for k in b]
    assert a.parameters == b.parameters


def test_all_doors_lead_to_one_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Module, exported program, .pt2 file, torch.fx graph and factory give the same kernels."""
    args = (torch.randn(4, 6),)
    net = _net()
    expected = lower(net, args)
    assert expected.samples == 4
    program = torch.export.export(net, args)
    _same(lower_exported(program), expected)
    torch.export.save(program, tmp_path / "net.pt2")
    _same(load_model(str(tmp_path / "net.pt2")), expected)
    _same(lower_fx(torch.fx.symbolic_trace(net), args), expected)
    (tmp_path / "my_factory.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), (torch.randn(4, 6),)\n"
        "def traced():\n    g = torch.fx.symbolic_trace(net()[0])\n    g.example_args = net()[1]\n    return g\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    _same(load_model("my_factory:net"), expected)
    _same(load_model("my_factory:traced"), expected)
    assert load_model("my_factory:net", batch=12).forward_flops == 3 * expected.forward_flops
    sys.modules.pop("my_factory")


@pytest.mark.slow
def test_a_users_file_and_mapping(tmp_path: Path) -> None:
    """A user's YAML file, and the mapping that a suite of measurements states."""
    import yaml

    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", "source": "me", "model": FAMILIES["llama"]}))
    graph = load_model(str(file), batch=2)
    assert graph.name == "mine"
    _same(graph, load_model(FAMILIES["llama"], batch=2))
    _same(graph, load_model({"name": "mine", "model": FAMILIES["llama"]}, batch=2))
    with pytest.raises(ModelError, match="needs a sequence length; give seq"):
        load_model({k: v for k, v in FAMILIES["llama"].items() if k != "seq"})


def test_the_users_model_is_left_alone() -> None:
    """Capture changes neither mode nor weights nor device of the user's module."""
    net = _net().train()
    before = [p.clone() for p in net.parameters()]
    lower(net, (torch.randn(4, 6),))
    assert net.training
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    with torch.device("meta"):
        net = _net()
    lower(net, (torch.empty(4, 6, device="meta"),))
    assert {p.device.type for p in net.parameters()} == {"meta"}


def test_the_users_line_is_kept() -> None:
    """Each kernel has the user's line."""

    class Mine(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.exp(x)  # the user's line

    source = lower(Mine(), (torch.randn(2, 3),)).kernels[0].source
    assert "test_doors.py" in source
    assert "the user's line" in source


def test_integer_weights() -> None:
    """8-bit weights stay so: a weight-only quantised product as torchao writes it."""

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.zeros(8, 6, dtype=torch.int8))
            self.register_buffer("scale", torch.ones(6))

        def forward(self, x: Any) -> Any:
            return torch.mm(x, self.w.to(x.dtype)) * self.scale

    graph = lower(Quantised(), (torch.randn(4, 8),))
    assert graph.kernels[0].attrs["weights"] == "int8"
    assert graph.parameter_bytes == 48


# --- table, picture, pins


@pytest.mark.slow
def test_the_table_adds_up() -> None:
    """The root has the sums; equal blocks are one line with a count."""
    graph = load_model(FAMILIES["gpt"], training=True)
    table = table_of(graph)
    assert table.root.parameters == graph.parameters
    assert table.root.flops == graph.forward_flops
    assert table.root.total_flops == graph.total_flops
    assert [row.name for row in table.rows() if row.count == 2] == ["0-1"]
    text = str(table)
    assert "0-1 (x2)" in text
    assert f"{graph.parameters:,}" in text
    assert sum(c.flops for c in table.root.children.values()) == graph.forward_flops


def test_the_picture_folds_repeats(tmp_path: Path) -> None:
    """The SVG is valid, and a repeated block is drawn once in a frame with its count."""
    graph = load_model(FAMILIES["gpt"], training=True)
    text = draw_graph(graph, tmp_path / "graph.svg").read_text()
    xml.dom.minidom.parseString(text)
    assert "h x 2" in text
    assert text.count("<g>") == len(graph) - len(graph.repeats[0].instances[0])
    forward = draw_graph(graph, tmp_path / "forward.svg", phases=[Phase.FORWARD]).read_text()
    assert "update" not in forward


def test_pins_in_python_and_yaml(tmp_path: Path) -> None:
    """Kernels of a pinned module, and their gradients, carry region, rectangle and replicas."""
    graph = load_model(FAMILIES["gpt"], training=True)
    pinned = pin_kernels(graph, Pin(module="h.*.mlp", rows=60, cols=80), Pin(module="lm_head", replicas=2))
    found = [k for k in pinned if "pin_rows" in k.attrs]
    assert {k.layer for k in found} == {f"h.{i}.mlp{end}" for i in (0, 1) for end in (".up", ".down")}
    assert any(k.phase is Phase.WEIGHT_GRADIENT for k in found)
    assert pinned.kernel("lm_head").attrs["pin_replicas"] == 2
    assert [r.count for r in pinned.repeats] == [2]
    file = tmp_path / "pins.yaml"
    file.write_text("pins:\n- {module: h.*.mlp, rows: 60, cols: 80}\n- {module: lm_head, replicas: 2}\n")
    assert [k.attrs for k in pin_kernels(graph, *read_pins(file))] == [k.attrs for k in pinned]
    net = _net()
    pin(net[2], region="east")
    marked = lower(net, (torch.randn(4, 6),))
    assert [k.attrs.get("pin_region") for k in marked] == [None, "east"]


@pytest.mark.slow
def test_blocks_pinned_apart_are_no_longer_equal() -> None:
    """One block of two pinned: they do not fold as whole blocks any more."""
    graph = pin_kernels(load_model(FAMILIES["gpt"]), Pin(module="h.0", region="west"))
    assert all(len(r.instances[0]) < 7 for r in graph.repeats)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pins: [{module: nothing, replicas: 2}]", "covers no kernel"),
        ("pins: [{module: h, rows: 2}]", "only one of rows and cols"),
        ("pins: [{module: h}]", "is empty; give region"),
        ("pins: [{module: h, rows: 0, cols: 1}]", "pins.0.rows"),
        ("pins: [{module: h, place: 3}]", "place"),
    ],
)
def test_impossible_pins(tmp_path: Path, text: str, sentence: str) -> None:
    """A pin's fault names the file or the module."""
    file = tmp_path / "pins.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        pin_kernels(load_model(FAMILIES["gpt"]), *read_pins(file))


# --- transformers

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 60,
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
_WHISPER = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60, "max_source_positions": 20,
    "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip

# (architecture, configuration, attention kernels, of which causal).
HF: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60}, 2, 2),
    "bert": ("BertForMaskedLM", _TEXT, 2, 0),
    "llama": ("LlamaForCausalLM", {**_TEXT, "num_key_value_heads": 2}, 2, 2),
    "gptj": ("GPTJForCausalLM", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": 60}, 2, 2),
    "gpt_neox": ("GPTNeoXForCausalLM", _TEXT, 2, 2),
    "opt": ("OPTForCausalLM", {**_TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}, 2, 2),
    "t5": ("T5ForConditionalGeneration", _T5, 6, 0),
    "vit": ("ViTForImageClassification", {**_TEXT, "image_size": 32, "patch_size": 8}, 2, 0),
    "mamba2": (
        "Mamba2ForCausalLM",
        {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 16, "num_hidden_layers": 2, "vocab_size": 60,
         "n_groups": 2, "chunk_size": 8}, 0, 0,
    ),
    "whisper": ("WhisperForConditionalGeneration", _WHISPER, 6, 2),
    "mixtral": ("MixtralForCausalLM", {**_TEXT, "num_key_value_heads": 2, "num_local_experts": 4}, 2, 2),
    "gemma2": ("Gemma2ForCausalLM", {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}, 2, 2),
    "bloom": ("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60}, 2, 0),
}  # fmt: skip


_QUICK = ("gpt2", "llama", "gptj", "vit")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k if k in _QUICK else pytest.param(k, marks=pytest.mark.slow) for k in HF])
def test_transformers_configurations(tmp_path: Path, kind: str) -> None:
    """A config.json is enough for the complete model: attention found, masks folded, FLOPs as torch counts them."""
    pytest.importorskip("transformers")
    architecture, sizes, attention, causal = HF[kind]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind, "architectures": [architecture], **sizes}))
    length = 12
    graph = load_model(f"hf:{file}", seq=length)
    check_wired(graph)
    found = [k for k in graph if k.family == "attention"]
    assert len(found) == attention
    assert sum(bool(k.attrs["causal"]) for k in found) == causal
    from wse_sim.frontend.huggingface import from_config

    module, examples, _ = from_config(str(file), length)
    flops = oracle.flops_of(oracle.forward(module, (), next(examples)))
    if kind == "mixtral":  # torch's registry does not know grouped products
        flops += sum(k.flops for k in graph if k.family == "grouped_gemm")
    assert graph.forward_flops == flops
    training = load_model(f"hf:{file}", seq=length, training=True, batch=2)
    check_wired(training)


_IMAGES = {**{k: v for k, v in _TEXT.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}
_TOWERS = {
    "text_config": {**_TEXT, "max_position_embeddings": 16},
    "vision_config": _IMAGES,
    "projection_dim": 32,
}
_MASKS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 48, "output_channels": 32,
          "image_size": 64, "patch_size": 16, "global_attn_indexes": [1], "num_pos_feats": 16, "window_size": 2}  # fmt: skip
_DECODER = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "mlp_dim": 48,
    "num_hidden_layers": 2,
    "iou_head_hidden_dim": 32,
}

# (architecture, configuration, inputs, tokens): what has more than one input gets all of them.
SENSES: dict[str, tuple[str, dict[str, Any], set[str], int]] = {
    "clip": ("CLIPModel", _TOWERS, {"input_ids", "pixel_values"}, 12),
    "siglip": ("SiglipModel", _TOWERS, {"input_ids", "pixel_values"}, 12),
    "llava": (
        "LlavaForConditionalGeneration",
        {"text_config": {"model_type": "llama", **_TEXT}, "vision_config": {"model_type": "clip_vision_model", **_IMAGES},
         "image_token_id": 59, "image_token_index": 59},
        {"input_ids", "pixel_values"}, 16 + 12,  # 32 x 32 pixels are 4 x 4 patches
    ),
    "sam": (
        "SamModel",
        {"vision_config": _MASKS, "mask_decoder_config": _DECODER,
         "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 16}},
        {"pixel_values"}, 0,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["clip", *(pytest.param(k, marks=pytest.mark.slow) for k in SENSES if k != "clip")]
)
def test_configurations_choose_their_own_inputs(tmp_path: Path, kind: str) -> None:
    """A model of text with images gets both, and the text has a placeholder for each feature of the image; FLOPs as
    torch counts them.
    """
    pytest.importorskip("transformers")
    from wse_sim.frontend.huggingface import from_config

    architecture, sizes, inputs, tokens = SENSES[kind]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind, "architectures": [architecture], **sizes}))
    module, examples, _ = from_config(str(file), 12)
    chosen = next(one for one in examples if set(one) - {"use_cache", "attention_mask"} == inputs)
    assert not tokens or chosen["input_ids"].shape == (1, tokens)
    graph = load_model(f"hf:{file}", seq=12)
    check_wired(graph)
    assert not [note for note in graph.notes if note.startswith("inputs:")]
    on_meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in chosen.items()}
    if kind != "llava":  # which looks at the values of its tokens
        assert graph.forward_flops == oracle.flops_of(oracle.forward(module, (), on_meta))


@pytest.mark.slow
def test_no_default_configuration_of_transformers_has_sizes_that_are_refused() -> None:
    """Stages with a width each (MobileViT), heads of their own size (Reformer), keys that differ between layers: sizes
    chosen by an architecture's authors are accepted.
    """
    auto = pytest.importorskip("transformers.models.auto")
    from wse_sim.frontend.huggingface import _check_sizes

    checked = 0
    for kind in sorted(auto.modeling_auto.MODEL_MAPPING_NAMES):
        try:
            config = auto.AutoConfig.for_model(kind)
        except Exception:  # some have no defaults
            continue
        _check_sizes(Path(kind), config)
        checked += 1
    assert checked > 500


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({}, "key 'model_type' is missing"),
        ({"model_type": "gpt2"}, "key 'architectures' is missing"),
        ({"model_type": "gpt2", "architectures": ["GPT9"]}, "no architecture 'GPT9'"),
        ({"model_type": "gpt99", "architectures": ["GPT9"]}, "key 'model_type'"),
    ],
)
def test_configurations_with_faults(tmp_path: Path, config: dict[str, Any], sentence: str) -> None:
    """A fault in a configuration is named with its key."""
    pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=sentence):
        load_model(f"hf:{file}")
