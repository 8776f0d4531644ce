"""Models of a study that are objects: a module with inputs, a factory, a program, a graph, a mapping of sizes.

A study is text: it is hashed, stored and continued.  An object is kept by this process and is named in the text
with the digest of its kernel graph, so that a store continues with an equal model and never with another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from wse_sim.errors import ModelError
from wse_sim.frontend import load_model, name_of
from wse_sim.graph import KernelGraph
from wse_sim.serialize import content_digest

PREFIX = "object:"
DIGITS = 12  # hexadecimal digits of a digest: among a million models, two collide with probability 1/500
_KEPT: dict[str, object] = {}


def named(model: object) -> object:
    """Return a model's name in a study: a text unchanged, or an object's name with the digest of its graph.

    Raises
    ------
    ModelError
        If the object is not a model, or cannot be lowered.
    """
    if isinstance(model, str):
        return model
    graphs = [load_model(model), *_trained(model)]
    name = f"{PREFIX}{name_of(model)}-{content_digest(graphs)[:DIGITS]}"
    _KEPT[name] = model
    return name


def _trained(model: object) -> list[KernelGraph]:
    """Return the graph of a training step, because inference does not show frozen weights; None if training
    is not supported."""
    try:
        return [] if isinstance(model, KernelGraph) else [load_model(model, training=True)]
    except ModelError:
        return []


def kept(name: str) -> object | None:
    """Return the object of a name, or None if this process does not have it."""
    return _KEPT.get(name)


def with_names(data: Mapping[str, object]) -> dict[str, object]:
    """Return the description of a study with every model replaced by a text.

    Example
    -------
    >>> sizes = {"family": "mlp", "layers": 1, "input": 16, "hidden": 32, "classes": 8}
    >>> with_names({"fixed": {"model": sizes}})["fixed"]["model"].startswith("object:model-")
    True
    """
    found = dict(data)
    if isinstance(fixed := found.get("fixed"), Mapping) and "model" in fixed:
        found["fixed"] = {**fixed, "model": named(fixed["model"])}
    if isinstance(grid := found.get("grid"), Mapping):
        found["grid"] = _axes(grid)
    if isinstance(groups := found.get("zip"), list):
        found["zip"] = [_axes(group) if isinstance(group, Mapping) else group for group in groups]
    for block in ("sample", "search"):
        if isinstance(part := found.get(block), Mapping) and isinstance(over := part.get("over"), Mapping):
            found[block] = {**part, "over": _axes(over)}
    return found


def _axes(axes: Mapping[str, object]) -> dict[str, object]:
    """Return axes with models replaced by texts."""
    if not isinstance(models := axes.get("model"), list):
        return dict(axes)
    return {**axes, "model": [named(one) for one in models]}
