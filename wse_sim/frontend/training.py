"""Training by rule: backward kernels, optimizer kernels, and what a backward pass needs kept.

Every family has one rule that states the gradient kernels of a forward kernel.  FLOPs: a product's two
gradients cost what it costs, each; attention's gradient four products (twice the forward); nothing else
counts.  There is no gradient for the inputs of the model and for integers.

A gradient with several contributions is summed by an elementwise kernel, ``<first reader>.dsum``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from wse_sim.errors import ModelError
from wse_sim.frontend.optimizers import gradient_name, update_kernels
from wse_sim.frontend.repeats import find_repeats
from wse_sim.frontend.saved import saved_bytes
from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind, frozen
from wse_sim.graph.optimizers import optimizer_named

RECOMPUTE = ("none", "full", "attention")

_DATA, _WEIGHT = Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT
_FLOAT = ("fp32", "fp16", "bf16", "cbfloat16")
_PASSES = ("bias", "residual", "scale")
# Elementwise operators whose results carry no gradient.
_STEPS = frozenset(
    [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_not",
        "bitwise_not",
        "bitwise_and",
        "bitwise_or",
        "sign",
        "floor",
        "ceil",
        "round",
    ]
)
_LINEAR = frozenset(["add", "sub", "neg", "rsub"])


def add_training(graph: KernelGraph, *, optimizer: str = "adamw", recompute: str = "none") -> KernelGraph:
    """The training graph of a forward graph.

    Parameters
    ----------
    graph
        A forward graph; its outputs are the loss or what the loss is made of.
    optimizer
        "sgd", "momentum" or "adamw".
    recompute
        "none" keeps what the gradients need, "attention" computes attention weights again, "full" leaves
        the choice of blocks to the compiler (the graph only says so in its facts).

    Raises
    ------
    ModelError
        If the graph is a training graph, a name is unknown, or nothing can be trained.
    """
    if graph.training:
        raise ModelError(f"model '{graph.name}' is a training graph already; give its forward graph")
    optimizer_named(optimizer)
    if recompute not in RECOMPUTE:
        raise ModelError(f"recompute policy '{recompute}' is unknown; use {', '.join(RECOMPUTE)}")
    return _Backward(graph, optimizer, recompute).run()


class _Backward:
    """Walks a forward graph backwards once."""

    def __init__(self, graph: KernelGraph, optimizer: str, recompute: str) -> None:
        self.graph, self.optimizer, self.recompute = graph, optimizer, recompute
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.backward: list[Kernel] = []
        self.names: set[str] = set()
        self.ones: set[str] = set()
        # Gradient tensors that add up to the gradient of each tensor.
        self.parts: dict[str, list[str]] = {}
        self.weight_parts: dict[str, list[str]] = {}
        # The first reader of a tensor also sums its gradient: so every block sums what enters it.
        self.readers: dict[str, str] = {}
        for kernel in graph.kernels:
            for tensor in kernel.inputs:
                self.readers.setdefault(tensor, kernel.name)
        self.wanted = self._wanted()

    def run(self) -> KernelGraph:
        """The whole training graph."""
        if not any(t.kind is TensorKind.PARAMETER for t in self.tensors.values()):
            raise ModelError(
                f"model '{self.graph.name}' has no parameters, so nothing trains; use training=False"
            )
        for tensor in self.graph.tensors.values():
            if tensor.kind is TensorKind.OUTPUT and tensor.name in self.wanted:
                # The loss's own gradient is the number 1; other results get theirs from outside.
                self.parts[tensor.name] = [self._gradient(tensor.name)]
                self.ones.update(self.parts[tensor.name] if not tensor.shape else ())
        for kernel in reversed(self.graph.kernels):
            self._kernel(kernel)
        forward = saved_bytes(self.graph, self.wanted, self.recompute)
        kernels = (
            *forward,
            *self.backward,
            *update_kernels(self.graph.kernels, self.tensors, self.weight_parts, self.optimizer),
        )
        tensors = frozen({name: t for name, t in self.tensors.items() if name not in self.ones})
        return dataclasses.replace(
            self.graph,
            kernels=kernels,
            tensors=tensors,
            training=True,
            repeats=find_repeats(kernels, tensors),
            facts=frozen({**self.graph.facts, "optimizer": self.optimizer, "recompute": self.recompute}),
        )

    # --- which tensors have a gradient

    def _wanted(self) -> set[str]:
        """Tensors that depend on a parameter and are not integers."""
        wanted = {
            t.name for t in self.tensors.values() if t.kind is TensorKind.PARAMETER and t.dtype in _FLOAT
        }
        for kernel in self.graph.kernels:
            if not wanted.isdisjoint((*kernel.inputs, *kernel.parameters)) and not self._stops(kernel):
                wanted.update(t for t in kernel.outputs if self.tensors[t].dtype in _FLOAT)
        return wanted

    @staticmethod
    def _stops(kernel: Kernel) -> bool:
        return kernel.family == "elementwise" and str(kernel.attrs.get("ops")) in _STEPS

    # --- tensors

    def _gradient(self, of: str) -> str:
        """A new gradient tensor for `of`."""
        source = self.tensors[of]
        weight = source.kind in (TensorKind.PARAMETER, TensorKind.CONSTANT)
        name = gradient_name(of, self.tensors)
        kind = TensorKind.WEIGHT_GRADIENT if weight else TensorKind.GRADIENT
        self.tensors[name] = Tensor(name, source.shape, source.dtype, kind, source.per_sample and not weight)
        return name

    def _is_free(self, name: str) -> bool:
        return name not in self.names

    def _emit(
        self,
        of: Kernel,
        suffix: str,
        phase: Phase,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        **changes: Any,
    ) -> None:
        parameters = (
            of.parameters if phase is _DATA and "parameters" not in changes else changes.pop("parameters", ())
        )
        self.names.add(f"{of.name}.{suffix}")
        self.backward.append(
            dataclasses.replace(
                of,
                name=f"{of.name}.{suffix}",
                phase=phase,
                inputs=tuple(t for t in inputs if t not in self.ones),
                outputs=outputs,
                parameters=parameters,
                saved_bytes=0,
                forward=of.name,
                **changes,
            )
        )

    def _total(self, tensor: str) -> str | None:
        """The whole gradient of a tensor; contributions are summed where there are several."""
        parts = self.parts.get(tensor, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        reader = self.graph.kernel(self.readers[tensor])
        total = self._gradient(tensor)
        source = self.tensors[tensor]
        suffix = "dsum" if self._is_free(f"{reader.name}.dsum") else f"dsum.{tensor}"
        self._emit(
            reader,
            suffix,
            _DATA,
            tuple(parts),
            (total,),
            family="elementwise",
            dims=frozen(elements=source.elements),
            attrs=frozen(ops=",".join(["add"] * (len(parts) - 1)), inputs=len(parts)),
            sample_dim="elements" if source.per_sample else None,
            flops=0,
            parameters=(),
        )
        return total

    # --- one kernel

    def _kernel(self, kernel: Kernel) -> None:
        totals = [t for t in (self._total(out) for out in kernel.outputs) if t is not None]
        if not totals or self._stops(kernel):
            return
        rule = getattr(self, f"_of_{kernel.family}", self._of_pointwise)
        rule(kernel, totals[0])

    def _inputs(self, kernel: Kernel) -> list[str]:
        """Inputs that get a gradient."""
        return [t for t in kernel.inputs if t in self.wanted]

    def _weights(self, kernel: Kernel) -> list[str]:
        return [p for p in kernel.parameters if p in self.wanted]

    def _give(self, tensor: str) -> str:
        """A new contribution to the gradient of an input."""
        name = self._gradient(tensor)
        self.parts.setdefault(tensor, []).append(name)
        return name

    def _give_weight(self, parameter: str) -> str:
        name = self._gradient(parameter)
        self.weight_parts.setdefault(parameter, []).append(name)
        return name

    def _before_fusion(self, kernel: Kernel, gradient: str) -> tuple[str, list[str]]:
        """The gradient before residual and activation of a product, and the product's own inputs."""
        parts = [p for p in str(kernel.attrs.get("fused", "")).split(",") if p]
        own = list(kernel.inputs)
        if "residual" in parts:
            residual = own.pop()
            bent_after = any(p not in _PASSES for p in parts[parts.index("residual") :])
            bend = next((p for p in parts if p not in _PASSES), None)
            if bent_after and bend is not None:
                gradient = self._bend(kernel, bend, gradient)
                parts = [p for p in parts if p != bend]
            if residual in self.wanted:
                self.parts.setdefault(residual, []).append(gradient)
        for bend in parts:
            if bend not in _PASSES:
                gradient = self._bend(kernel, bend, gradient)
        return gradient, own

    def _bend(self, kernel: Kernel, function: str, gradient: str) -> str:
        out = kernel.outputs[0]
        name = self._gradient(out)
        tensor = self.tensors[out]
        self._emit(
            kernel,
            "dact",
            _DATA,
            (gradient, out),
            (name,),
            family="activation",
            dims=frozen(elements=tensor.elements),
            attrs=frozen(function=function),
            sample_dim="elements" if kernel.sample_dim else None,
            flops=0,
            parameters=(),
        )
        return name

    def _of_gemm(self, kernel: Kernel, gradient: str) -> None:
        gradient, own = self._before_fusion(kernel, gradient)
        m, k, n = (kernel.dims[d] for d in "mkn")
        attrs = {key: value for key, value in kernel.attrs.items() if key != "fused"}
        self._weight_kernel(kernel, gradient, own, frozen(m=k, k=m, n=n), attrs, "k")
        self._data_kernel(kernel, gradient, own, frozen(m=m, k=n, n=k), attrs)

    def _weight_kernel(
        self, kernel: Kernel, gradient: str, own: list[str], dims: Any, attrs: dict[str, Any], sample: str
    ) -> None:
        weights = self._weights(kernel)
        if not weights:
            return
        matrices = [p for p in weights if len(self.tensors[p].shape) > 1]
        if len(weights) > len(matrices) and kernel.family in ("gemm", "conv2d"):
            attrs = {**attrs, "fused": "bias"}
        flops = kernel.flops if matrices else 0
        outputs = tuple(self._give_weight(p) for p in weights)
        self._emit(
            kernel, "dw", _WEIGHT, (*own, gradient), outputs,
            dims=dims, attrs=frozen(attrs), sample_dim=sample if kernel.sample_dim else None, flops=flops, parameters=(),
        )  # fmt: skip

    def _data_kernel(
        self, kernel: Kernel, gradient: str, own: list[str], dims: Any, attrs: dict[str, Any]
    ) -> None:
        wanted = [t for t in own if t in self.wanted]
        if wanted:
            outputs = tuple(self._give(t) for t in wanted)
            matrices = tuple(p for p in kernel.parameters if len(self.tensors[p].shape) > 1)
            self._emit(
                kernel, "dx", _DATA, (gradient,), outputs, dims=dims, attrs=frozen(attrs), parameters=matrices
            )

    def _of_grouped_gemm(self, kernel: Kernel, gradient: str) -> None:
        m, k, n, groups = (kernel.dims[d] for d in ("m", "k", "n", "groups"))
        own, attrs = list(kernel.inputs), dict(kernel.attrs)
        self._weight_kernel(kernel, gradient, own, frozen(m=k, k=m, n=n, groups=groups), attrs, "k")
        self._data_kernel(kernel, gradient, own, frozen(m=m, k=n, n=k, groups=groups), attrs)

    def _of_batch_gemm(self, kernel: Kernel, gradient: str) -> None:
        gradient, own = self._before_fusion(kernel, gradient)
        b, m, k, n = (kernel.dims[d] for d in "bmkn")
        attrs = {key: value for key, value in kernel.attrs.items() if key != "fused"}
        operands = [*own, *kernel.parameters]
        x, y = operands[0], operands[-1]
        for suffix, target, other, dims in (
            ("dx", x, y, frozen(b=b, m=m, k=n, n=k)),
            ("dy", y, x, frozen(b=b, m=k, k=m, n=n)),
        ):
            if target in self.wanted:
                weight = target in kernel.parameters
                out = self._give_weight(target) if weight else self._give(target)
                phase = _WEIGHT if weight else _DATA
                self._emit(
                    kernel,
                    suffix,
                    phase,
                    tuple(dict.fromkeys((gradient, other))),
                    (out,),
                    dims=dims,
                    attrs=frozen(attrs),
                    parameters=(),
                )

    def _of_conv2d(self, kernel: Kernel, gradient: str) -> None:
        gradient, own = self._before_fusion(kernel, gradient)
        d = kernel.dims
        attrs = {key: value for key, value in kernel.attrs.items() if key != "fused"}
        self._weight_kernel(kernel, gradient, own, kernel.dims, attrs, "b")
        # The input gradient slides the kernel over the result's gradient: channels and sizes change sides.
        turned = dict(d) | {
            "h": d["out_h"],
            "w": d["out_w"],
            "c": d["k"],
            "k": d["c"],
            "out_h": d["h"],
            "out_w": d["w"],
        }
        attrs["transposed"] = not attrs.get("transposed", False)
        self._data_kernel(kernel, gradient, own, frozen(turned), attrs)

    def _of_attention(self, kernel: Kernel, gradient: str) -> None:
        flops = 2 * kernel.flops
        attrs = dict(kernel.attrs)
        if self.recompute != "none":
            # The scores once more: half of the forward products.
            flops, attrs = flops + kernel.flops // 2, {**attrs, "recompute": True}
        outputs = tuple(self._give(t) for t in self._inputs(kernel))
        biases = tuple(self._give_weight(p) for p in self._weights(kernel))
        if outputs or biases:
            reads = tuple(dict.fromkeys((gradient, *kernel.inputs)))
            self._emit(kernel, "dx", _DATA, reads, outputs + biases, attrs=frozen(attrs), flops=flops)

    def _of_norm(self, kernel: Kernel, gradient: str) -> None:
        weights = self._weights(kernel)
        reads = tuple(dict.fromkeys((gradient, *kernel.inputs)))
        if weights:
            self._emit(
                kernel, "dw", _WEIGHT, reads, tuple(self._give_weight(p) for p in weights), parameters=()
            )
        if self._inputs(kernel):
            self._emit(kernel, "dx", _DATA, reads, tuple(self._give(t) for t in self._inputs(kernel)))

    def _of_embedding(self, kernel: Kernel, gradient: str) -> None:
        weights = self._weights(kernel)
        if weights:
            outputs = tuple(self._give_weight(p) for p in weights)
            self._emit(kernel, "dw", _WEIGHT, (*kernel.inputs, gradient), outputs, parameters=())
        elif self._inputs(kernel):
            self._emit(kernel, "dx", _DATA, (gradient,), tuple(self._give(t) for t in self._inputs(kernel)))

    def _of_elementwise(self, kernel: Kernel, gradient: str) -> None:
        operators = str(kernel.attrs.get("ops", "")).split(",")
        if all(op in _LINEAR for op in operators):
            for tensor in self._inputs(kernel):
                self._pass_on(kernel, tensor, gradient)
            for parameter in self._weights(kernel):
                self._reduce_to(kernel, parameter, gradient)
            return
        self._of_pointwise(kernel, gradient)

    def _pass_on(self, kernel: Kernel, tensor: str, gradient: str) -> None:
        """An addend's gradient is the sum's, summed over what was broadcast."""
        if self.tensors[tensor].elements == self.tensors[gradient].elements:
            self.parts.setdefault(tensor, []).append(gradient)
        else:
            self._reduce_to(kernel, tensor, gradient)

    def _reduce_to(self, kernel: Kernel, target: str, gradient: str) -> None:
        small, large = self.tensors[target], self.tensors[gradient]
        weight = small.kind is TensorKind.PARAMETER
        rows = max(1, min(small.elements, large.elements))
        suffix = "dw" if weight else "dx"
        while not self._is_free(f"{kernel.name}.{suffix}"):
            suffix += "_"
        self._emit(
            kernel,
            suffix,
            _WEIGHT if weight else _DATA,
            (gradient,),
            (self._give_weight(target) if weight else self._give(target),),
            family="reduce",
            dims=frozen(rows=rows, cols=max(1, large.elements // rows)),
            attrs=frozen(op="sum"),
            sample_dim=None if not large.per_sample else "rows" if small.per_sample else "cols",
            flops=0,
            parameters=(),
        )

    def _of_reduce(self, kernel: Kernel, gradient: str) -> None:
        if self._inputs(kernel):
            elements = kernel.dims["rows"] * kernel.dims["cols"]
            self._emit(
                kernel, "dx", _DATA, (gradient,), tuple(self._give(t) for t in self._inputs(kernel)),
                family="layout", dims=frozen(elements=elements), attrs=frozen(op="broadcast"),
                sample_dim="elements" if kernel.sample_dim else None,
            )  # fmt: skip

    def _of_topk(self, kernel: Kernel, gradient: str) -> None:
        if self._inputs(kernel):
            elements = kernel.dims["rows"] * kernel.dims["cols"]
            self._emit(
                kernel, "dx", _DATA, (gradient,), tuple(self._give(t) for t in self._inputs(kernel)),
                family="layout", dims=frozen(elements=elements), attrs=frozen(op="scatter"),
                sample_dim="elements" if kernel.sample_dim else None,
            )  # fmt: skip

    def _of_scan(self, kernel: Kernel, gradient: str) -> None:
        weights = self._weights(kernel)
        if weights:
            outputs = tuple(self._give_weight(p) for p in weights)
            self._emit(kernel, "dw", _WEIGHT, (*kernel.inputs, gradient), outputs, parameters=())
        self._of_pointwise(kernel, gradient, weights=False)

    def _of_pointwise(self, kernel: Kernel, gradient: str, weights: bool = True) -> None:
        """One pass over the result's gradient and what was kept; gradients of all inputs come out."""
        outputs = [self._give(t) for t in self._inputs(kernel)]
        if weights:
            outputs += [self._give_weight(p) for p in self._weights(kernel)]
        if outputs:
            moves = kernel.family in ("layout", "dropout", "pool2d", "resample")
            reads = (gradient,) if moves else tuple(dict.fromkeys((gradient, *kernel.inputs)))
            self._emit(kernel, "dx", _DATA, reads, tuple(outputs))
