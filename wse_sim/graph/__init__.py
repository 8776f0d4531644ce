"""The kernel graph: kernels, tensors, repeats."""

from wse_sim.graph.kernel_graph import Kernel, KernelGraph, Phase, Repeat, Tensor, TensorKind, frozen

__all__ = ["Kernel", "KernelGraph", "Phase", "Repeat", "Tensor", "TensorKind", "frozen"]
