"""What a backward pass needs of the forward pass, in bytes, each number counted once.

A kernel claims its inputs where its gradients read them, and what never leaves it: the operand of a
fused activation, attention weights, the moments of a norm, a dropout mask (one bit per element).
A tensor that several kernels need is counted at the first.
"""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.units import BYTES_PER_DTYPE

# Families whose gradient reads the result, not the operand.
_FROM_RESULT = frozenset({"softmax"})
_RESULT_FUNCTIONS = frozenset({"relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal"})
# Families whose gradient needs nothing but sizes.
_FREE = frozenset({"layout", "resample", "topk"})
_LINEAR = frozenset(["add", "sub", "neg", "rsub"])
_FP32_BYTES = 4


def saved_bytes(graph: KernelGraph, wanted: set[str], recompute: str) -> list[Kernel]:
    """The forward kernels with their `saved_bytes` set; `wanted` holds the tensors with gradients."""
    claimed: set[str] = set()
    kernels = []
    for kernel in graph.kernels:
        needs_gradient = not wanted.isdisjoint((*kernel.inputs, *kernel.parameters))
        if not needs_gradient:
            kernels.append(kernel)
            continue
        total = _inside(graph, kernel, wanted, recompute)
        for tensor in _kept_tensors(graph, kernel, wanted):
            t = graph.tensors[tensor]
            if tensor not in claimed and t.kind not in (TensorKind.PARAMETER, TensorKind.CONSTANT):
                claimed.add(tensor)
                total += t.bytes
        kernels.append(dataclasses.replace(kernel, saved_bytes=total))
    return kernels


def _kept_tensors(graph: KernelGraph, kernel: Kernel, wanted: set[str]) -> tuple[str, ...]:
    """Tensors between kernels that the gradients of `kernel` read."""
    family = kernel.family
    parts = [p for p in str(kernel.attrs.get("fused", "")).split(",") if p]
    own = kernel.inputs[:-1] if "residual" in parts else kernel.inputs
    results = kernel.outputs if any(p in _RESULT_FUNCTIONS for p in parts) else ()
    if family in ("gemm", "conv2d", "grouped_gemm"):
        trained = any(p in wanted for p in kernel.parameters)
        return (*(own if trained else ()), *results)
    if family == "batch_gemm":
        return (*own, *results)
    if (
        family in _FREE
        or family in ("dropout", "reduce")
        or (family == "generated" and kernel.attrs.get("ops") == "rotary")
    ):
        return ()
    if family in _FROM_RESULT or (
        family == "activation" and kernel.attrs.get("function") in _RESULT_FUNCTIONS
    ):
        return kernel.outputs
    if family == "elementwise" and all(op in _LINEAR for op in str(kernel.attrs.get("ops", "")).split(",")):
        return ()
    if family == "pool2d" and kernel.attrs.get("kind") == "avg":
        return ()
    if family == "attention":
        return (*kernel.inputs, *kernel.outputs)
    return kernel.inputs


def _inside(graph: KernelGraph, kernel: Kernel, wanted: set[str], recompute: str) -> int:
    """Bytes of what the gradients need and no other kernel sees."""
    size = BYTES_PER_DTYPE[kernel.dtype]
    dims = kernel.dims
    parts = [p for p in str(kernel.attrs.get("fused", "")).split(",") if p]
    total = 0
    bends = [p for p in parts if p not in ("bias", "residual", "scale") and p not in _RESULT_FUNCTIONS]
    if bends:
        total += graph.tensors[kernel.outputs[0]].elements * size
    if kernel.family == "attention":
        rows = dims["b"] * dims["heads"] * dims["q"]
        total += rows * _FP32_BYTES  # the logarithm of each row's sum
        if recompute == "none":
            total += rows * dims["kv"] * size
            if kernel.attrs.get("dropout"):
                total += rows * dims["kv"] // 8
    elif kernel.family == "norm":
        total += (
            2 * dims["rows"] * _FP32_BYTES
            if kernel.attrs.get("kind") != "batch"
            else 2 * dims["cols"] * _FP32_BYTES
        )
    elif kernel.family == "dropout":
        total += (dims["elements"] + 7) // 8
    elif kernel.family == "cross_entropy":
        total += dims["rows"] * _FP32_BYTES
    return total
