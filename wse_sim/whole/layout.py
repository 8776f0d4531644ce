"""Where the parts of a dense layer that trains in a chain are in its region, and what every core holds of it.

Symbols: K inputs and N outputs of the layer; R rows, C compute columns of its region, T = W - C columns that move
data; a *word* is two fp16 elements, a *bundle* what one link of a stream carries of a sample::

    T columns          C compute columns
    inlet   >  row of k inputs, one multicast per row  >
               sums of the rows run down the columns
               last row: sums, bias, activation, then the outputs leave along the row and turn off

The inputs lie over the rows, the outputs over the columns.  The rows fall into bundles: the inlet of a bundle
is in the last moving column next to its first row, takes the words from the link, and deals them out, a word to
every row in turn: all rows work at once, and none has to store its share.  Shares are whole words, so k is even;
columns hold an even number of outputs for the same reason.  Sums run down, as the words do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from wse_sim.compiler.plan import Region, Stage
from wse_sim.errors import ModelError
from wse_sim.graph import Kernel
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

    def inlet(self, bundle: int) -> tuple[int, int]:
        """Fabric cell of the core that takes a bundle in."""
        return self.top + self.fed[bundle].start, self.left - 1


def columns_of(kernel: Kernel, stage: Stage) -> int:
    """Outputs per column, rounded up to whole words."""
    cols = stage.region.compute_cores // stage.region.rows
    return PAIR * ceil_div(ceil_div(int(kernel.dims["n"]), cols), PAIR)


def lay_for_training(kernel: Kernel, stage: Stage, bundles: int) -> RegionLayout | None:
    """The layout of a layer that trains: whole shares of inputs, then a row without inputs that finishes outputs.

    Words lie over the rows as equally as can be, the first ones have one more; bundles are of whole rows, whatever their
    words.  None if the rows do not suffice.
    """
    words, region = ceil_div(int(kernel.dims["k"]), PAIR), stage.region
    rows = min(region.rows - 1, words)
    if rows < bundles:
        return None
    least, more = divmod(words, rows)
    ends = [PAIR * (least * i + min(i, more)) for i in range(rows + 1)]
    shares = (RowInputs(tuple(range(first, end))) for first, end in pairwise(ends))
    return RegionLayout(
        name=stage.name,
        region=region,
        k=int(kernel.dims["k"]),
        n=int(kernel.dims["n"]),
        items=items_of(kernel),
        top=region.row,
        left=region.col + region.cols - region.compute_cores // region.rows,
        outputs=columns_of(kernel, stage),
        rows=(*shares, RowInputs(())),
        fed=tuple(range(rows * g // bundles, rows * (g + 1) // bundles) for g in range(bundles)),
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
