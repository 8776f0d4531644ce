"""Costs of a turn of several tokens in a region: layers, embedding and head, and the transfer to the next region."""

from __future__ import annotations

import dataclasses

import numpy as np

from wse_sim.kernels.contract.family import Size
from wse_sim.modes.generation.decoder import decoder_of
from wse_sim.modes.generation.joined_layer import deep_cycles, joined_layer_cycles
from wse_sim.modes.generation.layer import ends_cycles
from wse_sim.modes.generation.memory import context_beside_rows
from wse_sim.modes.generation.plan import GenerationPlan, LayerRegion
from wse_sim.modes.generation.prompt_reading import handover_s
from wse_sim.modes.generation.steps import split_of_plan


class TurnPrices:
    """Prices of turns on the regions of a plan: cycles of one layer, of embedding and head; seconds between
    regions."""

    def __init__(self, plan: GenerationPlan) -> None:
        self.plan, self._split = plan, split_of_plan(plan)
        self._decoder = decoder_of(plan.graph)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on kernels without a cost."""
        return self._decoder.notes

    def layer_cycles(self, tokens: int) -> float:
        """Return the cycles of a layer for `tokens` tokens whose contexts fit in one slot."""
        plan = self.plan
        cost = joined_layer_cycles(plan.layer, tokens, plan.sides, plan.wafer, groups=plan.groups)
        return float(np.asarray(cost.total))

    def deep_cycles(self, slots: int) -> Size:
        """Return the extra cycles per token and layer for 1 to `slots` slots of context, compared with one
        slot: (slots,)."""
        plan = self.plan
        return deep_cycles(plan.layer, np.arange(1, slots + 1), plan.sides, plan.wafer, groups=plan.groups)

    def embedding_cycles(self, tokens: int) -> float:
        """Return the cycles to look up the table rows of `tokens` tokens."""
        return self._ends(tokens, has_head=False)

    @property
    def head_cycles(self) -> float:
        """Return the cycles of the head and of the argmax, for one token."""
        return self._ends(1, has_head=True) - self._ends(1, has_head=False)

    def handover_s(self, item: LayerRegion, tokens: int) -> float:
        """Return the seconds to send `tokens` tokens to the next region; from the last region, one token to
        the first."""
        if not item.leaves:
            return item.token_handover_s
        inside, between = handover_s(self._split, tokens, self.plan.wafer, self.plan.cluster, at_rest=True)
        return between if item.leaves == "between" else inside

    def cache_tokens(self, chunk: int) -> int:
        """Return the tokens whose keys and values fit in addition to the weights and the rows of a turn of `chunk` tokens."""
        return context_beside_rows(self._split, self.plan.wafer, batch=1, chunk=chunk)

    def _ends(self, tokens: int, *, has_head: bool) -> float:
        decoder = self._decoder if has_head else dataclasses.replace(self._decoder, head=None)
        groups, wafer = self.plan.groups, self.plan.wafer
        cost = ends_cycles(decoder, self._split.ends_grid, wafer, groups=groups, tokens=tokens)
        return float(np.asarray(cost.total))
