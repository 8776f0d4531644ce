"""Shows a model as a tree: parameters, FLOPs and activations per module, with equal neighbours folded.

``print(table_of(graph))`` prints it; :class:`ModelTable` has the numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from wse_sim.graph import Kernel, KernelGraph, Phase, TensorKind


@dataclass
class Level:
    """A module and its submodules; the numbers include all submodules.

    `families` counts forward kernels, `parameters` counts a tied weight at its first user, `flops` are those
    of the forward pass and `total_flops` of all phases. `activation_bytes` are results of forward kernels,
    `saved_bytes` the bytes of the forward pass that training keeps.
    """

    name: str
    families: Counter[str] = field(default_factory=Counter)
    parameters: int = 0
    flops: int = 0
    total_flops: int = 0
    activation_bytes: int = 0
    saved_bytes: int = 0
    children: dict[str, Level] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[object, ...]:
        """A key that is equal for modules with equal content."""
        return (
            tuple(sorted(self.families.items())),
            self.parameters,
            self.flops,
            self.total_flops,
            self.activation_bytes,
            tuple((c.name if not c.name.isdigit() else "", c.shape) for c in self.children.values()),
        )


@dataclass(frozen=True)
class TableRow:
    """One printed line: depth, name, number of repetitions, and the module that it describes."""

    depth: int
    name: str
    count: int
    level: Level


@dataclass(frozen=True)
class ModelTable:
    """The tree of a model; converting it to text gives the table."""

    title: str
    root: Level
    samples: int
    training: bool
    depth: int

    def rows(self) -> Iterator[TableRow]:
        """Yield the lines from the root down, with equal neighbours folded."""
        yield TableRow(0, self.title, 1, self.root)
        yield from self._below(self.root, 1)

    def _below(self, level: Level, depth: int) -> Iterator[TableRow]:
        if depth > self.depth:
            return
        waiting = list(level.children.values())
        while waiting:
            first, count = waiting.pop(0), 1
            last = first.name
            while waiting and first.name.isdigit() and waiting[0].shape == first.shape:
                last, count = waiting.pop(0).name, count + 1
            yield TableRow(depth, first.name if count == 1 else f"{first.name}-{last}", count, first)
            yield from self._below(first, depth + 1)

    def __str__(self) -> str:
        header = ["module", "kernels", "parameters", "forward FLOP", "activations"]
        if self.training:
            header += ["step FLOP", "kept"]
        lines = [header]
        for row in self.rows():
            level = row.level
            times = f" (x{row.count})" if row.count > 1 else ""
            kinds = (
                ", ".join(f"{n} {f}" if n > 1 else f for f, n in level.families.items()) if row.depth else ""
            )
            line = [
                "  " * row.depth + row.name + times,
                kinds if len(kinds) < 40 else f"{sum(level.families.values())} kernels",
                f"{level.parameters:,}",
                _engineering(level.flops),
                _bytes(level.activation_bytes),
            ]
            if self.training:
                line += [_engineering(level.total_flops), _bytes(level.saved_bytes)]
            lines.append(line)
        widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
        text = ["  ".join(_cell(c, widths[i], i) for i, c in enumerate(line)).rstrip() for line in lines]
        text.insert(1, "-" * max(len(t) for t in text))
        return "\n".join(
            [
                *text,
                f"for {self.samples} sample{'s' if self.samples > 1 else ''}; one of each repeated module is shown",
            ]
        )


def _cell(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column < 2 else text.rjust(width)


def _engineering(value: float) -> str:
    for factor, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3f} {unit}"
    return f"{value:.0f} "


def _bytes(value: float) -> str:
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value:.0f} B"


def table_of(graph: KernelGraph, depth: int = 4) -> ModelTable:
    """Return the table of a kernel graph with at most `depth` levels of modules."""
    root = Level(graph.name)
    owned: set[str] = set()
    for kernel in graph.kernels:
        parameters = 0
        for name in kernel.parameters:
            tensor = graph.tensors[name]
            if name not in owned and tensor.kind is TensorKind.PARAMETER:
                owned.add(name)
                parameters += tensor.elements
        for level in _levels(root, kernel):
            _count(level, kernel, graph, parameters)
    return ModelTable(graph.name, root, graph.samples, graph.training, depth)


def _levels(root: Level, kernel: Kernel) -> Iterator[Level]:
    yield root
    level = root
    for part in filter(None, kernel.layer.split(".")):
        level = level.children.setdefault(part, Level(part))
        yield level


def _count(level: Level, kernel: Kernel, graph: KernelGraph, parameters: int) -> None:
    level.parameters += parameters
    level.total_flops += kernel.flops
    if kernel.phase is Phase.FORWARD:
        level.families[kernel.family] += 1
        level.flops += kernel.flops
        level.saved_bytes += kernel.saved_bytes
        level.activation_bytes += sum(graph.tensors[t].bytes for t in kernel.outputs)
