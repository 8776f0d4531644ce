"""Latency of a turn in each region: a table, computed from a generation plan or read from a file.

A turn of n tokens, m of which yield a token of an answer, takes this time in region r with l_r layers::

    t_r = base_r(n) + m head_r + l_r (sum over its tokens of deep(s))       s = ceil(context / P) slots

base_r is the time of the layers for n tokens whose contexts fit one slot
(:mod:`wse_sim.modes.generation.joined_layer`), of the embedding, and of the transfer of n tokens to the next
region. head_r is the time of the head for one token, in the region that holds it. deep(s) is the additional
time per token and layer for a context of s slots. A token of an answer counts when it has returned to the
first region, where its request continues.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from wse_sim.atomic_files import write_whole
from wse_sim.errors import ConfigError
from wse_sim.files import Values, read_json
from wse_sim.modes.generation.plan import GenerationPlan
from wse_sim.modes.generation.turn_costs import TurnPrices
from wse_sim.serving.base import (
    MOST_TICKS,
    MOST_TURN_TOKENS,
    TICK_S,
    Load,
    ServingError,
    ServingRules,
    Ticks,
    ticks,
)
from wse_sim.units import cycles_to_s

MOST_SLOTS = 10**6


class Latency(Protocol):
    """Interface of turn latencies, used by the reference engine."""

    @property
    def regions(self) -> int:
        """Regions in a line."""
        ...

    def ticks_of(self, parts: Sequence[tuple[int, int, int]]) -> Ticks:
        """Ticks in each region, (R,), of a turn of (tokens, context when they are done, tokens that may be emitted)."""
        ...


@dataclass(frozen=True)
class TurnTable:
    """Ticks of turns for R regions, up to B tokens per turn, and up to S slots per line."""

    grid: int  # tokens of one slot: rows of a region
    layers: Ticks  # (R,)
    base: Ticks  # (R, B + 1); base[:, 0] is 0
    head: Ticks  # (R,)
    deep: Ticks  # (S + 1,); deep[0] and deep[1] are 0

    @property
    def regions(self) -> int:
        """Regions in a line."""
        return len(self.layers)

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest turn, B."""
        return self.base.shape[1] - 1

    @property
    def most_context(self) -> int:
        """Longest context of a token."""
        return (len(self.deep) - 1) * self.grid

    def turn_ticks(self, tokens: int, *, answers: int = 0, slots_cost: int = 0) -> Ticks:
        """Return the ticks of a turn in each region, (R,); `slots_cost` is the sum of `deep` over its tokens."""
        return self.base[:, tokens] + answers * self.head + self.layers * slots_cost

    def ticks_of(self, parts: Sequence[tuple[int, int, int]]) -> Ticks:
        """Return the ticks of a turn in each region; see :class:`Latency`."""
        return self.turn_ticks(
            sum(tokens for tokens, _, _ in parts),
            answers=sum(emits for _, _, emits in parts),
            slots_cost=sum(tokens * self.deep_of(context) for tokens, context, _ in parts),
        )

    def deep_of(self, context: int) -> int:
        """Return `deep` of a token that attends to `context` tokens, including itself."""
        return int(self.deep[-(-context // self.grid)])

    def save(self, path: str | Path) -> None:
        """Write the table as JSON: seconds, in the form that :func:`read_table` reads."""
        data = {
            "grid": self.grid,
            "tick_s": TICK_S,
            "regions": [
                {"layers": int(n), "base_s": (base * TICK_S).tolist(), "head_s": float(head * TICK_S)}
                for n, base, head in zip(self.layers, self.base, self.head, strict=True)
            ],
            "deep_s": (self.deep * TICK_S).tolist(),
        }
        write_whole(path, json.dumps(data) + "\n")


def table_of(plan: GenerationPlan, *, most_tokens: int, most_context: int) -> TurnTable:
    """Return the table of a plan, for turns of up to `most_tokens` tokens and contexts of up to
    `most_context`."""
    prices, clock_hz = TurnPrices(plan), plan.wafer.clock_hz
    slots = -(-most_context // plan.grid)
    deep = np.concatenate([[0.0], np.asarray(prices.deep_cycles(slots), float)])
    layer = [prices.layer_cycles(n) for n in range(1, most_tokens + 1)]
    base, head = [], []
    for item in plan.regions:
        own = [0.0]
        for n, cycles in enumerate(layer, 1):
            ends = prices.embedding_cycles(n) if item.has_ends else 0.0
            own.append(cycles_to_s(item.layers * cycles + ends, clock_hz) + prices.handover_s(item, n))
        base.append(own)
        head.append(cycles_to_s(prices.head_cycles, clock_hz) if item.has_ends else 0.0)
    return TurnTable(
        grid=plan.grid,
        layers=np.array([item.layers for item in plan.regions], np.int64),
        base=ticks(np.array(base)),
        head=ticks(np.array(head)),
        deep=ticks(deep / clock_hz),
    )


def read_table(path: str | Path) -> TurnTable:
    """Read a table from a file: grid, regions with layers, base_s (and head_s), deep_s.

    Raises
    ------
    ConfigError
        If the file is not such a table.
    """
    data = read_json(path, "table of turns")
    try:
        return _read(data)
    except (KeyError, TypeError, ValueError, OverflowError) as fault:
        raise ConfigError(
            f"{path} is not a table of turns ({type(fault).__name__}: {' '.join(str(fault).split())[:80]}); "
            "give grid, regions with layers and base_s, and deep_s, as --emit-turns writes them"
        ) from None


def _read(data: Values) -> TurnTable:
    regions = data["regions"]
    base = np.array([region["base_s"] for region in regions], float)
    deep = np.array(data["deep_s"], float)
    grid, layers = int(data["grid"]), np.array([int(region["layers"]) for region in regions], np.int64)
    head = np.array([float(region.get("head_s", 0.0)) for region in regions])
    if base.ndim != 2 or not 2 <= base.shape[1] <= MOST_TURN_TOKENS + 1 or deep.ndim != 1:
        raise ValueError(f"base_s of shape {base.shape}, deep_s of shape {deep.shape}")
    if not 2 <= len(deep) <= MOST_SLOTS or grid < 1 or layers.min() < 0:
        raise ValueError(f"{len(deep)} slots, grid {grid}, layers {layers.min()}")
    for name, values in (("base_s", base), ("deep_s", deep), ("head_s", head)):
        if not np.isfinite(values).all() or values.min() < 0 or values.max() / TICK_S > MOST_TICKS / 2**20:
            raise ValueError(f"{name} holds a time that is negative, endless or beyond a day")
    if not (base[:, 1:].sum(axis=0) > 0).all():
        raise ValueError("base_s is 0 for a turn of some size")
    return TurnTable(grid, layers, ticks(base), ticks(head), ticks(deep))


def check_turns(table: TurnTable, load: Load, rules: ServingRules) -> None:
    """Check that turns, contexts and prompts are within a table; requests that exceed the cache are never
    simulated.

    Raises
    ------
    ServingError
        If a table has no such row.
    """
    turn_tokens, sizes = rules.turn_tokens, load.input_tokens + load.output_tokens
    fits = -(-(sizes - 1) // rules.block_tokens) <= rules.blocks
    most_context = int(sizes[fits].max(initial=1))
    elsewhere = None if rules.prefill is None else rules.prefill.ticks
    if elsewhere is not None and most_context > len(elsewhere):
        raise ServingError(
            f"contexts of {most_context} tokens exceed the {len(elsewhere) - 1} of the table of machines that read prompts; "
            "leave longer requests out"
        )
    if turn_tokens > table.most_tokens:
        raise ServingError(
            f"turns of {turn_tokens} tokens exceed the {table.most_tokens} of the table; use at most {table.most_tokens}"
        )
    if most_context > table.most_context:
        raise ServingError(
            f"contexts of {most_context} tokens exceed the {table.most_context} of the table; leave longer requests out"
        )
