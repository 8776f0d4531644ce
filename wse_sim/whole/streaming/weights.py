"""The gradient of the weights on the cores of the lanes.

Symbols: x the f inputs of a core, g the gradients of the round's output, t tokens; a *sum* is over the tokens of a column::

    the owner     sends g along its lane, two elements a word; the control word behind its last turns to the next owner
    every core    y = sum over t of x g by words as they come; y + what comes along the column, sent on
"""

from __future__ import annotations

from wse_sim.fabric.format.builder import Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.blocks.rounds import SENDER, WORDS_AHEAD
from wse_sim.whole.layout import PAIR
from wse_sim.whole.streaming.common import COLORS, Cores, Kind
from wse_sim.whole.streaming.layout import Pass
from wse_sim.whole.streaming.products import triggered_by_pairs

AHEAD = PAIR * WORDS_AHEAD  # elements of the next round that the owner may send before its sums have left


def write_weight_gradient(cores: Cores, core: CoreClass, kind: Kind, one: Pass) -> None:
    """The gradients of the bias, then all rounds."""
    if one.layer.bias:
        _bias_gradient(cores, core, kind, one)
    sender = _Sender(cores, core, kind, one)
    own = cores.per_column(lambda col: int(col < one.owners))
    before = cores.per_column(lambda col: min(col, one.owners) * one.owned)
    after = cores.per_column(lambda col: max(0, one.owners - 1 - col) * one.owned)

    with core.loop(before):
        _round(cores, core, kind, one)
    with core.loop(own):
        sender.begin()
        if one.owned > 1:
            with core.loop(one.owned - 1):
                sender.rest(0, 1)
                _products(cores, core, one)
                sender.next()
                _pass_on(cores, core, kind, one.rest)
        sender.rest(one.owned - 1, 0)
        _products(cores, core, one)
        sender.end()
        _pass_on(cores, core, kind, one.rest)
    with core.loop(after):
        _round(cores, core, kind, one)


def _round(cores: Cores, core: CoreClass, kind: Kind, one: Pass) -> None:
    _products(cores, core, one)
    _pass_on(cores, core, kind, one.rest)


def _products(cores: Cores, core: CoreClass, one: Pass) -> None:
    """Every word triggers the products of two tokens."""
    lay, count = cores.layout, one.rest
    x = cores.x[one.layer.number]
    triggered_by_pairs(
        core,
        COLORS.gradients,
        lay.held,
        cores.y.dsd(0, count),
        lambda i: x.dsd(i, count, stride=lay.apart),
        count,
        1,
    )


def _pass_on(cores: Cores, core: CoreClass, kind: Kind, count: int) -> None:
    own = cores.y.dsd(0, count)
    here, behind = COLORS.along[kind.row_parity], COLORS.along[1 - kind.row_parity]
    if kind.begins:
        core.mov(fabric_out(here), own, start="none")
    else:
        core.add(fabric_out(here), own, fabric_in(behind), start="none")


def _bias_gradient(cores: Cores, core: CoreClass, kind: Kind, one: Pass) -> None:
    """Sums over tokens of the gradients that a core owns."""
    lay = cores.layout
    gradients = cores.g[one.layer.number + 1].dsd(0, one.owned, stride=lay.apart)
    core.fmac_vectors(
        cores.y.dsd(0, one.owned), cores.ones.dsd(0, lay.held), gradients, one.owned,
        b_stride=1, length=lay.held, dtype="mixed", fresh=True,
    )  # fmt: skip
    _pass_on(cores, core, kind, one.owned)


class _Sender:
    """The owner of rounds: it sends from a microthread, at most :data:`AHEAD` elements before its main thread."""

    def __init__(self, cores: Cores, core: CoreClass, kind: Kind, one: Pass) -> None:
        self._core, self._held, self._apart = core, cores.layout.held, cores.layout.apart
        self._sent, self._is_end = cores.g[one.layer.number + 1], kind.ends[one.layer.number]

    def begin(self) -> None:
        """The first words of the first round."""
        self._send(0, min(self._held, AHEAD), 0)

    def rest(self, slot: int, turns: int) -> None:
        """The words of a round that were not sent ahead."""
        if self._held > AHEAD:
            self._send(slot * self._apart + AHEAD, self._held - AHEAD, turns)

    def next(self) -> None:
        """The first words of the next round."""
        self._send(self._apart, min(self._held, AHEAD), 1)

    def end(self) -> None:
        """The next owner may send; behind the last, all routers are as they were."""
        self._core.join(SENDER)
        commands = (Command.RESET,) if self._is_end else (Command.ADVANCE, Command.ADVANCE)
        self._core.control(COLORS.gradients, *commands, start="none")

    def _send(self, offset: int, count: int, turns: int) -> None:
        self._core.mov(
            fabric_out(COLORS.gradients), self._sent.dsd(offset, count, step=turns * self._apart),
            dtype="fp16", thread=SENDER, priority="medium", start="none",
        )  # fmt: skip


def route_weight_gradients(cores: Cores) -> None:
    """Gradients along the lanes by every core in turn; sums along the columns."""
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
