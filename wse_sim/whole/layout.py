"""Layout of a dense layer that trains in a chain: the cores of its region and what each of them stores.

Symbols: K inputs and N outputs of the layer; R rows, C compute columns of its region, T = W - C columns that
move data; a *word* is two fp16 elements, a *bundle* is the part of a sample that one link of a stream
carries::

    T columns          C compute columns
    inlet   >  row of k inputs, one multicast per row  >
               sums of the rows run down the columns
               last row: sums, bias, activation, then the outputs leave along the row and turn off

The inputs are partitioned over the rows, the outputs over the columns. The rows are grouped in bundles: the
inlet of a bundle is in the last moving column of its first row, receives the words from the link and deals
them out to the rows round-robin. All rows work at the same time, and none stores its part before it starts.
Parts are whole words, so k is even; columns have an even number of outputs for the same reason.
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
    """A row of compute cores: indices of the inputs that it takes, in stream order (the last index may exceed
    K - 1)."""

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
        """Number of columns that hold outputs."""
        return ceil_div(self.n, self.outputs)

    @property
    def last(self) -> int:
        """Fabric row in which the sums end."""
        return self.top + len(self.rows) - 1

    @property
    def collects_apart(self) -> bool:
        """Whether a second moving column collects gradients of the inputs."""
        return self.left - self.region.col > 1

    @property
    def collector(self) -> int:
        """Fabric column that collects gradients of the inputs and sends them on."""
        return self.left - 2 if self.collects_apart else self.left

    def sent(self, col: int) -> int:
        """Return the elements per sample that a column sends, rounded up to whole words."""
        left = min(self.outputs, self.n - col * self.outputs)
        return PAIR * ceil_div(left, PAIR)

    def inlet(self, bundle: int) -> tuple[int, int]:
        """Return the fabric cell of the core that receives a bundle."""
        return self.top + self.fed[bundle].start, self.left - 1


def columns_of(kernel: Kernel, stage: Stage) -> int:
    """Return the outputs per column, rounded up to whole words."""
    cols = stage.region.compute_cores // stage.region.rows
    return PAIR * ceil_div(ceil_div(int(kernel.dims["n"]), cols), PAIR)


def lay_for_training(kernel: Kernel, stage: Stage, bundles: int) -> RegionLayout | None:
    """Return the layout of a trainable layer: rows with whole words of inputs, then a row without inputs that
    finishes the outputs.

    Words are spread evenly over the rows, with the remainder on the first ones; bundles consist of whole
    rows. Returns None if there are fewer rows than bundles.
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
    """Return the operations fused to the outputs, in order.

    Raises
    ------
    ModelError
        If an operation is not bias, ReLU or one of the `functions`.
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
