"""Placement hints in the pipeline: pinned rectangles, regions kept together, numbers of replicas.

Forward kernels carry ``pin_rows`` x ``pin_cols`` (cores of their region), ``pin_region`` (stages with the
same region name stay next to each other) and ``pin_replicas`` (copies of the whole pipeline). Instead of a
rectangle, a product may carry ``pin_parts_in`` and ``pin_parts_out``: the number of parts that each dimension
of its weights is divided into.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import groupby

from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase, frozen
from wse_sim.hardware import Wafer


def pinned_size(kernel: Kernel) -> tuple[int, int] | None:
    """Return the rows and columns of the region that a forward kernel is pinned to; None without a pin."""
    rows, cols = kernel.attrs.get("pin_rows"), kernel.attrs.get("pin_cols")
    return None if rows is None or cols is None else (int(rows), int(cols))


def settle_parts(graph: KernelGraph, wafer: Wafer) -> KernelGraph:
    """Return the graph with numbers of parts replaced by pinned rectangles.

    A stationary product holds its input features over the rows of its region and its output features over the
    columns that compute, so ``pin_parts_in`` x ``pin_parts_out`` parts are that many rows and columns. The
    columns that the region sets aside are added.

    Raises
    ------
    ModelError
        If a dimension has fewer features than parts.
    """
    kernels = []
    for kernel in graph.kernels:
        given = [kernel.attrs.get(f"pin_parts_{side}") for side in ("in", "out")]
        if given == [None, None]:
            kernels.append(kernel)
            continue
        parts = [1 if n is None else int(n) for n in given]
        if kernel.phase is Phase.FORWARD:
            for n, dim, side in zip(parts, ("k", "n"), ("input", "output"), strict=True):
                if n > kernel.dims[dim]:
                    raise ModelError(
                        f"'{kernel.name}' is pinned to {n} parts of its {kernel.dims[dim]} {side} features; "
                        f"use at most {kernel.dims[dim]} parts"
                    )
        cols = math.ceil(parts[1] / wafer.pipeline_efficiency - 1e-9)
        attrs = frozen({**kernel.attrs, "pin_rows": parts[0], "pin_cols": cols})
        kernels.append(dataclasses.replace(kernel, attrs=attrs))
    return graph if tuple(kernels) == graph.kernels else dataclasses.replace(graph, kernels=tuple(kernels))


def check_pins(graph: KernelGraph, wafer: Wafer, placer: str, default: str) -> None:
    """Check that the pins of a graph can be honoured on this wafer by this placer.

    Raises
    ------
    ModelError
        If a rectangle exceeds the program rectangle, the stages of a region do not follow each other, or the
        placer does not keep regions together.
    """
    forward = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    for kernel in forward:
        size = pinned_size(kernel)
        if size and (size[0] > wafer.program_rows or size[1] > wafer.program_cols):
            raise ModelError(
                f"'{kernel.name}' is pinned to {size[0]} x {size[1]} cores, the wafer has {wafer.program_rows} x "
                f"{wafer.program_cols}; pin it to a smaller rectangle"
            )
    _check_regions(forward, placer, default)


def _check_regions(forward: Sequence[Kernel], placer: str, default: str) -> None:
    """Check the region names of the forward kernels, as :func:`check_pins`."""
    runs = [name for name, _ in groupby(forward, key=lambda k: k.attrs.get("pin_region")) if name is not None]
    if runs and placer != default:
        raise ModelError(
            f"placer '{placer}' does not keep region '{runs[0]}' together; use placer '{default}' or remove the pin"
        )
    for name in runs:
        if runs.count(name) > 1:
            raise ModelError(
                f"region '{name}' is pinned to stages that do not follow each other, but stages are placed in "
                f"the order of the data flow; pin neighbouring modules to it, or give each group a different name"
            )


def uneven_copies(graph: KernelGraph, replicas: int, batch: int) -> tuple[str, ...]:
    """Return a note if pinned copies of the pipeline share a batch unevenly, and an empty tuple otherwise."""
    pinned = next(
        (k.name for k in graph.kernels if k.phase is Phase.FORWARD and k.attrs.get("pin_replicas")), None
    )
    if pinned is None or batch % replicas == 0:
        return ()
    most = -(-batch // replicas)
    return (
        f"the pin of '{pinned}' asks for {replicas} copies, which share batch {batch} unevenly: the fullest has {most} samples, so a "
        f"step takes as long as one of batch {most * replicas}; pin to a divisor of the batch, or leave replicas out",
    )


def pinned_replicas(graph: KernelGraph, asked: int | None) -> int | None:
    """Return the number of replicas that the pins request, or `asked` if there are no pins.

    Raises
    ------
    ModelError
        If two pins differ, or a pin differs from `asked`.
    """
    pins = {
        int(k.attrs["pin_replicas"]): k.name
        for k in graph.kernels
        if k.phase is Phase.FORWARD and "pin_replicas" in k.attrs
    }
    if not pins:
        return asked
    numbers = sorted(pins)
    if len(numbers) > 1:
        raise ModelError(
            f"'{pins[numbers[0]]}' is pinned to {numbers[0]} replicas and '{pins[numbers[1]]}' to {numbers[1]}; "
            f"all stages of a pipeline have the same number"
        )
    if asked is not None and asked != numbers[0]:
        raise ModelError(
            f"{asked} replicas are requested, but '{pins[numbers[0]]}' is pinned to {numbers[0]}; drop one of the two"
        )
    return numbers[0]
