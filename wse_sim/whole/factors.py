"""Fold constant factors: those of queries and keys into attention scores, those of a batch norm into two
parameters."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.blocks.training import fused_items
from wse_sim.kernels.families.norm import NormAttributes
from wse_sim.whole.front import with_kernels

AFFINE = ("scale", "shift")
AFFINE_NAME = re.compile(r"(?P<module>.*)\.(?P<part>scale|shift)\[eps=(?P<eps>[^]]+)\]")
PARTS = ("q", "k", "v")


def with_scales(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with factors of queries and keys folded into the factor of the scores, if only
    attention reads them."""
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    for kernel in graph.kernels:
        items = fused_items(kernel)
        readers = [one for one in kernels.values() if kernel.outputs[0] in one.inputs]
        if kernel.family != "gemm" or "scale" not in items or not kernel.factor or len(readers) != 1:
            continue
        reader = readers[0]
        if (
            reader.family != "attention"
            or not set(items) <= {"bias", "scale"}
            or items.count("scale") > 1
            or len(reader.inputs) != len(PARTS)
            or kernel.outputs[0] not in reader.inputs[:2]
            or reader.inputs.count(kernel.outputs[0]) > 1
        ):
            continue
        rest = ",".join(item for item in items if item != "scale")
        scale = float(reader.attrs.get("scale", 0.0)) or 1 / sqrt(reader.dims["d"])
        attrs = {name: value for name, value in kernel.attrs.items() if name != "fused"}
        kernels[kernel.name] = dataclasses.replace(
            kernel, attrs=frozen(attrs | ({"fused": rest} if rest else {})), factor=1.0, steps=()
        )
        kernels[reader.name] = dataclasses.replace(
            reader, attrs=frozen({**reader.attrs, "scale": scale * kernel.factor})
        )
    found = list(kernels.values())
    return graph if found == list(graph.kernels) else with_kernels(graph, found, dict(graph.tensors))


def with_affine(graph: KernelGraph) -> KernelGraph:
    """Return the inference graph with each batch norm replaced by a scale and a shift per channel; a note
    names them.

    With running statistics a batch norm is a x + b, where a = weight / sqrt(variance + eps) and b = bias - a
    mean.
    """
    tensors, kernels, notes = dict(graph.tensors), [], []
    for kernel in graph.kernels:
        said = NormAttributes.of(kernel.attrs) if kernel.family == "norm" else None
        if (
            said is None
            or (said.kind, said.statistics) != ("batch", "running")
            or len(kernel.parameters) != 2
            or len(kernel.inputs) != 1
            or not kernel.parameters[0].endswith("weight")
        ):
            kernels.append(kernel)
            continue
        module = kernel.parameters[0].rpartition(".")[0]
        names = tuple(f"{module}.{part}[eps={said.eps!r}]" for part in AFFINE)
        result = tensors[kernel.outputs[0]]
        shape = (*tensors[kernel.parameters[0]].shape, *(1 for _ in result.shape[2:]))
        for name, parameter in zip(names, kernel.parameters, strict=True):
            tensors[name] = dataclasses.replace(tensors[parameter], name=name, shape=shape)
        cols = result.shape[-1]
        dims = {"elements": result.elements, "rows": result.elements // cols, "cols": cols}
        kernels.append(
            dataclasses.replace(
                kernel,
                family="generated",
                dims=frozen(dims),
                sample_dim="elements",
                parameters=names,
                attrs=frozen({"ops": "mul,add", "inputs": 1}),
                takes=(*kernel.inputs, *names),
            )
        )
        notes.append(f"'{kernel.name}' multiplies and adds on the fabric, by what its running statistics are")
    return with_kernels(graph, kernels, tensors, *notes) if notes else graph


def affine_values(weights: Mapping[str, NDArray[np.float32]], name: str) -> NDArray[np.float32] | None:
    """Compute a parameter that :func:`with_affine` introduced under this name from the module's weights.

    Returns None if the name has another form or weights are missing.
    """
    found = AFFINE_NAME.fullmatch(name)
    if found is None:
        return None
    parts = [
        f"{found['module']}.{what}".lstrip(".") for what in ("weight", "bias", "running_mean", "running_var")
    ]
    if any(part not in weights for part in parts):
        return None
    weight, bias, mean, variance = (np.asarray(weights[part], np.float32) for part in parts)
    factor = weight / np.sqrt(variance + float(found["eps"]))
    return factor if found["part"] == AFFINE[0] else bias - mean * factor
