"""Reading of a prompt: in chunks that follow each other through the regions, or as one block.

A block keeps R - 1 of R regions idle. Blocks of moving tiles take the P steps of the grid for any length, so
smaller ones gain nothing; on a rectangle tiles cannot move at all. With stationary weights (:mod:`wse_sim.modes.generation.joined_layer`) a chunk of n
tokens takes about a + b n in a region, and ceil(p / n) chunks are in the line at once::

    region       t_r = (l_r (A(n) + n G(s)) + e_r) / f + h_r      s slots of context when the chunk is done
    first token  for successive turns, :mod:`wse_sim.modes.generation.line`;
                 for equal ones (turns - 1) max t + sum t, shortest near n = sqrt(p a / ((R - 1) b))

e_r applies to the region of embedding and head: the embedding for every chunk, the head for the last one. h_r
is the time to send n d elements over every line. The default is the chunk size with the earliest first token
among those that fit and leave at least half of the cache that chunks of :data:`SHORT` tokens leave. (Chunk
sizes on a wafer are not published; the half is a choice, not a measurement.)
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from wse_sim.compiler.plan import CoreMemory
from wse_sim.errors import ModelError
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.generation.decoder import Decoder
from wse_sim.modes.generation.joined_layer import deep_cycles, joined_layer_cycles
from wse_sim.modes.generation.layer import ends_cycles
from wse_sim.modes.generation.memory import (
    ELEMENT_BYTES,
    Split,
    context_beside_rows,
    core_memory,
    rows_bytes,
)
from wse_sim.modes.generation.plan import MOVING, RESTING, GenerationPlan, PromptTurn, Reading
from wse_sim.options import GenerationChoice
from wse_sim.units import cycles_to_s

SHORT = 4  # tokens of the chunk whose cache is the reference for other chunks
LEAST_CACHE = 0.5  # of the cache next to that chunk


def handover_s(
    split: Split, tokens: int, wafer: Wafer, cluster: Cluster, *, at_rest: bool = False
) -> tuple[float, float]:
    """Return the seconds to send the hidden state of `tokens` tokens to the next region, on one wafer and
    between two.

    Tiles of a block are spread over rows and columns; with `at_rest` every line has the elements of all
    tokens.
    """
    rows = tokens if at_rest else -(-tokens // split.rows)
    hops = max(split.grid) * wafer.hop_cycles
    link = rows * split.d * ELEMENT_BYTES / wafer.link_bytes_per_cycle + hops
    inside = cycles_to_s(link + wafer.task_start_cycles, wafer.clock_hz)
    size = tokens * split.hidden * ELEMENT_BYTES
    return inside, inside + size / wafer.io_bytes_per_s + cluster.swarmx_hop_s


class ChunkPrices:
    """Costs of turns of a plan whose prompt is read in chunks."""

    def __init__(self, plan: GenerationPlan, split: Split, decoder: Decoder) -> None:
        self.plan, self.split, self._decoder = plan, split, decoder
        slots = np.arange(1, -(-plan.prompt // plan.grid) + 1)
        self._deep = np.asarray(
            deep_cycles(plan.layer, slots, plan.sides, plan.wafer, groups=plan.groups), np.float64
        )
        self._layers: dict[int, float] = {}  # cycles of a layer by tokens

    def price(self, chunks: Sequence[int]) -> None:
        """Price the layer for chunks of these lengths, and for the lengths of their last chunks, in one pass."""
        prompt, plan = self.plan.prompt, self.plan
        lengths = sorted({length for chunk in chunks for length in (chunk, (prompt - 1) % chunk + 1)})
        cost = joined_layer_cycles(
            plan.layer, np.array(lengths, np.int64), plan.sides, plan.wafer, groups=plan.groups
        )
        self._layers.update(zip(lengths, np.asarray(cost.total, np.float64).tolist(), strict=True))

    def in_chunks(self, chunk: int) -> Reading:
        """Return chunks of `chunk` tokens with stationary weights, the last one with the rest."""
        plan, prompt = self.plan, self.plan.prompt
        last = (prompt - 1) % chunk + 1
        # Chunks that end in the same slot of the context have equal costs.
        ends = np.arange(chunk, prompt - last + 1, chunk)
        slots, counts = np.unique(-(-ends // plan.grid), return_counts=True)
        turns: list[PromptTurn] = []
        if len(slots):
            layer, rest = self._layer(chunk), self._rest(chunk, is_last=False)
            each = zip(counts.tolist(), (layer + chunk * self._deep[slots - 1]).tolist(), strict=True)
            turns = [PromptTurn(count, chunk, cycles, *rest) for count, cycles in each]
        cycles = self._layer(last) + last * float(self._deep[-1])
        return Reading(RESTING, chunk, (*turns, PromptTurn(1, last, cycles, *self._rest(last, is_last=True))))

    def _layer(self, tokens: int) -> float:
        if tokens not in self._layers:
            plan = self.plan
            cost = joined_layer_cycles(plan.layer, tokens, plan.sides, plan.wafer, groups=plan.groups)
            self._layers[tokens] = float(np.asarray(cost.total))
        return self._layers[tokens]

    def _rest(self, tokens: int, *, is_last: bool) -> tuple[float, float, float]:
        """Return the cycles of embedding and head, and the transfer times to the next region."""
        plan, split = self.plan, self.split
        decoder = self._decoder if is_last else dataclasses.replace(self._decoder, head=None)
        ends = ends_cycles(decoder, split.ends_grid, plan.wafer, groups=plan.groups, tokens=tokens).total
        ways = handover_s(split, tokens, plan.wafer, plan.cluster, at_rest=True)
        return float(np.asarray(ends)), *ways

    def memory(self, chunk: int) -> CoreMemory:
        """Return the memory of a core with room for a chunk of `chunk` tokens."""
        plan = self.plan
        return core_memory(
            self.split, plan.wafer, context=plan.context, prompt=plan.prompt, batch=plan.batch, chunk=chunk
        )

    def fits(self, chunk: int) -> bool:
        """Return whether the rows of `chunk` tokens fit together with weights and cache."""
        return self.memory(chunk).total_bytes <= self.plan.wafer.sram_usable_bytes

    def cache(self, chunk: int) -> int:
        """Return the tokens of context that fit if memory has room for the rows of a chunk, but not for a
        whole prompt."""
        return context_beside_rows(self.split, self.plan.wafer, batch=self.plan.batch, chunk=chunk)

    def first_token_s(self, reading: Reading) -> float:
        """Return the seconds to the first token of a single prompt."""
        return dataclasses.replace(self.plan, reading=reading).first_token_s


def with_reading(
    plan: GenerationPlan, split: Split, decoder: Decoder, options: GenerationChoice
) -> GenerationPlan:
    """Return the plan with the prompt read as requested, or as fast as the cache allows.

    Raises
    ------
    ModelError
        If the rows of the requested chunk do not fit in a core.
    """
    prices = ChunkPrices(plan, split, decoder)
    reading, why = _asked(prices, options.chunk) if options.chunk else _chosen(prices)
    memory = prices.memory(reading.chunk) if reading.way == RESTING else plan.memory
    return dataclasses.replace(plan, reading=reading, memory=memory, notes=(*plan.notes, why))


def chunk_rows(options: GenerationChoice, prompt: int) -> int:
    """Return the tokens for which memory needs room because of a requested chunk; a whole prompt may pass as
    one block."""
    return options.chunk if options.chunk and options.chunk < prompt else 0


def _asked(prices: ChunkPrices, chunk: int) -> tuple[Reading, str]:
    plan = prices.plan
    if chunk >= plan.prompt:
        ways = _block(plan) + [prices.in_chunks(plan.prompt)] * prices.fits(plan.prompt)
        if not ways:
            most = _most_that_fits(prices, chunk)
            raise ModelError(
                f"chunk {chunk} does not fit a core of {plan.grid} x {plan.cols}, on which a prompt cannot pass as one "
                f"block; use at most {most}"
            )
        best = min(ways, key=prices.first_token_s)
        return best, f"prompt in one piece, as requested: {best.way} ({_faster(best, len(ways))})"
    if not prices.fits(chunk):
        most = _most_that_fits(prices, chunk)
        need = rows_bytes(prices.split, chunk)
        raise ModelError(
            f"chunk {chunk} needs {need:,.0f} bytes of a core on {plan.grid} x {plan.cols}, but weights and cache "
            f"leave fewer; use at most {most}"
            + f", or {plan.prompt} for the prompt as one block"
            * plan.is_square
        )
    return prices.in_chunks(chunk), f"prompt in chunks of {chunk} tokens with resident weights, as requested"


def _most_that_fits(prices: ChunkPrices, chunk: int) -> int:
    return bisect.bisect_left(range(1, chunk + 1), True, key=lambda n: not prices.fits(n))


def _block(plan: GenerationPlan) -> list[Reading]:
    """Return the reading of the prompt as one block, if that is possible."""
    return [plan.reading] if plan.is_square else []


def _faster(best: Reading, ways: int) -> str:
    if ways == 1:
        return "rows of all its tokens do not fit a core"
    return f"faster than {MOVING if best.way == RESTING else RESTING}"


def _chosen(prices: ChunkPrices) -> tuple[Reading, str]:
    """Return the reading with the earliest first token among chunks that fit and leave enough cache; ties:
    shortest chunk."""
    prompt, least = prices.plan.prompt, LEAST_CACHE * prices.cache(SHORT)
    # All lengths up to the square root of the prompt, then those that need one chunk less.
    lengths = sorted({-(-prompt // -(-prompt // n)) for n in range(1, prompt + 1)})
    chunks = list(
        itertools.takewhile(lambda chunk: prices.fits(chunk) and prices.cache(chunk) >= least, lengths)
    )
    if chunks:
        prices.price(chunks)
    best = min([*_block(prices.plan), *map(prices.in_chunks, chunks)], key=prices.first_token_s)
    if best.way == MOVING:
        return (
            best,
            f"prompt as one block of {MOVING}: its first token is earlier than that of chunks that fit",
        )
    return best, (
        f"prompt in chunks of {best.chunk} tokens with {RESTING}: the earliest first token among those that fit and leave "
        f"half of the cache of chunks of {SHORT} ({prices.cache(best.chunk):,} of {prices.cache(SHORT):,} tokens)"
    )
