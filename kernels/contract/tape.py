"""The tape of a backward pass, on which gradient kernels are written, last forward kernel first.

A family's method `gradients` gets from the tape which tensors need a gradient, and writes kernels with
:meth:`Tape.emit`. An elementwise kernel, ``<first reader>.dsum``, sums a gradient with several contributions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

from wse_sim.graph import Attr, Kernel, KernelGraph, Phase, Tensor, TensorKind, frozen

DATA, WEIGHT = Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT


def gradient_name(of: str, taken: Mapping[str, Tensor]) -> str:
    """Return an unused name for a gradient of the tensor `of`."""
    name, count = f"grad.{of}", 1
    while name in taken:
        count += 1
        name = f"grad.{of}.{count}"
    return name


class Changes(TypedDict, total=False):
    """Fields in which a gradient kernel differs from its forward kernel."""

    family: str
    dims: Mapping[str, int]
    attrs: Mapping[str, Attr]
    sample_dim: str | None
    parameters: tuple[str, ...]
    flops: int


class Tape:
    """The gradient kernels and gradient tensors of one forward graph, under construction.

    Parameters
    ----------
    graph
        The forward graph.
    wanted
        Tensors that get a gradient: trained parameters and floating-point results that depend on them.
    flops_of
        FLOPs of a kernel by its family (:func:`wse_sim.kernels.contract.registry.flops_of`).
    recompute
        "none" stores attention weights; otherwise the backward pass recomputes them.
    """

    def __init__(
        self,
        graph: KernelGraph,
        wanted: frozenset[str],
        flops_of: Callable[[Kernel], int],
        recompute: str = "none",
    ) -> None:
        self.graph, self.wanted, self.recompute = graph, wanted, recompute
        self._flops_of = flops_of
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.kernels: list[Kernel] = []
        self.weight_parts: dict[str, list[str]] = {}  # gradients that add up to that of each parameter
        self.ones: set[str] = set()  # gradients that are the number 1
        self._names: set[str] = set()
        self._parts: dict[str, list[str]] = {}  # gradients that add up to that of each tensor
        # The first reader of a tensor also sums its gradient, so every block sums the gradients of its own
        # input.
        self._readers: dict[str, str] = {}
        for kernel in graph.kernels:
            for tensor in kernel.inputs:
                self._readers.setdefault(tensor, kernel.name)

    # --- which tensors have a gradient

    def inputs(self, kernel: Kernel) -> list[str]:
        """Return the inputs of a kernel that get a gradient."""
        return [t for t in kernel.inputs if t in self.wanted]

    def weights(self, kernel: Kernel) -> list[str]:
        """Return the parameters of a kernel that are trained."""
        return [p for p in kernel.parameters if p in self.wanted]

    # --- gradient tensors

    def gradient(self, of: str) -> str:
        """Create a gradient tensor for the tensor `of`, and return its name."""
        source = self.tensors[of]
        weight = source.kind in (TensorKind.PARAMETER, TensorKind.CONSTANT)
        name = gradient_name(of, self.tensors)
        kind = TensorKind.WEIGHT_GRADIENT if weight else TensorKind.GRADIENT
        self.tensors[name] = Tensor(name, source.shape, source.dtype, kind, source.per_sample and not weight)
        return name

    def start(self, output: Tensor) -> None:
        """Start the backward pass at an output of the graph: the gradient of a loss is 1, other gradients are
        inputs."""
        self._parts[output.name] = [self.gradient(output.name)]
        self.ones.update(self._parts[output.name] if not output.shape else ())

    def add(self, tensor: str, gradient: str) -> None:
        """Add an existing gradient tensor to the contributions to the gradient of an input."""
        self._parts.setdefault(tensor, []).append(gradient)

    def give(self, tensor: str) -> str:
        """Create a contribution to the gradient of an input, and return its name."""
        name = self.gradient(tensor)
        self.add(tensor, name)
        return name

    def give_weight(self, parameter: str) -> str:
        """Create a contribution to the gradient of a parameter, and return its name."""
        name = self.gradient(parameter)
        self.weight_parts.setdefault(parameter, []).append(name)
        return name

    def total(self, tensor: str) -> str | None:
        """Return the complete gradient of a tensor, after summing its contributions; None if it has none."""
        parts = self._parts.get(tensor, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        reader = self.graph.kernel(self._readers[tensor])
        total = self.gradient(tensor)
        source = self.tensors[tensor]
        self.emit(
            reader,
            "dsum" if self.is_free(f"{reader.name}.dsum") else f"dsum.{tensor}",
            DATA,
            tuple(parts),
            (total,),
            family="elementwise",
            dims=frozen(elements=source.elements),
            attrs=frozen(ops=",".join(["add"] * (len(parts) - 1)), inputs=len(parts)),
            sample_dim="elements" if source.per_sample else None,
            parameters=(),
        )
        return total

    # --- kernels

    def is_free(self, name: str) -> bool:
        """Return whether no gradient kernel has this name yet."""
        return name not in self._names

    def emit(
        self,
        of: Kernel,
        suffix: str,
        phase: Phase,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        **changes: Unpack[Changes],
    ) -> None:
        """Write a gradient kernel ``<of>.<suffix>``: a copy of the forward kernel `of` with `changes`.

        An input gradient keeps the parameters of `of` unless `changes` state others; FLOPs come from the
        family.
        """
        kept = of.parameters if phase is DATA else ()
        given: dict[str, Any] = {"parameters": kept, **changes}
        kernel = dataclasses.replace(
            of,
            name=f"{of.name}.{suffix}",
            phase=phase,
            inputs=tuple(t for t in inputs if t not in self.ones),
            outputs=outputs,
            saved_bytes=0,
            forward=of.name,
            **given,
        )
        if "flops" not in changes:
            kernel = dataclasses.replace(kernel, flops=self._flops_of(kernel))
        self._names.add(kernel.name)
        self.kernels.append(kernel)
