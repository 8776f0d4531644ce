"""Fuses kernels: operations that a kernel can apply to its result before the result leaves the core.

Each rule is a small class with `apply(draft, kernel)`. It looks at a kernel and the only reader of its
result, and either merges them and returns a description, or returns None.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Protocol

from wse_sim.graph import Kernel, Tensor, TensorKind, frozen
from wse_sim.kernels import family
from wse_sim.kernels.blocks.links import one_pass
from wse_sim.kernels.blocks.training import fused_items
from wse_sim.kernels.contract.family import STRAIGHT_PARTS, Link

MOST_OPERANDS = 5
"""Tensors that a generated chain reads at most: each has a stream into its region. In training five with their gradients and
the result take 12 of the 15 colors that a router has for streams (:mod:`wse_sim.compiler.coloring`)."""


@dataclass
class DraftGraph:
    """The kernels during fusion by name, with the readers and the maker of each tensor."""

    kernels: dict[str, Kernel]
    tensors: dict[str, Tensor]
    outputs: set[str]
    training: bool
    readers: dict[str, list[str]] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    # Operators of the trace that each kernel covers, in order; the last one makes its result.
    covers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, kernel in enumerate(self.kernels.values()):
            self.order[kernel.name] = index
            for tensor in kernel.inputs:
                self.readers.setdefault(tensor, []).append(kernel.name)
            for tensor in kernel.outputs:
                self.makers[tensor] = kernel.name

    def only_reader(self, kernel: Kernel) -> Kernel | None:
        """Return the only reader of the only result of `kernel`; None if they cannot be merged.

        The result must not be an output of the model, and gradients must pass through both kernels or
        neither.
        """
        if len(kernel.outputs) != 1 or kernel.outputs[0] in self.outputs:
            return None
        names = self.readers.get(kernel.outputs[0], [])
        reader = self.kernels[names[0]] if len(names) == 1 else None
        if reader is None or kernel.stops or reader.stops:
            return None
        same = self.tensors[kernel.outputs[0]].trains == self.tensors[reader.outputs[0]].trains
        return reader if same else None

    def maker(self, tensor: str) -> Kernel | None:
        """Return the kernel that makes a tensor; None for inputs, parameters and constants."""
        name = self.makers.get(tensor)
        return self.kernels[name] if name is not None else None

    def elements(self, tensor: str) -> int:
        """Return the number of elements of a tensor."""
        return self.tensors[tensor].elements

    def merge(self, first: Kernel, second: Kernel, merged: Kernel) -> None:
        """Replace `first` and `second` by `merged`, which has the name of `first`; drop the tensor between
        them.
        """
        between = first.outputs[0]
        for kernel in (first, second):
            for tensor in kernel.inputs:
                self.readers[tensor] = [n for n in self.readers.get(tensor, []) if n != kernel.name]
        del self.kernels[first.name], self.kernels[second.name]
        self.tensors.pop(between, None)
        self.covers[merged.name] = self.covers.pop(first.name, ()) + self.covers.pop(second.name, ())
        self.kernels[merged.name] = merged
        self.order[merged.name] = self.order[second.name]
        for tensor in merged.inputs:
            self.readers.setdefault(tensor, []).append(merged.name)
        for tensor in merged.outputs:
            self.makers[tensor] = merged.name

    def in_order(self) -> tuple[Kernel, ...]:
        """Return the kernels in topological order."""
        return tuple(sorted(self.kernels.values(), key=lambda k: self.order[k.name]))


class Fusion(Protocol):
    """A rule that merges a kernel with the reader of its result."""

    name: str

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        """Merge a kernel with its reader and return a description; None if the rule does not apply."""


def _with_fused(kernel: Kernel, reader: Kernel, parts: list[str], extra: tuple[str, ...] = ()) -> Kernel:
    inputs = kernel.inputs + tuple(t for t in extra if t not in kernel.inputs)
    return dataclasses.replace(
        kernel,
        inputs=inputs,
        outputs=reader.outputs,
        parameters=kernel.parameters + tuple(p for p in reader.parameters if p not in kernel.parameters),
        attrs=frozen({**kernel.attrs, "fused": ",".join(parts)}),
    )


def _link(kernel: Kernel | None) -> Link | None:
    """Return the elementwise operation of a kernel; None if the kernel is not elementwise."""
    return family(kernel.family).link(kernel.attrs) if kernel is not None else None


class FoldBatchNorm:
    """Folds a batch norm with running statistics into the weights and bias of the preceding convolution."""

    name = "convolution + batch norm"

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        takes = family(kernel.family).takes_affine and not fused_items(kernel)
        reader = draft.only_reader(kernel) if takes else None
        if reader is None or not family(reader.family).is_affine(reader.attrs):
            return None
        merged = _with_fused(kernel, reader, ["bias"])
        eps = {"eps": reader.attrs["eps"]} if "eps" in reader.attrs else {}
        draft.merge(kernel, reader, dataclasses.replace(merged, attrs=frozen({**merged.attrs, **eps})))
        return f"{reader.name} into {kernel.name}"


class GatedActivation:
    """Computes function(gate) * up (SwiGLU, GEGLU) in one pass over both operands."""

    name = "gated activation"

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        first = _link(kernel)
        reader = draft.only_reader(kernel) if first is not None and first.bends else None
        second = _link(reader)
        if first is None or second is None or reader is None or (second.ops, second.operands) != ("mul", 2):
            return None
        if reader.dims["elements"] != kernel.dims["elements"]:
            return None
        inputs = kernel.inputs + tuple(t for t in reader.inputs if t != kernel.outputs[0])
        merged = one_pass(first, second, reader, draft.tensors[reader.outputs[0]])
        merged = dataclasses.replace(
            merged,
            name=kernel.name,
            inputs=tuple(dict.fromkeys(inputs)),
            parameters=tuple(dict.fromkeys((*kernel.parameters, *reader.parameters))),
        )
        draft.merge(kernel, reader, merged)
        return f"{kernel.name} and {reader.name}"


class Epilogue:
    """Moves an activation or a residual addition into the preceding matrix product."""

    name = "product epilogue"

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        reader = draft.only_reader(kernel) if family(kernel.family).takes_epilogue else None
        link = _link(reader)
        if reader is None or link is None or not link.part:
            return None
        parts, size = fused_items(kernel), draft.elements(kernel.outputs[0])
        bent = any(part not in STRAIGHT_PARTS for part in parts)
        extra: tuple[str, ...] = ()
        if link.part == "residual":
            addend = None if "residual" in parts else _addend(draft, kernel, reader, size)
            if addend is None or (bent and draft.training):
                return None  # the gradient of the activation would need its result without the addend
            extra = (addend,)
        elif bent or (reader.dims["elements"] != size if link.bends else not _has_one_operand(reader)):
            return None
        draft.merge(kernel, reader, _with_fused(kernel, reader, [*parts, link.part], extra))
        return f"{reader.name} into {kernel.name}"


def _addend(draft: DraftGraph, kernel: Kernel, reader: Kernel, size: int) -> str | None:
    """Return the other operand of a sum, if it is one activation or input of the product's result size.

    It must not be an input of the product itself, which has to wait for it.
    """
    others = [t for t in reader.inputs if t != kernel.outputs[0]]
    if (
        len(others) != 1
        or draft.elements(others[0]) != size
        or reader.parameters
        or others[0] in kernel.inputs
    ):
        return None
    return others[0] if draft.tensors[others[0]].kind in (TensorKind.ACTIVATION, TensorKind.INPUT) else None


def _has_one_operand(kernel: Kernel) -> bool:
    return len(kernel.inputs) == 1 and not kernel.parameters


class ElementwiseChain:
    """Merges consecutive elementwise kernels into one generated kernel."""

    name = "elementwise chain"

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        first = _link(kernel)
        reader = draft.only_reader(kernel) if first is not None else None
        second = _link(reader)
        if first is None or second is None or reader is None:
            return None
        if reader.dims["elements"] != kernel.dims["elements"] or kernel.sample_dim != reader.sample_dim:
            return None
        others = tuple(t for t in reader.inputs if t != kernel.outputs[0] and t not in kernel.inputs)
        if len(kernel.inputs) + len(others) > MOST_OPERANDS:
            return None
        merged = dataclasses.replace(
            one_pass(first, second, reader, draft.tensors[reader.outputs[0]]),
            name=kernel.name,
            inputs=kernel.inputs + others,
            parameters=kernel.parameters + tuple(p for p in reader.parameters if p not in kernel.parameters),
            layer=kernel.layer,
        )
        draft.merge(kernel, reader, merged)
        return f"{kernel.name} and {reader.name}"


FUSIONS: list[Fusion] = [FoldBatchNorm(), GatedActivation(), Epilogue(), ElementwiseChain()]
