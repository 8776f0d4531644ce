"""Builds models from a transformers ``config.json``, without weights or network.

The class of the model is the first name in the key `architectures`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from wse_sim.errors import ModelError
from wse_sim.files import is_folder, read_json
from wse_sim.frontend.examples import LENGTHS, examples_of
from wse_sim.frontend.parameters import MOST_LAYERS, MOST_PARAMETERS, MOST_SIZE

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Keys of configurations for each fact.
_FACTS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim"),
    "vocab": ("vocab_size",),
}


def from_config(path: str, seq: int | None = None) -> tuple[Any, Iterator[dict[str, Any]], dict[str, Any]]:
    """Build a model from a configuration file and return the module on "meta", example arguments, and facts.

    The example arguments are sets of arguments of one sample by name, as in
    :func:`~wse_sim.frontend.examples.examples_of`.

    Parameters
    ----------
    path
        ``config.json`` or the folder that contains it.
    seq
        Length of the text in tokens; default: the length that the configuration allows, at most 512.

    Raises
    ------
    ModelError
        If transformers is missing, the file or its architecture is unknown, or the model cannot be built.
    """
    try:
        import transformers
    except ModuleNotFoundError as fault:
        raise ModelError(
            "hf: models need transformers, which is not installed; pip install wse-sim[hf]"
        ) from fault
    file = Path(path) / "config.json" if is_folder(path, "model", ModelError) else Path(path)
    log = transformers.utils.logging
    told = log.get_verbosity()
    log.set_verbosity_error()  # its warnings about weights and tokens do not concern the plan
    try:
        return _from_file(file, transformers, seq)
    finally:
        log.set_verbosity(told)


def _from_file(
    file: Path, transformers: ModuleType, seq: int | None
) -> tuple[torch.nn.Module, Iterator[dict[str, object]], dict[str, object]]:
    config = _read(file, transformers)
    names = getattr(config, "architectures", None) or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{file}: key 'architectures' is {names!r}; give a list of names")
    if not names:
        raise ModelError(
            f'{file}: key \'architectures\' is missing; add for example "architectures": ["GPT2LMHeadModel"]'
        )
    kind = getattr(transformers, names[0], None)
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        raise ModelError(
            f"{file}: transformers {transformers.__version__} has no architecture '{names[0]}'; name one it has"
        )
    for part in (config, *(getattr(config, key, None) for key in ("text_config", "decoder"))):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    try:
        with torch.device("meta"):
            module = kind(config).eval()
        examples = examples_of(module, config, seq)
        main = next(examples)
    except ModelError:
        raise
    except Exception as fault:  # of any type: every architecture builds itself from its own keys
        first = next((line.strip() for line in str(fault).splitlines() if line.strip()), "no reason given")
        raise ModelError(
            f"{file}: {names[0]} cannot be built from it ({type(fault).__name__}: {first[:200]}); correct the sizes"
        ) from fault
    facts = _facts(config) | {"family": str(config.model_type)}
    if "input_ids" in main:
        facts["seq"] = main["input_ids"].shape[1]
    return module, itertools.chain([main], examples), facts


def _read(file: Path, transformers: ModuleType) -> PretrainedConfig:
    data = read_json(file, "the configuration", ModelError)
    if not isinstance(data, dict) or "model_type" not in data:
        raise ModelError(f"{file}: key 'model_type' is missing; give a configuration written by transformers")
    kind = data["model_type"]
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"{file}: key 'model_type' is {kind!r}, which transformers {transformers.__version__} does not "
            "know; correct it or install a transformers that has it"
        )
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(file), local_files_only=True, trust_remote_code=False
        )
    except Exception as fault:  # of any type: every architecture checks its own keys
        first = next((line.strip() for line in str(fault).splitlines() if line.strip()), type(fault).__name__)
        raise ModelError(
            f"{file}: transformers refuses it ({first.rstrip('.')[:200]}); correct it"
        ) from fault
    _check_sizes(file, config)
    return config


def _check_sizes(file: Path, config: PretrainedConfig) -> None:
    """Reject sizes out of range before the model is built.

    Raises
    ------
    ModelError
        With the file, the key and the limit.
    """
    found: dict[str, int] = {}
    for fact, keys in (*_FACTS.items(), ("length", LENGTHS)):
        for key in keys:
            value = _stated(config, key)
            if value is None:
                continue
            top = MOST_LAYERS if fact == "layers" else MOST_SIZE
            if isinstance(value, bool) or not isinstance(value, int):
                if isinstance(value, list | tuple | dict):
                    continue  # one size per stage of the model
                raise ModelError(
                    f"{file}: key '{key}' is {value!r}, which is not an integer; give 1 to {top:,}"
                )
            if not 1 <= value <= top and not (fact == "length" and value == -1):
                raise ModelError(f"{file}: key '{key}' is {value:,}; give 1 to {top:,}")
            found.setdefault(fact, value)
    hidden, heads = found.get("hidden", 1), found.get("heads", 1)
    if heads % found.get("kv_heads", 1):
        raise ModelError(
            f"{file}: {heads} heads are not a multiple of {found['kv_heads']} key-value heads; change one"
        )
    count = found.get("layers", 1) * hidden * max(4 * hidden, 3 * found.get("ffn", 1)) + hidden * found.get(
        "vocab", 1
    )
    if count > MOST_PARAMETERS:
        raise ModelError(
            f"{file}: its sizes make about {count:.0e} parameters, the limit is {MOST_PARAMETERS:.0e}; make the model smaller"
        )


def _stated(config: PretrainedConfig, key: str) -> object:
    """Return the value of a key; None if the configuration has none, or one per layer."""
    try:
        value: object = getattr(config, key, None)
    except RuntimeError:  # transformers raises this for a key whose value differs between layers
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _facts(config: PretrainedConfig) -> dict[str, Any]:
    found = {}
    for fact, keys in _FACTS.items():
        for key in keys:
            value = _stated(config, key)
            if isinstance(value, int):
                found[fact] = value
                break
    return found
