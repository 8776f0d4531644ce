"""Precision levels of parts of a step: ``pol(level=, bwd_level=)`` around a callable.

A kernel belongs to a part if the call it comes from was made there: same module, same line of the script.  Its sums are
then those of the part's level (:mod:`wse_sim.frontend.precision`); its gradients take `bwd_level`, or `level`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from wse_sim.cstorch.tape import TracedCall
from wse_sim.frontend.precision import Precision, precision_of
from wse_sim.graph import Kernel, KernelGraph, Phase, frozen
from wse_sim.kernels import family

Levels = tuple[int | None, int | None]


def with_levels(graph: KernelGraph, calls: Iterable[TracedCall], precision: str) -> KernelGraph:
    """Return the graph with the precision levels of its parts; the same graph if there are none."""
    asked = {_place(c.module, c.source): c.precision for c in calls if c.precision != (None, None)}
    base = precision_of(precision)
    if not asked or base.compute == "fp32":
        return graph
    forward: dict[str, Levels] = {}
    kernels = []
    for kernel in graph.kernels:
        levels = (
            forward.get(kernel.forward) if kernel.forward else asked.get(_place(kernel.layer, kernel.source))
        )
        if levels is None or kernel.phase is Phase.UPDATE:
            kernels.append(kernel)
            continue
        if not kernel.forward:
            forward[kernel.name] = levels
        level = levels[0] if kernel.phase is Phase.FORWARD or levels[1] is None else levels[1]
        kernels.append(kernel if level is None else _at(kernel, Precision(base.compute, level)))
    return replace(graph, kernels=tuple(kernels))


def _place(module: str, source: str) -> tuple[str, str]:
    found = re.match(r"(.*?):(\d+)", source)  # a kernel's source also shows the text of the line
    return module, f"{Path(found[1]).name}:{found[2]}" if found else source


def _at(kernel: Kernel, precision: Precision) -> Kernel:
    attrs = dict(kernel.attrs)
    if "accumulate" in attrs:
        attrs |= precision.matrix_attrs(kernel.dtype)
    return replace(kernel, attrs=frozen(attrs), dtype=precision.kernel(family(kernel.family).sums_rows))
