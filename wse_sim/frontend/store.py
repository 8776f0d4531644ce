"""Kernel graphs kept on disk: a model that was read once is read again without torch.

A graph is named by a hash of everything that it follows from:

* the model: sizes of a shipped or described model, the bytes of a ``.pt2`` file or of a transformers configuration;
* what was asked: samples, length of a sequence, phase, optimizer, precision, fusions left out, what trains;
* the versions of torch, of transformers and of Python, and the sources of this package's front end, kernels and graph.

A factory is not kept: what its module imports cannot be known.  Nothing is kept or read while operators, rewrites or
families are registered from outside.  A file holds a check sum of its content; one that does not agree is worked out
again.  It is written under another name and then renamed, so writers at the same time do no harm; a folder that cannot be
written is left alone.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim import serialize
from wse_sim.errors import WseError
from wse_sim.files import CACHE, NOWHERE, cache_folder
from wse_sim.frontend.parameters import named_model, parse_parameters, read_model_file
from wse_sim.graph import KernelGraph
from wse_sim.kernels.contract.registry import ENTRY_POINTS, REGISTRY

SOURCES = ("wse_sim.frontend", "wse_sim.kernels", "wse_sim.graph")
OWN = "wse_sim."  # modules of the library
OWN_NAME = re.compile("[0-9a-f]{16}")  # what `_sources` gives: nothing else is ever removed
KEEP_S = 30 * 24 * 3600.0  # folders of other sources, since their last use
_FAULTS = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error, WseError)


def key_of(
    spec: str | Path | Mapping[str, Any], batch: int | None, seq: int | None, options: Any
) -> str | None:
    """The name of a model's graph; None if it is not kept.

    Raises
    ------
    WseError
        If a name or file is at fault.
    """
    described = _description(spec)
    if described is None or not is_used() or not _is_untouched():
        return None
    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    asked = {name: sorted(v) if isinstance(v, frozenset) else repr(v) for name, v in fields.items()}
    data = {"model": described, "batch": batch, "seq": seq, "asked": asked, "with": _versions()}
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=repr).encode()).hexdigest()[:32]


def get(key: str) -> KernelGraph | None:
    """The kept graph; None if there is none that reads."""
    try:
        summed, packed = (_folder() / key).read_bytes().split(b"\n", 1)
        if summed.decode() != hashlib.sha256(packed).hexdigest():
            return None
        data = json.loads(zlib.decompress(packed))
        arrays = {
            name: np.frombuffer(base64.b64decode(item["data"]), item["type"])
            for name, item in data["arrays"].items()
        }
        graph = serialize.decode(data["graph"], arrays)
    except _FAULTS:
        return None
    return graph if isinstance(graph, KernelGraph) else None


def put(key: str, graph: KernelGraph) -> None:
    """Keep a graph, if the folder can be written."""
    arrays: dict[str, np.ndarray] = {}
    body = serialize.encode(graph, arrays)
    held = {
        name: {"type": array.dtype.str, "data": base64.b64encode(array.tobytes()).decode()}
        for name, array in arrays.items()
    }
    packed = zlib.compress(json.dumps({"graph": body, "arrays": held}).encode(), 1)
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)
        os.replace(name, folder / key)
    except OSError:  # a full disk, a folder of another user: the graph is worked out again next time
        return
    _forget_old(folder)


def is_used() -> bool:
    """Whether graphs are kept at all: ``$WSE_SIM_CACHE`` is not "none"."""
    return os.environ.get(CACHE) != NOWHERE


def _description(spec: str | Path | Mapping[str, Any]) -> Any:
    """What a model is, as plain data; None for factories."""
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
    if ":" in text:
        return None
    return [text, named_model(text).model.model_dump()]


def _bytes_of(path: Path) -> str | None:
    """Hash of a file; a random word if it does not read, so that the fault is found where it is explained."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return f"{time.time_ns()}"


def _is_untouched() -> bool:
    """Whether all handlers, rewrites and families are those of the library."""
    if metadata.entry_points(group=ENTRY_POINTS):
        return False
    known: list[Any] = [type(item) for item in REGISTRY.values()]
    for module, name in (("classify", "HANDLERS"), ("patterns", "PATTERNS"), ("fusions", "FUSIONS")):
        found = getattr(sys.modules.get(f"wse_sim.frontend.{module}"), name, ())
        known += found.values() if isinstance(found, dict) else [type(rule) for rule in found]
    return all(item.__module__.startswith(OWN) for item in known)


@cache
def _versions() -> dict[str, str]:
    found = {"python": sys.version}
    for name in ("torch", "transformers", "wse-sim"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


@cache
def _sources() -> str:
    """Hash of the sources that decide a graph."""
    total = hashlib.sha256()
    for package in SOURCES:
        for file in sorted(Path(str(resources.files(package))).rglob("*.py")):
            total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _folder() -> Path:
    return cache_folder() / "wse_sim_graphs" / _sources()


def _forget_old(mine: Path) -> None:
    """Remove folders of other sources that nobody used for a month."""
    os.utime(mine)
    for folder in mine.parent.iterdir():
        old = OWN_NAME.fullmatch(folder.name) and time.time() - folder.stat().st_mtime > KEEP_S
        if folder != mine and old:
            shutil.rmtree(folder, ignore_errors=True)
