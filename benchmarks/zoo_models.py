"""Builds a model of each public zoo on "meta", with example arguments (see benchmarks/zoo_coverage.py).

A function NAME_names() lists a zoo's models; the function NAME(model) builds one: (module, args, kwargs).

One file, because it is a list: a table of arguments per zoo and a few lines that use it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

Row = dict[str, Any]

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Built = tuple[Any, tuple[Any, ...], Row]
SAMPLES = 2
TOKENS = 64


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device="meta")


_SIZES = (
    *(
        "zepto",
        "atto",
        "femto",
        "pico",
        "nano",
        "xxtiny",
        "xxs",
        "xtiny",
        "xs",
        "mini",
        "tiny",
        "micro",
        "small",
    ),
    *("s18", "t16", "ti", "s", "b0", "x0", "050", "lite"),
)


def smallest_first(name: str) -> tuple[int, int, str]:
    """Return a key that sorts names by their size word, then by the numbers (depth, width), then by letters."""
    words = name.lower().replace("-", "_").split("_")
    size = min((_SIZES.index(w) for w in words if w in _SIZES), default=len(_SIZES))
    digits = [int(d) for d in re.findall(r"\d+", name)]
    return size, sum(digits), name


def one_of_each_family(zoo: str) -> list[str]:
    """Return the first name, by :func:`smallest_first`, of each source module of a zoo."""
    families: dict[str, list[str]] = {}
    if zoo == "timm":
        import timm as found

        families = {module: found.list_models(module=module) for module in found.list_modules()}
    elif zoo == "transformers":
        import transformers as found

        for name in transformers_names():
            families.setdefault(getattr(found, name).__module__.split(".")[2], []).append(name)
    else:
        raise ValueError(f"{zoo} has no families; use --every")
    return sorted(min(names, key=smallest_first) for names in families.values() if names)


# --- torchvision


def torchvision_names() -> list[str]:
    """Return all models except detectors, whose results have shapes that depend on values."""
    import torchvision

    detectors = torchvision.models.list_models(module=torchvision.models.detection)
    return [n for n in torchvision.models.list_models() if n not in detectors]


def torchvision(name: str, **_: bool) -> Built:
    """Return a model of torchvision."""
    import torchvision as zoo

    segments = name in zoo.models.list_models(module=zoo.models.segmentation)
    how: Row = {"weights_backbone": None} if segments else {}
    if name in ("inception_v3", "googlenet"):
        how["init_weights"] = False
    if "regnet" in name:  # its sizes are computed with tensors
        return zoo.models.get_model(name, weights=None), (torch.zeros(SAMPLES, 3, 224, 224),), {}
    with torch.device("meta"):
        module = zoo.models.get_model(name, weights=None, **how)
    if ".video" in type(module).__module__:
        side = 224 if any(part in name for part in ("mvit", "swin", "s3d")) else 112
        return module, (_zeros(SAMPLES, 3, 16, side, side),), {}
    if ".optical_flow" in type(module).__module__:
        image = _zeros(SAMPLES, 3, 128, 128)
        return module, (image, image.clone()), {}
    side = {"inception_v3": 299}.get(name, getattr(module, "image_size", 224))
    return module, (_zeros(SAMPLES, 3, side, side),), {}


# --- timm


def timm_names() -> list[str]:
    """Return all models of timm."""
    import timm

    return list(timm.list_models())


def timm(name: str, **_: bool) -> Built:
    """Return a model of timm at the size of its first published weights."""
    import timm as zoo

    config = zoo.models.get_pretrained_cfg(name)
    size = config.input_size if config is not None else (3, 224, 224)
    with torch.device("meta"):
        module = zoo.create_model(name, pretrained=False)
    return module, (_zeros(SAMPLES, *size),), {}


# --- transformers

_TASKS = (
    "CAUSAL_LM MASKED_LM SEQ_TO_SEQ_CAUSAL_LM SEQUENCE_CLASSIFICATION IMAGE_CLASSIFICATION SEMANTIC_SEGMENTATION "
    "DEPTH_ESTIMATION AUDIO_CLASSIFICATION CTC SPEECH_SEQ_2_SEQ ZERO_SHOT_IMAGE_CLASSIFICATION IMAGE_TEXT_TO_TEXT"
)
_LAYERS = [
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "encoder_num_hidden_layers",
    "decoder_num_hidden_layers",
]


def transformers_names() -> list[str]:
    """Return the classes of its auto models: text, vision, speech, multimodal."""
    from transformers.models.auto import modeling_auto as auto

    names: set[str] = set()
    for task in _TASKS.split():
        for value in getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values():
            names.update([value] if isinstance(value, str) else value)
    return sorted(names)


def transformers(name: str, *, whole: bool = False, each: int = 1) -> Built:
    """Return a class of transformers with its default sizes and `each` layers of each kind, at least two; `whole` with all."""
    module = _transformers_module(name, whole, each)
    return module, (), _transformers_inputs(module, module.config)


def transformers_doors(name: str, *, whole: bool = False) -> Iterator[Built]:
    """Yield the same with each set of arguments of hf:, which are made when they are asked for."""
    from wse_sim.frontend.examples import examples_of

    module = _transformers_module(name, whole, 1)
    reads = "input_ids" in module.main_input_name
    for given in examples_of(module, module.config, TOKENS if reads else None):
        yield module, (), given


def _transformers_module(name: str, whole: bool, each: int) -> PreTrainedModel:
    import transformers as zoo

    kind = getattr(zoo, name)
    config = kind.config_class(**_needs(_TRANSFORMERS_MADE, name))
    if not whole:
        _shorten(config, each)
    for path, value in _needs(_TRANSFORMERS, name).items():
        owner, _, key = path.rpartition(".")
        part = config
        for step in filter(None, owner.split(".")):
            part = getattr(part, step)
        setattr(part, key, value)
    for key in _MARKS:
        if getattr(config, key, 0) is None:
            setattr(config, key, 1)
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0
    seen, read = getattr(config, "vision_config", None), getattr(config, "text_config", None)
    if hasattr(seen, "out_hidden_size") and hasattr(read, "hidden_size"):
        seen.out_hidden_size = read.hidden_size
    if "ForCTC" in name and getattr(config, "vocab_size", 0) is None:
        config.vocab_size = 32
    with torch.device("meta"):
        return kind(config)  # type: ignore[no-any-return]


def _needs(table: Mapping[str, Row], name: str) -> Row:
    """Return what a table has for all classes that begin as a name does."""
    return {
        key: value for start, row in table.items() if name.startswith(start) for key, value in row.items()
    }


_MARKS = ("image_token_id", "image_token_index", "im_token_id", "image_token")
"""What configurations call the id that stands for a place of a picture."""

_PICTURE_WORDS = {
    "<image>": 7,
    "<|image token|>": 7,
    **{f"IMGIMG{'A' * (4 - len(c))}{c}Z": 100 + i for i, c in enumerate("BCDE")},
}
_COMPASS: Row = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}}
_TRANSFORMERS_MADE: dict[str, Row] = {
    "ChameleonForConditionalGeneration": {"vocabulary_map": _PICTURE_WORDS},
    "Emu3ForConditionalGeneration": {"vocabulary_map": {"<image>": 7}},
    "CohereCompassForCausalLM": _COMPASS,
    "CohereCompassText": _COMPASS,
    "CohereCompassForConditionalGeneration": {"text_config": _COMPASS},
    "HunYuanDense": {"head_dim": 128},
    "HunYuanMoE": {"head_dim": 128},
    "HunYuanVL": {"text_config": {"head_dim": 128}},
    "DeepseekOcr2": {"text_config": {"mlp_layer_types": ["dense", *["sparse"] * 11]}},
    "DiffusionGemma": {"text_config": {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}},
    "Lfm2Moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "NemotronFor": {"num_key_value_heads": 8},
    "PerceiverForImageClassificationConvProcessing": {"num_cross_attention_heads": 1},
}
"""Arguments of a configuration that it takes only when it is made."""

_HALF_ROTARY: Row = {
    "text_config.rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [8, 12, 12],
        "partial_rotary_factor": 0.5,
    }
}
_TRANSFORMERS: dict[str, Row] = {
    "Esm": {"vocab_size": 33},
    "Reformer": {"axial_pos_shape": (8, TOKENS // 8)},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "BeitForSemanticSegmentation": {"out_indices": [3, 5, 7, 11], "num_hidden_layers": 12},
    "Data2VecVisionForSemanticSegmentation": {"out_indices": [3, 5, 7, 11], "num_hidden_layers": 12},
    "DeepseekV2For": {"num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "GlmOcrForConditionalGeneration": {"vision_config.out_hidden_size": 1024},
    "Glm46VForConditionalGeneration": _HALF_ROTARY,
    "Glm4vMoeForConditionalGeneration": {**_HALF_ROTARY, "text_config.head_dim": 128},
    "JanusForConditionalGeneration": {"text_config.hidden_size": 2048},
    "Llama4ForConditionalGeneration": {
        "vision_config.hidden_size": 1408,
        "vision_config.vision_output_dim": 4096,
        "vision_config.image_size": 336,
    },
    "Qwen3OmniMoeThinkerForConditionalGeneration": {
        "text_config.num_attention_heads": 32,
        "text_config.head_dim": 128,
        "audio_config.output_dim": 2048,
        "vision_start_token_id": 151652,
    },
    "Step3p7ForConditionalGeneration": {"text_config.sliding_window": 512},
    "MoonshineStreaming": {"num_key_value_heads": 8},
    "Zamba2": {"hybrid_layer_ids": [2]},  # of the layers that are left
    "Qwen2VLForConditionalGeneration": {"vision_config.hidden_size": 8192},
    "Xmod": {"default_language": "en_XX"},
    "Dots1ForCausalLM": {
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "n_group": 1,
        "topk_group": 1,
    },
    "AyaVisionForConditionalGeneration": {
        "vision_config.num_attention_heads": 16,
        "vision_config.image_size": 364,
    },
    "DPTForDepthEstimation": {"num_hidden_layers": 12},
    "DepthProForDepthEstimation": {"image_size": 1536},
    "DbrxForCausalLM": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0},
    "AriaForConditionalGeneration": {"vision_config.image_size": 490, "vision_config.patch_size": 14},
}
"""What a class needs in addition to its defaults, by path in its configuration: sizes that are those of published weights."""


def _shorten(config: PretrainedConfig, each: int) -> None:
    """Keep `each` layers of each kind, at least two, in the parts of a composed configuration too; chance skips no layer."""
    for key in [key for key in vars(config) if key.endswith("layerdrop")]:
        setattr(config, key, 0.0)
    kinds = [
        k
        for k in ("layer_types", "mlp_layer_types", "layers_block_type")
        if isinstance(getattr(config, k, None), (list, tuple))
    ]
    layers = [0, 1]
    if kinds:
        rows = list(zip(*(getattr(config, k) for k in kinds), strict=False))
        first = (i for i, row in enumerate(rows) if rows[:i].count(row) < each)
        layers = sorted({*first} | {0, 1})[: len(rows)]
    kept = {key: [getattr(config, key)[i] for i in layers] for key in kinds}  # one may be another's name
    for key, value in kept.items():
        with contextlib.suppress(AttributeError, NotImplementedError):  # computed by some
            setattr(config, key, value)
    if isinstance(getattr(config, "num_kv_shared_layers", None), int):  # the last ones, which are left out
        config.num_kv_shared_layers = 0
    for key in _LAYERS:
        if isinstance(getattr(config, key, None), int):
            try:
                setattr(config, key, min(len(layers), getattr(config, key)))
            except (AttributeError, NotImplementedError, ValueError, TypeError):
                continue
    if hasattr(config, "use_cache"):
        config.use_cache = False
    for part in vars(config).values():
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            _shorten(part, each)


def _transformers_inputs(module: torch.nn.Module, config: PretrainedConfig) -> Row:
    import inspect

    takes = inspect.signature(module.forward).parameters
    ids = torch.zeros(SAMPLES, TOKENS, dtype=torch.long)  # with values: masks of them are tested
    vision = getattr(config, "vision_config", config)
    main = module.main_input_name
    given: Row = {}
    if main == "pixel_values" or (main == "input_ids" and "pixel_values" in takes):
        side = getattr(vision, "image_size", None) or 224
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        given["pixel_values"] = _zeros(SAMPLES, getattr(vision, "num_channels", 3), height, width)
    if main == "input_values":
        bins = None if "SpeechToText" in type(module).__name__ else getattr(config, "num_mel_bins", None)
        given["input_values"] = (
            _zeros(SAMPLES, getattr(config, "max_length", 1024), bins) if bins else _zeros(SAMPLES, 16000)
        )
    if main == "input_features":
        heard = getattr(config, "encoder_config", config)
        bins = getattr(heard, "num_mel_bins", None) or getattr(heard, "feature_size", 80)
        frames = 2 * getattr(config, "max_source_positions", 500)
        whisper = "hisper" in type(module).__name__
        given["input_features"] = (
            _zeros(SAMPLES, bins, frames) if whisper else _zeros(SAMPLES, min(frames, 400), bins)
        )
    both = (
        "input_ids" in takes
        and "pixel_values" in given
        and "ForImageClassification" not in type(module).__name__
    )
    if main == "input_ids" or (both and not getattr(config, "is_encoder_decoder", False)):
        given["input_ids"] = ids
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        channels = getattr(getattr(config, "decoder_config", None), "num_channels", None)
        given["decoder_input_ids"] = (
            torch.zeros(SAMPLES, TOKENS, channels).long() if channels else ids.clone()
        )
    if "high_res_pixel_values" in takes and "pixel_values" in given:
        side = config.high_res_vision_config.image_size
        given["high_res_pixel_values"] = _zeros(SAMPLES, 3, side, side)
    if "use_cache" in takes:
        given["use_cache"] = False
    if "input_ids" in given and ("pixel_values" in given or "image_grid_thw" in takes):
        with contextlib.suppress(Exception):  # then the model itself reports what it lacks
            given |= _with_pictures(module, config, given, takes)
    return given


def _with_pictures(
    module: torch.nn.Module, config: PretrainedConfig, given: Row, takes: Mapping[str, object]
) -> Row:
    """Return the ids in which each picture has as many places as it has features; patches of one picture per sample by
    a grid.
    """
    from wse_sim.frontend.examples import frames_of_patch

    found: Row = {}
    vision = getattr(config, "vision_config", config)
    if "image_grid_thw" in takes:
        merge = getattr(vision, "spatial_merge_size", 2)
        side = 4 * merge
        frames = frames_of_patch(vision)
        channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3
        wide = channels * frames * vision.patch_size**2
        found["image_grid_thw"] = torch.tensor([[1, side, side]] * SAMPLES)
        found["pixel_values"] = _zeros(SAMPLES * side * side, wide)
        places = side * side // merge**2
    else:
        places = _features(module, given)
    marks = [getattr(config, key) for key in _MARKS if isinstance(getattr(config, key, None), int)]
    if not marks:
        return {}
    mark = marks[0]
    ids = torch.zeros(SAMPLES, places + TOKENS, dtype=torch.long)
    ids[:, 1 : places + 1] = mark
    found["input_ids"] = ids
    if "mm_token_type_ids" in takes:
        found["mm_token_type_ids"] = (ids == mark).long()
    return found


class _Pictures(torch.nn.Module):
    """The features that a model computes from pictures."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> object:
        made = self.model.get_image_features(pixel_values=pixel_values)
        made = getattr(made, "pooler_output", made)
        return tuple(made) if isinstance(made, (tuple, list)) else made


def _features(module: torch.nn.Module, given: Mapping[str, object]) -> int:
    """Return the number of features that a model makes of one picture; it is captured, because some read values on the
    way.
    """
    from wse_sim.frontend.capture import export

    owner = module if hasattr(module, "get_image_features") else module.model
    program = export(_Pictures(owner).eval(), (given["pixel_values"],), None, training=False)
    results = [s.arg.name for s in program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]
    shapes = [n.meta["val"].shape for n in program.graph.nodes if n.name in results]
    return sum(shape.numel() // shape[-1] for shape in shapes) // SAMPLES


# --- diffusers


def diffusers_names() -> list[str]:
    """Return the UNets and transformers of diffusers."""
    import diffusers

    found = []
    for name in dir(diffusers):
        if name.endswith(
            (
                "Transformer2DModel",
                "UNet2DModel",
                "UNet2DConditionModel",
                "UNet1DModel",
                "UNet3DConditionModel",
            )
        ):
            found.append(name)
    return sorted(
        {
            *found,
            "AutoencoderKL",
            "UNetSpatioTemporalConditionModel",
            "UNetMotionModel",
            "PriorTransformer",
            "ControlNetModel",
        }
    )


_DIFFUSERS: dict[str, Row] = {
    "Transformer2DModel": {"in_channels": 320, "cross_attention_dim": 768},
    "UNet1DModel": {"in_channels": 2, "extra_in_channels": 64},  # channels of the time's encoding
    "UNetMotionModel": {"block_out_channels": (64, 128), "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
                        "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion")},
    "UNetSpatioTemporalConditionModel": {"block_out_channels": (64, 128), "num_attention_heads": (2, 4),
                                         "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
                                         "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal")},
    "BriaFiboTransformer2DModel": {"pooled_projection_dim": 768},
    "DreamLiteTransformer2DModel": {"in_channels": 320, "cross_attention_dim": 768},
    "HiDreamImageTransformer2DModel": {"patch_size": 2, "in_channels": 16, "caption_channels": [4096, 4096], "llama_layers": [0, 1, 2, 3], "axes_dims_rope": (64, 32, 32)},
    "OmniGenTransformer2DModel": {"rope_scaling": {"type": "su", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}},
    "BriaFibo2Transformer2DModel": {"n_layers": 8, "injection_layer_ids": (3, 6)},
}  # fmt: skip
"""What a class needs in addition to its defaults, or a part of its blocks where the whole takes minutes to trace."""


def diffusers(name: str, **_: bool) -> Built:
    """Return a UNet or transformer of diffusers at its default sizes, two blocks where a number of blocks is asked."""
    import inspect

    import diffusers as zoo

    kind = getattr(zoo, name)
    how: Row = dict(_DIFFUSERS.get(name, {}))
    for key in ("num_layers", "num_single_layers", "num_refiner_layers", "depth"):
        if key in inspect.signature(kind.__init__).parameters:
            how[key] = 2
    with torch.device("meta"):
        module = kind(**how)
    return module, *_diffusers_inputs(module)


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def _diffusers_whole(kind: str, config: Mapping[str, object]) -> Row:
    """Return all arguments of classes that follow no other: an image of 32 x 32 or 64 packed places, 32 words."""
    time, n = _zeros(SAMPLES), SAMPLES
    picture = _zeros(n, config.get("in_channels") or 4, 32, 32)
    packed = _zeros(n, 64, config.get("in_channels") or 4)
    shapes = [(1, 8, 8)] * n
    known: dict[str, Row] = {
        "ErnieImageTransformer2DModel": {"hidden_states": picture, "timestep": time, "text_bth": _zeros(n, 32, 2560),
                                         "text_lens": torch.full((n,), 32)},
        "Ideogram4Transformer2DModel": {"hidden_states": _zeros(n, 96, 128), "timestep": time,
                                        "encoder_hidden_states": _zeros(n, 96, 53248), "position_ids": _ids(n, 96, 3),
                                        "segment_ids": _ids(n, 96), "indicator": _ids(n, 96)},
        "Krea2Transformer2DModel": {"hidden_states": packed, "encoder_hidden_states": _zeros(n, 32, 12, 2560), "timestep": time,
                                    "position_ids": _ids(96, 3)},
        "QwenImage21Transformer2DModel": {"hidden_states": packed, "encoder_hidden_states": _zeros(n, 32, 4096), "timestep": time,
                                          "img_shapes": [[(1, 8, 8)]] * n, "img_mask": torch.arange(48).repeat(n, 1) > 31},
        "NucleusMoEImageTransformer2DModel": {"hidden_states": packed, "img_shapes": shapes, "timestep": time,
                                              "encoder_hidden_states": _zeros(n, 32, 3584)},
        "DreamLiteTransformer2DModel": {"hidden_states": picture, "encoder_hidden_states": _zeros(n, 32, 768)},
        "HiDreamImageTransformer2DModel": {"hidden_states": picture, "timesteps": time, "encoder_hidden_states_t5": _zeros(n, 32, 4096),
                                           "encoder_hidden_states_llama3": _zeros(4, n, 32, 4096), "pooled_embeds": _zeros(n, 2048)},
        "OmniGenTransformer2DModel": {"hidden_states": picture, "timestep": time, "input_ids": _ids(n, 288),
                                      "input_img_latents": [_zeros(1, 4, 32, 32)], "input_image_sizes": {0: [[0, 256]]},
                                      "attention_mask": torch.ones(n, 545, 545, dtype=torch.bool), "position_ids": _ids(n, 545)},
        "BriaFibo2Transformer2DModel": {"hidden_states": picture, "timestep": time, "encoder_hidden_states": _zeros(n, 3, 300, 7680)},
    }  # fmt: skip
    return known.get(kind, {})


def _diffusers_inputs(module: torch.nn.Module) -> tuple[tuple[object, ...], Row]:
    import inspect

    takes, config = inspect.signature(module.forward).parameters, module.config
    kind, given = type(module).__name__, Row()
    side = (
        min(64, config.get("sample_size") or 32) if isinstance(config.get("sample_size") or 32, int) else 32
    )
    channels = config.get("in_channels") or 4
    frames = "3D" in kind or kind in ("UNetSpatioTemporalConditionModel", "UNetMotionModel")
    if whole := _diffusers_whole(kind, config):
        return (), whole
    if kind == "UNet1DModel":
        return (_zeros(SAMPLES, config["in_channels"], 4096), 1.0), {}
    image = _zeros(SAMPLES, channels, side, side)
    if kind == "UNetSpatioTemporalConditionModel":
        image = _zeros(SAMPLES, 4, channels, side, side)
        given["added_time_ids"] = _zeros(SAMPLES, 3)
    elif frames:
        image = _zeros(SAMPLES, channels, 4, side, side)
    if kind == "UNetMotionModel":  # text for each frame
        given["encoder_hidden_states"] = _zeros(4 * SAMPLES, 32, config["cross_attention_dim"])
    if kind == "AutoencoderKL":
        return (_zeros(SAMPLES, 3, 64, 64),), {}
    packed = "img_ids" in takes or kind == "QwenImageTransformer2DModel"
    if packed:
        image = _zeros(SAMPLES, 64, channels)
    given["hidden_states" if "hidden_states" in takes else "sample"] = image
    if "timestep" in takes:
        given["timestep"] = _zeros(SAMPLES)
    width = next(
        (
            config[k]
            for k in (
                "joint_attention_dim",
                "caption_channels",
                "cross_attention_dim",
                "text_embed_dim",
                "context_in_dim",
                "cap_feat_dim",
                "caption_projection_dim",
            )
            if isinstance(config.get(k), int)
        ),
        1280,
    )
    if isinstance(config.get("cross_attention_dim"), (list, tuple)):
        width = config["cross_attention_dim"][0]
    if (
        "encoder_hidden_states" in takes
        and "encoder_hidden_states" not in given
        and (
            config.get("cross_attention_dim")
            or config.get("joint_attention_dim")
            or config.get("caption_channels")
        )
    ):
        given["encoder_hidden_states"] = _zeros(SAMPLES, 32, width)
    given |= _diffusers_more(takes, config)
    if "pooled_projections" in takes:
        given["pooled_projections"] = _zeros(SAMPLES, config.get("pooled_projection_dim") or 768)
    if "img_ids" in takes:
        axes = len(config.get("axes_dims_rope") or (0, 0, 0))
        given |= {"img_ids": _zeros(64, axes), "txt_ids": _zeros(32, axes)}
    if "guidance" in takes and (config.get("guidance_embeds") or "Flux2" in kind):
        given["guidance"] = _zeros(SAMPLES)
    if "encoder_attention_mask" in takes and kind.startswith(("Sana", "PixArt")):
        given["encoder_attention_mask"] = _zeros(SAMPLES, 32)
    if "added_cond_kwargs" in takes and kind.startswith("PixArt"):
        given["added_cond_kwargs"] = {"resolution": _zeros(SAMPLES, 2), "aspect_ratio": _zeros(SAMPLES, 1)}
    if kind == "DiTTransformer2DModel":
        given["class_labels"] = _zeros(SAMPLES, dtype=torch.long)
        given["timestep"] = _zeros(SAMPLES, dtype=torch.long)
    if kind == "PriorTransformer":
        given["hidden_states"] = _zeros(SAMPLES, config["embedding_dim"])
        given["proj_embedding"] = _zeros(SAMPLES, config["embedding_dim"])
        given["encoder_hidden_states"] = _zeros(SAMPLES, config["num_embeddings"], config["embedding_dim"])
    text = takes.get("encoder_hidden_states")
    if "encoder_hidden_states" not in given and text is not None and text.default is inspect.Parameter.empty:
        given["encoder_hidden_states"] = _zeros(SAMPLES, 32, config.get("text_embed_dim") or width)
    if kind == "ControlNetModel":
        given["controlnet_cond"] = _zeros(SAMPLES, 3, 8 * side, 8 * side)
    bare = [n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    missing = [name for name in bare if name not in given]
    if missing:
        raise ValueError(f"the benchmark has no example of {', '.join(missing)}")
    return (), given


def _diffusers_more(takes: Mapping[str, object], config: Mapping[str, object]) -> Row:
    """Return the arguments of single families: sizes of the picture, masks that hide nothing, states of a text encoder."""
    given: Row = {}
    for key in ("original_size", "target_size", "crop_coords"):
        if key in takes:
            given[key] = _zeros(SAMPLES, 2)
    if "img_shapes" in takes:
        given["img_shapes"] = [(1, 8, 8)] * SAMPLES
    if (
        "encoder_attention_mask" in takes
        and takes["encoder_attention_mask"].default is takes["encoder_attention_mask"].empty
    ):
        given["encoder_attention_mask"] = torch.ones(SAMPLES, 32, dtype=torch.bool)
    if "text_encoder_layers" in takes:
        layers = config["num_layers"] + config["num_single_layers"]
        given["text_encoder_layers"] = [
            _zeros(SAMPLES, 32, config["text_encoder_dim"]) for _ in range(layers)
        ]
    if "prior_token_id" in takes:
        given["prior_token_id"] = _zeros(SAMPLES, (32 // config["patch_size"]) ** 2, dtype=torch.long)
        given["prior_token_drop"] = torch.zeros(SAMPLES, (32 // config["patch_size"]) ** 2, dtype=torch.bool)
    return given


# --- monai

_MONAI = {
    "UNet": {
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
        "channels": (16, 32, 64, 128),
        "strides": (2, 2, 2),
        "num_res_units": 2,
    },
    "BasicUNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "BasicUNetPlusPlus": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "DynUNet": {
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
    },
    "VNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "SegResNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "SegResNetVAE": {
        "input_image_size": (64, 64, 64),
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
    },
    "AttentionUnet": {
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
        "channels": (16, 32, 64),
        "strides": (2, 2),
    },
    "UNETR": {"in_channels": 1, "out_channels": 2, "img_size": (64, 64, 64)},
    "SwinUNETR": {"in_channels": 1, "out_channels": 2, "feature_size": 24},
    "HighResNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "DenseNet121": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "ViT": {"in_channels": 1, "img_size": (64, 64, 64), "patch_size": (16, 16, 16)},
    "FlexibleUNet": {"in_channels": 1, "out_channels": 2, "backbone": "efficientnet-b0", "spatial_dims": 3},
    "RegUNet": {"spatial_dims": 3, "in_channels": 1, "num_channel_initial": 8, "depth": 3},
    "MedNeXtSmall": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
}


def monai_names() -> list[str]:
    """Return the 3-D networks for medical images."""
    return sorted(_MONAI)


def monai(name: str, **_: bool) -> Built:
    """Return a 3-D network of monai on volumes of 64 pixels per side."""
    from monai.networks import nets

    with torch.device("meta"):
        module = getattr(nets, name)(**_MONAI[name])
    return module, (_zeros(SAMPLES, 1, 64, 64, 64),), {}
