"""Parameters of a model of a named family, read from YAML or passed as a mapping.

A file in ``configs/models`` has ``name``, ``source`` (the origin of the sizes) and ``model``, the mapping
that :class:`ModelParameters` validates. Its ``seq`` is the default sequence length.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from wse_sim.errors import ConfigError, ModelError
from wse_sim.files import read_yaml
from wse_sim.hardware.constants import one_sentence
from wse_sim.options import Real, Whole

# Limits far beyond every published model, but small enough to build the shapes of a model.
MOST_LAYERS = 256
MOST_SIZE = 10**7
MOST_PARAMETERS = 10**15

Size = Annotated[Whole, Field(gt=0, le=MOST_SIZE)]
Layers = Annotated[Whole, Field(gt=0, le=MOST_LAYERS)]
Share = Annotated[Real, Field(ge=0, lt=1)]

_NEEDED: dict[str, tuple[str, ...]] = {
    "encoder": ("hidden", "heads", "ffn", "vocab"),
    "decoder": ("hidden", "heads", "ffn", "vocab"),
    "mlp": ("hidden", "input", "classes"),
    "resnet": ("input", "classes"),
    "vit": ("hidden", "heads", "ffn", "input", "patch", "classes"),
    "moe": ("hidden", "heads", "ffn", "vocab", "experts", "experts_per_token"),
    "dit": ("hidden", "heads", "ffn", "input", "patch", "classes"),
    "unet": ("hidden", "heads", "input", "context", "context_width"),
}


_BLOCK = "hidden heads kv_heads ffn activation positions dropout rotary_dim "
_READ: dict[str, frozenset[str]] = {
    family: frozenset(keys.split()) | {"family", "layers"}
    for family, keys in {
        "encoder": f"{_BLOCK} seq vocab max_positions mlm_positions tied",
        "decoder": f"{_BLOCK} seq vocab max_positions tied parallel_residual",
        "moe": f"{_BLOCK} seq vocab max_positions tied parallel_residual experts experts_per_token",
        "mlp": "hidden input classes activation dropout",
        "resnet": "input classes activation",
        "vit": f"{_BLOCK} parallel_residual input patch classes",
        "dit": "hidden heads ffn input patch classes activation",
        "unet": "hidden heads input context context_width activation",
    }.items()
}
"""Keys that a family accepts."""
_FIXED = {"resnet": "relu", "dit": "gelu", "unet": "silu", "moe": "swiglu"}
"""Activations of families that have only one; they accept no other."""


class ModelParameters(BaseModel):
    """Sizes of a model of one of the families that :mod:`wse_sim.frontend.zoo` builds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: Literal["encoder", "decoder", "mlp", "resnet", "vit", "moe", "dit", "unet"]
    layers: Layers
    hidden: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    ffn: Size | None = None
    seq: Size | None = None
    vocab: Size | None = None
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu"] = "gelu"
    positions: Literal["learned", "rotary", "none"] = "learned"
    # Fraction of dropped elements in training; None means 0.1 for encoders and decoders with learned
    # positions, else 0.
    dropout: Share | None = None
    # Positions of a sample on which the language-model head of an encoder runs; None means all.
    mlm_positions: Size | None = None
    parallel_residual: StrictBool = False
    # Features (mlp) or pixels per side (images) of one sample.
    input: Size | None = None
    classes: Size | None = None
    # Rows of the learned position table, at least the requested sequence length; None means `seq`.
    max_positions: Size | None = None
    # Head and embedding share one weight; None means yes for learned positions, else no.
    tied: StrictBool | None = None
    rotary_dim: Size | None = None
    patch: Size | None = None
    experts: Size | None = None
    experts_per_token: Size | None = None
    # Length and width of the operand of cross-attention (the text of a diffusion model).
    context: Size | None = None
    context_width: Size | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ModelParameters:
        for key in _NEEDED[self.family]:
            if getattr(self, key) is None:
                raise ValueError(f"a model of family '{self.family}' needs '{key}'; state it")
        self._check_unread()
        width = self.hidden or 1
        count = self.layers * width * max(4 * width, 3 * (self.ffn or 1) * (self.experts or 1))
        count += width * (self.vocab or 1)
        if count > MOST_PARAMETERS:
            raise ValueError(
                f"these sizes give about {count:.0e} parameters, the limit is {MOST_PARAMETERS:.0e}; make the model smaller"
            )
        if self.hidden and self.heads and self.family != "unet" and self.hidden % self.heads:
            raise ValueError(
                f"hidden {self.hidden} is not a multiple of heads {self.heads}; change one of them"
            )
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}; change one of them"
            )
        if self.seq and self.mlm_positions and self.mlm_positions > self.seq:
            raise ValueError(f"mlm_positions {self.mlm_positions} exceeds seq {self.seq}; lower it")
        if self.experts and self.experts_per_token and self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} exceeds experts {self.experts}; lower it"
            )
        if self.input and self.patch and self.input % self.patch:
            raise ValueError(
                f"input {self.input} is not a multiple of patch {self.patch}; change one of them"
            )
        return self

    def _check_unread(self) -> None:
        """Reject keys that the family does not use, and position sizes that contradict other keys."""
        fields = type(self).model_fields  # a key with its default value is accepted
        stated = {
            key for key in self.model_fields_set if getattr(self, key) not in (None, fields[key].default)
        }
        other = sorted(stated - _READ[self.family])
        if other:
            known = ", ".join(sorted(_READ[self.family] - {"family"}))
            raise ValueError(
                f"key '{other[0]}' has no meaning for a model of family '{self.family}'; leave it out (its keys are {known})"
            )
        fixed = _FIXED.get(self.family, self.activation)
        if "activation" in self.model_fields_set and self.activation != fixed:
            raise ValueError(
                f"activation '{self.activation}' has no effect on a model of family '{self.family}', which has {fixed}; "
                "leave it out"
            )
        width = (self.hidden or 0) // (self.heads or 1)
        if self.rotary_dim and self.positions != "rotary":
            raise ValueError(
                f"rotary_dim {self.rotary_dim} needs positions: rotary; state them or leave it out"
            )
        if self.rotary_dim and (self.rotary_dim % 2 or self.rotary_dim > width):
            raise ValueError(
                f"rotary_dim {self.rotary_dim} is odd or above {width}, a head's width; change it"
            )
        if self.max_positions and self.family != "encoder" and self.positions != "learned":
            raise ValueError(f"max_positions {self.max_positions} needs positions: learned; leave it out")
        if self.max_positions and self.seq and self.max_positions < self.seq:
            raise ValueError(f"max_positions {self.max_positions} is below seq {self.seq}; raise it")

    @property
    def training_dropout(self) -> float:
        """Fraction of dropped elements in training, with the default of the family."""
        if self.dropout is not None:
            return self.dropout
        sequence = self.family in ("encoder", "decoder")
        return 0.1 if sequence and self.positions == "learned" else 0.0

    @property
    def is_tied(self) -> bool:
        """Whether embedding and head share one weight."""
        return self.tied if self.tied is not None else self.positions == "learned"

    @property
    def is_sequence(self) -> bool:
        """Whether a sample is a sequence of tokens."""
        return self.family in ("encoder", "decoder", "moe")


class ModelFile(BaseModel):
    """The content of a file of ``configs/models``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    model: ModelParameters


def model_names() -> list[str]:
    """Return the names of the models shipped with the package."""
    folder = resources.files("wse_sim.configs").joinpath("models")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def parse_parameters(data: Mapping[str, Any], where: object = "model parameters") -> ModelParameters:
    """Return validated model parameters from a mapping.

    Raises
    ------
    ConfigError
        One sentence with `where` (a file or "model parameters") and the key.
    """
    try:
        return ModelParameters.model_validate(dict(data))
    except ValidationError as fault:
        raise ConfigError(_sentence(where, fault)) from fault


def _sentence(where: object, fault: ValidationError) -> str:
    first = fault.errors()[0]
    if first["type"] == "value_error":  # raised by a validator of ours, whose sentence names the keys
        return f"{where}: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        known = ", ".join(ModelParameters.model_fields)
        return f"{where}: key '{first['loc'][-1]}' is unknown; the keys are {known}"
    return one_sentence(where, fault)


def read_model_file(path: Path) -> ModelFile:
    """Return the content of a model file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a key is unknown or out of range.
    """
    try:
        return ModelFile.model_validate(read_yaml(path))
    except ValidationError as fault:
        raise ConfigError(_sentence(path, fault)) from fault


@lru_cache(maxsize=256)
def named_model(name: str) -> ModelFile:
    """Return the shipped model with this name.

    Raises
    ------
    ModelError
        If there is none.
    """
    if name not in model_names():
        from difflib import get_close_matches

        near = get_close_matches(name, model_names(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "'wse-sim show models' lists the names"
        if name.endswith(".json") and Path(name).is_file():
            hint = f"a configuration of transformers is hf:{name}"
        raise ModelError(f"model '{name}' is not a known name, file or package.module:factory; {hint}")
    with resources.as_file(resources.files("wse_sim.configs").joinpath("models", f"{name}.yaml")) as path:
        return read_model_file(path)
