"""Makes example arguments of a transformers model: one sample, as forward() and the configuration require.

Each argument has a rule by its name. A model with several inputs (text with images, text with sound) gets all
of them, and its text has as many placeholders for an image or a sound as the model makes features of it. If a
configuration does not determine the order of dimensions, each order is tried on the device "meta", where a
run costs no arithmetic.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from math import inf, prod
from types import MethodType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from wse_sim.errors import ModelError
from wse_sim.frontend import capture

LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions")
DEFAULT_LENGTH = 512
SOUND = 16_000  # samples of sound: one second
FRAMES = 3_000  # frames of a spectrum: 30 seconds
MOST_TRIED = 12  # orders of dimensions
MOST_VALUES = 2**20  # most elements of ids that get values; longer ones are on "meta"
OF_VALUES = ("image_grid_thw", "spatial_shapes", "image_sizes", "target_sizes", "pixel_attention_mask")
"""Arguments that state a size or select; models read their values, so they are not moved to "meta"."""
MARKS = {
    "image": ("image_token_id", "image_token_index", "media_token_index", "im_token_id", "image_token"),
    "audio": ("audio_token_id", "audio_token_index"),
}
"""Keys of configurations for the token id of an image or a sound."""

SOUND_MASKS = ("feature_attention_mask", "input_features_mask")
"""Arguments that state which frames of a spectrum are sound."""

PLACES = "image_embeds_position_mask"
"""The argument that states which tokens are features of an image, where no token id states it."""

Arguments = dict[str, Any]


def text_length(config: Any, seq: int | None) -> int:
    """Return the number of tokens of one sample: `seq`, or what the configuration allows, at most 512."""
    if seq is not None:
        return seq
    parts = [config, *filter(None, (getattr(config, name, None) for name in ("text_config", "decoder")))]
    known = [value for part in parts for key in LENGTHS if isinstance(value := getattr(part, key, None), int)]
    return min([DEFAULT_LENGTH, *(value for value in known if value > 0)])


def examples_of(module: Any, config: Any, seq: int | None) -> Iterator[Arguments]:
    """Yield sets of named arguments of one sample: all inputs, these with masks and sizes, required ones.

    Equal sets of inputs occur once. `seq` is the length of the text or of the sound. A set is made when it is
    asked for, because a model may have to run for it.

    Raises
    ------
    ModelError
        If forward() needs an argument for which there is no rule.
    """
    rules = _Rules(module, config, seq)
    for names in rules.choices():
        yield _first_that_runs(module, rules.candidates(names))


def _first_that_runs(module: torch.nn.Module, candidates: Iterator[Arguments]) -> Arguments:
    """Return the first arguments that a module accepts; if it accepts none, those with which it gets furthest."""
    best, furthest = next(candidates), -1.0
    for one in itertools.islice(candidates, MOST_TRIED - 1):
        if furthest < 0:
            furthest = _reached(module, best)
        if furthest == inf:
            break
        if (reached := _reached(module, one)) > furthest:
            best, furthest = one, reached
    return best


class _Calls(TorchFunctionMode):
    """Counts calls of torch's functions."""

    count = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _reached(module: torch.nn.Module, arguments: Arguments) -> float:
    """Return how many functions of torch a module calls before it rejects arguments; infinity if it accepts them.

    Operations that need values count as accepted.
    """
    on_meta = {
        k: v.to("meta") if isinstance(v, torch.Tensor) and k not in OF_VALUES else v
        for k, v in arguments.items()
    }
    calls = _Calls()
    try:
        with torch.no_grad(), torch.device("meta"), calls:
            module(**on_meta)
    except NotImplementedError:
        return inf
    except Exception as fault:  # of any type: the module's own
        return inf if "meta tensor" in str(fault) else calls.count
    return inf


class _Rules:
    """Rules for the arguments of one model."""

    def __init__(self, module: Any, config: Any, seq: int | None) -> None:
        self.module, self.config, self.seq = module, config, seq
        self.takes = inspect.signature(module.forward).parameters
        self.main = str(getattr(module, "main_input_name", "input_ids"))
        heard = getattr(getattr(module, "encoder", None), "main_input_name", None)
        if self.main == "inputs" and heard in self.takes:  # a model of an encoder of any kind
            self.main = str(heard)
        self.vision = (
            self._part("vision_config", "image_config", "backbone_config", "vision_encoder") or config
        )
        self.sound = self._part("audio_config", "audio_encoder", "encoder_config") or config
        self.length = text_length(config, seq)
        self.counts: dict[Hashable, int] = {}  # of features, by the shapes of what they are made of

    def _part(self, *names: str) -> Any:
        return next((part for name in names if (part := getattr(self.config, name, None)) is not None), None)

    def choices(self) -> list[tuple[str, ...]]:
        """Return the distinct sets of inputs: all, all with masks and sizes, and the required ones."""
        needed = self._needed()
        wanted = [*needed, *(name for name in self._further() if name not in needed)]
        given = {"attention_mask": "input_ids", "image_sizes": "pixel_values"}
        given |= dict.fromkeys(SOUND_MASKS, "input_features")
        more = [n for n, of in given.items() if of in wanted and n in self.takes and n not in wanted]
        return list(dict.fromkeys((tuple(wanted), (*wanted, *more), tuple(needed))))

    def candidates(self, names: Sequence[str]) -> Iterator[Arguments]:
        """Yield arguments of these names for each combination of their shapes, the likeliest first."""
        for shapes in itertools.product(*map(self._shapes, names)):
            yield self._filled(dict(zip(names, shapes, strict=True)))

    def _needed(self) -> list[str]:
        """Return the main input, arguments without a default, and the decoder's tokens of an encoder-decoder."""
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = [name for name, p in self.takes.items() if p.default is p.empty and p.kind not in kinds]
        main = [self.main] if self.main in self.takes or not found else []
        tokens = getattr(self.config, "is_encoder_decoder", False) and "decoder_input_ids" in self.takes
        return list(dict.fromkeys([*main, *found, *(["decoder_input_ids"] if tokens else [])]))

    def _further(self) -> list[str]:
        """Return the optional inputs: text, images and sound, with their masks and sizes."""
        found: list[str] = []
        if self.main == "inputs":  # which stand for any of the others
            return found
        if "input_ids" in self.takes:
            found.append("input_ids")
        if "bbox" in self.takes and "input_ids" in self.takes:  # the place of each token on the page
            found.append("bbox")
        if "pixel_values" in self.takes and (self.vision is not self.config or _side(self.config)):
            found.append("pixel_values")
            found += [
                name
                for name in ("image_grid_thw", "spatial_shapes", "pixel_attention_mask")
                if name in self.takes and self._is_cut()
            ]
            found += ["pixel_mask"] if "pixel_mask" in self.takes and "input_ids" in self.takes else []
            found += ["target_sizes"] if "target_sizes" in self.takes else []
            found += [name for name in ("image_attention_mask", PLACES) if name in self.takes]
            found += [name for name in self._of_features("image") if name not in found]
        if self.sound is not self.config:
            found += [name for name in ("input_features", "input_values") if name in self.takes]
        return found

    def _of_features(self, kind: str) -> list[str]:
        """Return the arguments without which a model does not make the features of an image or a sound."""
        owners = (self.module, getattr(self.module, "model", None))
        made = filter(None, (getattr(owner, f"get_{kind}_features", None) for owner in owners))
        takes = {
            name: p
            for one in made
            for name, p in inspect.signature(one).parameters.items()
            if p.default is p.empty
        }
        return [name for name in takes if name in self.takes and self._has_rule(name)]

    def _has_rule(self, name: str) -> bool:
        with contextlib.suppress(ModelError):
            return bool(self._shapes(name))
        return False

    def _is_cut(self) -> bool:
        """Return whether images are passed as rows of patches."""
        return "image_grid_thw" in self.takes or "spatial_shapes" in self.takes

    def _shapes(self, name: str) -> Sequence[tuple[int, ...]]:
        """Return the shapes that an input may have, the likeliest first.

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
        if name in ("spatial_shapes", "image_sizes", "target_sizes"):
            return ((1, 2),)
        if name == "pixel_values_videos":
            return tuple((1, *shape) if len(shape) == 4 else shape for shape in self._images())
        if name == "inputs":
            return (1, self.length), *self._images()
        if name == "pixel_attention_mask":  # of patches, or of images
            return (self._images()[0][:2] if self._is_cut() else (1, 1),)
        if name == "image_attention_mask":  # which tokens see which image
            return ((1, self.length, 1),)
        if name == "flattened_patches":
            side = int(getattr(self.vision, "patch_size", 16))
            return ((1, DEFAULT_LENGTH, 2 + 3 * side * side),)
        if name == "input_features":
            return self._spectra()
        if name in SOUND_MASKS:
            return ((1, max(self._spectra()[0][1:])),)
        if name == "input_values":
            values = SOUND if self.sound is not self.config else self.seq or SOUND
            values += -values % int(getattr(self.sound, "samples_per_token", 1))
            return ((1, values), (1, 1, values), (1, values, int(getattr(self.config, "num_mel_bins", 80))))
        if name == "input_ids" and (books := getattr(self.config, "num_codebooks", None)):
            return (
                (1, self.length),
                (books, self.length),
                (1, books, self.length),
                (1, self.length, books + 1),
            )
        if name.endswith(("input_ids", "attention_mask", "token_type_ids", PLACES)):
            return ((1, self.length),)
        if name == "bbox":
            return ((1, self.length, 4),)
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
            pixels = (channels, patch, patch)
            return (
                (GRID * GRID, channels * patch * patch * frames_of_patch(self.vision)),
                (GRID * GRID, *pixels),
                (1, GRID * GRID, *pixels),
            )
        if "target_sizes" in self.takes and isinstance(patch, int):  # all patches in one row
            return ((1, channels, patch, GRID * GRID * patch),)
        rows, cols = _side(self.vision) or _side(self.config) or (224, 224)
        image, frames = (channels, rows, cols), int(getattr(self.config, "num_frames", 0) or 0)
        plain: tuple[tuple[int, ...], ...] = ((1, *image), (1, 1, *image))
        if "image_sizes" in self.takes:  # an image may have 2 or 4 crops in addition
            plain += ((1, 3, *image), (1, 5, *image))
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
        """Return tensors of these shapes.

        Masks, sizes and ids have values, unless the ids are too many; other tensors are on "meta".
        """
        found: Arguments = {}
        for name, shape in shapes.items():
            if name.endswith("_mask"):
                selects = name in ("pixel_attention_mask", "input_features_mask")
                chosen = torch.bool if selects else torch.long
                found[name] = torch.ones(shape, dtype=chosen)
            elif name == "bbox":
                found[name] = torch.zeros(shape, dtype=torch.long)
            elif name == "image_sizes":
                found[name] = torch.tensor([shapes["pixel_values"][-2:]])
            elif name == "target_sizes":
                found[name] = torch.tensor([[GRID, GRID]])
            elif name == "image_grid_thw":
                found[name] = torch.tensor([[1, GRID, GRID]])
            elif name == "spatial_shapes":
                found[name] = torch.tensor([[int(shapes["pixel_values"][1] ** 0.5)] * 2])
            elif name.endswith("_ids") or (name == "inputs" and len(shape) == 2):
                where = "cpu" if prod(shape) <= MOST_VALUES else "meta"
                found[name] = torch.zeros(shape, dtype=torch.long, device=where)
            elif name == "pixel_values" and len(shape) == 5 and prod(shape) <= MOST_VALUES:
                found[name] = torch.ones(shape)  # images of zeros would be padding
            else:
                found[name] = torch.zeros(shape, device="meta")
        self._settle_text(found)
        if "use_cache" in self.takes:
            found["use_cache"] = False
        return found

    def _settle_text(self, found: Arguments) -> None:
        """Insert placeholders for the features of images and sounds into the text.

        A model for classification also gets an end token. Arguments that depend on the length of the text are
        resized.
        """
        text = found.get("input_ids")
        if text is None or text.is_meta:
            return
        end = getattr(self.config, "eos_token_id", None)
        if isinstance(end, int) and "SequenceClassification" in type(self.module).__name__:
            text[:, -1] = end
        if "pixel_values" in found:
            text = self._with_places(found, text, "image")
        if PLACES in found:
            places = text.shape[1] - found["input_ids"].shape[1]
            found[PLACES] = (torch.arange(text.shape[1]) < places).long()[None]
        if "input_features" in found or "input_values" in found:
            text = self._with_places(found, text, "audio")
        found["input_ids"] = text
        for name in ("attention_mask", "token_type_ids", "bbox", "image_attention_mask"):
            if name in found:
                shape = (*text.shape, *found[name].shape[2:])
                found[name] = found[name][:, :1].expand(shape).clone()
        if "mm_token_type_ids" in self.takes:
            found["mm_token_type_ids"] = (text == self._mark("image")).long()

    def _mark(self, kind: str) -> int:
        """Return the token id of placeholders for an image or a sound; -1 if the configuration has none."""
        ids = (getattr(self.config, key, None) for key in MARKS[kind])
        return next((value for value in ids if isinstance(value, int) and value >= 0), -1)

    def _with_places(self, given: Arguments, text: torch.Tensor, kind: str) -> torch.Tensor:
        """Return the text after one placeholder per feature of an image or sound, if the model uses them."""
        mark, features = self._mark(kind), _features(self.module, kind)
        if features is None or (mark < 0 and PLACES not in given):
            return text
        takes = inspect.signature(features).parameters
        named = {k: v for k, v in given.items() if k in takes and k != "input_ids"}
        key = (kind, *((k, tuple(v.shape)) for k, v in named.items() if isinstance(v, torch.Tensor)))
        if key not in self.counts:
            shapes = _shapes_made(_Part(self.module, features), named)
            self.counts[key] = sum(prod(shape[:-1]) for shape in shapes)  # 0 if the shapes are unknown
        count = self.counts[key]
        places = torch.full((1, count), max(mark, 0), dtype=torch.long)
        return torch.cat([places, torch.where(text == mark, mark + 1, text)], dim=1)


def _features(module: torch.nn.Module, kind: str) -> MethodType | None:
    """Return the method of a model that makes the features of an image or a sound; None if it has none."""
    name = f"get_{kind}_features"
    return getattr(module, name, None) or getattr(getattr(module, "model", None), name, None)


class _Part(torch.nn.Module):
    """A module that computes the features of one input of a model."""

    def __init__(self, model: torch.nn.Module, features: MethodType) -> None:
        super().__init__()
        self.model, self.name = model, features.__name__
        self.owner = features.__self__

    def forward(self, **given: object) -> object:
        """Return the features without the other outputs of the model."""
        made = getattr(self.owner, self.name)(**given)
        if isinstance(made, (torch.Tensor, tuple, list)):
            return made
        found = (getattr(made, key, None) for key in ("pooler_output", "last_hidden_state"))
        return next((x for x in found if x is not None), made)


def _shapes_made(part: _Part, given: Arguments) -> list[tuple[int, ...]]:
    """Return the shapes of features from a run, a run on "meta", or a capture; [] if all of them fail."""
    for where in (nullcontext(), torch.device("meta")):
        with contextlib.suppress(Exception), torch.no_grad(), where:  # of any type: the module's own
            made = part(**given)
            return [tuple(x.shape) for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]
    with contextlib.suppress(Exception):  # likewise: a model may call its own function with what it lacks
        program = capture.export(part, (), given, training=False, once=[])
        names = [s.arg.name for s in program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]
        return [tuple(node.meta["val"].shape) for node in program.graph.nodes if node.name in names]
    return []


def frames_of_patch(vision: Any) -> int:
    """Return how many frames a patch of a picture has."""
    keys = ("temporal_patch_size", "patch_temporal")
    return next((int(n) for key in keys if (n := getattr(vision, key, None))), 1)


GRID = 16  # patches per side of an image that is passed as patches


def _side(config: Any) -> tuple[int, int] | None:
    """Return the rows and columns of an image in pixels; None if the configuration does not state them."""
    for key in ("image_size", "input_size", "img_size"):
        side = getattr(config, key, None)
        if isinstance(side, int) and side > 0:
            return side, side
        if isinstance(side, list | tuple) and len(side) == 2 and all(isinstance(n, int) for n in side):
            return side[0], side[1]
    return None
