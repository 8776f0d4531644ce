"""One product whose result is read in parts, taken apart into as many: a region on the fabric has an inlet for each operand.

``torch.nn.MultiheadAttention`` has one weight of (3 E, K) for all three, W = [W_q; W_k; W_v].  The products with W_q, W_k and
W_v give the same numbers from three regions.  Each reads the input of the one, whose words fork in the routers.  The gate and
the values of a gated layer are often made so, too (``chunk``, slices, ``glu``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.factors import PARTS, affine_values
from wse_sim.whole.front import with_kernels
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.fused import items_of

COUNTS = {2: "two", 3: "three", 4: "four"}
"""Parts of a product that are taken apart."""
SLICE = re.compile(r"(?P<whole>.+)\[(?P<first>\d+):(?P<end>\d+)\]")
"""The name of some rows of a parameter, as Python writes them."""
TURNED = ".T"
"""What the name of a weight that is held turned ends with."""


def unpacked(graph: KernelGraph) -> KernelGraph:
    """The forward graph with as many products in the place of each one as parts of it are read; a note names them.

    Taken apart are products with a weight (N, K), a bias or none, and one reader: attention that is known to read three slices
    one after the other (`packed`), or elementwise work on parts.  Parameters of the parts are named as slices:
    ``in_proj_weight[0:32]``.
    """
    if not any(_parts_of(graph, kernel) for kernel in graph.kernels):
        return graph
    tensors = dict(graph.tensors)
    kernels = list(graph.kernels)
    notes: list[str] = []
    for reader in graph.kernels:
        names = _parts_of(graph, reader)
        product = next((kernel for kernel in kernels if names and reader.inputs[0] in kernel.outputs), None)
        if product is None or not _comes_apart(graph, product):
            continue
        lie = names if reader.family == "attention" else sorted(names)
        parts = {name: _part(product, name, (i, len(names)), tensors) for i, name in enumerate(lie)}
        place = kernels.index(product)
        kernels[place : place + 1] = parts.values()
        inputs = tuple(parts[name].outputs[0] for name in names)
        kernels[kernels.index(reader)] = _reader_of(reader, inputs, tensors)
        what = (
            "queries, keys and values"
            if reader.family == "attention"
            else f"the {len(names)} parts of '{reader.name}'"
        )
        notes.append(
            f"'{product.name}' makes {what} in one product; on the fabric these are {COUNTS[len(names)]} layers"
        )
    return with_kernels(graph, kernels, tensors, *notes)


def _parts_of(graph: KernelGraph, reader: Kernel) -> tuple[str, ...]:
    """Names of the parts that a kernel reads of one tensor, in the order in which it takes them; parts are as their names are sorted."""
    if reader.phase is not Phase.FORWARD or len(reader.inputs) != 1:
        return ()
    if reader.family == "attention":
        return PARTS if reader.attrs.get("packed", False) else ()
    if reader.family == "activation" and reader.attrs["function"] == "glu":
        whole, result = (graph.tensors[name].shape for name in (reader.inputs[0], reader.outputs[0]))
        return ("part1", "part0") if whole == (*result[:-1], 2 * result[-1]) else ()
    is_covered = reader.family in POINTWISE and len(reader.parts) in COUNTS
    return tuple(f"part{number}" for number in reader.parts) if is_covered else ()


def _reader_of(reader: Kernel, inputs: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Kernel:
    """The reader of the parts; ``glu`` is a sigmoid of one times the other."""
    if reader.family == "activation":
        result = tensors[reader.outputs[0]]
        cols = result.shape[-1]
        dims = {"elements": result.elements, "rows": result.elements // cols, "cols": cols}
        attrs = {"ops": "sigmoid,mul", "inputs": 2}
        reader = dataclasses.replace(reader, family="generated", dims=frozen(dims), attrs=frozen(attrs))
    attrs = {name: value for name, value in reader.attrs.items() if name != "packed"}
    return dataclasses.replace(reader, inputs=inputs, attrs=frozen(attrs), reordered=(), parts=(), takes=())


def turned(graph: KernelGraph) -> KernelGraph:
    """The forward graph with weights that lie as (K, N) held as (N, K), as torch.nn.Linear has them: ``weight.T``."""
    tensors, kernels = dict(graph.tensors), []
    for kernel in graph.kernels:
        weight = kernel.takes[0] if kernel.family == "gemm" and kernel.takes else ""
        if not weight or set(kernel.reordered) != {weight} or kernel.parameters[0] != weight:
            kernels.append(kernel)
            continue
        name, whole = weight + TURNED, tensors[weight]
        tensors[name] = dataclasses.replace(whole, name=name, shape=whole.shape[::-1])
        parameters = (name, *kernel.parameters[1:])
        kernels.append(dataclasses.replace(kernel, parameters=parameters, reordered=(), takes=()))
    return with_kernels(graph, kernels, tensors) if kernels != list(graph.kernels) else graph


def _comes_apart(graph: KernelGraph, product: Kernel) -> bool:
    """Whether a product has one weight (N, K) and exactly one kernel reads its output."""
    readers = [kernel for kernel in graph.kernels if product.outputs[0] in kernel.inputs]
    if product.family != "gemm" or len(readers) > 1 or not set(items_of(product)) <= {"bias"}:
        return False
    shape = (int(product.dims["n"]), int(product.dims["k"]))
    is_output = graph.tensors[product.outputs[0]].kind is TensorKind.OUTPUT
    return not is_output and bool(product.parameters) and graph.tensors[product.parameters[0]].shape == shape


def _part(product: Kernel, name: str, place_of: tuple[int, int], tensors: dict[str, Tensor]) -> Kernel:
    """Cut one of several equal parts out of a product and add its tensors to `tensors`."""
    place, count = place_of
    features = int(product.dims["n"]) // count
    parameters = []
    for whole in product.parameters:
        sliced = f"{whole}[{place * features}:{(place + 1) * features}]"
        tensors[sliced] = dataclasses.replace(
            tensors[whole], name=sliced, shape=(features, *tensors[whole].shape[1:])
        )
        parameters.append(sliced)
    out, before = f"{product.name}.{name}.out", tensors[product.outputs[0]]
    tensors[out] = dataclasses.replace(before, name=out, shape=(*before.shape[:-1], features))
    return dataclasses.replace(
        product,
        name=f"{product.name}.{name}",
        dims=frozen({**product.dims, "n": features}),
        outputs=(out,),
        parameters=tuple(parameters),
        flops=product.flops // count,
    )


def with_slices(
    graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """The weights, and what the graph names of them: slices, and weights turned to (N, K)."""
    every = dict(weights)
    for name, tensor in graph.tensors.items():
        if (values := affine_values(weights, name)) is not None:
            every[name] = values.reshape(tensor.shape)
        found = SLICE.fullmatch(name)
        whole = found["whole"] if found is not None else name
        if whole.endswith(TURNED) and whole.removesuffix(TURNED) in weights:
            every[whole] = np.asarray(weights[whole.removesuffix(TURNED)]).T
        if found is not None and whole in every:
            every[name] = np.asarray(every[whole])[int(found["first"]) : int(found["end"])]
    return every


def without_slices(values: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Values by parameter: those of slices put together, turned weights as they are in the module."""
    out: dict[str, NDArray[np.float32]] = {}
    parts: dict[str, dict[int, NDArray[np.float32]]] = {}
    for name, value in values.items():
        found = SLICE.fullmatch(name)
        if found is None:
            out[name] = value
        else:
            parts.setdefault(found["whole"], {})[int(found["first"])] = value
    out |= {name: np.concatenate([part for _, part in sorted(of.items())]) for name, of in parts.items()}
    return {
        name.removesuffix(TURNED): value.T if name.endswith(TURNED) else value for name, value in out.items()
    }
