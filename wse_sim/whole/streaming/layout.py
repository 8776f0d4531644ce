"""Placement of a streamed model: tokens and features of every core, and which stream feeds which columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wse_sim.compiler.plan import Region
from wse_sim.graph import Phase
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.modes.weight_streaming.links import program_region
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole.regions.fused_work import items_of


@dataclass(frozen=True)
class StreamedLayer:
    """A dense layer; `inputs` and `outputs` are those of one core."""

    number: int
    name: str
    weight: str
    bias: str | None
    function: str | None  # of the outputs
    k: int
    n: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Pass:
    """A phase of the step: "forward", "loss", "weights" (their gradient) or "inputs" (their gradient) of a
    layer.

    In a product, a core has `rest` stationary features, and every owner gets `owned` results.
    """

    kind: str
    layer: StreamedLayer

    @property
    def is_product(self) -> bool:
        """Whether weights stream in."""
        return self.kind in ("forward", "inputs")

    @property
    def rest(self) -> int:
        """Stationary features of a core."""
        return self.layer.outputs if self.kind == "inputs" else self.layer.inputs

    @property
    def rounds(self) -> int:
        """Number of rounds: results, or outputs of a weight gradient."""
        return self.layer.k if self.kind == "inputs" else self.layer.n

    @property
    def owned(self) -> int:
        """Rounds of one owner; the last owner may have fewer."""
        return self.layer.inputs if self.kind == "inputs" else self.layer.outputs

    @property
    def owners(self) -> int:
        """Columns of a lane that own rounds."""
        return ceil_div(self.rounds, self.owned)

    def turns(self) -> Iterator[int]:
        """Yield the results of a product in order: one of every owner, from the last column to the first,
        then the next."""
        for turn in range(self.owned):
            for col in reversed(range(self.owners)):
                yield from self.rounds_of(col)[turn : turn + 1]

    def rounds_of(self, col: int) -> range:
        """Return the rounds that a column owns."""
        return range(min(self.rounds, col * self.owned), min(self.rounds, (col + 1) * self.owned))


@dataclass(frozen=True)
class EdgeStream:
    """Words between the host and one outer row over one edge, for the columns (of each lane) that it serves."""

    number: int
    edge: str  # "W" or "E"
    weights_row: int
    gradients_row: int
    is_downward: bool  # weights and sums of gradients run south
    columns: tuple[int, ...]  # in the order of their words


@dataclass(frozen=True)
class StreamedLayout:
    """The complete placement; rows and columns count from the first core of the program rectangle."""

    area: Region
    lanes: int
    tokens: int
    layers: tuple[StreamedLayer, ...]
    passes: tuple[Pass, ...]
    streams: tuple[EdgeStream, ...]
    is_training: bool  # of the complete step, even if only some passes are included

    @property
    def cols(self) -> int:
        """Columns of a lane."""
        return self.area.cols // self.lanes

    @property
    def held(self) -> int:
        """Tokens of a core."""
        return ceil_div(self.tokens, self.area.rows * self.lanes)

    @property
    def apart(self) -> int:
        """Elements from the tokens of one feature to those of the next."""
        return pitch(self.held)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Features of a core: of the input, and of every layer's output."""
        return (self.layers[0].inputs, *(layer.outputs for layer in self.layers))

    def stream_of(self, col: int) -> EdgeStream:
        """Return the stream that feeds a column of the lanes."""
        return next(one for one in self.streams if col in one.columns)

    def fabric_col(self, lane: int, col: int) -> int:
        """Return the fabric column of a column in a lane."""
        return self.area.col + lane * self.cols + col


def lay_out(plan: WeightStreamingPlan) -> StreamedLayout:
    """Return the layout of a supported plan."""
    area = program_region(plan.used, plan.lanes)
    cols = area.cols // plan.lanes
    kernels = [kernel for kernel in plan.graph.kernels if kernel.phase is Phase.FORWARD]
    layers = []
    for number, kernel in enumerate(kernels):
        weight, *bias = kernel.parameters
        k, n = int(kernel.dims["k"]), int(kernel.dims["n"])
        layers.append(
            StreamedLayer(
                number,
                kernel.name,
                weight,
                bias[0] if bias else None,
                next((item for item in items_of(kernel) if item != "bias"), None),
                k,
                n,
                ceil_div(k, cols),
                ceil_div(n, cols),
            )
        )
    return StreamedLayout(
        area,
        plan.lanes,
        int(kernels[0].dims["m"]),
        tuple(layers),
        _passes(layers, training=plan.graph.training),
        _streams(area, plan.wafer.rows, cols, training=plan.graph.training),
        plan.graph.training,
    )


def _passes(layers: list[StreamedLayer], *, training: bool) -> tuple[Pass, ...]:
    found = [Pass("forward", layer) for layer in layers]
    if training:
        found.append(Pass("loss", layers[-1]))
        for layer in reversed(layers):
            found.append(Pass("weights", layer))
            if layer.number:
                found.append(Pass("inputs", layer))
    return tuple(found)


def _streams(area: Region, rows: int, cols: int, *, training: bool) -> tuple[EdgeStream, ...]:
    """Return the edge streams, nearest rows first; adjacent columns share a stream, because their skew is
    smallest.

    In training all sums of gradients run down: rows that wait for each other in both directions would
    deadlock.
    """
    above, below = area.row, rows - area.row - area.rows
    places = []
    for k in range(min(above, below)):
        north, south = area.row - 1 - k, area.row + area.rows + k
        places += [(edge, north, south, True) for edge in "WE"]
        if not training:
            places += [(edge, south, north, False) for edge in "WE"]
    places = places[:cols]
    count = ceil_div(cols, len(places))
    return tuple(
        EdgeStream(
            g, edge, weights, gradients, down, _order(range(g * count, min(cols, (g + 1) * count)), edge)
        )
        for g, (edge, weights, gradients, down) in enumerate(places)
        if g * count < cols
    )


def _order(columns: range, edge: str) -> tuple[int, ...]:
    """Return the columns with the nearest to the edge first."""
    return tuple(columns) if edge == "W" else tuple(reversed(columns))
