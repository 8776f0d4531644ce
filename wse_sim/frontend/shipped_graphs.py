"""Kernel graphs of the models in ``configs/models`` that the package contains, so that reading them needs no torch.

Each is the graph of one sample of the default length, in training or in inference. It is used only if the model's
sizes, the other options and the sources that make graphs are those of its capture; otherwise the model is captured.
``python -m benchmarks.shipped_graphs`` captures all of them again, and ``tests/frontend/test_shipped_graphs.py``
compares them with captures.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from wse_sim import result_cache
from wse_sim.frontend import store
from wse_sim.frontend.lowering import Lowering
from wse_sim.frontend.parameters import named_model
from wse_sim.graph import KernelGraph

FOLDER = Path(__file__).parent / "graphs"
SOURCES = FOLDER / "sources.txt"
HERE = b"{wse_sim}"
"""The mark for the folder of the package in the lines of source that a graph names."""


def file_of(name: str, options: Lowering) -> Path:
    """Return the file of a model's graph."""
    return FOLDER / f"{name}-{'training' if options.training else 'inference'}.graph"


def get(spec: str | Path | Mapping[str, object], seq: int | None, options: Lowering) -> KernelGraph | None:
    """Return the graph of one sample; None if the package has none that is up to date, or caches are disabled.

    Raises
    ------
    WseError
        If the model's name is unknown.
    """
    if not isinstance(spec, str) or not result_cache.is_used() or not file_of(spec, options).is_file():
        return None
    try:
        made_from = SOURCES.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    if made_from != result_cache.sources(*store.SOURCES) or not store.is_untouched():
        return None
    return read(spec, seq, options)


def read(name: str, seq: int | None, options: Lowering) -> KernelGraph | None:
    """Return the graph in a model's file, from whatever sources; None if it is that of other sizes or options."""
    try:
        key, packed = file_of(name, options).read_bytes().split(b"\n", 1)
        if key.decode() != _key(name, seq, options):
            return None
        graph = result_cache.from_json(zlib.decompress(packed).replace(HERE, _package()))
    except result_cache.FAULTS:
        return None
    return graph if isinstance(graph, KernelGraph) else None


def write(name: str, graph: KernelGraph, options: Lowering) -> None:
    """Write the graph of one sample of a model."""
    packed = zlib.compress(result_cache.as_json(graph).replace(_package(), HERE), 9)
    FOLDER.mkdir(exist_ok=True)
    file_of(name, options).write_bytes(_key(name, None, options).encode() + b"\n" + packed)


def _key(name: str, seq: int | None, options: Lowering) -> str:
    default = named_model(name).model.seq
    model, length = store.description(name), None if seq == default else seq
    return result_cache.named({"model": model, "seq": length, "asked": store.asked_of(options)})


def _package() -> bytes:
    """Return the folder of the package, as JSON writes it within a text."""
    return json.dumps(str(Path(__file__).parents[1]))[1:-1].encode()
