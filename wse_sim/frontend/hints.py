"""Placement hints: they pin the kernels of a module to a region, a rectangle or a number of replicas.

In Python, either on the module before it is lowered or on the graph afterwards::

    pin(model.h[0].attn, region="west", rows=60, cols=80)
    graph = pin_kernels(graph, Pin(module="h.*.mlp", replicas=2))

In YAML, read by :func:`read_pins`::

    pins:
    - {module: h.*.mlp, rows: 60, cols: 80}
    - {module: lm_head, region: east, replicas: 2}

A pinned kernel has the fields of its pin as attributes: ``pin_region``, ``pin_rows``, ``pin_cols``,
``pin_replicas``, ``pin_parts_in``, ``pin_parts_out``. The gradient kernels of a module are pinned with it.

Weights can also be sharded by dimension::

    shard(model.fc, mesh={"rows": 60, "cols": 80}, spec=("cols", "rows"))

This shards the weight's first dimension (output features) over 80 columns of cores and its second one (input
features) over 60 rows; None leaves a dimension whole. It is the pin ``parts_in=60, parts_out=80`` and applies
to the products of the module.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wse_sim.errors import ConfigError
from wse_sim.files import read_yaml
from wse_sim.graph import KernelGraph, frozen
from wse_sim.hardware.constants import one_sentence
from wse_sim.kernels import family
from wse_sim.options import MOST_CORES, Whole

_MARK = "_wse_pin"
M = TypeVar("M")

Size = Annotated[Whole, Field(gt=0, le=MOST_CORES)]


class Pin(BaseModel):
    """The placement of the kernels of a module; `module` is a path in which ``*`` matches one name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    module: Annotated[str, Field(min_length=1)]
    region: str | None = None
    rows: Size | None = None
    cols: Size | None = None
    replicas: Size | None = None
    parts_in: Size | None = None  # parts of a product's input features, over the rows of its region
    parts_out: Size | None = None  # parts of its output features, over the columns

    @property
    def by_dimension(self) -> bool:
        """Whether the pin shards the dimensions of weights."""
        return self.parts_in is not None or self.parts_out is not None

    @model_validator(mode="after")
    def _complete(self) -> Pin:
        if (self.rows is None) != (self.cols is None):
            raise ValueError(
                f"pin of '{self.module}' gives only one of rows and cols; a rectangle needs both"
            )
        if self.by_dimension and self.rows is not None:
            raise ValueError(
                f"pin of '{self.module}' gives a rectangle and parts of dimensions; leave one of them out"
            )
        if self.region is None and self.rows is None and self.replicas is None and not self.by_dimension:
            raise ValueError(
                f"pin of '{self.module}' is empty; give region, rows and cols, parts_in and parts_out, or replicas"
            )
        return self

    def covers(self, layer: str) -> bool:
        """Return whether a module path is the pinned one or inside it."""
        pattern = r"\.".join("[^.]+" if part == "*" else re.escape(part) for part in self.module.split("."))
        return re.match(rf"{pattern}(?:\.|$)", layer) is not None

    def attributes(self) -> dict[str, str | int]:
        """Return the attributes that the pin adds to kernels."""
        return {f"pin_{k}": v for k, v in self.model_dump(exclude={"module"}).items() if v is not None}


class _PinFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    pins: tuple[Pin, ...]


def make_pin(module: str, **where: Any) -> Pin:
    """Return a pin from keywords.

    Raises
    ------
    ConfigError
        If a keyword is unknown, missing or out of range.
    """
    try:
        return Pin(module=module, **where)
    except ValidationError as fault:
        raise ConfigError(_sentence(f"pin of '{module}'", fault)) from fault


def _sentence(where: object, fault: ValidationError) -> str:
    first = fault.errors()[0]
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}"
    return one_sentence(where, fault)


def pin(module: M, **where: str | int | None) -> M:
    """Mark a ``torch.nn.Module`` so that lowering pins its kernels, and return the module.

    `where` are the fields of :class:`Pin` without `module`.

    Raises
    ------
    ConfigError
        If a keyword is unknown, missing or out of range.
    """
    make_pin("marked", **where)
    setattr(module, _MARK, dict(where))
    return module


def shard(module: M, mesh: Mapping[str, int], spec: Sequence[str | None]) -> M:
    """Shard the weights of a module: each dimension of a weight matrix over an axis of a mesh of cores.

    Parameters
    ----------
    module
        A ``torch.nn.Linear``, or a module that contains some.
    mesh
        Number of cores along the axes ``rows`` and ``cols``.
    spec
        The axis for each dimension of the weight (output features, input features); None leaves it whole.

    Returns
    -------
    torch.nn.Module
        The same module.

    Raises
    ------
    ConfigError
        If the mesh or an axis is invalid: output features can be sharded only over ``cols``, input features
        only over ``rows``.
    """
    if set(mesh) - {"rows", "cols"} or any(n < 1 for n in mesh.values()):
        raise ConfigError(f"the mesh {dict(mesh)} is invalid; give cores along 'rows' and 'cols'")
    if len(spec) != 2:
        raise ConfigError(
            f"the sharding {tuple(spec)} names {len(spec)} dimensions; a weight has two: output features, input features"
        )
    out, given = spec
    if out not in (None, "cols") or given not in (None, "rows"):
        raise ConfigError(
            f"the sharding {tuple(spec)} is invalid: stationary products split output features over 'cols' and input "
            f"features over 'rows'; use ('cols', 'rows') or None for a dimension that is not split"
        )
    missing = [axis for axis in (out, given) if axis is not None and axis not in mesh]
    if missing:
        raise ConfigError(f"the mesh {dict(mesh)} has no axis '{missing[0]}'; add it")
    return pin(
        module, parts_in=1 if given is None else mesh[given], parts_out=1 if out is None else mesh[out]
    )


def marked_pins(model: object) -> list[Pin]:
    """Return the pins that were set on the submodules of a model."""
    named = model.named_modules() if hasattr(model, "named_modules") else ()
    return [make_pin(path, **getattr(part, _MARK)) for path, part in named if path and hasattr(part, _MARK)]


def read_pins(path: Path | str) -> list[Pin]:
    """Return the pins in a YAML file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a key is unknown or out of range.
    """
    try:
        return list(_PinFile.model_validate(read_yaml(Path(path))).pins)
    except ValidationError as fault:
        raise ConfigError(_sentence(path, fault)) from fault


def pin_kernels(graph: KernelGraph, *pins: Pin) -> KernelGraph:
    """Return the graph with its kernels pinned; a later pin overrides an earlier one.

    Raises
    ------
    ConfigError
        If a pin covers no kernel.
    """
    return _pinned(graph, pins)


def _pinned(graph: KernelGraph, pins: Iterable[Pin]) -> KernelGraph:
    kernels = list(graph.kernels)
    for item in pins:
        found = [
            i
            for i, kernel in enumerate(kernels)
            if item.covers(kernel.layer) and (not item.by_dimension or family(kernel.family).shards_weights)
        ]
        if not found:
            layers = sorted({k.layer.split(".")[0] for k in graph.kernels if k.layer})
            raise ConfigError(
                f"pin of '{item.module}' covers no {'product' if item.by_dimension else 'kernel'} of model '{graph.name}'; its modules start with {', '.join(layers)}"
            )
        for i in found:
            kernels[i] = dataclasses.replace(
                kernels[i], attrs=frozen({**kernels[i].attrs, **item.attributes()})
            )
    if not kernels or tuple(kernels) == graph.kernels:
        return graph
    # Blocks that are pinned differently are no longer equal.
    from wse_sim.frontend.repeats import find_repeats

    return dataclasses.replace(graph, kernels=tuple(kernels), repeats=find_repeats(kernels, graph.tensors))
