"""The kernel graph: what is computed, free of where and when.

A :class:`KernelGraph` is a list of kernels in topological order with the tensors between them.  It is
stated for `samples` samples; :meth:`KernelGraph.with_samples` restates it for another batch, because
every kernel names the one dimension of its shape that grows with the batch.

Dimensions and attributes of a kernel are those of its family (``dims`` and ``attributes`` of
:class:`wse_sim.kernels.Family`; ``wse-sim show kernels`` lists them); any other is an error.

Backward kernels keep their family and state their own true dimensions: the input gradient of a gemm
is ``(m, n) x (n, k)`` (phase ``input_gradient``), its weight gradient ``(k, m) x (m, n)`` with
`sample_dim` ``k`` (phase ``weight_gradient``).
"""

from __future__ import annotations

import copyreg
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar

from wse_sim.errors import ModelError
from wse_sim.graph.access import PLAIN, Access, Derived
from wse_sim.serialize import saved
from wse_sim.units import BYTES_PER_DTYPE
from wse_sim.view_registry import Displayed

R = TypeVar("R")
MOST_REMEMBERED = 24  # facts kept next to a graph; a graph for other samples is one
Dims = Mapping[str, int]
Attr = str | int | float | bool


@saved
class Phase(StrEnum):
    """The part of a step in which a kernel runs."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    UPDATE = "update"


@saved
class TensorKind(StrEnum):
    """Role of a tensor."""

    INPUT = "input"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    OUTPUT = "output"


@saved
@dataclass(frozen=True)
class Tensor:
    """A tensor between kernels.

    `per_sample` tells whether it grows with the batch, `trains` whether a gradient may arrive: not at a frozen parameter, nor
    at a result that the model cuts off (``detach()``, ``torch.no_grad()``).  `derived` is how a parameter that is not one of
    the module follows from those that are.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    per_sample: bool = True
    trains: bool = True
    derived: Derived | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * BYTES_PER_DTYPE[self.dtype]


def frozen(mapping: Mapping[str, Any] | None = None, /, **items: object) -> Mapping[str, Any]:
    """A read-only mapping."""
    return MappingProxyType(dict(mapping or {}, **items))


def _thawed(proxy: Mapping[str, object]) -> tuple[Callable[..., object], tuple[dict[str, object]]]:
    """Pickle a read-only mapping by its content."""
    return frozen, (dict(proxy),)


# Graphs, plans and results travel between processes.
copyreg.pickle(MappingProxyType, _thawed)  # type: ignore[arg-type]


@saved
@dataclass(frozen=True)
class Kernel:
    """One kernel invocation of a step.

    `layer` is the module path of the user's model ("transformer.h.3.attn"), `source` the user's line.
    `flops` counts 2 per multiply-accumulate of matrix products and convolutions, attention dense, and
    nothing else: the convention of torch's FLOP counter.  `saved_bytes` is what a backward pass needs
    of this forward kernel's inputs and results, beyond tensors that other kernels keep anyway.  `access` is how it takes
    its operands, where `inputs`, `parameters` and `attrs` do not tell.  `stops` are tensors that it takes detached: they
    get no gradient through this kernel.
    """

    name: str
    family: str
    dims: Dims
    phase: Phase = Phase.FORWARD
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=frozen)
    sample_dim: str | None = None
    layer: str = ""
    source: str = ""
    flops: int = 0
    saved_bytes: int = 0
    dtype: str = "fp16"
    forward: str = ""  # name of the forward kernel that a gradient kernel belongs to
    access: Access = PLAIN
    stops: tuple[str, ...] = ()

    @cached_property
    def signature(self) -> tuple[Any, ...]:
        """Equal for kernels that cost the same: family, phase, dims, attrs, dtype."""
        return (
            self.family,
            str(self.phase),
            tuple(sorted(self.dims.items())),
            tuple(sorted(self.attrs.items())),
            self.dtype,
        )

    def with_samples(self, factor: int, divisor: int) -> Kernel:
        """This kernel for `factor / divisor` times as many samples."""
        if self.sample_dim is None or factor == divisor:
            return self
        scaled = self.dims[self.sample_dim] * factor
        if scaled % divisor:
            raise ModelError(
                f"kernel '{self.name}' has {self.dims[self.sample_dim]} {self.sample_dim} for {divisor} samples, "
                f"which does not divide; capture the model with batch 1"
            )
        return dataclasses.replace(
            self,
            dims=frozen({**self.dims, self.sample_dim: scaled // divisor}),
            flops=self.flops * factor // divisor,
            saved_bytes=self.saved_bytes * factor // divisor,
        )


@saved
@dataclass(frozen=True)
class Repeat:
    """`count` equal groups of kernels: one block and a count.

    `instances[i]` names the kernels of block i, in equal order; `container` is the module list
    ("transformer.h") they come from.
    """

    container: str
    instances: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        """Number of equal blocks."""
        return len(self.instances)


@saved
@dataclass(frozen=True, repr=False)
class KernelGraph(Displayed):
    """Kernels in topological order, the tensors between them, and the blocks that repeat."""

    name: str
    kernels: tuple[Kernel, ...]
    tensors: Mapping[str, Tensor]
    samples: int = 1
    training: bool = False
    repeats: tuple[Repeat, ...] = ()
    # Free facts of the model: layers, hidden, heads, kv_heads, seq, vocab, dropout, ... where known.
    facts: Mapping[str, Attr] = field(default_factory=frozen)
    notes: tuple[str, ...] = ()  # what was assumed or dropped on the way

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.kernels)

    @property
    def brief(self) -> str:
        """Model, phase, kernels, parameters and work."""
        return (
            f"{self.name}, {'training' if self.training else 'inference'}: {len(self.kernels):,} kernels, "
            f"{self.parameters:,} parameters, {self.total_flops / 1e9:,.4g} GFLOP for {self.samples:,} "
            f"{'sample' if self.samples == 1 else 'samples'}"
        )

    def __len__(self) -> int:
        return len(self.kernels)

    def validate(self) -> None:
        """Check names: of kernels, and of the tensors that they read and make.

        What a kernel states is checked by its family: :func:`wse_sim.kernels.check_graph`.

        Raises
        ------
        ModelError
            If two kernels have one name, or a kernel names a tensor that the graph does not have.
        """
        if len(self._by_name) < len(self.kernels):
            names = [kernel.name for kernel in self.kernels]
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelError(f"model '{self.name}' has two kernels '{twice}'; give each its own name")
        for kernel in self.kernels:
            for tensor in (*kernel.inputs, *kernel.outputs, *kernel.parameters):
                if tensor not in self.tensors:
                    raise ModelError(
                        f"kernel '{kernel.name}' names tensor '{tensor}', which model '{self.name}' does not have; "
                        "add it to `tensors`"
                    )

    def kernel(self, name: str) -> Kernel:
        """Look up a kernel by name.

        Raises
        ------
        ModelError
            If there is none.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise ModelError(f"model '{self.name}' has no kernel '{name}'; 'show model' lists them") from None

    @property
    def _by_name(self) -> dict[str, Kernel]:
        cached = self.__dict__.get("_index")
        if cached is None:
            cached = {kernel.name: kernel for kernel in self.kernels}
            object.__setattr__(self, "_index", cached)
        return cached

    @property
    def producers(self) -> dict[str, str]:
        """Name of the kernel that makes each tensor."""
        return {tensor: kernel.name for kernel in self.kernels for tensor in kernel.outputs}

    def edges(self) -> list[tuple[str, str, str]]:
        """(producer, consumer, tensor) for every tensor that a kernel makes and another reads."""
        made = self.producers
        return [
            (made[tensor], kernel.name, tensor)
            for kernel in self.kernels
            for tensor in kernel.inputs
            if tensor in made and made[tensor] != kernel.name
        ]

    @property
    def parameters(self) -> int:
        """Numbers that are weights, trained or frozen, tied ones counted once."""
        return sum(t.elements for t in self.tensors.values() if t.kind is TensorKind.PARAMETER)

    @property
    def trained_parameters(self) -> int:
        """Number of parameters that a training graph updates."""
        return sum(t.elements for t in self.tensors.values() if t.kind is TensorKind.PARAMETER and t.trains)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters in their stored type."""
        return sum(t.bytes for t in self.tensors.values() if t.kind is TensorKind.PARAMETER)

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass for `samples` samples."""
        return sum(k.flops for k in self.kernels if k.phase is Phase.FORWARD)

    @property
    def total_flops(self) -> int:
        """FLOPs of all kernels for `samples` samples."""
        return sum(k.flops for k in self.kernels)

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs for `samples` samples."""
        return sum(t.bytes for t in self.tensors.values() if t.kind is TensorKind.INPUT)

    def with_samples(self, samples: int) -> KernelGraph:
        """The same graph for `samples` samples.

        Raises
        ------
        ModelError
            If `samples` is not positive or a dimension does not divide.
        """
        if samples < 1:
            raise ModelError(f"batch {samples} is not positive; ask for at least one sample")
        if samples == self.samples:
            return self
        return self.remembered(("samples", samples), lambda: self._stated_for(samples))

    def remembered(self, key: Hashable, make: Callable[[], R]) -> R:
        """The value of `make()`, computed once per graph and cached with it; for facts that depend on the
        graph alone.

        Pickled and saved graphs omit the cache; it has only a few entries.
        """
        known: dict[Hashable, Any] = self.__dict__.setdefault("_remembered", {})
        if key not in known:
            while len(known) >= MOST_REMEMBERED:
                known.pop(next(iter(known)), None)
            known[key] = make()
        found: R = known[key]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    def _stated_for(self, samples: int) -> KernelGraph:
        kernels = tuple(kernel.with_samples(samples, self.samples) for kernel in self.kernels)
        tensors = {
            name: dataclasses.replace(t, shape=(t.shape[0] * samples // self.samples, *t.shape[1:]))
            if t.per_sample and t.shape
            else t
            for name, t in self.tensors.items()
        }
        return dataclasses.replace(self, kernels=kernels, tensors=frozen(tensors), samples=samples)
