"""Memory of a core in generation: weights, cache, and the room for the tokens of a prompt.

Symbols as at the top of :mod:`wse_sim.modes.generation.steps`; n tokens of a chunk, d = ceil(hidden / P), q,
f = ceil(queries, widest / Q).  A prompt passes a layer in one of two ways, which share the same memory; on a
rectangle it passes only in chunks::

    as one block of moving tiles   s = ceil(p / P) rows, w = max(d, q):    2 (5 s w + s^2 + 2 s f + 2 largest tile)
    in chunks, resident weights     stream, its update, queries and head outputs or gate and up, sums:
                                   2 n (2 d + 2 max(q, f) + f), and for experts on separate cores 2 m (d' + 3
                                   f') more: m tokens of the fullest expert, d', f' of its square
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.compiler.plan import CoreMemory, Region
from wse_sim.hardware import Wafer
from wse_sim.modes.generation.decoder import Decoder, LayerWork
from wse_sim.modes.generation.expert_cores import fullest_tokens
from wse_sim.modes.generation.quantized_weights import unpacked_bytes, weight_bytes

ELEMENT_BYTES = 2  # fp16 weights, activations and cache


@dataclass(frozen=True)
class Split:
    """Distribution of layers, cache, embedding and head on a grid; d, v as in
    :mod:`wse_sim.modes.generation.steps`."""

    rows: int  # P of a region
    cols: int  # Q
    per_wafer: int
    regions: int
    layers: int  # of a region
    hidden: int
    d: int
    v: int
    layer: LayerWork
    last: int  # layers of the last region
    ends: float  # elements of embedding and head on a core
    has_own_ends: bool  # in a separate region
    ends_at: Region | None = None  # cores next to the squares, if embedding and head are there

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of a region."""
        return self.rows, self.cols

    @property
    def ends_grid(self) -> tuple[int, int]:
        """Rows and columns of the cores that store embedding and head."""
        return (self.ends_at.rows, self.ends_at.cols) if self.ends_at else self.grid

    @property
    def is_square(self) -> bool:
        """Whether a region is a square, on which the tiles of a prompt can move."""
        return self.rows == self.cols

    @property
    def kinds(self) -> tuple[tuple[int, float], ...]:
        """Numbers of layers and of embedding and head elements, for the regions that may be the fullest."""
        return (self.layers, 0.0), ((0 if self.has_own_ends else self.last), self.ends)


def split_of(decoder: Decoder, wafer: Wafer, systems: int, grid: tuple[int, int]) -> Split:
    """Return the distribution of the layers on regions of `grid`, (rows, cols), cores."""
    rows, cols = grid
    per_wafer = (wafer.program_rows // rows) * (wafer.program_cols // cols)
    slots = per_wafer * systems
    layers = -(-decoder.layers // slots)
    regions = -(-decoder.layers // layers)
    return Split(
        rows=rows,
        cols=cols,
        per_wafer=per_wafer,
        regions=regions,
        layers=layers,
        hidden=decoder.hidden,
        d=-(-decoder.hidden // rows),
        v=-(-decoder.key_width // cols),
        layer=decoder.layer,
        last=decoder.layers - (regions - 1) * layers,
        ends=float(-(-decoder.tables // (rows * cols))),
        has_own_ends=bool(decoder.tables) and regions < slots,
    )


def tiles_bytes(split: Split, prompt: int) -> float:
    """Return the bytes per core for a prompt that passes as one block of moving tiles; 0 on a rectangle."""
    if not split.is_square:
        return 0.0
    grid, work = split.rows, split.layer
    q, wide, f = -(-prompt // grid), max(split.d, -(-work.query // grid)), -(-work.widest // grid)
    moving = max(q * wide, q * f, *(-(-p.k // grid) * -(-p.n // grid) for p in work.products))
    return float(ELEMENT_BYTES * (5 * q * wide + q * q + 2 * q * f + 2 * moving))


def rows_bytes(split: Split, chunk: int) -> float:
    """Return the bytes per core for the rows of `chunk` tokens that pass while the weights are stationary."""
    work = split.layer
    products = [p for p in work.products if not work.has_squares(p)]
    q, f = (-(-size // split.cols) for size in (work.query, max(round(p.n * p.share) for p in products)))
    squares = 0
    if work.is_apart:  # inputs, gate and up, sums of the fullest expert
        (rows, cols), wide = work.expert_sides(split.grid), max(p.n for p in work.products if p.groups > 1)
        pieces = -(-work.hidden // int(rows)) + 3 * -(-wide // int(cols))
        squares = int(fullest_tokens(work, chunk)) * pieces if chunk else 0
    return float(ELEMENT_BYTES * (chunk * (2 * split.d + 2 * max(q, f) + f) + squares))


def core_memory(
    split: Split, wafer: Wafer, *, context: int, prompt: int, batch: int, chunk: int = 0
) -> CoreMemory:
    """Return the memory of a core in the fullest region, with room for the prompt as one block and for
    `chunk` tokens of it."""
    found = (
        _memory(split, wafer, *kind, context, prompt, batch, _buffers(split, prompt, chunk))
        for kind in split.kinds
    )
    return max(found, key=lambda memory: memory.total_bytes)


def _buffers(split: Split, prompt: int, chunk: int) -> float:
    """Return the bytes for a prompt as one block (on a rectangle: for one of its tokens), and for a requested
    chunk."""
    return max(tiles_bytes(split, prompt), rows_bytes(split, chunk or (0 if split.is_square else 1)))


def _memory(
    split: Split,
    wafer: Wafer,
    layers: int,
    ends: float,
    context: int,
    prompt: int,
    batch: int,
    buffers: float,
) -> CoreMemory:
    code = float(wafer.kernel_code_bytes)
    if split.ends_at and not layers:  # rows of a prompt in transit, and their destination
        side = split.ends_at.rows
        rows = -(-prompt // side) * -(-split.hidden // side)
        return CoreMemory(ELEMENT_BYTES * ends, 0.0, 2.0 * ELEMENT_BYTES * rows, code)
    s = -(-context // split.rows)
    return CoreMemory(
        weights_bytes=float(
            layers * split.layer.weights_of_core(split.grid) * weight_bytes(split.layer.bits)
            + ELEMENT_BYTES * ends
        ),
        activations_bytes=float(ELEMENT_BYTES * layers * batch * s * 2 * split.v),
        buffers_bytes=buffers + unpacked_bytes(split.layer.bits),
        code_bytes=code,
    )


def max_context(split: Split, wafer: Wafer, *, prompt: int, batch: int, chunk: int = 0) -> int:
    """Return the longest context, in tokens, whose cache fits together with weights and buffers; 0 if none
    does."""
    return _longest(split, wafer, prompt, batch, _buffers(split, prompt, chunk))


def context_beside_rows(split: Split, wafer: Wafer, *, batch: int, chunk: int) -> int:
    """Return the longest context, in tokens, of a decoder whose prompts only arrive in chunks of `chunk` tokens."""
    return _longest(split, wafer, 0, batch, rows_bytes(split, chunk))


def _longest(split: Split, wafer: Wafer, prompt: int, batch: int, buffers: float) -> int:
    longest = []
    for layers, ends in split.kinds:
        if layers:
            empty = _memory(split, wafer, layers, ends, 0, prompt, batch, buffers).total_bytes
            slot = ELEMENT_BYTES * layers * batch * 2 * split.v
            longest.append(max(0, int((wafer.sram_usable_bytes - empty) // slot)) * split.rows)
    return min(longest)


def wafer_context(decoder: Decoder, batch: int, wafer: Wafer, systems: int, cache: int) -> int:
    """Return the longest context if every core of all systems could store cache; `cache` bytes per token."""
    of_layers = decoder.layers * decoder.layer.tables * weight_bytes(decoder.layer.bits)
    weights = of_layers + ELEMENT_BYTES * decoder.tables
    room = systems * wafer.program_cores * (wafer.sram_usable_bytes - wafer.kernel_code_bytes) - weights
    return max(0, int(room // (cache * batch)))
