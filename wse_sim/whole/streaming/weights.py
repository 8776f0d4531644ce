"""The gradient of the weights on the cores of the lanes.

Symbols: x the f inputs of a core, g the gradients of the round's output, t tokens; a *sum* is over the tokens
of a column::

    the owner     sends g along its lane, two elements per word; a control word after its last switches to the next owner
    every core    y = sum over t of x g as words arrive; y + the sum from the column, sent on
"""

from __future__ import annotations

from wse_sim.fabric.format.builder import Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.blocks.rounds import SENDER
from wse_sim.whole.regions.contract import PAIR
from wse_sim.whole.streaming.common import COLORS, GRADIENTS_QUEUE, ColumnKind, Cores
from wse_sim.whole.streaming.layout import Pass
from wse_sim.whole.streaming.products import Meets


def write_weight_gradient(cores: Cores, core: CoreClass, kind: ColumnKind, one: Pass) -> None:
    """Write the gradients of the bias, then all rounds."""
    if one.layer.bias:
        _bias_gradient(cores, core, kind, one)
    sender = _Sender(cores, core, kind, one)

    def owns(col: int) -> int:
        return int(col < one.owners)

    def before(col: int) -> int:
        return one.rounds_of(col).start - (owns(col) if col else 0)

    def after(col: int) -> int:
        return one.rounds - one.rounds_of(col).stop

    with core.loop(cores.per_column(before)):
        _round(cores, core, kind, one)
    with core.loop(cores.per_column(owns)):
        if not kind.is_first:  # the last round of the owner before
            sender.products(0, cores.layout.held)
        sender.begin()
        if not kind.is_first:
            _pass_on(cores, core, kind, one.rest)
        if sender.rounds > 1:
            with core.loop(sender.rounds - 1):
                sender.round(is_last=False)
                _pass_on(cores, core, kind, one.rest)
        sender.round(is_last=True)
        _pass_on(cores, core, kind, one.rest)
    with core.loop(cores.per_column(after)):
        _round(cores, core, kind, one)


def _round(cores: Cores, core: CoreClass, kind: ColumnKind, one: Pass) -> None:
    _Sender(cores, core, kind, one).products(0, cores.layout.held)
    _pass_on(cores, core, kind, one.rest)


def _pass_on(cores: Cores, core: CoreClass, kind: ColumnKind, count: int) -> None:
    own = cores.y.dsd(0, count)
    here, behind = COLORS.along[kind.row_parity], COLORS.along[1 - kind.row_parity]
    if kind.begins:
        core.mov(fabric_out(here), own, start="none")
    else:
        core.add(fabric_out(here), own, fabric_in(behind), start="none")


def _bias_gradient(cores: Cores, core: CoreClass, kind: ColumnKind, one: Pass) -> None:
    """Sum the gradients that a core owns over tokens."""
    lay = cores.layout
    gradients = cores.g[one.layer.number + 1].dsd(0, one.owned, stride=lay.apart)
    core.fmac_vectors(
        cores.y.dsd(0, one.owned), cores.ones.dsd(0, lay.held), gradients, one.owned,
        b_stride=1, length=lay.held, dtype="mixed", fresh=True,
    )  # fmt: skip
    _pass_on(cores, core, kind, one.owned)


class _Sender:
    """Rounds of an owner: a microthread sends the gradients, `ahead` elements before the main thread uses
    them.

    That many elements fit in the core's input queue and router, so the output queue stays free for sums.
    """

    def __init__(self, cores: Cores, core: CoreClass, kind: ColumnKind, one: Pass) -> None:
        lay = cores.layout
        self._core, self._held, self._apart = core, lay.held, lay.apart
        self._sent, self._is_end = cores.g[one.layer.number + 1], kind.ends[one.layer.number]
        self.rounds = len(one.rounds_of(one.owners - 1)) if self._is_end else one.owned
        room = cores.wafer.input_queue_wavelets[GRADIENTS_QUEUE] + cores.wafer.router_queue_wavelets
        self._ahead = min(self._held, PAIR * room)
        x, count = cores.x[one.layer.number], one.rest
        self._meets = Meets(cores.y.dsd(0, count), lambda i: x.dsd(i, count, stride=lay.apart), count, 1)

    def products(self, first: int, end: int) -> None:
        """Receive words; each triggers the products of two tokens."""
        self._meets.write(self._core, COLORS.gradients, first, end)

    def begin(self) -> None:
        """Send the first words of the first round."""
        self._send(0, self._ahead, 0)

    def round(self, *, is_last: bool) -> None:
        """Send the remaining words and compute; before the last products, start the next round or switch to
        the next owner."""
        later = PAIR * ((self._held - self._ahead) // PAIR)
        if self._held > self._ahead:
            offset = (self.rounds - 1) * self._apart if is_last else 0
            self._send(offset + self._ahead, self._held - self._ahead, 0 if is_last else 1)
        self.products(0, later)
        if is_last:
            self._core.join(SENDER)
            commands = (Command.RESET,) if self._is_end else (Command.ADVANCE, Command.ADVANCE)
            self._core.control(COLORS.gradients, *commands, start="none")
        else:
            self._send(self._apart, self._ahead, 1)
        self.products(later, self._held)

    def _send(self, offset: int, count: int, turns: int) -> None:
        self._core.mov(
            fabric_out(COLORS.gradients),
            self._sent.dsd(offset, count, step=turns * self._apart),
            dtype="fp16",
            thread=SENDER,
            priority="medium",
            start="none",
        )


def route_weight_gradients(cores: Cores) -> None:
    """Route gradients along the lanes from every core in sequence, and sums along the columns."""
    lay, b, area = cores.layout, cores.b, cores.layout.area
    rows = slice(area.row, area.row + area.rows)
    for lane in range(lay.lanes):
        for col in range(lay.cols):
            low, high = "W" if col else "", "E" if col < lay.cols - 1 else ""
            positions = [{"rx": "W", "tx": "R" + high}] if col else []
            positions += [{"rx": "R", "tx": low + high + "R"}]
            positions += [{"rx": "E", "tx": "R" + low}] if high else []
            switch = Switch(positions[1:], pop="on_advance")
            at = (rows, lay.fabric_col(lane, col))
            b.route(COLORS.gradients, at, rx=positions[0]["rx"], tx=positions[0]["tx"], switch=switch)
            _route_column(cores, lay.fabric_col(lane, col), down=lay.stream_of(col).is_downward)


def _route_column(cores: Cores, col: int, *, down: bool) -> None:
    area = cores.layout.area
    onward, back = ("S", "N") if down else ("N", "S")
    for along in range(area.rows):
        row = area.row + (along if down else area.rows - 1 - along)
        cores.b.route(COLORS.along[along % 2], (row, col), rx="R", tx=onward)
        if along:
            cores.b.route(COLORS.along[1 - along % 2], (row, col), rx=back, tx="R")
