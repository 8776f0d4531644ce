"""Example arguments of a transformers model: one sample, chosen by the arguments of forward() and the
configuration.

Each argument has a rule by its name. A model of several inputs (text with images, text with sound) gets all
of them, and its text has as many places for an image as the model makes features of one. If configurations do
not state the order of dimensions, each order is tried on the device "meta", where a pass costs no arithmetic.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch

from wse_sim.errors import ModelError

LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions")
DEFAULT_LENGTH = 512
SOUND = 16_000  # values: one second
FRAMES = 3_000  # of a spectrum: as many as 30 seconds have
MOST_TRIED = 12
MOST_VALUES = 2**20  # tokens that have values: of a longer text nobody looks at them

Arguments = dict[str, Any]


def text_length(config: Any, seq: int | None) -> int:
    """Tokens of one sample: `seq`, else what the configuration of the text allows, at most 512."""
    if seq is not None:
        return seq
    parts = [config, *filter(None, (getattr(config, name, None) for name in ("text_config", "decoder")))]
    known = [value for part in parts for key in LENGTHS if isinstance(value := getattr(part, key, None), int)]
    return min([DEFAULT_LENGTH, *(value for value in known if value > 0)])


def examples_of(module: Any, config: Any, seq: int | None) -> list[Arguments]:
    """Named arguments of one sample: all inputs of a model, and, where that is less, those that it cannot do without.

    Raises
    ------
    ModelError
        If forward() needs an argument for which there is no rule.
    """
    rules = _Rules(module, config, seq)
    return [_first_that_runs(module, rules.candidates(names)) for names in rules.choices()]


def _first_that_runs(module: Any, candidates: Iterator[Arguments]) -> Arguments:
    tried = list(itertools.islice(candidates, MOST_TRIED))
    return next((one for one in tried if _runs(module, one)), tried[0]) if len(tried) > 1 else tried[0]


def _runs(module: Any, arguments: Arguments) -> bool:
    """Return whether a module accepts arguments; operations that need values count as accepted."""
    on_meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    try:
        with torch.no_grad(), torch.device("meta"):
            module(**on_meta)
    except NotImplementedError:
        return True
    except Exception as fault:  # of any type: the module's own
        return "meta tensor" in str(fault)
    return True


class _Rules:
    """Rules for the arguments of one model."""

    def __init__(self, module: Any, config: Any, seq: int | None) -> None:
        self.module, self.config, self.seq = module, config, seq
        self.takes = inspect.signature(module.forward).parameters
        self.main = str(getattr(module, "main_input_name", "input_ids"))
        self.vision = (
            self._part("vision_config", "image_config", "backbone_config", "vision_encoder") or config
        )
        self.sound = self._part("audio_config", "audio_encoder", "encoder_config") or config
        self.length = text_length(config, seq)

    def _part(self, *names: str) -> Any:
        return next((part for name in names if (part := getattr(self.config, name, None)) is not None), None)

    def choices(self) -> list[tuple[str, ...]]:
        """Return the sets of inputs to try: all, and the fewest."""
        needed = self._needed()
        wanted = [*needed, *(name for name in self._further() if name not in needed)]
        return list(dict.fromkeys((tuple(wanted), tuple(needed))))

    def candidates(self, names: Sequence[str]) -> Iterator[Arguments]:
        """Arguments of these names in each order of dimensions, the likeliest first."""
        for shapes in itertools.product(*map(self._shapes, names)):
            yield self._filled(dict(zip(names, shapes, strict=True)))

    def _needed(self) -> list[str]:
        """The main input, and arguments without a default."""
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = [name for name, p in self.takes.items() if p.default is p.empty and p.kind not in kinds]
        main = [self.main] if self.main in self.takes or not found else []
        tokens = getattr(self.config, "is_encoder_decoder", False) and "decoder_input_ids" in self.takes
        return list(dict.fromkeys([*main, *found, *(["decoder_input_ids"] if tokens else [])]))

    def _further(self) -> list[str]:
        """Inputs of the model's other senses."""
        found = []
        if "input_ids" in self.takes:
            found.append("input_ids")
        if "pixel_values" in self.takes and (self.vision is not self.config or _side(self.config)):
            found.append("pixel_values")
            found += [
                name
                for name in ("image_grid_thw", "spatial_shapes", "pixel_attention_mask")
                if name in self.takes and self._is_cut()
            ]
            found += ["pixel_mask"] if "pixel_mask" in self.takes and "input_ids" in self.takes else []
        if self.sound is not self.config:
            found += [name for name in ("input_features", "input_values") if name in self.takes]
        return found

    def _is_cut(self) -> bool:
        """Return whether images are passed as rows of patches."""
        return "image_grid_thw" in self.takes or "spatial_shapes" in self.takes

    def _shapes(self, name: str) -> Sequence[tuple[int, ...]]:
        """Shapes that an input may have, the likeliest first.

        Raises
        ------
        ModelError
            If there is no rule for its name.
        """
        if name == "pixel_values":
            return self._images()
        if name == "pixel_mask":
            return ((1, *self._images()[-1][-2:]),)
        if name == "image_grid_thw":
            return ((1, 3),)
        if name == "spatial_shapes":
            return ((1, 2),)
        if name == "pixel_attention_mask":
            return (self._images()[0][:2],)
        if name == "flattened_patches":
            side = int(getattr(self.vision, "patch_size", 16))
            return ((1, DEFAULT_LENGTH, 2 + 3 * side * side),)
        if name == "input_features":
            return self._spectra()
        if name == "input_values":
            values = self.seq or SOUND
            return ((1, values), (1, 1, values), (1, values, int(getattr(self.config, "num_mel_bins", 80))))
        if name.endswith(("input_ids", "attention_mask", "token_type_ids")):
            return ((1, self.length),)
        if name == "past_values":
            steps = int(getattr(self.config, "context_length", DEFAULT_LENGTH))
            channels = int(getattr(self.config, "num_input_channels", 1))
            return ((1, steps, channels), (1, steps))
        raise ModelError(
            f"forward() of {type(self.module).__name__} takes '{name}', for which no example is known; "
            "give a factory that returns (module, (), {'" + name + "': ...})"
        )

    def _images(self) -> Sequence[tuple[int, ...]]:
        channels = int(getattr(self.vision, "num_channels", getattr(self.vision, "in_channels", 3)) or 3)
        patch = getattr(self.vision, "patch_size", 16)
        if "spatial_shapes" in self.takes and isinstance(patch, int):
            return ((1, int(getattr(self.vision, "num_patches", 256)), channels * patch * patch),)
        if "image_grid_thw" in self.takes and isinstance(patch, int):
            return (
                (GRID * GRID, channels * patch * patch * int(getattr(self.vision, "temporal_patch_size", 1))),
            )
        rows, cols = _side(self.vision) or _side(self.config) or (224, 224)
        image, frames = (channels, rows, cols), int(getattr(self.config, "num_frames", 0) or 0)
        plain = ((1, *image), (1, 1, *image))
        return ((1, frames, *image), *plain) if frames else plain

    def _spectra(self) -> Sequence[tuple[int, ...]]:
        parts = (self.sound, self.config)
        keys = (
            "num_mel_bins",
            "input_feat_per_channel",
            "feature_projection_input_dim",
            "input_dim",
            "n_mels",
        )
        bins = next(
            (int(v) for part in parts for key in keys if isinstance(v := getattr(part, key, None), int)), 80
        )
        limit = getattr(self.sound, "max_source_positions", None)
        frames = min(FRAMES, 2 * limit) if isinstance(limit, int) else FRAMES
        size = int(getattr(self.sound, "spec_size", 0) or 0)
        flat = ((1, bins, frames), (1, frames, bins))
        return ((1, 1, 4 * size, bins), *flat) if size else flat

    def _filled(self, shapes: dict[str, tuple[int, ...]]) -> Arguments:
        """Return tensors of these shapes; integer tensors have values."""
        found: Arguments = {}
        for name, shape in shapes.items():
            if name.endswith("_mask"):
                found[name] = torch.ones(shape, dtype=torch.long)
            elif name == "image_grid_thw":
                found[name] = torch.tensor([[1, GRID, GRID]])
            elif name == "spatial_shapes":
                found[name] = torch.tensor([[int(shapes["pixel_values"][1] ** 0.5)] * 2])
            elif name.endswith("_ids"):
                where = "cpu" if prod(shape) <= MOST_VALUES else "meta"
                found[name] = torch.zeros(shape, dtype=torch.long, device=where)
            else:
                found[name] = torch.zeros(shape, device="meta")
        if "pixel_values" in found and "input_ids" in found:
            found["input_ids"] = self._with_places(found)
        if "use_cache" in self.takes:
            found["use_cache"] = False
        return found

    def _with_places(self, given: Arguments) -> torch.Tensor:
        """The text with a place for each feature of the image before it, where the model puts them there."""
        text: torch.Tensor = given["input_ids"]
        keys = ("image_token_id", "image_token_index", "media_token_index")
        token = next(
            (v for key in keys if isinstance(v := getattr(self.config, key, None), int) and v >= 0), None
        )
        features = getattr(self.module, "get_image_features", None) or getattr(
            getattr(self.module, "model", None), "get_image_features", None
        )
        if token is None or features is None or text.is_meta:
            return text
        named = {
            k: v for k, v in given.items() if k in inspect.signature(features).parameters and k != "input_ids"
        }
        try:
            with torch.no_grad():
                made = features(**named)
        except Exception:  # of any type: the module's own; without places the text stands alone
            return text
        made = (
            getattr(made, "pooler_output", made)
            if not isinstance(made, (torch.Tensor, tuple, list))
            else made
        )
        parts = made if isinstance(made, tuple | list) else (made,)
        count = sum(prod(part.shape[:-1]) for part in parts if isinstance(part, torch.Tensor))
        places = torch.full((1, count), token, dtype=torch.long)
        return torch.cat([places, text + (1 if token == 0 else 0)], dim=1)


GRID = 16  # patches per side of an image that comes in patches


def _side(config: Any) -> tuple[int, int] | None:
    """Return rows and columns of an image; None if the configuration does not state them."""
    for key in ("image_size", "input_size", "img_size"):
        side = getattr(config, key, None)
        if isinstance(side, int) and side > 0:
            return side, side
        if isinstance(side, list | tuple) and len(side) == 2 and all(isinstance(n, int) for n in side):
            return side[0], side[1]
    return None
