"""Whole tokens on every core of a region, block by block: price and memory of norms, and of a softmax over features.

Symbols: T tokens of D features a sample on n = R C cores, any number of either; t = ceil(T / n) of the
fullest core. A core receives D / 2 words of two fp16 elements per token and sends as many::

    block(b)     instructions of b tokens + b D words         feature by feature, or token by token: the faster
    per sample   floor(t / b) block(b) + block(t mod b)       no block has tokens of two samples
    memory       4 b D elements + statistics of b tokens + parameters of D features + code

A core receives the next block while it works on one and sends the previous result, so it stores two blocks of
tokens and two of results. b is the fastest block size from 1 to `MOST` that fits.

In a whole model on the fabric a token may arrive over k links, D / k features each. Then k neighbours in a row
of cores share a block: a *lane*. Each has D / k features, and they add their statistics up. The k streams enter
row by row above the lanes and turn below and above them, so their words cross no link twice::

    lanes        max(R - (k - 1), (R - 2 (k - 1)) floor(C / k))      k = 1: R C;  0 if C < k
    per sample   max(blocks of ceil(T / lanes) tokens, l T D / (2 k))      l: cycles of a word on a link

In the backward pass a core receives the gradient and the normalized form of a token and sends the gradient of
the input: 3 D / 2 words, and six blocks instead of four. Cores with tokens sum the gradients of the
parameters in fp32, and all cores store a part of the optimizer state. If there are more cores than tokens,
the others store what the backward pass needs, so blocks and sums are averaged over the region. The sum over
the cores, once per batch, is not counted. This backward pass has no fabric program yet.

Source: vector rates of the SDK documentation.  Program: :mod:`wse_sim.whole.regions.norm`.  Cost and program
agree within 1 % if one link delivers the words in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_programs import RowWork
from wse_sim.kernels.blocks.line_stages import FEATURE, RowLayout
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, words
from wse_sim.kernels.contract.family import Cost, Dims, Footprint, Size, Tiling
from wse_sim.kernels.contract.parameters import Attributes

PAIR = 2  # fp16 elements of a word
MOST = 8
"""Largest number of tokens per block: twice as many would save less than 2 % and double the latency of a
token."""


@dataclass(frozen=True)
class TokenBlocks:
    """Tokens of `features` features: the work of a core, the number of moving tensors of their size, and of
    blocks stored at a time.

    `parameter_bytes` is the size of one parameter on every core. A backward pass uses the blocks of its
    `forward` pass. `lane`: cores that share a token, each with `features` of it.
    """

    work: RowWork
    features: int
    dtype: str
    wafer: Wafer
    tensors: int = 2
    blocks: int = 4
    parameter_bytes: int = 2
    forward: TokenBlocks | None = None
    lane: int = 1

    @property
    def parameters(self) -> int:
        """Number of parameters: scale and shift of every feature."""
        return sum(self.features for shape in self.work.shapes.values() if shape.kind == FEATURE)

    def bytes(self, b: int) -> int:
        """Return the bytes that blocks of b tokens need on a core, without parameters and code."""
        layout, size = RowLayout(b, self.features), self.blocks * b * self.features * bytes_of(self.dtype)
        own = {
            name: shape
            for name, shape in self.work.shapes.items()
            if shape.kind != FEATURE and not shape.within and name not in ("x", "g")
        }
        return size + sum(layout.elements(shape.kind) * bytes_of(shape.dtype) for shape in own.values())

    @cached_property
    def most(self) -> int:
        """Tokens of the largest block that fits in a core; 0 if a token does not fit."""
        if self.forward is not None:
            return self.forward.most
        room = self.wafer.sram_usable_bytes - self.wafer.kernel_code_bytes
        room -= self.parameters * self.parameter_bytes
        return max((b for b in range(1, MOST + 1) if self.bytes(b) <= room), default=0)

    @cached_property
    def _parts(self) -> NDArray[np.float64]:
        """Costs of a block of 0, 1, ... tokens by cause, (most + 1, causes); includes one token even if it
        does not fit.

        With arrays of constants, one element per draw: (most + 1, draws, causes).
        """
        found = []
        for b in range(1, max(1, self.most) + 1):
            moved = Cost(ramp=float(self.tensors * b * words(self.features, self.dtype)))
            work = self.work.cost(b, self.features, self.lane, 1, self.wafer)
            # The next block waits for the sums of the other cores too: no fill, but a stall of every block.
            work = replace(work, idle=0.0 * work.idle, stalled_input=work.idle)
            found.append(_values(work + moved))
        return np.array([0.0 * found[0], *found])

    def sizes(self, tokens: int) -> list[int]:
        """Return the block sizes of a core with `tokens` tokens of a sample."""
        b = int(self._best(np.array([tokens]))[0][0])
        full, rest = divmod(tokens, b)
        return [b] * full + [rest] * bool(rest)

    def _best(self, tokens: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.float64]]:
        """Return block sizes and costs by cause (..., causes) of cores with that many tokens; ties take the
        smallest block."""
        if tokens.ndim and self._parts.ndim > 2:
            raise ValueError("several numbers of tokens on several wafers are priced one by one")
        if not tokens.ndim:
            return self._best_of(tokens)
        different, places = np.unique(tokens, return_inverse=True)  # few on many regions
        sizes, parts = self._best_of(different)
        places = places.reshape(tokens.shape)
        return sizes[places], parts[places]

    def _best_of(self, tokens: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.float64]]:
        ways = [
            (tokens // b)[..., None] * self._parts[b] + self._parts[tokens % b]
            for b in range(1, len(self._parts))
        ]
        chosen = np.argmin([way.sum(-1) for way in ways], axis=0)
        return 1 + chosen, np.take_along_axis(np.array(ways), chosen[None, ..., None], 0)[0]

    def cost(self, tokens: int, cores: Size) -> Cost:
        """Return the cost of a sample of `tokens` on `cores` cores, a number or an array."""
        each = np.asarray(ceil_div(tokens, np.asarray(cores)))
        parts = self._best(each)[1]
        return Cost(*(np.moveaxis(parts, -1, 0) if parts.ndim > 1 else parts.tolist()))

    def footprint(self, tokens: int, cores: Size, kept_bytes: float = 0.0) -> Footprint:
        """Return the bytes of a core. With `kept_bytes` per parameter, the mean over cores, since cores
        without tokens store these."""
        each = np.asarray(ceil_div(tokens, np.asarray(cores)))
        sizes = np.array([0, *(self.bytes(b) for b in range(1, len(self._parts)))])[self._best(each)[0]]
        working = np.minimum(1.0, tokens / np.asarray(cores)) if kept_bytes else 1.0
        return Footprint(
            weights_bytes=self.parameters * (self.parameter_bytes * working + kept_bytes / cores),
            buffers_bytes=sizes * working if each.ndim else float(sizes * working),
            code_bytes=self.wafer.kernel_code_bytes,
        )


def lanes_of(rows: Size, cols: Size, lane: int) -> Size:
    """Return the lanes of `lane` cores on a region: whole rows of cores above and below let their streams turn.

    >>> lanes_of(15, 5, 1), lanes_of(15, 5, 2), lanes_of(9, 3, 3), lanes_of(9, 2, 3)
    (75, 26, 7, 0)
    """
    turning = lane - 1
    one = (rows - turning) * np.minimum(1, cols // lane)
    found = np.maximum(0, np.maximum(one, (rows - 2 * turning) * (cols // lane)))
    return found if np.ndim(found) else int(found)


def lanes_for(features: int, most: int) -> tuple[int, ...]:
    """Return the numbers of links, up to `most`, over which tokens of `features` may arrive in whole words."""
    return (1, *(lane for lane in range(2, most + 1) if features % (PAIR * lane) == 0))


def linked_cost(
    blocks_of: Callable[[int], TokenBlocks | None], dims: Dims, tiling: Tiling, wafer: Wafer, said: Attributes
) -> Cost:
    """Return the cost of `rows` tokens of `cols` features, by `blocks_of` lanes of as many cores; on the fabric over the
    number of links that is fastest, words of a link included."""
    rows, found = int(dims["rows"]), None
    for lane in lanes_for(int(dims["cols"]), said.most_bundles):
        blocks, count = blocks_of(lane), lanes_of(tiling.rows, tiling.cols, lane)
        if blocks is None or not np.any(count) or (found is not None and not blocks.most):
            continue
        cost = blocks.cost(rows, np.maximum(1, count))
        if said.most_bundles:
            link = rows * dims["cols"] / PAIR / lane * wafer.wavelet_cycles
            is_possible = (count > 0) & (lane >= said.least_bundles)
            cost = cost + Cost(
                stalled_input=np.maximum(0.0, link - cost.total) + np.where(is_possible, 0, np.inf)
            )
        found = cost if found is None else found.or_faster(cost)
    assert found is not None  # one core is a lane anywhere
    return found


def _values(cost: Cost) -> NDArray[np.float64]:
    """Return a cost as an array (causes,), or (draws, causes) if constants are arrays."""
    parts = [np.asarray(getattr(cost, each.name), float) for each in fields(Cost)]
    return np.stack(np.broadcast_arrays(*parts), axis=-1)
