"""Fusions of kernels: what a kernel can do to its result before it leaves the core.

Each rule is one small class with `apply(draft, kernel)`: it looks at one kernel and the only reader of
its result and either merges them and tells so, or gives None.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Protocol

from wse_sim.graph import Kernel, Tensor, TensorKind, frozen
from wse_sim.kernels import family


@dataclass
class DraftGraph:
    """Kernels that are still being merged: an ordered table and who reads what."""

    kernels: dict[str, Kernel]
    tensors: dict[str, Tensor]
    outputs: set[str]
    training: bool
    readers: dict[str, list[str]] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    # Operators of the trace that each kernel covers, in order; its result is that of the last.
    covers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, kernel in enumerate(self.kernels.values()):
            self.order[kernel.name] = index
            for tensor in kernel.inputs:
                self.readers.setdefault(tensor, []).append(kernel.name)
            for tensor in kernel.outputs:
                self.makers[tensor] = kernel.name

    def only_reader(self, kernel: Kernel) -> Kernel | None:
        """The kernel that alone reads the only result of `kernel`, if there is exactly one."""
        if len(kernel.outputs) != 1 or kernel.outputs[0] in self.outputs:
            return None
        names = self.readers.get(kernel.outputs[0], [])
        return self.kernels[names[0]] if len(names) == 1 else None

    def maker(self, tensor: str) -> Kernel | None:
        """The kernel that makes a tensor."""
        name = self.makers.get(tensor)
        return self.kernels[name] if name is not None else None

    def elements(self, tensor: str) -> int:
        """Elements of a tensor."""
        return self.tensors[tensor].elements

    def merge(self, first: Kernel, second: Kernel, merged: Kernel) -> None:
        """Put `merged`, named as `first`, in the place of `second`; the tensor between them is gone."""
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
        """Kernels in topological order."""
        return tuple(sorted(self.kernels.values(), key=lambda k: self.order[k.name]))


class Fusion(Protocol):
    """A rule that merges a kernel with the reader of its result."""

    name: str

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        """Merge and say what was done, or None."""


def _fused(kernel: Kernel) -> list[str]:
    return [part for part in str(kernel.attrs.get("fused", "")).split(",") if part]


def _with_fused(kernel: Kernel, reader: Kernel, parts: list[str], extra: tuple[str, ...] = ()) -> Kernel:
    inputs = kernel.inputs + tuple(t for t in extra if t not in kernel.inputs)
    return dataclasses.replace(
        kernel,
        inputs=inputs,
        outputs=reader.outputs,
        parameters=kernel.parameters + tuple(p for p in reader.parameters if p not in kernel.parameters),
        attrs=frozen({**kernel.attrs, "fused": ",".join(parts)}),
    )


def _is_scale(kernel: Kernel) -> bool:
    """Whether a kernel multiplies its only input by one number."""
    single = kernel.attrs.get("inputs") == 1 and len(kernel.inputs) == 1 and not kernel.parameters
    return single and kernel.attrs.get("ops") in ("mul", "div")


class FoldBatchNorm:
    """A batch norm with running statistics becomes weights and bias of the convolution before it."""

    name = "convolution + batch norm"

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        reader = draft.only_reader(kernel) if kernel.family == "conv2d" and not _fused(kernel) else None
        if reader is None or reader.family != "norm" or reader.attrs.get("statistics") != "running":
            return None
        draft.merge(kernel, reader, _with_fused(kernel, reader, ["bias"]))
        return f"{reader.name} into {kernel.name}"


class GatedActivation:
    """function(gate) * up (SwiGLU, GEGLU) is one pass over both."""

    name = "gated activation"

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        reader = draft.only_reader(kernel) if kernel.family == "activation" else None
        if reader is None or reader.family != "elementwise" or reader.attrs.get("ops") != "mul":
            return None
        if reader.dims["elements"] != kernel.dims["elements"] or reader.attrs.get("inputs") != 2:
            return None
        inputs = tuple(
            dict.fromkeys(kernel.inputs + tuple(t for t in reader.inputs if t != kernel.outputs[0]))
        )
        elements = kernel.dims["elements"]
        cols = draft.tensors[reader.outputs[0]].shape[-1]
        merged = dataclasses.replace(
            reader,
            name=kernel.name,
            family="generated",
            dims=frozen(elements=elements, rows=elements // cols, cols=cols),
            attrs=frozen(ops=f"{kernel.attrs['function']},mul", inputs=2),
            inputs=inputs,
        )
        draft.merge(kernel, reader, merged)
        return f"{kernel.name} and {reader.name}"


class Epilogue:
    """Activation and residual addition in the kernel of the product that makes their operand."""

    name = "product epilogue"

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        reader = draft.only_reader(kernel) if family(kernel.family).takes_epilogue else None
        if reader is None:
            return None
        parts, size = _fused(kernel), draft.elements(kernel.outputs[0])
        bent = any(p not in ("bias", "residual", "scale") for p in parts)
        if reader.family == "activation" and reader.dims["elements"] == size and not bent:
            part, extra = str(reader.attrs["function"]), ()
        elif reader.family == "elementwise" and _is_scale(reader) and not bent:
            part, extra = "scale", ()
        elif reader.family == "elementwise" and reader.attrs.get("ops") == "add" and "residual" not in parts:
            others = [t for t in reader.inputs if t != kernel.outputs[0]]
            if (
                len(others) != 1
                or draft.elements(others[0]) != size
                or reader.parameters
                or kernel.inputs.count(others[0])
            ):
                return None
            if draft.tensors[others[0]].kind not in (TensorKind.ACTIVATION, TensorKind.INPUT):
                return None
            if bent and draft.training:
                return None  # the gradient of the activation would need the sum taken apart again
            part, extra = "residual", (others[0],)  # type: ignore[assignment]
        else:
            return None
        draft.merge(kernel, reader, _with_fused(kernel, reader, [*parts, part], extra))
        return f"{reader.name} into {kernel.name}"


class ElementwiseChain:
    """Elementwise work in a row becomes one generated kernel."""

    name = "elementwise chain"
    families = ("elementwise", "activation", "generated")

    def apply(self, draft: DraftGraph, kernel: Kernel) -> str | None:
        reader = draft.only_reader(kernel) if kernel.family in self.families else None
        if (
            reader is None
            or reader.family not in self.families
            or "rotary" in (kernel.attrs.get("ops"), reader.attrs.get("ops"))
        ):
            return None
        size = kernel.dims["elements"]
        if reader.dims["elements"] != size or kernel.sample_dim != reader.sample_dim:
            return None
        others = tuple(t for t in reader.inputs if t != kernel.outputs[0] and t not in kernel.inputs)
        shape = draft.tensors[reader.outputs[0]].shape
        cols = shape[-1] if shape else 1
        inputs = int(kernel.attrs.get("inputs", 1)) + int(reader.attrs.get("inputs", 1)) - 1
        merged = dataclasses.replace(
            reader,
            name=kernel.name,
            family="generated",
            dims=frozen(elements=size, rows=max(1, size // max(1, cols)), cols=cols),
            attrs=frozen(ops=f"{_ops(kernel)},{_ops(reader)}", inputs=inputs),
            inputs=kernel.inputs + others,
            parameters=kernel.parameters + tuple(p for p in reader.parameters if p not in kernel.parameters),
            layer=kernel.layer,
        )
        draft.merge(kernel, reader, merged)
        return f"{kernel.name} and {reader.name}"


def _ops(kernel: Kernel) -> str:
    return str(kernel.attrs.get("ops") or kernel.attrs.get("function"))


FUSIONS: list[Fusion] = [FoldBatchNorm(), GatedActivation(), Epilogue(), ElementwiseChain()]
