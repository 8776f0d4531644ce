"""Placement hints in the pipeline: pinned rectangles, regions kept together, numbers of replicas.

Forward kernels carry ``pin_rows`` x ``pin_cols`` (cores of their region), ``pin_region`` (stages of one
name stay next to each other) and ``pin_replicas`` (copies of the whole pipeline).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.hardware import Wafer


def pinned_size(kernel: Kernel) -> tuple[int, int] | None:
    """Rows and columns of the region that a forward kernel is pinned to."""
    rows, cols = kernel.attrs.get("pin_rows"), kernel.attrs.get("pin_cols")
    return None if rows is None or cols is None else (int(rows), int(cols))


def check_pins(graph: KernelGraph, wafer: Wafer, placer: str, default: str) -> None:
    """Refuse pins that no placement honours.

    Raises
    ------
    ModelError
        If a rectangle exceeds the wafer, stages of a region do not follow each other, or the placer
        keeps no regions together.
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
    runs = [name for name, _ in groupby(forward, key=lambda k: k.attrs.get("pin_region")) if name is not None]
    if runs and placer != default:
        raise ModelError(
            f"placer '{placer}' does not keep region '{runs[0]}' together; use placer '{default}' or no region"
        )
    for name in runs:
        if runs.count(name) > 1:
            raise ModelError(
                f"region '{name}' is pinned to stages that do not follow each other, and the pipeline is laid out "
                f"in the order of its data; pin neighbouring modules to it, or give each run a name of its own"
            )


def pinned_replicas(graph: KernelGraph, asked: int | None) -> int | None:
    """Copies of the pipeline that the pins ask for, or `asked` if there are none.

    Raises
    ------
    ModelError
        If pins, or pins and `asked`, differ.
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
            f"{asked} replicas are asked for, and '{pins[numbers[0]]}' is pinned to {numbers[0]}; drop one of the two"
        )
    return numbers[0]
