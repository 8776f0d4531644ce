"""Where the parts of a dense layer lie in its region, and what every core holds of it.

Symbols: K inputs and N outputs of the layer; R rows, C compute columns of its region, T = W - C columns that move
data; a *word* is two fp16 elements, a *bundle* what one link of a stream carries of a sample::

    T columns          C compute columns
    inlet   >  row of k inputs, one multicast per row  >
               sums of the rows run down the columns
               last row: sums, bias, activation, then the outputs leave along the row and turn off

The inputs lie over the rows, the outputs over the columns.  The rows fall into bundles: the inlet of a bundle
stands in the last moving column beside its first row, takes the words from the link, and deals them out, a word to
every row in turn: all rows work at once, and none has to store its share.  Shares are whole words, so k is even;
columns hold an even number of outputs for the same reason.  Sums run down, as the words do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from wse_sim.compiler.plan import Region, Stage
from wse_sim.errors import ModelError
from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_div

PAIR = 2  # fp16 elements of a word


@dataclass(frozen=True)
class RowInputs:
    """A row of compute cores: the inputs that it takes, by their places in the stream (the last may lie beyond K)."""

    inputs: tuple[int, ...]


@dataclass(frozen=True)
class RegionLayout:
    """A dense layer in its region; rows and columns count from the first compute core."""

    name: str
    region: Region
    k: int  # inputs of the layer
    n: int  # outputs of the layer
    items: tuple[str, ...]  # work on the outputs: "bias", "relu"
    top: int  # fabric row and column of the first compute core
    left: int
    outputs: int  # of a column, even
    rows: tuple[RowInputs, ...]
    fed: tuple[range, ...]  # rows that every bundle feeds which comes in
    outlets: tuple[int, ...]  # first column of every bundle that goes out
    is_westward: bool = False  # outputs leave towards the moving columns, the first column's first

    @property
    def cols(self) -> int:
        """Columns that hold outputs."""
        return ceil_div(self.n, self.outputs)

    @property
    def last(self) -> int:
        """Fabric row in which the sums end."""
        return self.top + len(self.rows) - 1

    @property
    def collects_apart(self) -> bool:
        """Whether a second moving column is there, in which gradients of the inputs are collected."""
        return self.left - self.region.col > 1

    @property
    def collector(self) -> int:
        """Fabric column in which gradients of the inputs are collected and sent on."""
        return self.left - 2 if self.collects_apart else self.left

    def sent(self, col: int) -> int:
        """Elements that a column sends of a sample: whole words."""
        left = min(self.outputs, self.n - col * self.outputs)
        return PAIR * ceil_div(left, PAIR)

    def sends(self, bundle: int) -> tuple[int, ...]:
        """Outputs in the order in which a bundle carries them: its last column goes first."""
        cols = reversed(self.bundle_cols(bundle))
        return tuple(col * self.outputs + i for col in cols for i in range(self.sent(col)))

    def bundle_cols(self, bundle: int) -> range:
        """Columns that send into a bundle."""
        ends = (*self.outlets[1:], self.cols)
        return range(self.outlets[bundle], ends[bundle])

    def inlet(self, bundle: int) -> tuple[int, int]:
        """Fabric cell of the core that takes a bundle in."""
        return self.top + self.fed[bundle].start, self.left - 1

    def outlet(self, bundle: int) -> tuple[int, int]:
        """Fabric cell from which a bundle leaves: the last column that sends into it."""
        return self.last, self.left + self.bundle_cols(bundle)[-1]


def columns_of(kernel: Kernel, stage: Stage) -> int:
    """Outputs per column, rounded up to whole words."""
    cols = stage.region.compute_cores // stage.region.rows
    return PAIR * ceil_div(ceil_div(int(kernel.dims["n"]), cols), PAIR)


def boundaries(kernel: Kernel, stage: Stage, bundles: int) -> list[int]:
    """First output of every bundle of a layer, whole columns each, as equal as can be."""
    each = columns_of(kernel, stage)
    cols = ceil_div(int(kernel.dims["n"]), each)
    bundles = min(bundles, cols)
    return [each * (cols * g // bundles) for g in range(bundles)]


def share_of(kernel: Kernel, stage: Stage) -> int:
    """Inputs per row, rounded up to whole words."""
    return PAIR * ceil_div(ceil_div(int(kernel.dims["k"]), stage.region.rows), PAIR)


def rows_for(
    starts: list[int], total: int, share: int, most: int, turned: bool = False, whole_shares: bool = False
) -> tuple[list[RowInputs], list[range]]:
    """At most `share` inputs per row for bundles which begin at `starts`; and the rows of each bundle.

    Rows that are left of `most` go to the fullest bundles, at equal shares to the lowest.  The rows of a bundle take its
    words in turn, one each, so its last row never has more than another: it finishes the sums besides.  The first
    bundle feeds the top rows; with `turned` the last does.  With `whole_shares` a row has its words in a row.
    """
    stops = [*starts[1:], PAIR * ceil_div(total, PAIR)]
    words = [(end - first) // PAIR for first, end in zip(starts, stops, strict=True)]
    counts = [ceil_div(PAIR * each, share) for each in words]
    order = list(range(len(words)))[:: -1 if turned else 1]
    for _ in range(sum(counts), min(most, sum(words))):
        open_ = [i for i in order if counts[i] < words[i]]
        fullest = max(reversed(open_), key=lambda i: words[i] / counts[i])
        counts[fullest] += 1
    rows: list[RowInputs] = []
    fed = [range(0)] * len(words)
    for bundle in order:
        count = counts[bundle]
        fed[bundle] = range(len(rows), len(rows) + count)
        first = starts[bundle]
        for i in range(count):
            own = range(starts[bundle] + PAIR * i, stops[bundle], PAIR * count)
            if whole_shares:
                own = range(first, first + PAIR * len(own), PAIR)
                first = own.stop
            rows.append(RowInputs(tuple(word + half for word in own for half in range(PAIR))))
    return rows, fed


def lay_for_training(kernel: Kernel, stage: Stage, bundles: int) -> RegionLayout | None:
    """The layout of a layer that trains: whole shares of inputs, then a row without inputs that finishes outputs.

    Words lie over the rows as equally as can be, the first ones have one more; bundles are of whole rows, whatever their
    words.
    """
    words = ceil_div(int(kernel.dims["k"]), PAIR)
    rows = min(stage.region.rows - 1, words)
    found = lay(kernel, stage, [0], 1, False)
    if rows < bundles or found is None:
        return None
    least, more = divmod(words, rows)
    ends = [PAIR * (least * i + min(i, more)) for i in range(rows + 1)]
    shares = (RowInputs(tuple(range(first, end))) for first, end in pairwise(ends))
    fed = tuple(range(rows * g // bundles, rows * (g + 1) // bundles) for g in range(bundles))
    return replace(found, rows=(*shares, RowInputs(())), fed=fed, is_westward=True)


def lay(
    kernel: Kernel,
    stage: Stage,
    starts_in: list[int],
    bundles_out: int,
    turned: bool,
    whole_shares: bool = False,
) -> RegionLayout | None:
    """The layout that takes bundles from inputs `starts_in`; None if the rows do not suffice."""
    region = stage.region
    rows, fed = rows_for(
        starts_in, int(kernel.dims["k"]), share_of(kernel, stage), region.rows, turned, whole_shares
    )
    if len(rows) > region.rows:
        return None
    each = columns_of(kernel, stage)
    return RegionLayout(
        name=stage.name,
        region=region,
        k=int(kernel.dims["k"]),
        n=int(kernel.dims["n"]),
        items=items_of(kernel),
        top=region.row,
        left=region.col + region.cols - region.compute_cores // region.rows,
        outputs=each,
        rows=tuple(rows),
        fed=tuple(fed),
        outlets=tuple(first // each for first in boundaries(kernel, stage, bundles_out)),
    )


def items_of(kernel: Kernel, functions: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The work on the outputs.

    Raises
    ------
    ModelError
        If it is not bias, ReLU or one of the `functions`.
    """
    done = ("bias", "relu", *functions)
    items = tuple(filter(None, (part.strip() for part in str(kernel.attrs.get("fused", "")).split(","))))
    for item in items:
        if item not in done:
            raise ModelError(
                f"kernel '{kernel.name}' fuses '{item}' to its product; a whole model on the fabric does "
                f"{', '.join(done[:-1])} and {done[-1]} only, so leave the others out"
            )
    return items


def issued_cycles(layout: RegionLayout, wafer: Wafer) -> float:
    """Cycles that the busiest core of a region issues per sample row.

    With k inputs and n outputs of a core, w multiply-accumulates per cycle, o the start of a vector instruction::

        core              k ceil(n / w) + n
        of the last row   k ceil(n / w) + n + sum over bias and activation of (o + n / rate) + n / 2

    The event engine counts ``k ceil(n / w) + n + sum of (o + n / (R rate))``: outputs spread over all R rows.
    """
    n = layout.outputs
    each = [len(row.inputs) * ceil_div(n, wafer.fma_mixed_per_cycle) + n for row in layout.rows]
    rates = {"bias": wafer.add_fp16_per_cycle, "relu": wafer.max_fp16_per_cycle}
    finish = sum(ceil(wafer.vector_start_cycles) + ceil(n / rates[item]) for item in layout.items)
    last = each[-1] + finish + n // PAIR
    if len(layout.rows) == 1:  # no sums come from above: its own are moved instead
        last += ceil(wafer.vector_start_cycles) + ceil(n / wafer.mov_fp32_per_cycle) - n
    return float(max(*each, last))
