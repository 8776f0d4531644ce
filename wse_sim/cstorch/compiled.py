"""Result of compiling a captured step: its kernel graph, the simulated result, and additional times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wse_sim.cstorch.on_top import OnTop
from wse_sim.graph import KernelGraph

if TYPE_CHECKING:
    from wse_sim.engine.result import Result


@dataclass
class Compiled:
    """One compile: the simulated step of a program."""

    name: str
    graph: KernelGraph
    result: Result | None  # None under validate_only
    batch: int
    training: bool
    checkpoint_bytes: float
    input_samples_per_s: float
    steps: int = 0
    folder: str = ""
    notes: list[str] = field(default_factory=list)
    input_bound_s: float = 0.0  # wafer time lost to a slow loader
    on_top: list[OnTop] = field(default_factory=list)  # clipping, scaling, schedule

    @property
    def on_top_s(self) -> dict[str, float]:
        """Seconds that each kernel on top adds to a step."""
        return {item.name: item.seconds for item in self.on_top}

    @property
    def mode(self) -> str:
        return str(self.result.mode) if self.result is not None else ""

    @property
    def step_s(self) -> float:
        return float(self.result.step_s) + sum(self.on_top_s.values()) if self.result is not None else 0.0

    @property
    def binding(self) -> str:
        return str(self.result.binding) if self.result is not None else ""
