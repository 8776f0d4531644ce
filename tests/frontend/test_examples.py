"""Example arguments of transformers models: the model accepts them, and the FLOPs of the graph are those of torch."""

from __future__ import annotations

from types import SimpleNamespace

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
    given = next(examples_of(module, config, 12))
    assert {key: tuple(given[key].shape) for key in shapes} == shapes
    graph = lower(module, (), given)
    real = {
        k: torch.ones(v.shape) if isinstance(v, torch.Tensor) and v.is_meta else v for k, v in given.items()
    }
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        kind(config).eval().requires_grad_(False)(**real)
    assert graph.forward_flops == counter.get_total_flops()


class _Senses(torch.nn.Module):
    """A model that puts features of a picture and of a sound at the places of its text that are marked for them."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(9, 4)
        self.seen, self.heard = torch.nn.Linear(64, 4), torch.nn.Linear(6, 4)
        self.calls: list[tuple[int, ...]] = []
        self.is_running = False

    def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        if not self.is_running:
            self.calls.append(tuple(pixel_values.shape))
        return self.seen(pixel_values.reshape(-1, 64))

    def get_audio_features(
        self, input_features: torch.Tensor, feature_attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        if feature_attention_mask is None:
            raise ValueError("which frames are sound?")
        return self.heard(input_features * feature_attention_mask[..., None])[:, ::2]

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        feature_attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.is_running = True
        try:
            text = self.words(input_ids)
            if pixel_values is not None:
                text = text + self.get_image_features(pixel_values).sum(0)
            if input_features is not None:
                text = text + self.get_audio_features(input_features, feature_attention_mask).sum(1)
            return text
        finally:
            self.is_running = False


_SENSES = SimpleNamespace(
    vision_config=SimpleNamespace(image_size=8, num_channels=3),
    audio_config=SimpleNamespace(num_mel_bins=6, max_source_positions=5),
    image_token_id=7,
    audio_token_id=8,
    max_position_embeddings=12,
)


def test_features_are_made_once_of_each_shape_for_all_sets_of_arguments() -> None:
    """An image of 3 x 8 x 8 pixels makes 3 features of 64 pixels; 10 frames of sound make 5."""
    with torch.device("meta"):
        model = _Senses()
    sets = examples_of(model, _SENSES, None)
    first, rest = next(sets), list(sets)
    assert model.calls.count((1, 3, 8, 8)) == 1
    assert [set(one) for one in (first, *rest)] == [
        {"input_ids", "pixel_values", "input_features"},
        {"input_ids", "pixel_values", "input_features", "attention_mask", "feature_attention_mask"},
        {"input_ids"},
    ]
    text = rest[0]["input_ids"][0].tolist()
    assert (text.count(7), text.count(8), len(text)) == (3, 5, 20)
    assert rest[0]["feature_attention_mask"].shape == (1, 10)
    assert rest[0]["attention_mask"].shape == (1, 20)
