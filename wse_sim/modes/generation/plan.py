"""The plan of generation: layers on regions, and the costs of tokens and prompts in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wse_sim.compiler.plan import CoreMemory, DisplayedPlan, Region
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.generation.decoder import LayerWork
from wse_sim.modes.generation.line import line_s
from wse_sim.serialize import saved


@saved
@dataclass(frozen=True)
class LayerRegion:
    """Consecutive layers on a rectangle of cores of one wafer."""

    name: str
    wafer: int  # number of the system
    first_layer: int
    layers: int
    region: Region
    token_handover_s: float  # to the next region, or from the last back to the first
    leaves: str  # where a prompt goes next: "inside" the wafer, "between" two wafers, "" from the last region
    has_ends: bool = False  # embedding, head and sampling


@saved
@dataclass(frozen=True)
class PromptTurn:
    """`count` equal, consecutive turns that read a prompt; cycles are those of one layer, and of embedding
    and head."""

    count: int
    tokens: int
    layer_cycles: float
    end_cycles: float
    inside_s: float  # to send the tokens to the next region
    between_s: float


RESTING, MOVING = "resident weights", "moving tiles"


@saved
@dataclass(frozen=True)
class Reading:
    """How a prompt is read: `chunk` tokens at a time with stationary weights, or all of it as one block of
    moving tiles."""

    way: str  # RESTING or MOVING
    chunk: int
    turns: tuple[PromptTurn, ...]


@saved
@dataclass(frozen=True, repr=False)
class GenerationPlan(DisplayedPlan):
    """Regions of a decoder's layers with their costs; cycles are those of one layer."""

    graph: KernelGraph  # stated for one request of `context` tokens
    wafer: Wafer
    cluster: Cluster
    systems: int
    batch: int  # requests
    context: int
    prompt: int
    hidden: int
    layer: LayerWork
    grid: int  # rows of a region
    cols: int
    groups: int | None
    regions_per_wafer: int
    layers_per_region: int
    regions: tuple[LayerRegion, ...]
    decode_cycles: float
    decode_parts: Mapping[str, float]  # by cause
    prefill_cycles: float | None  # of a prompt as one block; None on rectangles, where its tiles cannot move
    end_cycles: float  # of a token before the first and after the last layer
    end_parts: Mapping[str, float]
    prompt_end_cycles: float
    memory: CoreMemory
    max_context: int  # of each request, in the regions in use
    max_context_wafer: int  # the same if every core of the systems could store cache
    cache_bytes_per_token: int
    widest_prompt_handover_s: float  # the slowest transfer of a whole prompt to the next region
    reading: Reading
    notes: tuple[str, ...] = ()
    mode: str = "generation"

    @property
    def weights_rest(self) -> bool:
        """True: weights stay in the regions."""
        return True

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of a region."""
        return self.grid, self.cols

    @property
    def is_square(self) -> bool:
        """Whether regions are squares, on which a prompt can pass as one block of moving tiles."""
        return self.grid == self.cols

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(item.layers for item in self.regions)

    @property
    def layer_s(self) -> float:
        """Seconds of one layer for one token."""
        return self.decode_cycles / self.wafer.clock_hz

    @property
    def handover_s(self) -> float:
        """Seconds that a token spends between regions on its route through all of them and back."""
        return sum(item.token_handover_s for item in self.regions)

    @property
    def latency_s(self) -> float:
        """Seconds of one token through all regions and back to the first."""
        return sum(self.token_work_s(item) for item in self.regions) + self.handover_s

    def token_work_s(self, item: LayerRegion) -> float:
        """Return the seconds that a region works on a token."""
        ends = self.end_cycles / self.wafer.clock_hz if item.has_ends else 0.0
        return item.layers * self.layer_s + ends

    def prompt_work_s(self, item: LayerRegion) -> float:
        """Return the seconds that a region works on a prompt in a sequence of prompts: as one block, or on rectangles
        in chunks.
        """
        if self.prefill_cycles is None:
            return sum(turn.count * sum(self.turn_s(turn, item)) for turn in self.reading.turns)
        cycles = item.layers * self.prefill_cycles + self.prompt_end_cycles * item.has_ends
        return cycles / self.wafer.clock_hz + self.widest_prompt_handover_s

    def turn_s(self, turn: PromptTurn, item: LayerRegion) -> tuple[float, float]:
        """Return the seconds that a region works in a turn, and those to send its tokens to the next region."""
        cycles = item.layers * turn.layer_cycles + turn.end_cycles * item.has_ends
        ways = {"inside": turn.inside_s, "between": turn.between_s, "": 0.0}
        return cycles / self.wafer.clock_hz, ways[item.leaves]

    @property
    def first_token_s(self) -> float:
        """Seconds until a lone prompt has left the last region."""
        turns = self.reading.turns
        return line_s(
            [[sum(self.turn_s(turn, item)) for item in self.regions] for turn in turns],
            [turn.count for turn in turns],
        )

    @property
    def stage_s(self) -> float:
        """Seconds that a token occupies the slowest region."""
        return max(self.token_work_s(item) + item.token_handover_s for item in self.regions)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Rate of prompts that follow each other through the regions."""
        return self.prompt / max(map(self.prompt_work_s, self.regions))
