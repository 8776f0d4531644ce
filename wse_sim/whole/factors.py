"""Graph passes that fold constants: factors of queries and keys into the attention scores, numbers into parameters, a batch norm
into a scale and a shift."""

from __future__ import annotations

import dataclasses
from math import sqrt

from wse_sim.graph import Derived, KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.blocks.training import fused_items
from wse_sim.kernels.families.norm import NormAttributes
from wse_sim.whole.host_part import with_kernels

AFFINE = ("scale", "shift")
PARTS = ("q", "k", "v")


def with_scales(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with factors of queries and keys folded into the factor of the scores, if only
    attention reads them."""
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    for kernel in graph.kernels:
        items = fused_items(kernel)
        readers = [one for one in kernels.values() if kernel.outputs[0] in one.inputs]
        if kernel.family != "gemm" or "scale" not in items or not kernel.access.factor or len(readers) != 1:
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
            kernel,
            attrs=frozen(attrs | ({"fused": rest} if rest else {})),
            access=dataclasses.replace(kernel.access, factor=1.0, steps=()),
        )
        kernels[reader.name] = dataclasses.replace(
            reader, attrs=frozen({**reader.attrs, "scale": scale * kernel.access.factor})
        )
    found = list(kernels.values())
    return graph if found == list(graph.kernels) else with_kernels(graph, found, dict(graph.tensors))


def with_raised(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with parameters to which their kernels add a number as parameters that contain it."""
    tensors, kernels = dict(graph.tensors), []
    for kernel in graph.kernels:
        names: dict[str, str] = {}
        for one, number in kernel.access.raised:
            whole, name = tensors[one], f"{one}+{number:g}"
            derived = Derived("raised", whole.derived or one, epsilon=number)
            names[one], tensors[name] = name, dataclasses.replace(whole, name=name, derived=derived)
        parameters = tuple(names.get(one, one) for one in kernel.parameters)
        access = dataclasses.replace(kernel.access, raised=()).renamed(names.get)
        kernels.append(dataclasses.replace(kernel, parameters=parameters, access=access) if names else kernel)
    return graph if kernels == list(graph.kernels) else with_kernels(graph, kernels, tensors)


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
        names = tuple(f"{module}.{rule}[eps={said.eps!r}]" for rule in AFFINE)
        result = tensors[kernel.outputs[0]]
        shape = (*tensors[kernel.parameters[0]].shape, *(1 for _ in result.shape[2:]))
        for rule, name, parameter in zip(AFFINE, names, kernel.parameters, strict=True):
            derived = Derived(rule, epsilon=said.eps, module=module)
            tensors[name] = dataclasses.replace(tensors[parameter], name=name, shape=shape, derived=derived)
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
                access=dataclasses.replace(kernel.access, order=(*kernel.inputs, *names)),
            )
        )
        notes.append(
            f"'{kernel.name}' multiplies and adds on the fabric, with factors from its running statistics"
        )
    return with_kernels(graph, kernels, tensors, *notes) if notes else graph
