"""Reads parameters of the vendor's Model Zoo (``params*.yaml``): the model, its batch, length and precision.

Two shapes are read: `model`, `train_input`, `runconfig`, `optimizer` at the top (releases 1.6 to 2.2), and one trainer
(`trainer`: `init`, `fit`; releases 2.3 to 2.10).  Decoders (GPT-2, GPT-3, GPT-J, GPT-NeoX, LLaMA), BERT, the vision
transformer and FC-MNIST are translated; a key whose value has no counterpart here is refused, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wse_sim.errors import ConfigError
from wse_sim.files import Values, read_yaml
from wse_sim.frontend.parameters import ModelParameters, parse_parameters

REMEDY = "state `model:` (a name of 'wse-sim show models' or a model file) in run.yaml"
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu", "relu": "relu", "silu": "silu", "swish": "silu", "swiglu": "swiglu", "geglu": "geglu",
}  # fmt: skip
HALVES = {"float16": "mixed", "cbfloat16": "cbfloat16", "bfloat16": "bf16"}
OPTIMIZERS = {"sgd": "sgd", "adam": "adam", "adamw": "adamw", "adambase": "adam"}
# Keys that make a decoder a different model from the one with its sizes.
FOREIGN = (
    "encoder_num_hidden_layers", "num_experts", "moe_params", "moe", "d_kv", "image_model_list", "lora_params",
    "attention_sliding_window_length", "fixed_sparse_attention", "freeze", "freeze_layers",
)  # fmt: skip
DECODERS = (
    "gpt2", "gpt3", "gptj", "gpt_neox", "gpt-neox", "llama", "falcon", "mistral", "starcoder", "santacoder", "octocoder",
)  # fmt: skip
PRETRAINED_ENCODER = ("disable_nsp", "mlm_loss_weight", "mlm_loss_scaling")
PARALLEL = ("gptj", "gpt_neox", "gpt-neox", "gptneox")


@dataclass(frozen=True)
class ZooParams:
    """The statements of a params file; None for those that are missing."""

    path: Path
    model: ModelParameters
    seq: int | None
    batch: int | None
    systems: int | None
    workers: int | None
    optimizer: str | None
    precision: str | None
    sparse: bool
    notes: tuple[str, ...]


def is_zoo_params(data: Values) -> bool:
    """Return whether a mapping has the shape of a params file."""
    return "trainer" in data or ("model" in data and ("train_input" in data or "eval_input" in data))


def read_zoo_params(path: Path, phase: str = "training") -> ZooParams:
    """Read a params file.

    Raises
    ------
    ConfigError
        One sentence with file and key, if it states a model that is not translated or an impossible value.
    """
    data = read_yaml(path)
    if not is_zoo_params(data):
        raise ConfigError(
            f"{path}: is not a params file of the Model Zoo (`model` and `train_input`, or `trainer`); {REMEDY}"
        )
    return _Reader(path, data, phase).params()


class _Reader:
    """Reads one file, whose parts may have either of two forms."""

    def __init__(self, path: Path, data: Values, phase: str) -> None:
        self.path = path
        training = phase == "training"
        if "trainer" in data:
            trainer = self._mapping(data, "trainer")
            init, fit = self._mapping(trainer, "init"), self._mapping(trainer, "fit")
            self.model = self._mapping(init, "model")
            self.input = self._mapping(fit, "train_dataloader" if training else "val_dataloader")
            cluster = self._mapping(self._mapping(init, "backend"), "cluster_config")
            self.sparse = bool(init.get("sparsity"))
            optimizer = self._mapping(init, "optimizer")
            self.optimizer = str(next(iter(optimizer), "")) if len(optimizer) == 1 else ""
            self.half, self.run = self._mapping(init, "precision"), cluster
        else:
            self.model = self._mapping(data, "model")
            self.input = self._mapping(data, "train_input" if training else "eval_input")
            self.optimizer = str(self._mapping(data, "optimizer").get("optimizer_type", ""))
            self.half = {
                "enabled": self.model.get("mixed_precision"),
                "fp16_type": self.model.get("fp16_type"),
            }
            self.run = self._mapping(data, "runconfig")
            self.sparse = bool(data.get("sparsity"))
        self.notes: list[str] = []

    def _mapping(self, data: Values, key: str) -> Values:
        found = data.get(key) or {}
        if not isinstance(found, dict):
            raise ConfigError(
                f"{self.path}: key '{key}' is a {type(found).__name__}; a mapping is needed; {REMEDY}"
            )
        return found

    def whole(self, data: Values, key: str) -> int | None:
        """Return a positive integer, or None where the key is not there."""
        value = data.get(key)
        if isinstance(value, list) and len(set(map(str, value))) == 1:
            value = value[0]  # a square image or patch
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"{self.path}: key '{key}' is {value!r}; a positive integer is needed; {REMEDY}"
            )
        return value

    def needed(self, key: str) -> int:
        """Return a size that the model must state."""
        value = self.whole(self.model, key)
        if value is None:
            raise ConfigError(f"{self.path}: key 'model.{key}' is missing; {REMEDY}")
        return value

    def params(self) -> ZooParams:
        """Return the whole file."""
        sizes = self._sizes()
        enabled = self.half.get("enabled")
        half = self.half.get("fp16_type")
        precision = HALVES.get(str(half)) if half is not None else None
        if enabled is False:
            precision = "fp32"
        return ZooParams(
            self.path,
            parse_parameters(sizes, self.path),
            sizes.get("seq"),
            self.whole(self.input, "batch_size"),
            self.whole(self.run, "num_csx") or self.whole(self.run, "num_systems"),
            self.whole(self.run, "num_workers_per_csx"),
            OPTIMIZERS.get(self.optimizer.lower()),
            precision,
            self.sparse,
            tuple(self.notes),
        )

    def _sizes(self) -> Values:
        model = self.model
        foreign = next((key for key in FOREIGN if model.get(key)), None)
        if foreign is not None:
            raise ConfigError(
                f"{self.path}: key 'model.{foreign}' makes a model that is not translated; {REMEDY}"
            )
        name = str(model.get("name", "")).lower()
        inner = self.whole(model, "attention_inner_dim")
        if inner is not None and inner != model.get("hidden_size"):
            raise ConfigError(
                f"{self.path}: key 'model.attention_inner_dim' is {inner}, another width than hidden_size is not translated; {REMEDY}"
            )
        if "depth" in model and "hidden_size" in model:
            return self._perceptron()
        if "image_size" in model and name in ("", "vision_transformer"):
            return self._vision()
        if name == "bert" or (not name and any(key in model for key in PRETRAINED_ENCODER)):
            return self._encoder()
        if name in DECODERS or (not name and "nonlinearity" in model and "encoder_nonlinearity" not in model):
            return self._decoder(name)
        raise ConfigError(f"{self.path}: the model '{name or 'without a name'}' is not translated; {REMEDY}")

    def _activation(self, key: str, default: str) -> str:
        stated = str(self.model.get(key, default)).lower()
        if stated not in ACTIVATIONS:
            raise ConfigError(
                f"{self.path}: key 'model.{key}' is '{stated}', which has no counterpart; {REMEDY}"
            )
        return ACTIVATIONS[stated]

    def _dropout(self) -> float:
        value = self.model.get("dropout_rate", self.model.get("residual_dropout_rate", 0.1))
        return float(value) if isinstance(value, (int, float)) and 0 <= value < 1 else 0.1

    def _length(self) -> int | None:
        stated = self.whole(self.input, "max_sequence_length")
        if stated is None:
            stated = self.whole(self.model, "max_position_embeddings")
            if stated is not None:
                self.notes.append(
                    f"seq {stated} is max_position_embeddings; state `seq` if the data are shorter"
                )
        return stated

    def _transformer(self, family: str) -> Values:
        return {
            "family": family, "layers": self.needed("num_hidden_layers"), "hidden": self.needed("hidden_size"),
            "heads": self.needed("num_heads"), "ffn": self.needed("filter_size"), "dropout": self._dropout(),
        }  # fmt: skip

    def _decoder(self, name: str) -> Values:
        model = self.model
        positions = str(model.get("position_embedding_type", "learned")).lower()
        if positions not in ("learned", "rotary"):
            raise ConfigError(
                f"{self.path}: key 'model.position_embedding_type' is '{positions}', which has no counterpart; {REMEDY}"
            )
        groups = self._mapping(model, "extra_attention_params").get("num_kv_groups")
        attention = str(model.get("attention_module", "aiayn_attention"))
        if attention not in ("aiayn_attention", "multiquery_attention") or (
            attention != "aiayn_attention" and not groups
        ):
            raise ConfigError(
                f"{self.path}: key 'model.attention_module' is '{attention}', which is not translated; {REMEDY}"
            )
        sizes = self._transformer("decoder") | {
            "vocab": self.needed("vocab_size"),
            "seq": self._length(),
            "activation": self._activation("nonlinearity", "gelu"),
            "positions": positions,
            "tied": bool(model.get("share_embedding_weights", True)),
            "parallel_residual": name in PARALLEL or "use_untied_layer_norm" in model,
            "kv_heads": groups if attention == "multiquery_attention" else None,
        }
        sizes["max_positions" if positions == "learned" else "rotary_dim"] = self.whole(
            model, "max_position_embeddings" if positions == "learned" else "rotary_dim"
        )
        return sizes

    def _encoder(self) -> Values:
        if "num_classes" in self.model:
            raise ConfigError(
                f"{self.path}: key 'model.num_classes' makes a classifier of BERT, which is not translated; {REMEDY}"
            )
        return self._transformer("encoder") | {
            "vocab": self.needed("vocab_size"),
            "seq": self._length(),
            "activation": self._activation("encoder_nonlinearity", "gelu"),
            "max_positions": self.whole(self.model, "max_position_embeddings"),
            "mlm_positions": self.whole(self.input, "max_predictions_per_seq"),
        }

    def _vision(self) -> Values:
        return self._transformer("vit") | {
            "input": self.needed("image_size"),
            "patch": self.needed("patch_size"),
            "classes": self.needed("num_classes"),
            "activation": self._activation("nonlinearity", "gelu"),
        }

    def _perceptron(self) -> Values:
        stated = self.model.get("dropout", 0.0)
        return {
            "family": "mlp", "layers": self.needed("depth"), "hidden": self.needed("hidden_size"),
            "input": 784, "classes": 10, "activation": self._activation("activation_fn", "relu"),
            "dropout": float(stated) if isinstance(stated, (int, float)) and 0 <= stated < 1 else 0.0,
        }  # fmt: skip
