"""Example arguments of transformers models: the model accepts them, and the FLOPs of the graph are those of torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.examples import examples_of  # noqa: E402

_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "pad_token_id": 0,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
}
MODELS: dict[str, tuple[dict[str, object], dict[str, tuple[int, ...]]]] = {
    # Ids of several codebooks per frame.
    "MusicgenMelodyForCausalLM": ({**_TEXT, "ffn_dim": 48, "num_codebooks": 4}, {"input_ids": (4, 12)}),
    # Several images per sample, of which those of zeros are padding.
    "Idefics2ForConditionalGeneration": (
        {
            "text_config": {"model_type": "mistral", **_TEXT},
            "vision_config": {**_VISION, "image_size": 16},
            "perceiver_config": {"resampler_n_latents": 3, "resampler_depth": 1, "resampler_n_heads": 4},
            "image_token_id": 98,
        },
        {"pixel_values": (1, 1, 3, 16, 16)},
    ),
    # Images that are attended to through a mask per token.
    "IdeficsForVisionText2Text": (
        {
            **_TEXT,
            "num_hidden_layers": 2,
            "cross_layer_interval": 1,
            "vision_config": {"embed_dim": 32, "image_size": 16, **_VISION},
            "perceiver_config": {"resampler_depth": 1},
        },
        {"pixel_values": (1, 1, 3, 16, 16), "image_attention_mask": (1, 12, 1)},
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_accepts_its_examples(name: str) -> None:
    kind = getattr(transformers, name)
    sizes, shapes = MODELS[name]
    config = kind.config_class(**sizes)
    with torch.device("meta"):
        module = kind(config).eval()
    given = examples_of(module, config, 12)[0]
    assert {key: tuple(given[key].shape) for key in shapes} == shapes
    graph = lower(module, (), given)
    real = {
        k: torch.ones(v.shape) if isinstance(v, torch.Tensor) and v.is_meta else v for k, v in given.items()
    }
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        kind(config).eval().requires_grad_(False)(**real)
    assert graph.forward_flops == counter.get_total_flops()
