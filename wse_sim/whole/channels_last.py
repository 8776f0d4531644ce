"""Graph pass for work on the pixels of an image, each with all its channels: norms, dense layers and sums of ConvNeXt.

A model permutes an image (samples, channels, lines, columns) to (samples, lines, columns, channels) and back. On the fabric an
image travels pixel by pixel, each with all channels, so neither changes a word: the tensors between are images as well. A
dense layer on pixels is a convolution of windows of one pixel.
"""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Derived, Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.access import IMAGE, PIXELS
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.contract import IMAGE_AXES, is_pointwise

MEAN_OF_PIXELS, MEAN_OF_IMAGE = (1, 2), (2, 3)
"""Axes of the mean of all pixels."""


def with_images(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which tensors of pixels are images; a note states how many. The graph is returned unchanged if
    one of them is read in another way, or by a kernel that takes no image."""
    pixels = _pixels(graph)
    if not pixels or not all(_is_convertible(graph, kernel, pixels) for kernel in graph.kernels):
        return graph
    tensors = dict(graph.tensors)
    for name in pixels:
        samples, *sides, channels = tensors[name].shape
        tensors[name] = dataclasses.replace(tensors[name], shape=(samples, channels, *sides))
    kernels = [_converted(graph, kernel, pixels, tensors) for kernel in graph.kernels]
    note = f"{len(pixels)} tensors of pixels with all their channels travel as images"
    return with_kernels(graph, kernels, tensors, note)


def _pixels(graph: KernelGraph) -> set[str]:
    """Return the tensors (samples, lines, columns, channels) that come from an image or become one."""
    found = {
        name
        for kernel in graph.kernels
        for name, taken_as in kernel.access.channels
        if taken_as == IMAGE and name in kernel.inputs
    }
    for kernel in graph.kernels:
        ways = dict(kernel.access.channels)
        on_pixels = any(
            ways.get(name) == PIXELS or (name in found and name not in ways) for name in kernel.inputs
        )
        makes_pixels = kernel.family in ("norm", "gemm") or is_pointwise(kernel.family)
        if on_pixels and makes_pixels and len(graph.tensors[kernel.outputs[0]].shape) == IMAGE_AXES:
            found.add(kernel.outputs[0])
    return found


def _is_convertible(graph: KernelGraph, kernel: Kernel, pixels: set[str]) -> bool:
    """Return whether a kernel can take and give images for `pixels`."""
    ways, tensors, (out, *_) = dict(kernel.access.channels), graph.tensors, kernel.outputs
    on_pixels = [name for name in kernel.inputs if (name in pixels) is not (name in ways)]
    if not on_pixels and out not in pixels:
        return set(ways).issuperset(pixels.intersection(kernel.inputs))
    if kernel.name in plain_priced(graph) or not set(kernel.access.reordered) <= {*ways}:
        return False
    is_all, is_in = on_pixels == list(kernel.inputs), out in pixels
    if tensors[out].kind is TensorKind.OUTPUT and out in pixels:
        return False
    if kernel.family == "norm":  # its rows may come as tokens that the host or a layer makes
        is_all |= len(tensors[kernel.inputs[0]].shape) < IMAGE_AXES
        return is_all and is_in and kernel.dims["cols"] == tensors[out].shape[-1]
    if kernel.family == "reduce":
        return kernel.access.axes == MEAN_OF_PIXELS and not is_in
    if kernel.family == "gemm":
        is_plain = len(tensors[kernel.parameters[0]].shape) == 2 and not kernel.access.transposed
        return is_all and is_in and is_plain
    return is_pointwise(kernel.family) and is_all and is_in


def _converted(graph: KernelGraph, kernel: Kernel, pixels: set[str], tensors: dict[str, Tensor]) -> Kernel:
    """Return the kernel on images; parameters of a new shape are added to `tensors`."""
    (out, *_), access, ways = kernel.outputs, kernel.access, dict(kernel.access.channels)
    if access.channels:
        access = dataclasses.replace(access.without_views(), order=access.order)
    kernel = dataclasses.replace(kernel, access=access)
    if kernel.family == "reduce" and pixels.intersection(kernel.inputs):
        return dataclasses.replace(kernel, access=dataclasses.replace(access, axes=MEAN_OF_IMAGE))
    if is_pointwise(kernel.family):
        names = {
            name: _shaped(name, (tensors[name].elements, 1, 1), tensors)
            for name in kernel.parameters
            if (out in pixels or name in ways) and tensors[name].shape[-1:] == (tensors[name].elements,)
        }
        parameters = tuple(names.get(name, name) for name in kernel.parameters)
        return dataclasses.replace(kernel, parameters=parameters, access=access.renamed(names.get))
    if out not in pixels:
        return kernel
    if kernel.family == "norm":
        images = (name for name in (*kernel.inputs, out) if len(tensors[name].shape) == IMAGE_AXES)
        access = dataclasses.replace(access, channels=tuple((name, PIXELS) for name in images))
        return dataclasses.replace(kernel, access=access)
    weight, *bias = kernel.parameters
    samples, features, lines, columns = tensors[out].shape
    filters = _shaped(weight, (*tensors[weight].shape, 1, 1), tensors)
    sizes = {"b": samples, "h": lines, "w": columns, "out_h": lines, "out_w": columns}
    dims = {**sizes, "c": kernel.dims["k"], "k": features, "r": 1, "s": 1, "stride": 1}
    attrs = {key: kernel.attrs[key] for key in ("fused", "accumulate") if key in kernel.attrs}
    return dataclasses.replace(
        kernel,
        family="conv2d",
        dims=frozen(dims),
        sample_dim="b",
        parameters=(filters, *bias),
        attrs=frozen(attrs | {"groups": 1}),
    )


def _shaped(name: str, shape: tuple[int, ...], tensors: dict[str, Tensor]) -> str:
    """Add a parameter in another shape to `tensors`; return its name."""
    found = f"{name}[{' x '.join(map(str, shape))}]"
    derived = Derived("taken", tensors[name].derived or name, shape=tensors[name].shape)
    tensors[found] = dataclasses.replace(tensors[name], name=found, shape=shape, derived=derived)
    return found
