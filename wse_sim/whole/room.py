"""Least numbers of parallel streams in training, so that the cores that hold whole samples of a tensor have room.

Such a core holds its bundle of some samples at a time::

    2    gradients of a tensor with several readers: those of one sample are added while the first of the next arrive
    2    an operand of elementwise work that arrives before another one: one is dealt out, one arrives
    1    a residual of a dense layer

With b bundles, a core holds ``ceil(w / b)`` words of each of the T tokens of a sample, where w is the words of a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import ceil, gcd

from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.activation_slopes import ACTIVATIONS, BOUNDS
from wse_sim.kernels.blocks.chains import BINARY
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.parallel_links import (
    TRAINED_AS_ONE,
    as_links_see,
    groups_of,
    readers_of,
    tied_in_training,
    trained_bundles,
)
from wse_sim.whole.regions.contract import has_work, is_pointwise, token_words
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.pointwise_place import depth_of, met_by, operators_of

WORD_BYTES, FP16_BYTES = 4, 2
WORK_VECTORS = 2  # of a sample of elementwise work with tables: x and y
MOVING_SLOTS = 3  # of a vector that only the forward pass reads: one arrives, one is worked on, one leaves
HELD_FRACTION = 0.7
"""Fraction of a core's memory for samples in flight; the rest is for weights, instructions and passing data."""
SUM, STORE, RESIDUAL = (
    "adds its gradients",
    "holds it for elementwise work",
    "holds it until it is added",
)


@dataclasses.dataclass(frozen=True)
class Holder:
    """A core that holds whole samples of a bundle of a tensor, and what for."""

    tensor: str
    samples: int
    does: str


def holders_of(graph: KernelGraph) -> dict[str, Holder]:
    """Return, by tensor, the core that holds most samples of it at a time; tensors that no core holds are left out."""
    forward = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    found = dict[str, Holder]()

    def hold(holder: Holder) -> None:
        if holder.samples > (found[holder.tensor].samples if holder.tensor in found else 0):
            found[holder.tensor] = holder

    rest = frozen_layers(graph)
    for kernel in (kernel for kernel in forward if kernel.name not in rest):
        for name in kernel.outputs:
            if readers_of(graph, name) > 1:
                hold(Holder(name, 2, SUM))
        if is_pointwise(kernel.family) and len(kernel.inputs) > 1:
            depths = {name: depth_of(graph, name) for name in kernel.inputs}
            for name, depth in depths.items():
                if depth < max(depths.values()) and graph.tensors[name].kind is not TensorKind.INPUT:
                    hold(Holder(name, 2, STORE))
        if kernel.family == "gemm" and "residual" in items_of(kernel) and len(kernel.inputs) > 1:
            hold(Holder(kernel.inputs[1], 1, RESIDUAL))
    return found


def room_bytes(wafer: Wafer) -> int:
    """Return the bytes of a core without its instructions."""
    return int(wafer.sram_usable_bytes - wafer.kernel_code_bytes)


def fewest_bundles(graph: KernelGraph, wafer: Wafer) -> dict[str, int]:
    """Return, by tensor, the fewest bundles with which the cores that hold samples of it have room, at most as many as it
    can have; tensors that are tied have the same number."""
    graph = as_links_see(graph)
    most, found = trained_bundles(graph), dict[str, int]()
    for holder in holders_of(graph).values():
        words = token_words(graph, holder.tensor)
        of_a_word = _held_bytes(graph, holder, words)
        fits = max(1, room_bytes(wafer) // of_a_word)
        found[holder.tensor] = min(ceil(words / fits), most[holder.tensor])
    divided = {name for kernel in graph.kernels if kernel.family == "norm" for name in kernel.inputs}
    for names in groups_of(tied_in_training(graph)):
        count = max(found.get(name, 1) for name in names)
        if divided.intersection(names):  # a norm has as many words of a token in each
            words = gcd(*(token_words(graph, name) for name in divided.intersection(names)))
            count = next(one for one in range(count, words + 1) if words % one == 0)
        found |= dict.fromkeys(names, count)
    return {name: count for name, count in found.items() if count > 1}


def _held_bytes(graph: KernelGraph, holder: Holder, bundles: int) -> int:
    """Return the bytes that a holder needs if its tensor has `bundles`."""
    words = token_words(graph, holder.tensor)
    tokens = ceil(graph.tensors[holder.tensor].elements / graph.samples / 2 / words)
    return WORD_BYTES * holder.samples * tokens * ceil(words / bundles)


def with_room(graph: KernelGraph, wafer: Wafer, samples: int = 0) -> KernelGraph:
    """Return a laid training graph whose prices count at least the bundles of :func:`fewest_bundles`.

    With `samples`, regions have room for as many in flight, instead of those of alternating passes.
    """
    least = fewest_bundles(graph, wafer)
    forward = {kernel.name: kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD}

    rest = frozen_layers(graph)

    def changed(kernel: Kernel) -> Kernel:
        owner = forward.get(kernel.forward, kernel)
        if kernel.name in rest or owner.family != kernel.family or owner.name not in forward:
            return kernel
        result = least.get(owner.outputs[0], 0)
        if kernel.attrs.get("trained_rows", False):
            stated = {"least_bundles": least.get(owner.inputs[0], 0), "least_results": result}
        elif kernel.family in TRAINED_AS_ONE:
            stated = {"least_bundles": result}
        else:
            return kernel
        if is_pointwise(kernel.family):
            stated["kept_bytes"] = ceil(FP16_BYTES * _vectors(owner, samples) / HELD_FRACTION)
        # Prices of these kinds count the bytes in flight core by core.
        saved = 0 if samples and kernel.family in ("attention", "norm") else kernel.saved_bytes
        attrs = {**kernel.attrs, **stated, "held_samples": samples}
        return dataclasses.replace(kernel, attrs=frozen(attrs), saved_bytes=saved)

    return dataclasses.replace(graph, kernels=tuple(map(changed, graph.kernels)))


def vectors_of(kernel: Kernel) -> dict[str, bool]:
    """Return the vectors of elementwise work by name, and whether the backward pass reads them: operands, a value of each
    operator that does not work in place, and the slope of a function.

    Slopes and the factors of products are read; what a function or a sum reads or makes only passes through.
    """
    found = {f"operand{i}": False for i in range(len(kernel.inputs))}
    value, rest = "operand0", iter(met_by(kernel))
    for i, op in enumerate(operators_of(kernel)):
        taken = next(rest) if op in (*BINARY, *BOUNDS) else None
        if op in (*ACTIVATIONS, *BOUNDS):
            found[f"slope{i}"] = True
        elif isinstance(taken, str):
            if op == "mul":
                found[value] = True
                if taken in kernel.inputs:
                    found[f"operand{kernel.inputs.index(taken)}"] = True
            value = f"value{i}"
            found[value] = False
    return found


def _vectors(kernel: Kernel, samples: int) -> int:
    """Return the vectors that elementwise work has of `samples` samples in flight."""
    if has_work(kernel.family):
        return samples * WORK_VECTORS
    return sum(samples if is_read else min(samples, MOVING_SLOTS) for is_read in vectors_of(kernel).values())


def check_room(graph: KernelGraph, wafer: Wafer, bundles: Mapping[str, int]) -> None:
    """Check that the cores that hold whole samples of a tensor have room for its chosen bundles.

    Raises
    ------
    ModelError
        Naming the first tensor whose core has no room, with its bytes.
    """
    limit = room_bytes(wafer)
    for holder in holders_of(graph).values():
        count = bundles.get(holder.tensor, 1)
        need = _held_bytes(graph, holder, count)
        if need > limit:
            raise ModelError(
                f"the core that {holder.does}, of tensor '{holder.tensor}' in {count} parallel streams, needs {need:,} bytes for "
                f"{holder.samples} samples, limit {limit:,} ({need / limit:.3g} times as much); use shorter samples, or regions "
                "with more columns for more streams"
            )
