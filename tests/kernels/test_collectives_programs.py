"""Collectives as programs: rings, trees and rectangles against their closed forms, and the choice by cost."""

from __future__ import annotations

import numpy as np
import pytest

from wse_sim.bench.command import run_kernel
from wse_sim.errors import KernelError
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.testing import check_faces

WSE2 = load_wafer("wse2")
LINE_ALGORITHMS = ("star", "chain", "tree", "two_phase", "k_tree", "ring")


def cycles(name: str, words: int, tiling: Tiling, dtype: str = "fp32") -> float:
    """Return the price of a collective."""
    return float(np.asarray(family(name).cost({"words": words}, tiling, WSE2, dtype=dtype).total))


@pytest.mark.parametrize("half", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize(("cores", "words"), [(1, 5), (2, 11), (5, 40), (8, 512), (17, 340)])
def test_ring_halves_agree_with_their_programs(half: str, cores: int, words: int) -> None:
    """Prices are exact, for any remainder of words."""
    for dtype in ("fp32", "fp16"):
        tiling = Tiling(2, cores, "grid")
        check_faces(family(half), {"words": words}, tiling, WSE2, band=1e-9, dtype=dtype)


def test_a_ring_half_by_hand() -> None:
    """16 cores with 64 words: 15 steps send and receive 4 words, with 6 cycles to start each; the first start is in the
    task's 56.
    """
    # 15 x (2 x 4 + 2 x 6) - 6 + 56 = 350
    assert run_kernel("reduce_scatter", {"cores": 16, "words": 64}, WSE2).fabric_cycles == 350
    # fp16, 2 words a piece: 15 x (2 x 6 + 5 + 2) + 29 hops - 6 + 56 = 364
    fp16 = run_kernel("all_gather", {"cores": 16, "words": 64, "dtype": "fp16"}, WSE2)
    assert fp16.model_cycles == pytest.approx(364)
    assert fp16.fabric_cycles == 364


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(("cores", "words"), [(2, 7), (9, 100), (24, 480)])
def test_ring_all_reduce(cores: int, words: int, dtype: str) -> None:
    """Both halves follow each other."""
    tiling = Tiling(1, cores, "grid", "ring")
    check_faces(family("allreduce"), {"words": words}, tiling, WSE2, band=0.02, dtype=dtype)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_auto_is_never_slower_than_a_fixed_algorithm(dtype: str) -> None:
    """For short and long vectors on short and long lines the winner changes, and a ring wins somewhere."""
    winners = set()
    for cores in (2, 3, 8, 40, 200):
        for words in (1, 16, 300, 20_000):
            auto = cycles("allreduce", words, Tiling(1, cores, "grid", "auto"), dtype)
            fixed = {
                name: cycles("allreduce", words, Tiling(1, cores, "grid", name), dtype)
                for name in LINE_ALGORITHMS
            }
            winner = min(fixed, key=lambda name: fixed[name])
            assert auto <= fixed[winner], (cores, words, winner)
            winners.add(winner)
    assert {"ring", "chain"} < winners
    assert len(winners) >= 4


def test_a_generated_tree_beats_the_named_ones_between_their_strengths() -> None:
    """In a reduction of 16 words over 100 cores it is neither as short as a star, nor as long as a chain."""
    auto = cycles("line_reduce", 16, Tiling(1, 100, "grid", "auto"))
    named = [cycles("line_reduce", 16, Tiling(1, 100, "grid", name)) for name in LINE_ALGORITHMS[:4]]
    assert auto < min(named)
    check_faces(family("line_reduce"), {"words": 16}, Tiling(1, 100, "grid", "auto"), WSE2, band=0.05)


@pytest.mark.parametrize("algorithm", ["auto", "chain"])
def test_an_auto_all_reduce_runs(algorithm: str) -> None:
    """The algorithm that was chosen by cost is the one that runs."""
    for words in (3, 90):
        tiling = Tiling(1, 20, "grid", algorithm)
        check_faces(family("allreduce"), {"words": words}, tiling, WSE2, band=0.05)


@pytest.mark.parametrize("algorithm", ["corner", "rows_columns"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 9), (6, 7), (12, 5)])
def test_all_reduce_of_a_rectangle(algorithm: str, rows: int, cols: int) -> None:
    """The price is exact with chains, for both algorithms; two phases and K-trees are within 2 %."""
    for line, band in (("chain", 1e-9), ("two_phase", 0.02), ("k_tree", 0.02)):
        if line == "k_tree" and algorithm == "corner":
            continue
        tiling = Tiling(rows, cols, "grid", algorithm, options={"line": line})
        check_faces(family("allreduce2d"), {"words": 20}, tiling, WSE2, band=band)


def test_a_rectangle_chooses_by_cost() -> None:
    """auto is the faster of both for every vector; a corner saves the second route back."""
    # Chains on 6 x 7, 20 words: corner 56 + (20 + 6 x 6) + 21 + (20 + 6 x 5) + 21 + 20 + 11 + 5 = 240.
    tiling = Tiling(6, 7, "grid", "corner", options={"line": "chain"})
    assert cycles("allreduce2d", 20, tiling) == 240
    for words in (1, 64, 5000):
        each = {
            name: cycles("allreduce2d", words, Tiling(30, 12, "grid", name))
            for name in ("auto", "corner", "rows_columns")
        }
        assert each["auto"] == min(each["corner"], each["rows_columns"])
    with pytest.raises(KernelError, match="no algorithm 'spiral'"):
        cycles("allreduce2d", 4, Tiling(2, 2, "grid", "spiral"))
