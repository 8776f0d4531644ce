"""Finds all obstacles of a model in one pass: refused and slow lines with reason, remedy and fraction of
FLOPs.

If the model is refused, it is lowered again, but errors are recorded instead of raised: a value that Python reads is taken
as false or one, an operator without a kernel moves its elements, a changed attribute is ignored. If torch
itself stops, the model is captured again with a guess instead of each result that torch rejects
(:mod:`wse_sim.frontend.substitutes`).

    fraction of an operator     FLOPs of the forward kernels that depend on its result
    fraction of a value read    FLOPs of the products after it in the program
    fraction of a gradient      FLOPs of the forward kernels on which its kernel depends
    fraction of slow work       cycles of a line without products over those of all forward kernels,
                                streamed on the whole wafer
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wse_sim.errors import ModelError
from wse_sim.frontend.obstacles import DECIDED, Obstacle, collecting, obstacle_of
from wse_sim.frontend.training import FLOPS_CHECKED, FLOPS_NOTE
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.family import How

if TYPE_CHECKING:
    from wse_sim.frontend.build import LoweredModel

SLOW_FRACTION = 0.05  # of the cycles; work without products that takes less is not reported
FUSE = "write it so that it fuses with the product before it, or make the tensor smaller"


@dataclass(frozen=True)
class Diagnosis:
    """The obstacles of a model in program order, followed by slow lines by their cycles.

    `flops` are those of the forward pass. `graph` is None if lowering did not reach it. `check` states
    whether the FLOPs of a training step are those that torch counts; "" if they were not compared.
    """

    model: str
    obstacles: tuple[Obstacle, ...]
    flops: int
    graph: KernelGraph | None
    check: str = ""

    @property
    def refused(self) -> bool:
        """Whether the model cannot be lowered as it is."""
        return any(obstacle.refuses for obstacle in self.obstacles)

    def lines(self) -> list[str]:
        """Return the diagnosis as lines of text."""
        refusing = [o for o in self.obstacles if o.refuses]
        slow = len(self.obstacles) - len(refusing)
        found = [
            f"{self.model}: {len(refusing)} obstacle{'s' * (len(refusing) != 1)}, {slow} slow place{'s' * (slow != 1)}"
        ]
        for number, item in enumerate(self.obstacles, 1):
            of = "cycles" if not item.refuses else "FLOPs behind it"
            fraction = f" ({100 * item.fraction:.0f} % of the {of})" if item.fraction is not None else ""
            found.append(f"{number}. {item.line or self.model}")
            found.append(f"   {item.reason}{fraction}")
            found.append(f"   remedy: {item.remedy}" if item.remedy else "   no remedy is known")
        found += self.decided
        return [*found, self.check] if self.check else found

    @property
    def decided(self) -> list[str]:
        """The notes on work that values decide, which the graph has as one run with the example arguments did it."""
        notes = self.graph.notes if self.graph is not None else ()
        return [note for note in notes if note.startswith(DECIDED)]

    def as_data(self) -> dict[str, object]:
        """Return the diagnosis as a dictionary of plain values."""
        rows = [
            {"kind": o.kind, "line": o.line, "reason": o.reason, "remedy": o.remedy, "fraction": o.fraction}
            for o in self.obstacles
        ]
        data = {"model": self.model, "refused": self.refused, "forward_flops": self.flops, "obstacles": rows}
        data |= {"decided_by_values": self.decided} if self.decided else {}
        return data | ({"training_flops": self.check} if self.check else {})


def examine(load: Callable[[], tuple[object, LoweredModel]], model: str, wafer: Wafer) -> Diagnosis:
    """Find the obstacles of a model on a wafer.

    Parameters
    ----------
    load
        A function that lowers the model and returns the graph and the record of its construction.
    model
        The name of the model in the text.
    wafer
        The wafer on which slow lines are priced.
    """
    with suppress(ModelError):
        return examine_graph(load()[1].graph, wafer, model)
    lowered, found = _collected(load, guess=False)
    if lowered is None:  # torch stopped: retry with a guess instead of each result that it rejects
        lowered, more = _collected(load, guess=True)
        found = more if len(more) >= len(found) else found
    if lowered is None:
        return Diagnosis(model, tuple(found), 0, None)
    graph = lowered.graph
    for obstacle in found:
        if obstacle.node or obstacle.products is not None:
            obstacle.fraction = _share(obstacle, lowered)
    slow = [] if any(o.kind == "capture" for o in found) else _slow(graph, wafer)
    return Diagnosis(model, (*found, *slow), graph.forward_flops, graph, "" if found else _check(graph))


def examine_graph(graph: KernelGraph, wafer: Wafer, model: str = "") -> Diagnosis:
    """Return the diagnosis of a kernel graph, which can only have slow lines.

    `model` is the name of the model in the text; default: that of the graph.
    """
    return Diagnosis(
        model or graph.name, tuple(_slow(graph, wafer)), graph.forward_flops, graph, _check(graph)
    )


def _check(graph: KernelGraph) -> str:
    """Return a line on the comparison of the training FLOPs with torch's; "" if they were not compared."""
    verdict = graph.facts.get(FLOPS_CHECKED)
    notes = [note for note in graph.notes if note.startswith(FLOPS_NOTE)]
    return notes[-1] if notes else f"{FLOPS_NOTE}: {verdict}" if verdict else ""


def _collected(
    load: Callable[[], tuple[object, LoweredModel]], *, guess: bool
) -> tuple[LoweredModel | None, list[Obstacle]]:
    """Return the lowered model, or None if lowering failed, and the obstacles."""
    lowered: LoweredModel | None = None
    with collecting(guess=guess) as found:
        try:
            lowered = load()[1]
        except ModelError as fault:
            last = obstacle_of(fault, "model")
            if all((o.line, o.reason) != (last.line, last.reason) for o in found):
                found.append(last)
    return lowered, found


def _forward(graph: KernelGraph) -> list[Kernel]:
    return [k for k in graph.kernels if k.phase is Phase.FORWARD]


def _share(obstacle: Obstacle, lowered: LoweredModel) -> float | None:
    """Return the FLOPs affected by an obstacle as a fraction of the forward pass; None if that has none."""
    kernels = _forward(lowered.graph)
    total = sum(k.flops for k in kernels)
    if not total:
        return None
    if obstacle.kind == "gradient":
        return _before(obstacle.node, kernels) / total
    if obstacle.products is not None:
        order = {name: i for i, name in enumerate(lowered.trace.nodes)}
        products = sorted(
            (k for k in kernels if k.flops), key=lambda k: order[lowered.nodes_of[k.name][0].name]
        )
        return sum(k.flops for k in products[obstacle.products :]) / total
    reached = {lowered.tensor_of.get(obstacle.node, "")}
    behind = 0
    for kernel in kernels:
        own = any(node.name == obstacle.node for node in lowered.nodes_of[kernel.name])
        if own or not reached.isdisjoint((*kernel.inputs, *kernel.parameters)):
            reached.update(kernel.outputs)
            behind += kernel.flops
    return behind / total


def _before(name: str, kernels: Sequence[Kernel]) -> int:
    """Return the FLOPs of the kernels on which a kernel depends."""
    needed: set[str] = set()
    flops = 0
    for kernel in reversed(kernels):
        if kernel.name == name or not needed.isdisjoint(kernel.outputs):
            needed.update(kernel.inputs)
            flops += kernel.flops if kernel.name != name else 0
    return flops


def _slow(graph: KernelGraph, wafer: Wafer) -> Iterable[Obstacle]:
    """Yield the lines without products that take a large fraction of the cycles, slowest first."""
    tiling = Tiling(wafer.rows, wafer.cols, "streamed")
    cycles: dict[str, float] = {}
    example: dict[str, Kernel] = {}
    total = 0.0
    for kernel in _forward(graph):
        how: How = {"phase": kernel.phase, "dtype": kernel.dtype, "attrs": dict(kernel.attrs)}
        spent = float(family(kernel.family).cost(kernel.dims, tiling, wafer, **how).total)
        total += spent
        if not kernel.flops and kernel.source:
            cycles[kernel.source] = cycles.get(kernel.source, 0.0) + spent
            example.setdefault(kernel.source, kernel)
    for line, spent in sorted(cycles.items(), key=lambda item: -item[1]):
        if spent > SLOW_FRACTION * total:
            kernel = example[line]
            yield Obstacle(
                line,
                f"work without products (family {kernel.family}, for example {kernel.name}) takes {spent:,.0f} cycles",
                family(kernel.family).cheaper or FUSE,
                "slow",
                fraction=spent / total,
            )
