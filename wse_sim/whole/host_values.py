"""Values that the host sends: rows of tables, patches or pixels of images, and tables for the cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import ModelError
from wse_sim.frontend.orders import ROWS
from wse_sim.graph import KernelGraph, TensorKind
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]


def host_rows(graph: KernelGraph, module: torch.nn.Module, args: tuple[object, ...]) -> Floats:
    """Return what the host sends for these arguments of the module: the input of `graph`, (samples, tokens,
    features).

    Raises
    ------
    ModelError
        If the graph is not of this module, or has several inputs.
    """
    import torch

    from wse_sim.frontend.values import values_of

    names = [name for name, tensor in graph.tensors.items() if tensor.kind is TensorKind.INPUT]
    images = next((one.detach().float().cpu().numpy() for one in args if isinstance(one, torch.Tensor)), None)
    if images is not None and (rows := patches_of(graph, images)) is not None:
        return rows
    found = values_of(module, args, names)
    if len(names) == 1 and names[0] in found and names[0].endswith(ROWS):
        found[names[0]] = found[names[0]].reshape(-1, *graph.tensors[names[0]].shape[1:])
    if len(names) != 1 or names[0] not in found:
        listed = ", ".join(f"'{name}'" for name in names)
        raise ModelError(
            f"the graph takes {listed}, which is not the one tensor of this module; give the graph of the module"
        )
    return found[names[0]]


def constants_of(graph: KernelGraph, module: torch.nn.Module, args: tuple[object, ...]) -> dict[str, Floats]:
    """Return the tables of the module that the programs of `graph` hold next to its weights: cosines and sines of rotations,
    (tokens, features that turn), by name."""
    names = [
        name
        for kernel in graph.kernels
        for name in kernel.parameters
        if graph.tensors[name].kind is TensorKind.CONSTANT
    ]
    if not names:
        return {}
    from wse_sim.frontend.values import values_of

    found = values_of(module, args, names)
    return {name: value.reshape(-1, value.shape[-1]) for name, value in found.items()}


def patches_of(graph: KernelGraph, images: Floats) -> Floats | None:
    """Return images (samples, channels, lines, columns) as the rows that the host sends, (samples, patches, features);
    None if the graph takes no patches.

    Raises
    ------
    ModelError
        If the images are not those of the model.
    """
    names = {name for name, tensor in graph.tensors.items() if tensor.kind is TensorKind.INPUT}
    for kernel in graph.kernels:
        derived = graph.tensors[kernel.parameters[0]].derived if kernel.parameters else None
        if derived is None or derived.rule != "flat" or not names.issuperset(kernel.inputs):
            continue
        _, channels, tall, wide = derived.shape
        samples, given, lines, columns = images.shape
        if given != channels or lines % tall or columns % wide:
            raise ModelError(
                f"the images have {given} channels of {lines} x {columns} pixels, and '{derived.source}' takes {channels} channels in "
                f"patches of {tall} x {wide}; give images of the model that the graph was made from"
            )
        cut = images.reshape(samples, channels, lines // tall, tall, columns // wide, wide)
        found: Floats = cut.transpose(0, 2, 4, 1, 3, 5).reshape(samples, -1, channels * tall * wide)
        return found
    return None


def in_whole_words(graph: KernelGraph, images: Floats) -> Floats:
    """Return images (samples, channels, lines, columns) as the graph takes them after :func:`with_whole_words`, other values as they
    are."""
    for kernel in graph.kernels:
        if kernel.family != "conv2d" or graph.tensors[kernel.inputs[0]].kind is not TensorKind.INPUT:
            continue
        size, together = (
            [int(kernel.dims[name]) for name in ("c", "h", "w")],
            Conv2dAttributes.of(kernel.attrs).together,
        )
        _, channels, lines, columns = graph.tensors[kernel.inputs[0]].shape
        if channels == size[0] or np.size(images) % np.prod(size):
            continue
        raw = np.reshape(images, (-1, *size))
        wide = np.pad(raw, [(0, 0)] * 3 + [(0, columns * together - size[2])])
        parts = wide.reshape(*wide.shape[:3], columns, together).transpose(0, 4, 1, 2, 3)
        found = parts.reshape(len(raw), -1, lines, columns)
        return np.pad(found, [(0, 0), (0, channels - found.shape[1]), (0, 0), (0, 0)])
    return images
