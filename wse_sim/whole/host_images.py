"""Graph passes for the images that the host sends: patch by patch, or some pixels of a line as one."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from wse_sim.frontend.orders import ROWS
from wse_sim.graph import Derived, Kernel, KernelGraph, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.blocks.rounds import even
from wse_sim.kernels.blocks.windows import PAIR, surround
from wse_sim.kernels.contract.equations import ceil_div, divisors
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.cost import MOST_ABREAST
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.depthwise import Depthwise
from wse_sim.whole.regions.fused_work import items_of

Floats = NDArray[np.float32]


def with_patches(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which a convolution of the input with patches that do not overlap is a dense layer; a
    note states it.

    The host sends the image patch by patch: the same words in another order. Every reader of the result must take
    its pixels as rows. A row has the channels, lines and columns of a patch, as the filters have.
    """
    kernels, tensors = list(graph.kernels), dict(graph.tensors)
    for place, kernel in enumerate(kernels):
        if kernel.family != "conv2d" or len(kernel.inputs) != 1 or not _takes_patches(graph, kernel):
            continue
        (image,), (out,), (weight, *bias) = kernel.inputs, kernel.outputs, kernel.parameters
        name, flat, d = kernel.name + ROWS, f"{weight}[flat]", kernel.dims
        rows, features = int(d["out_h"] * d["out_w"]), int(d["c"] * d["r"] * d["s"])
        tensors[name] = dataclasses.replace(
            tensors[image], name=name, shape=(graph.samples, rows, features), per_sample=True
        )
        tensors[out] = dataclasses.replace(tensors[out], shape=(graph.samples, rows, int(d["k"])))
        shape, derived = (int(d["k"]), features), Derived("flat", weight, shape=tensors[weight].shape)
        tensors[flat] = dataclasses.replace(tensors[weight], name=flat, shape=shape, derived=derived)
        kernels[place] = dataclasses.replace(
            kernel,
            family="gemm",
            dims=frozen({"m": graph.samples * rows, "k": features, "n": int(d["k"])}),
            sample_dim="m",
            inputs=(name,),
            parameters=(flat, *bias),
            attrs=frozen({key: kernel.attrs[key] for key in ("fused", "accumulate") if key in kernel.attrs}),
        )
        kernels = [
            dataclasses.replace(one, access=one.access.without_views()) if out in one.inputs else one
            for one in kernels
        ]
        note = f"'{kernel.name}' takes {rows} patches that do not overlap: '{image}' comes patch by patch, as {features} features each"
        return with_kernels(graph, kernels, tensors, note)
    return graph


def _takes_patches(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a convolution of one image takes the patches of an input, and all its readers the pixels of its result."""
    d, attrs = kernel.dims, Conv2dAttributes.of(kernel.attrs)
    (image,), (out,) = kernel.inputs, kernel.outputs
    is_tiled = (d["h"], d["w"]) == (d["out_h"] * d["r"], d["out_w"] * d["s"]) and d["r"] == d["s"] == d[
        "stride"
    ]
    is_plain = attrs.groups == attrs.dilation == 1 and not (attrs.transposed or attrs.eps or attrs.uneven)
    read = [one for one in graph.kernels if image in one.inputs]
    readers = [one.access for one in graph.kernels if out in one.inputs]
    as_rows = all((one.view, one.reordered) == ("pixels", (out,)) for one in readers)
    own = graph.tensors[image].kind is TensorKind.INPUT and graph.tensors[out].kind is TensorKind.ACTIVATION
    is_fused = set(items_of(kernel)) <= {"bias"}
    return bool(
        is_tiled
        and is_plain
        and is_fused
        and own
        and as_rows
        and readers
        and len(read) == 1
        and not kernel.access.reordered
    )


def with_spare_pixels(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which lines of a first convolution's result are longer if no number up to
    :data:`MOST_ABREAST` divides their length; a note states it.

    Such lines would be computed pixel by pixel. The windows of all readers end before the pixels that are added, so no result
    changes.
    """
    kernels, tensors, notes = {one.name: one for one in graph.kernels}, dict(graph.tensors), list[str]()
    for kernel in graph.kernels:
        if kernel.family != "conv2d" or not _is_first(graph, kernel):
            continue
        pixels, (out,) = int(kernel.dims["out_w"]), kernel.outputs
        readers = [one for one in graph.kernels if out in one.inputs]
        if len(divisors(pixels, MOST_ABREAST)) > 1 or not all(_ends_early(one) for one in readers):
            continue
        more = next(n for n in range(1, MOST_ABREAST) if len(divisors(pixels + n, MOST_ABREAST)) > 1)
        around = surround(kernel.dims, kernel.attrs)
        dims, attrs = (
            {**kernel.dims, "out_w": pixels + more},
            {**kernel.attrs, "spare": more, "around": around},
        )
        kernels[kernel.name] = dataclasses.replace(kernel, dims=frozen(dims), attrs=frozen(attrs))
        tensors[out] = dataclasses.replace(tensors[out], shape=(*tensors[out].shape[:-1], pixels + more))
        for one in readers:
            unread = {"unread": more} if one.family == "conv2d" else {}
            wider = frozen({**one.dims, "w": pixels + more}), frozen({**one.attrs, **unread})
            kernels[one.name] = dataclasses.replace(one, dims=wider[0], attrs=wider[1])
        notes.append(
            f"lines of '{out}' have {more} more pixels that no layer reads, so that several are computed at a time"
        )
    return with_kernels(graph, list(kernels.values()), tensors, *notes) if notes else graph


def _is_first(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a convolution reads an image of the host, and others read its result."""
    kinds = [graph.tensors[name].kind for name in (*kernel.inputs, *kernel.outputs)]
    is_plain = not (kernel.access.reordered or Depthwise.is_for(kernel) or kernel.name in plain_priced(graph))
    return kinds == [TensorKind.INPUT, TensorKind.ACTIVATION] and is_plain


def _ends_early(kernel: Kernel) -> bool:
    """Return whether the windows of a kernel read no zeros behind a line."""
    is_windowed = (
        kernel.family in ("conv2d", "pool2d") and len(kernel.inputs) == 1 and not kernel.access.reordered
    )
    return is_windowed and not kernel.attrs.get("uneven", False) and surround(kernel.dims, kernel.attrs) == 0


def with_whole_words(graph: KernelGraph, *, trains: bool = False) -> KernelGraph:
    """Return the forward graph in which an image of an odd number of channels comes in whole words; a note states it. If the graph
    `trains`, convolutions before the first layer that does read such images, and no others.

    Some pixels of a line come as one (:func:`_together`). If there is no such number, a channel of zeros is added.
    """
    rest = frozen_layers(dataclasses.replace(graph, training=True)) if trains else None
    tensors, together, notes = dict(graph.tensors), dict[str, int](), list[str]()
    for name, image in graph.tensors.items():
        readers = [kernel for kernel in graph.kernels if name in kernel.inputs]
        if (
            not readers
            or image.kind is not TensorKind.INPUT
            or not all(
                _reads_windows(graph, kernel, name) and (rest is None or kernel.name in rest)
                for kernel in readers
            )
        ):
            continue
        counts = {_together(kernel) for kernel in readers}
        count = counts.pop() if len(counts) == 1 else 1
        samples, channels, lines, columns = image.shape
        channels, columns = even(channels * count), ceil_div(columns, count)
        tensors[name] = dataclasses.replace(image, shape=(samples, channels, lines, columns))
        together |= {kernel.name: count for kernel in readers}
        how = f"{count} pixels of a line as one" if count > 1 else "with a channel of zeros"
        notes.append(f"'{name}' comes {how}, so that its words are whole")
    if not notes:
        return graph
    kernels = [
        dataclasses.replace(one, attrs=frozen({**one.attrs, "together": together[one.name]}))
        if one.name in together
        else one
        for one in graph.kernels
    ]
    return with_kernels(graph, kernels, tensors, *notes)


def _reads_windows(graph: KernelGraph, kernel: Kernel, image: str) -> bool:
    """Return whether a kernel with a program is a convolution of an image with an odd number of channels."""
    size = tuple(int(kernel.dims[name]) for name in ("c", "h", "w")) if kernel.family == "conv2d" else (0,)
    is_read = size == graph.tensors[image].shape[1:] and not Depthwise.is_for(kernel)
    return is_read and size[0] % PAIR > 0 and kernel.name not in plain_priced(graph)


def _together(kernel: Kernel) -> int:
    """Return how many pixels of a line come as one, so that words are whole; 1 if windows begin at all of them.

    Windows that are computed at a time begin at every z q-th pixel, so f = z q pixels may come as one. An image of H x W pixels has a
    link for every word of these, and a link takes H W / f words or more; a region needs at least a cycle for each of H' W' pixels of the
    result. f is the least number with which the links are as fast as that.
    """
    d = kernel.dims
    sizes = [int(d["stride"]) * count for count in divisors(int(d["out_w"]), MOST_ABREAST)]
    whole = [size for size in sizes if size % PAIR == 0]
    enough = [size for size in whole if d["h"] * d["w"] <= size * d["out_h"] * d["out_w"]]
    return min(enough, default=max(whole, default=1))
