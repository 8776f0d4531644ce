"""Pooling of tokens: their mean, or the first one, as pooling of an image of T pixels.

Symbols: T tokens of C features; token by token they have the layout of an image of C channels, pixel by
pixel::

    mean          a window of T lines of one pixel
    first token   windows of one pixel, T pixels apart in one line

The mean of a large image is taken in two steps, because a core of a pooling stores some channels of the image for every window:
first of small windows, in bands of lines on many cores, then of their means.
"""

from __future__ import annotations

import dataclasses
from math import gcd, isqrt

from wse_sim.graph import PLAIN, Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.families.pool2d import Pool2dAttributes
from wse_sim.whole.host_part import passed_over, with_kernels
from wse_sim.whole.regions.contract import IMAGE_AXES, divisor
from wse_sim.whole.regions.leading_rows import FIRST, rows_of

TOKEN_AXES = 3  # samples, tokens, features
POOLED = "first token"
LARGE_PIXELS = 64 * 64
"""Pixels above which a core has hardly room for two channels of two images."""


def with_pooled_tokens(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with a kernel wherever the tokens of a sample become one row; a note names each.

    A mean over tokens becomes a pooling.  Products, norms and elementwise work that read only the first token get a kernel
    before them that takes it as the words of all tokens pass by.
    """
    graph = _without_nothing(graph)
    tensors = dict(graph.tensors)
    kernels: list[Kernel] = []
    notes: list[str] = []
    pooled: dict[str, str] = {}
    for kernel in graph.kernels:
        if _is_mean(graph, kernel):
            tokens, features = tensors[kernel.inputs[0]].shape[1:]
            kernels.append(_mean(graph, kernel, features, (tokens, 1)))
            notes.append(f"'{kernel.name}' pools the {tokens} tokens of a sample")
            continue
        if _is_mean_of_image(graph, kernel):
            _, features, *sides = tensors[kernel.inputs[0]].shape
            kernels.append(_mean(graph, kernel, features, (sides[0], sides[1])))
            out = kernel.outputs[0]
            tensors[out] = dataclasses.replace(tensors[out], shape=(graph.samples, features, 1, 1))
            notes.append(f"'{kernel.name}' pools the pixels of an image")
            continue
        whole = _first_of(graph, kernel)
        if not whole:
            kernels.append(kernel)
            continue
        tokens, features = tensors[whole].shape[1:]
        if whole not in pooled:
            name = f"{whole}.{POOLED}"
            shape = (tensors[whole].shape[0], features)
            tensors[name] = dataclasses.replace(tensors[whole], name=name, shape=shape)
            pooled[whole] = name
            taken = dataclasses.replace(
                kernel, name=name, inputs=(whole,), outputs=(name,), parameters=(), flops=0
            )
            kernels.append(_first(graph, taken))
            notes.append(
                f"'{kernel.name}' reads the first token alone, which a core takes out of {tokens} as they pass by"
            )
        inputs = tuple(pooled[whole] if one == whole else one for one in kernel.inputs)
        access = kernel.access.without_views().renamed({whole: pooled[whole]}.get)
        kernels.append(dataclasses.replace(kernel, inputs=inputs, access=access))
    return with_kernels(graph, kernels, tensors, *notes) if notes else graph


def with_small_windows(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which the mean of an image of more than :data:`LARGE_PIXELS` pixels is one of means of equal
    windows, if a number of lines and columns divides both sides; a note names each."""
    tensors, kernels, notes = dict(graph.tensors), list[Kernel](), list[str]()
    for kernel in graph.kernels:
        side = _small_side(kernel)
        if side == 1:
            kernels.append(kernel)
            continue
        image = tensors[kernel.inputs[0]]
        lines, columns = (int(kernel.dims[name]) // side for name in ("h", "w"))
        name = f"{kernel.name}.windows"
        shape = (*image.shape[:2], lines, columns)
        tensors[name] = dataclasses.replace(image, name=name, shape=shape, kind=TensorKind.ACTIVATION)
        sizes = {"r": side, "s": side, "stride": side, "out_h": lines, "out_w": columns}
        first = dataclasses.replace(
            kernel, name=name, outputs=(name,), dims=frozen({**kernel.dims, **sizes}), access=PLAIN
        )
        rest = {"h": lines, "w": columns, "r": lines, "s": columns, "stride": 1}
        kernels += [
            first,
            dataclasses.replace(kernel, inputs=(name,), dims=frozen({**kernel.dims, **rest})),
        ]
        notes.append(f"'{kernel.name}' is the mean of means of {side} x {side} pixels")
    return with_kernels(graph, kernels, tensors, *notes) if notes else graph


def _small_side(kernel: Kernel) -> int:
    """Return the lines and columns of the windows in which a large image is pooled first; 1 for any other kernel."""
    if kernel.family != "pool2d":
        return 1
    said, dims = Pool2dAttributes.of(kernel.attrs), {name: int(size) for name, size in kernel.dims.items()}
    is_whole = (dims["r"], dims["s"], dims["out_h"], dims["out_w"]) == (dims["h"], dims["w"], 1, 1)
    if (
        said.kind != "avg"
        or said.around
        or said.uneven
        or not is_whole
        or dims["h"] * dims["w"] <= LARGE_PIXELS
    ):
        return 1
    both = gcd(dims["h"], dims["w"])
    return divisor(both, isqrt(both))


def tokens_pooled(graph: KernelGraph, kernel: Kernel) -> int:
    """Return the tokens per sample that a pooling reduces to one row; 0 for any other kernel."""
    if kernel.family != "pool2d" or len(graph.tensors[kernel.inputs[0]].shape) != TOKEN_AXES:
        return 0
    return int(kernel.dims["h"] * kernel.dims["w"])


def _without_nothing(graph: KernelGraph) -> KernelGraph:
    """Return the graph without concatenations of a single tensor."""
    tensors = graph.tensors
    same = {
        kernel.outputs[0]: kernel.inputs[0]
        for kernel in graph.kernels
        if kernel.family == "layout"
        and kernel.access.order
        and len(kernel.inputs) == 1
        and tensors[kernel.inputs[0]].shape == tensors[kernel.outputs[0]].shape
        and tensors[kernel.outputs[0]].kind is TensorKind.ACTIVATION
    }
    return with_kernels(graph, passed_over(graph.kernels, same), dict(tensors)) if same else graph


def rows_read(graph: KernelGraph, kernel: Kernel) -> int:
    """Return the rows per sample that a kernel reads if it writes another number; else 0."""
    if kernel.family == "layout":
        return rows_of(graph, kernel.inputs[0])
    return tokens_pooled(graph, kernel)


def _of_tokens(graph: KernelGraph, tensor: Tensor) -> bool:
    return len(tensor.shape) == TOKEN_AXES and tensor.shape[0] == graph.samples


def _is_mean(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a kernel is a mean over the second of three dimensions."""
    if kernel.family != "reduce" or kernel.attrs.get("op") != "mean" or kernel.access.reordered:
        return False
    if len(kernel.inputs) != 1 or kernel.phase is not Phase.FORWARD:
        return False
    given, made = graph.tensors[kernel.inputs[0]], graph.tensors[kernel.outputs[0]]
    if not _of_tokens(graph, given):
        return False
    if kernel.access.axes:
        return kernel.access.axes == (1,)
    samples, tokens, features = given.shape
    # Through a view, a mean over features leaves as many elements if there are as many tokens as features, so that case is
    # left out.
    return made.elements == samples * features and tokens != features and kernel.dims["cols"] == tokens


def _is_mean_of_image(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a kernel is a mean over the last two of four dimensions, read as an image or as a row."""
    if kernel.family != "reduce" or kernel.attrs.get("op") != "mean" or kernel.access.reordered:
        return False
    given, made = graph.tensors[kernel.inputs[0]], graph.tensors[kernel.outputs[0]]
    if len(given.shape) != IMAGE_AXES or made.kind is not TensorKind.ACTIVATION:
        return False
    samples, channels, *sides = given.shape
    if kernel.access.axes:
        is_last = kernel.access.axes == (2, 3)
    else:  # through a view, a mean over other dimensions may have these numbers if two of the dimensions are equal
        is_last = kernel.dims["rows"] == samples * channels and channels not in sides
    return is_last and samples == graph.samples and made.elements == samples * channels


def _first_of(graph: KernelGraph, kernel: Kernel) -> str:
    """Return the token tensor of which a kernel reads only the first token of each sample; "" if there is
    none."""
    reordered = kernel.access.reordered
    if kernel.access.token != 0 or len(reordered) != 1 or reordered[0] not in kernel.inputs:
        return ""
    whole = reordered[0]
    return whole if _of_tokens(graph, graph.tensors[whole]) and graph.tensors[whole].shape[1] > 1 else ""


def _first(graph: KernelGraph, kernel: Kernel) -> Kernel:
    """Return the movement of the first token that replaces a kernel with one input and one output."""
    moved = frozen({"elements": graph.tensors[kernel.inputs[0]].elements})
    attrs = frozen({"op": FIRST})
    return dataclasses.replace(
        kernel, family="layout", dims=moved, sample_dim="elements", attrs=attrs, access=PLAIN
    )


def _mean(graph: KernelGraph, kernel: Kernel, features: int, sides: tuple[int, int]) -> Kernel:
    """Return the pooling that replaces a mean over tokens, or over the lines and columns of an image."""
    lines, columns = sides
    sizes = {"h": lines, "w": columns, "r": lines, "s": columns, "stride": 1}
    dims = {"b": graph.samples, "c": features, "out_h": 1, "out_w": 1, **sizes}
    return dataclasses.replace(
        kernel,
        family="pool2d",
        dims=frozen(dims),
        sample_dim="b",
        attrs=frozen({"kind": "avg"}),
        access=PLAIN,
    )
