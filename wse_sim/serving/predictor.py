"""Latency of a single turn, for an external scheduler that only needs latencies.

The numbers equal those of a run: both read the same turn table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wse_sim.serving.base import TICK_S, ServingError
from wse_sim.serving.run import Replica


class TurnTime(NamedTuple):
    """Time of a turn, in seconds.

    `stage_s` is the least time until the first region is free for the next turn (the slowest region sets the
    rate of equal turns), `latency_s` the time until the turn has passed all regions.
    """

    stage_s: float
    latency_s: float


@dataclass(frozen=True)
class TurnLimits:
    """Capacity of a turn and of a replica's cache."""

    turn_tokens: int
    context: int
    running: int
    kv_blocks: int
    block_tokens: int


class Predictor:
    """Times of turns on one replica; consists of plain lists, so it is small, fast to pickle and has no
    shared state.

    Example
    -------
    >>> import numpy as np
    >>> from wse_sim.serving.base import ServingRules
    >>> from wse_sim.serving.latency import TurnTable
    >>> table = TurnTable(100, np.ones(2, np.int64), np.array([[0, 10_000, 15_000]] * 2), np.zeros(2, np.int64), np.zeros(9, np.int64))
    >>> predictor = Predictor(Replica(table, ServingRules(blocks=50, turn_tokens=2)))
    >>> predictor.turn_s(decode=[7])
    TurnTime(stage_s=1e-06, latency_s=2e-06)
    """

    def __init__(self, replica: Replica) -> None:
        table, rules = replica.table, replica.rules
        self._grid = table.grid
        self._deep: list[int] = table.deep.tolist()
        self._base: list[list[int]] = table.base.T.tolist()  # by tokens
        self._sums: list[int] = table.base.sum(axis=0).tolist()
        self._layers: list[int] = table.layers.tolist()
        self._heads: list[int] = table.head.tolist()
        self._all_layers, self._all_heads = sum(self._layers), sum(self._heads)
        self.limits = TurnLimits(
            min(rules.turn_tokens, table.most_tokens), table.most_context, rules.most_running, rules.blocks, rules.block_tokens
        )  # fmt: skip

    @property
    def kv_blocks(self) -> int:
        """Number of cache blocks."""
        return self.limits.kv_blocks

    @property
    def regions(self) -> int:
        """Regions in a line."""
        return len(self._layers)

    def turn_s(
        self, prefill: Sequence[tuple[int, int]] = (), decode: Sequence[int] = (), *, ends: int = 0
    ) -> TurnTime:
        """Return the seconds of a turn.

        Parameters
        ----------
        prefill
            (tokens, context after them) of each chunk of a prompt.
        decode
            Context of each request that decodes, including its new token.
        ends
            Number of chunks that end their prompts and yield a first token (the head runs for them).

        Raises
        ------
        ServingError
            If the turn is empty, or exceeds :attr:`limits`.
        """
        grid, deep = self._grid, self._deep
        tokens, cost = len(decode), 0
        try:
            for context in decode:
                cost += deep[-(-context // grid)]
            for count, context in prefill:
                tokens += count
                cost += count * deep[-(-context // grid)]
            if not 0 < tokens <= self.limits.turn_tokens:
                raise IndexError
        except IndexError:
            raise self._beyond(prefill, decode) from None
        answers = len(decode) + ends
        base, layers, heads = self._base[tokens], self._layers, self._heads
        slowest = max(b + answers * h + cost * n for b, h, n in zip(base, heads, layers, strict=True))
        whole = self._sums[tokens] + answers * self._all_heads + cost * self._all_layers
        return TurnTime(slowest * TICK_S, whole * TICK_S)

    def stages_s(
        self, prefill: Sequence[tuple[int, int]] = (), decode: Sequence[int] = (), *, ends: int = 0
    ) -> tuple[float, ...]:
        """Return the seconds of the turn in each region, in order; raises like :meth:`turn_s`."""
        self.turn_s(prefill, decode, ends=ends)
        deep, grid = self._deep, self._grid
        cost = sum(deep[-(-c // grid)] for c in decode) + sum(n * deep[-(-c // grid)] for n, c in prefill)
        tokens, answers = len(decode) + sum(n for n, _ in prefill), len(decode) + ends
        rows = zip(self._base[tokens], self._heads, self._layers, strict=True)
        return tuple((b + answers * h + cost * n) * TICK_S for b, h, n in rows)

    def _beyond(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> ServingError:
        tokens = len(decode) + sum(count for count, _ in prefill)
        longest = max([*decode, *(context for _, context in prefill)], default=0)
        return ServingError(
            f"a turn of {tokens} tokens with contexts of up to {longest} is out of range; give 1 to {self.limits.turn_tokens} tokens "
            f"and contexts of up to {self.limits.context:,}"
        )
