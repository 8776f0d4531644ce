"""Stores kernel graphs on disk, so that a model that was lowered before is loaded without torch.

The key of a graph is made of:

* the model: the sizes of a shipped or described model, the bytes of a ``.pt2`` file or of a transformers
  configuration;
* the request: samples, sequence length, phase, optimizer, precision, omitted fusions, parameters that train;
* the versions of torch, transformers and Python, and the sources of this package's frontend, kernels and
  graph.

The graph of a factory is not stored, because the imports of its module are unknown. No graph is stored or
loaded while operators, rewrites or families of users are registered.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wse_sim import result_cache
from wse_sim.frontend.factories import names_file
from wse_sim.frontend.parameters import named_model, parse_parameters, read_model_file
from wse_sim.graph import KernelGraph
from wse_sim.kernels.contract.registry import REGISTRY

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SOURCES = ("wse_sim.frontend", "wse_sim.kernels", "wse_sim.graph")


def key_of(
    spec: str | Path | Mapping[str, Any], batch: int | None, seq: int | None, options: DataclassInstance
) -> str | None:
    """Return the key of a model's graph; None if the graph is not stored.

    Raises
    ------
    WseError
        If the model's name is unknown, or its file is invalid.
    """
    described = description(spec)
    if described is None or not result_cache.is_used() or not is_untouched():
        return None
    asked = asked_of(options)
    with_ = [sys.version, result_cache.versions("torch", "transformers", "wse-sim")]
    return result_cache.named({"model": described, "batch": batch, "seq": seq, "asked": asked, "with": with_})


def get(key: str) -> KernelGraph | None:
    """Return the stored graph; None if there is none that can be loaded."""
    found = result_cache.get(_folder(), key)
    return found if isinstance(found, KernelGraph) else None


def put(key: str, graph: KernelGraph) -> None:
    """Store a graph under a key."""
    result_cache.put(_folder(), key, graph)


def _folder() -> Path:
    return result_cache.folder_of("graphs", result_cache.sources(*SOURCES))


def asked_of(options: DataclassInstance) -> dict[str, object]:
    """Return the options of lowering as plain data."""
    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    return {name: sorted(v) if isinstance(v, frozenset) else repr(v) for name, v in fields.items()}


def description(spec: str | Path | Mapping[str, Any]) -> list[object] | None:
    """Return the description of a model as plain data; None for factories."""
    if isinstance(spec, Mapping):
        inner = spec.get("model", spec)
        name = spec.get("name", "model") if inner is not spec else "model"
        return [str(name), parse_parameters(inner).model_dump()]
    text = str(spec)
    if text.startswith("hf:"):
        return [text, _bytes_of(Path(text[3:]))]
    if text.endswith((".yaml", ".yml")):
        file = read_model_file(Path(text))
        return [file.name, file.model.model_dump()]
    if text.endswith(".pt2"):
        return [Path(text).stem, _bytes_of(Path(text))]
    if ":" in text or names_file(text):
        return None
    return [text, named_model(text).model.model_dump()]


def _bytes_of(path: Path) -> str | None:
    """Return the hash of a file, or a unique text if it cannot be read; the later read reports the fault."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return f"{time.time_ns()}"


def is_untouched() -> bool:
    """Return whether all handlers, rewrites and families are those of the library."""
    known: list[Any] = [type(item) for item in REGISTRY.values()]
    for module, name in (("classify", "HANDLERS"), ("patterns", "PATTERNS"), ("fusions", "FUSIONS")):
        found = getattr(sys.modules.get(f"wse_sim.frontend.{module}"), name, ())
        known += found.values() if isinstance(found, dict) else [type(rule) for rule in found]
    return result_cache.are_own(known)
