"""Torch's own counts for a model: FLOPs of a run, and the products of its joint graph."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import flop_registry

from wse_sim.frontend.capture import as_fake
from wse_sim.graph import KernelGraph, Phase

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def _value(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda x: x.meta["val"] if isinstance(x, torch.fx.Node) else x, tree)


def flops_of(graph: torch.fx.Graph) -> int:
    """Count FLOPs by torch's registry (2 per multiply-accumulate, attention dense)."""
    total = 0
    for node in graph.nodes:
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if node.op == "call_function" and formula is not None:
            total += formula(*_value(node.args), **_value(node.kwargs), out_val=_value(node))
    return total


def products_of(graph: torch.fx.Graph) -> Counter[tuple[int, int, int, int]]:
    """Return (b, m, k, n) of all products; transposed ones are one: m <= n."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    for node in graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        name = getattr(packet, "__name__", "")
        if node.op == "call_function" and name in _PRODUCTS:
            left, right = (a.meta["val"].shape for a in node.args[(0 if name in ("mm", "bmm") else 1) :][:2])
            b = left[0] if len(left) == 3 else 1
            found[shape_key(b, left[-2], left[-1], right[-1])] += 1
    return found


def shape_key(b: int, m: int, k: int, n: int) -> tuple[int, int, int, int]:
    """Return a product up to transposition."""
    return b, min(m, n), k, max(m, n)


def forward(module: torch.nn.Module, args: Any, kwargs: Any = None) -> torch.fx.Graph:
    """Return the forward graph in core ATen with attention as products."""
    fake, fake_args, fake_kwargs = as_fake(module.eval(), args, kwargs or {})
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        return torch.export.export(fake, fake_args, fake_kwargs).run_decompositions().graph


def joint(module: torch.nn.Module, args: Any) -> torch.fx.Graph:
    """Return the joint forward and backward graph of a module that returns its loss."""

    class Tuple(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *inputs: Any) -> Any:
            return (self.inner(*inputs),)

    fake, fake_args, _ = as_fake(Tuple().train(), args, {})
    with contextlib.ExitStack() as stack, sdpa_kernel(SDPBackend.MATH):
        program = torch.export.export(fake, fake_args)
        return aot_export_joint_with_descriptors(stack, program.module(), fake_args).graph_module.graph


def products_in(graph: KernelGraph) -> Counter[tuple[int, int, int, int]]:
    """Return (b, m, k, n) of all products of a kernel graph; attention as its two or six products."""
    found: Counter[tuple[int, int, int, int]] = Counter()
    for kernel in graph.kernels:
        d = kernel.dims
        if kernel.family == "gemm":
            found[shape_key(1, d["m"], d["k"], d["n"])] += 1 if kernel.flops else 0
        elif kernel.family == "batch_gemm":
            found[shape_key(d["b"], d["m"], d["k"], d["n"])] += 1
        elif kernel.family == "attention":
            b, q, kv, width = d["b"] * d["heads"], d["q"], d["kv"], d["d"]
            if kernel.phase is Phase.FORWARD:
                found[shape_key(b, q, width, kv)] += 1  # scores
                found[shape_key(b, q, kv, width)] += 1  # weighted values
            else:
                found[shape_key(b, kv, q, width)] += 2  # dV, dK
                found[shape_key(b, q, width, kv)] += 1  # dP
                found[shape_key(b, q, kv, width)] += 1  # dQ
    return +found
