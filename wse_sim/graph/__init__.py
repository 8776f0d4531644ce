"""The kernel graph: kernels, tensors, repeats."""

from wse_sim.graph.access import PLAIN, Access, Derived, Step
from wse_sim.graph.kernel_graph import (
    Attr,
    Kernel,
    KernelGraph,
    Phase,
    Repeat,
    Tensor,
    TensorKind,
    frozen,
)

__all__ = [
    "PLAIN",
    "Access",
    "Attr",
    "Derived",
    "Kernel",
    "KernelGraph",
    "Phase",
    "Repeat",
    "Step",
    "Tensor",
    "TensorKind",
    "frozen",
]
