"""The kernel graph: kernels, tensors, repeats."""

from wse_sim.graph.kernel_graph import (
    Attr,
    Kernel,
    KernelGraph,
    Phase,
    Repeat,
    Step,
    Tensor,
    TensorKind,
    frozen,
)

__all__ = ["Attr", "Kernel", "KernelGraph", "Phase", "Repeat", "Step", "Tensor", "TensorKind", "frozen"]
