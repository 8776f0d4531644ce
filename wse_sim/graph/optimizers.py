"""Bytes that an optimizer stores and moves per parameter: facts of the algorithm, independent of hardware.

Symbols: m fp32 moments per parameter, mixed precision (16-bit weights and gradients in use, fp32 masters)::

    state       4 m               moments alone
    checkpoint  4 + 4 m           fp32 weight and moments
    server      8 + 4 m           fp32 weight, a sum of gradients, moments: the state of a weight server
    resident    2 + 8 + 4 m       16-bit copy in addition to these: stored on the wafer if weights are resident
    traffic     8 + 2 + 8 m       read and write the weight, read a 16-bit gradient, read and write moments

AdamW has 18 resident bytes, so BERT-large needs 335 M x 18 B = 6 GB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wse_sim.errors import ModelError

if TYPE_CHECKING:
    from wse_sim.graph.kernel_graph import KernelGraph


@dataclass(frozen=True)
class Optimizer:
    """One algorithm; all numbers are bytes per parameter."""

    name: str
    moments: int

    @property
    def state_bytes(self) -> int:
        """The moments."""
        return 4 * self.moments

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes per parameter of a checkpoint: weight and moments."""
        return 4 + 4 * self.moments

    @property
    def server_bytes(self) -> int:
        """Bytes per parameter on a weight server: weight, a sum of gradients, moments."""
        return 8 + 4 * self.moments

    @property
    def resident_bytes(self) -> int:
        """Bytes per parameter on the wafer if weights are resident: the server's bytes and a 16-bit copy."""
        return 2 + self.server_bytes

    @property
    def traffic_bytes(self) -> int:
        """Bytes per parameter that one update reads and writes."""
        return 10 + 8 * self.moments


OPTIMIZERS = {
    item.name: item
    for item in (Optimizer("sgd", 0), Optimizer("momentum", 1), Optimizer("adam", 2), Optimizer("adamw", 2))
}
"""The one table of optimizers; a new one is a line here and its instructions in the optimizer kernel."""


DEFAULT_OPTIMIZER = "adamw"


def optimizer_named(name: str) -> Optimizer:
    """The optimizer called `name`.

    Raises
    ------
    ModelError
        If there is none.
    """
    if name not in OPTIMIZERS:
        raise ModelError(f"optimizer '{name}' is unknown; use one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def optimizer_of(graph: KernelGraph) -> Optimizer | None:
    """The optimizer of a training graph; None if no kernel of the graph updates weights."""
    for kernel in graph.kernels:
        if kernel.phase == "update":
            return optimizer_named(str(kernel.attrs.get("algorithm", DEFAULT_OPTIMIZER)))
    return None


def stored_bytes(graph: KernelGraph, trained: int, frozen: int) -> float:
    """Bytes of all parameters of a training graph at `trained` bytes each, and `frozen` where they do not train."""
    learned = graph.trained_parameters
    return float(learned * trained + (graph.parameters - learned) * frozen)
