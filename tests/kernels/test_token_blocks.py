"""Complete tokens in blocks: prices and memory against forms computed by hand."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.family import Footprint

WSE2 = load_wafer("wse2")
NORM = family("norm")
O = WSE2.vector_start_cycles  # noqa: E741
ROOT = WSE2.sqrt_cycles + WSE2.divide_cycles


def price(tokens: int, features: int, cores: int, **how: object) -> float:
    """Return the cycles of a layer norm in a steady stream."""
    cost = NORM.cost({"rows": tokens, "cols": features}, Tiling(cores, 1), WSE2, dtype="fp16", **how)
    return float(cost.total - cost.idle)


def layer_block(b: int, features: int) -> float:
    """Price a block of b tokens, feature by feature, with b a multiple of four: thirteen starts, the instructions, D
    words per token.

    A feature: sum (an fp16 to an fp32, two elements a cycle), squares (two a cycle, of one vector twice), scale and
    offset, scale and shift (both of fp16 alone).  A token: ten values by the rates of fp32, one root with its division.
    """
    wide = 2 * ceil(b / WSE2.fma_mixed_per_cycle) + 2 * ceil(b / WSE2.fma_fp16_per_cycle)
    return features * wide + 14 * O + b * ROOT + b * features


@pytest.mark.parametrize("b", [4, 8])
def test_a_block_costs_its_instructions_and_its_words(b: int) -> None:
    """What is left of the difference are instructions on a value per token: at most two cycles each, of ten."""
    features = 256
    found = price(b, features, 1)
    assert layer_block(b, features) <= found <= layer_block(b, features) + 20 * b


def test_blocks_follow_each_other_and_a_rest_comes_last() -> None:
    """7 tokens of 64 features per core take the cheapest of blocks of 1 to 8 tokens. The fullest of 5 cores has 7 of
    33.
    """
    single = [0.0, *(price(b, 64, 1) for b in range(1, 9))]
    # A block of its own may be two smaller ones, so what one costs alone is the least over ways to part it.
    assert price(7, 64, 1) <= min(single[4] + single[3], single[7])
    assert price(33, 64, 5) == price(7, 64, 1) == price(35, 64, 5)
    assert price(1024, 64, 4) == pytest.approx(256 / 8 * price(8, 64, 1))


def test_an_array_of_regions_has_their_prices_one_by_one() -> None:
    """Rows (3, 1) are combined with columns (1, 2)."""
    dims, rows, cols = {"rows": 197, "cols": 96}, np.array([1, 6, 300])[:, None], np.array([1, 4])[None]
    for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT):
        together = NORM.cost(dims, Tiling(rows, cols), WSE2, phase=phase).total
        for (i, j), found in np.ndenumerate(together):
            one = NORM.cost(dims, Tiling(int(rows[i, 0]), int(cols[0, j])), WSE2, phase=phase)
            assert found == one.total


def held(features: int, tokens: int = 64, cores: int = 4, **options: object) -> Footprint:
    """Return the memory of a layer norm."""
    tiling = Tiling(cores, 1, options=options)
    return NORM.footprint({"rows": tokens, "cols": features}, tiling, WSE2, dtype="fp16")


def test_two_blocks_of_tokens_and_two_of_results_fit_a_core() -> None:
    """8 b D bytes of blocks, b = 4 for D = 768; 4 D of scale and shift; three fp32 and two fp16 a token of statistics."""
    found = held(768)
    assert found.weights_bytes == 4 * 768
    assert found.buffers_bytes == 8 * 4 * 768 + 4 * (3 * 4 + 2 * 2)
    for features in (32, 768, 2048, 3500):
        assert held(features).total_bytes <= WSE2.sram_usable_bytes
    # Trained: six blocks, b = 3; sums of two gradients in fp32 beside the fp16 copies; three fp32 (an even two) and two fp16.
    trained = held(768, training=True, optimizer="sgd")
    assert trained.buffers_bytes == 12 * 3 * 768 + 4 * (2 * 4 + 3) + 3 * 2 * 2
    assert trained.weights_bytes > 12 * 768


def test_cores_without_tokens_hold_what_is_kept() -> None:
    """With 16 tokens on 64 cores that train, blocks and sums are on 16 cores, averaged over 64."""
    many, few = (held(768, 16, cores, training=True, optimizer="sgd") for cores in (64, 16))
    assert many.buffers_bytes == few.buffers_bytes / 4


def test_tokens_that_do_not_fit_a_core_lie_over_columns() -> None:
    """5,000 features are 40,000 bytes of four vectors and 20,000 of scale and shift.  All tokens of a sample are on the cores then."""
    dims = {"rows": 64, "cols": 5000}
    wide, whole = (
        NORM.footprint(dims, Tiling(4, cols), WSE2, dtype="fp16") for cores, cols in ((4, 10), (4, 1))
    )
    assert wide.buffers_bytes == 2 * 500 * 2 + 8 * 16 + 16 * 500 * 2
    assert whole.total_bytes > WSE2.sram_usable_bytes
    assert price(64, 5000, 4) == pytest.approx(price(64, 5000, 2) / 2, rel=0.05)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT_GRADIENT])
def test_words_of_a_token_are_counted(phase: Phase) -> None:
    """D / 2 words enter and leave each; in the backward pass the normal form enters as well."""
    cost = NORM.cost({"rows": 24, "cols": 128}, Tiling(2, 3), WSE2, dtype="fp16", phase=phase)
    assert cost.ramp == 4 * 64 * (2 if phase is Phase.FORWARD else 3)
