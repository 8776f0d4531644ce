"""Compute cores of a layer: rows with inputs, and the last row, which finishes outputs and receives
gradients.

Symbols: x the k inputs of a core, W its (k, v) weights, y its part of the outputs; g gradients of the
outputs::

    row i        forward   y = x W + y of the row above               sent down
                 backward  p = W g + p of the core east;  dW += x g   sent west to the column that collects dx
                 update    W' -= r / B dW in fp32, W = W' in fp16
    last row     forward   act(y + b)                                 sent out, column by column
                 backward  g = g * act'                               sent up its column, twice
                 update    b' -= r / B db

db is the sum of g. The last row computes it. If the last row already computes a derivative, the first row
computes db instead, and the rows pass it down.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.fabric.format.builder import Operand, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.whole.training.layer import TrainedLayer
from wse_sim.whole.training.order import BACKWARD, FORWARD, WEIGHTS, WEST, write_steps

OUT, CAST, COLLECTED = 1, 2, 3  # microthreads: send outputs, gradients up a column, gradients of the inputs
DOWN, ALONG = 4, 5  # microthreads: sums of outputs, sums of gradients of the inputs


@dataclass(frozen=True)
class _Place:
    """A core with inputs: its row and column in the layer."""

    row: int
    col: int
    is_first: bool  # of the columns
    is_final: bool


def write_cores(layer: TrainedLayer, out: int, back: int | None, factor: float) -> None:
    """Write classes and routes of all rows.

    `out` and `back` are the colors on which outputs and gradients leave, `factor` is the update factor of the
    summed gradient.
    """
    lay, b = layer.layout, layer.b
    for i in range(layer.last):
        kinds: dict[tuple[bool, bool, int, int], list[int]] = {}
        for col in range(lay.cols):
            kinds.setdefault((col == 0, col == lay.cols - 1, col % 2, layer.lag(col)), []).append(col)
        for (is_first, is_final, *_), members in kinds.items():
            core = b.core_class(f"{lay.name} row {i} columns {members[0]} to {members[-1]}")
            _core_with_inputs(layer, core, _Place(i, members[0], is_first, is_final), back, factor)
            for col in members:
                b.place(core, (lay.top + i, lay.left + col))
    ends: dict[tuple[int, bool], list[int]] = {}
    for col in range(lay.cols):
        ends.setdefault((lay.sent(col), col == lay.cols - 1), []).append(col)
    for (sent, is_final), members in ends.items():
        core = b.core_class(f"{lay.name} last row columns {members[0]} to {members[-1]}")
        _finishing_core(layer, core, sent, is_final, out, factor)
        for col in members:
            b.place(core, (lay.last, lay.left + col))
    if back is not None and lay.collects_apart:
        _write_collectors(layer, back)
    _route_sums(layer)


# ---- rows with inputs --------------------------------------------------------------------------------------------


def _core_with_inputs(
    layer: TrainedLayer, core: CoreClass, at: _Place, back: int | None, factor: float
) -> None:
    """Write products, sums of input gradients and weight gradients; then the update."""
    here, above = layer.sums[at.row % 2], layer.sums[(at.row + 1) % 2]

    def forward(slot: int) -> None:
        v, ring = layer.layout.outputs, layer.y_ring
        y = layer.y.dsd(slot * ring, v, step=ring)
        core.fmac_vectors(
            y, fabric_in(layer.feed), layer.x.dsd(0, v), v,
            b_stride=v, length=len(layer.layout.rows[at.row].inputs), dtype="mixed", wire="fp16x2", start="none",
            triggered=True, fresh=True,
        )  # fmt: skip
        core.join(DOWN)
        if at.is_first and not layer.layout.collects_apart:
            # In the output ring, all words that the core sends in sequence come before sums for a row that
            # waits to send.
            core.join(COLLECTED)
        if at.row:
            core.add(fabric_out(here), y, fabric_in(above), start="none", thread=DOWN, priority="high")
        else:
            core.mov(fabric_out(here), y, start="none", thread=DOWN, priority="high")

    def backward(slot: int) -> None:
        core.mov(layer.g.dsd(), fabric_in(layer.cast), dtype="fp16", start="none")
        if back is not None:
            _input_gradient(layer, core, at, slot)

    def west(slot: int) -> None:
        if back is not None:
            _sum_west(layer, core, at, slot, back)

    def weights(_: int) -> None:
        _weight_gradient(layer, core, at.row)

    passes = {FORWARD: forward, BACKWARD: backward, WEST: west, WEIGHTS: weights}
    write_steps(core, layer.rows, layer.slots, layer.lag(at.col), passes)
    core.join(DOWN)
    if (
        layer.sums_bias_above
    ):  # the first row has added up the gradients of the bias; they pass down as sums do
        if at.row:
            core.mov(fabric_out(here), fabric_in(above), length=layer.layout.outputs, start="none")
        else:
            core.mov(fabric_out(here), layer.db.dsd(), start="none")
    core.fmac(layer.master.dsd(), layer.master.dsd(), layer.dw.dsd(), scalar(factor))
    core.mov(layer.x.dsd(), layer.master.dsd())


def _weight_gradient(layer: TrainedLayer, core: CoreClass, row: int) -> None:
    """Receive the inputs again; they trigger the products."""
    v = layer.layout.outputs
    core.fmac_vectors(
        layer.dw.dsd(0, v), fabric_in(layer.feed), layer.g.dsd(), v,
        dst_stride=v, length=len(layer.layout.rows[row].inputs), dtype="mixed", wire="fp16x2", start="none",
        triggered=True,
    )  # fmt: skip
    if row == 0 and layer.sums_bias_above:
        core.add(layer.db.dsd(), layer.db.dsd(), layer.g.dsd())


def _input_gradient(layer: TrainedLayer, core: CoreClass, at: _Place, slot: int) -> None:
    """Receive the gradients again; they trigger the products."""
    v, k = layer.layout.outputs, len(layer.layout.rows[at.row].inputs)
    own = layer.p.dsd(slot * layer.p_ring, k, step=layer.p_ring)
    core.fmac_vectors(
        own, fabric_in(layer.cast), layer.x.dsd(0, k, stride=v), k,
        b_stride=1, length=v, dtype="mixed", wire="fp16x2", start="none", triggered=True, fresh=True,
    )  # fmt: skip


def _sum_west(layer: TrainedLayer, core: CoreClass, at: _Place, slot: int, back: int) -> None:
    """Sum the input gradients westward; the first column sends the sums on."""
    k, ring = len(layer.layout.rows[at.row].inputs), layer.p_ring
    own = layer.p.dsd(slot * ring, k, step=ring)
    if at.is_first and not layer.layout.collects_apart:
        _sum_here(layer, core, at, own, slot, back)
        return
    here, behind = layer.along[at.col % 2], layer.along[(at.col + 1) % 2]
    core.join(ALONG)
    if at.is_final:
        core.mov(fabric_out(here), own, start="none", thread=ALONG, priority="high")
    else:
        core.add(fabric_out(here), own, fabric_in(behind), start="none", thread=ALONG, priority="high")


def _sum_here(layer: TrainedLayer, core: CoreClass, at: _Place, own: Operand, slot: int, back: int) -> None:
    """Let the first column store the sums and send them, if no moving column is free."""
    ring, k = layer.p_ring, len(layer.layout.rows[at.row].inputs)
    result = layer.dx.dsd(slot * ring, k, step=ring)
    if at.is_final:
        core.mov(result, own)
    else:
        core.add(result, own, fabric_in(layer.along[(at.col + 1) % 2]), start="none")
    core.join(DOWN)  # words that wait in sequence block all words behind them
    core.join(COLLECTED)
    core.mov(fabric_out(back, _turn(layer, at.row)), result, dtype="fp16", start="none", thread=COLLECTED)


def _turn(layer: TrainedLayer, row: int) -> str | None:
    """Return the switch command of a row's last word: the top row sends first, the lowest one resets all switches."""
    if layer.last == 1:
        return None
    return "path" if row == layer.last - 1 else "local"


def _write_collectors(layer: TrainedLayer, back: int) -> None:
    """Write the cores of a moving column that receive the sums of a row, in two alternating buffers, and send
    them."""
    lay, b, size = layer.layout, layer.b, layer.p_ring
    col = lay.collector
    held = b.buffer(f"{lay.name}.collected", 2 * size, "fp16", (slice(lay.top, lay.last), col))
    for i in range(layer.last):
        core = b.core_class(f"{lay.name} gradients of row {i}")
        k = len(lay.rows[i].inputs)

        def take(turn: int, core: CoreClass = core, k: int = k, row: int = i) -> None:
            part = held.dsd(turn * size, k)
            core.mov(part, fabric_in(layer.along[0]), start="none")
            core.join(COLLECTED)
            core.mov(fabric_out(back, _turn(layer, row)), part, dtype="fp16", start="none", thread=COLLECTED)

        with core.loop(layer.rows // 2):
            take(0)
            take(1)
        if layer.rows % 2:
            take(0)
        b.place(core, (lay.top + i, col))


# ---- the last row ------------------------------------------------------------------------------------------------


def _finishing_core(
    layer: TrainedLayer, core: CoreClass, sent: int, is_final: bool, out: int, factor: float
) -> None:
    """Write a column of the last row: outputs; backward its gradients, sent up twice; then the update of the bias."""
    d = layer.flight.last_row
    rounds, left = divmod(layer.rows - d, d)
    with core.loop(d):
        _finish(layer, core, sent, is_final, out)
    for times in (rounds, None):
        with core.loop(1 if times is None else times), core.loop(left if times is None else d):
            _take_gradients(layer, core, 0, sent)
            _cast_again(layer, core)
            _finish(layer, core, sent, is_final, out)
    for slots, start in ((d - left, left), (left, 0)):
        with core.loop(slots):
            _take_gradients(layer, core, start, sent)
            _cast_again(layer, core)
    if layer.has_bias:
        if layer.sums_bias_above:
            core.mov(layer.db.dsd(), fabric_in(layer.sums[(layer.last + 1) % 2]), start="none")
        core.fmac(layer.master_bias.dsd(), layer.master_bias.dsd(), layer.db.dsd(), scalar(factor))
        core.mov(layer.bias.dsd(), layer.master_bias.dsd())


def _finish(layer: TrainedLayer, core: CoreClass, sent: int, is_final: bool, out: int) -> None:
    """Write the forward pass: sums from above, bias and activation; a microthread sends the outputs."""
    lay, v = layer.layout, layer.layout.outputs
    result = layer.out.dsd(0, v, step=v)
    core.mov(result, fabric_in(layer.sums[(layer.last + 1) % 2]), start="none")
    if layer.has_bias:
        core.add(result, result, layer.bias.dsd(), dtype="fp16")
    if "relu" in lay.items:
        core.max(result, result, scalar(0.0), dtype="fp16")
    advance = None if lay.cols == 1 else ("path" if is_final else "local")
    core.join(OUT)
    leaving = layer.out.dsd(0, sent, step=v)
    core.mov(fabric_out(out, advance), leaving, dtype="fp16", start="none", thread=OUT)


def _take_gradients(layer: TrainedLayer, core: CoreClass, slot: int, sent: int) -> None:
    """Write the backward pass: multiply the gradients of a column by the derivative and send them up for the
    weight gradient."""
    own, v = layer.own.dsd(), layer.layout.outputs
    core.join(CAST)
    core.mov(layer.own.dsd(0, sent), fabric_in(layer.deal), dtype="fp16", start="none")
    if "relu" in layer.layout.items:
        # A send of these outputs may still be waiting, so the derivative goes to another buffer.
        period = round(1000 / layer.wafer.max_fp16_per_cycle)
        result = layer.out.dsd(slot * v, v, step=v)
        core.map(Fn.STEP, layer.slope.dsd(), result, dtype="fp16", period=period)
        core.mul(own, own, layer.slope.dsd(), dtype="fp16")
    core.mov(fabric_out(layer.cast), own, dtype="fp16", start="none", thread=CAST)
    if layer.has_bias and not layer.sums_bias_above:
        core.add(layer.db.dsd(), layer.db.dsd(), own)


def _cast_again(layer: TrainedLayer, core: CoreClass) -> None:
    """Send the gradients up the column a second time: they trigger the gradient of the inputs."""
    if layer.has_dx:
        core.join(CAST)
        core.mov(fabric_out(layer.cast), layer.own.dsd(), dtype="fp16", start="none", thread=CAST)


# ---- routes ------------------------------------------------------------------------------------------------------


def _route_sums(layer: TrainedLayer) -> None:
    """Route sums down the columns, gradients up, and sums of input gradients west."""
    lay, b = layer.layout, layer.b
    cols = slice(lay.left, lay.left + lay.cols)
    for i in range(layer.last + 1):
        row = lay.top + i
        if i < layer.last:
            b.route(layer.sums[i % 2], (row, cols), rx="R", tx="S")
        if i:
            b.route(layer.sums[(i + 1) % 2], (row, cols), rx="N", tx="R")
        if i == layer.last:
            b.route(layer.cast, (row, cols), rx="R", tx="N")
            continue
        b.route(layer.cast, (row, cols), rx="S", tx="R" + ("N" if i else ""))
        if not layer.has_dx:
            continue
        if lay.collects_apart:
            b.route(layer.along[0], (row, lay.left - 1), rx="E", tx="W")
            b.route(layer.along[0], (row, lay.collector), rx="E", tx="R")
        for col in range(lay.cols):
            if col or lay.collects_apart:
                b.route(layer.along[col % 2], (row, lay.left + col), rx="R", tx="W")
            if col < lay.cols - 1:
                b.route(layer.along[(col + 1) % 2], (row, lay.left + col), rx="E", tx="R")
