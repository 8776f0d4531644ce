"""Half of a joined layer as one fabric program: what its parts cost one by one is what they cost together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wse_sim.fabric.format.builder import scalar
from wse_sim.fabric.run import run_program
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.trees import k_tree
from wse_sim.kernels.contract.family import Case, Tiling
from wse_sim.kernels.contract.registry import family
from wse_sim.kernels.contract.testing import max_abs_error
from wse_sim.kernels.families.collectives.allreduce import emit_allreduce, route_allreduce
from wse_sim.kernels.families.gemv import emit_joined

GRID, GROUPS = 16, 4


def half_layer(d: int, f: int, n: int, wafer: Wafer, *, is_together: bool) -> Case:
    """A statistic, the wide product, its positive part, the product back, the sum with the stream; n tokens at once.

    d and f elements of a token on a core.  The statistic and the wide product are summed down the columns, the product back
    along the rows: its sums come out where the stream lies, and each product finds its inputs in the order in which
    the one before left them.
    """
    b = new_builder(GRID, GRID, wafer)
    statistic = b.buffer("s", n, "fp16")
    x = b.buffer("x", d * n, "fp16", bank=2 if is_together else None)
    up, wide = (
        b.buffer("up", d * f, "fp16", bank=None if is_together else 2),
        b.buffer("y", f * n, "fp16", bank=0),
    )
    active = b.buffer("h", f * n, "fp16", bank=2 if is_together else None)
    down = b.buffer("down", f * d, "fp16", bank=None if is_together else 2)
    back = b.buffer("z", d * n, "fp16", bank=0)
    tree, first, parts = k_tree(GRID, GROUPS, wafer.stream_order), 0, []
    for vertical in (True, True, False):
        found, used = route_allreduce(Line(b, vertical=vertical), tree, first)
        first += used
        parts.append(found)
    kinds: dict[Any, Any] = {}
    for row, col in np.ndindex(GRID, GRID):
        key = parts[0][row], parts[1][row], parts[2][col]
        kinds.setdefault(key, np.zeros((GRID, GRID), bool))[row, col] = True
    for number, ((of_statistic, of_wide, of_back), mask) in enumerate(kinds.items()):
        core = b.core_class(f"core {number}")
        core.busy(b.config.task_start_cycles)
        emit_allreduce(core, of_statistic, statistic, "fp16")
        emit_joined(core, wide, x, up, n, wafer, "fp16", is_together=is_together)
        emit_allreduce(core, of_wide, wide, "fp16", "code")
        core.max(active.dsd(), wide.dsd(), scalar(0.0), dtype="fp16")
        emit_joined(core, back, active, down, n, wafer, "fp16", is_together=is_together)
        emit_allreduce(core, of_back, back, "fp16", "code")
        core.add(x.dsd(), x.dsd(), back.dsd(), dtype="fp16")
        b.place(core, mask)
    # Small whole numbers: all sums are exact in fp16.
    rng, p = np.random.default_rng(3), GRID
    stream = rng.integers(-1, 2, (n, p * d)).astype(np.float32)
    a, c = (rng.integers(-1, 2, size).astype(np.float32) for size in ((p * d, p * f), (p * f, p * d)))
    terms = rng.integers(-3, 4, (p, p, n)).astype(np.float32)
    order = (1, 2, 0) if is_together else (1, 0, 2)

    def pieces(values: np.ndarray, size: int) -> np.ndarray:
        return values.reshape(n, p, size).transpose(order).reshape(p, size * n)

    hidden = stream @ a
    result = stream + np.maximum(hidden, 0) @ c
    tile_up = a.reshape(p, d, p, f).transpose(0, 2, 1, 3).reshape(p, p, d * f)
    tile_down = c.reshape(p, f, p, d).transpose(2, 0, 1, 3).reshape(p, p, f * d)
    wide_shape, stream_shape = (p, p, f * n), (p, p, d * n)
    inputs = {"s": terms, "up": tile_up, "down": tile_down}
    inputs["x"] = np.broadcast_to(pieces(stream, d)[:, None], stream_shape)
    expected = {
        "s": np.broadcast_to(terms.sum(axis=0), terms.shape),
        "y": np.broadcast_to(pieces(hidden, f)[None], wide_shape),
        "x": np.broadcast_to(pieces(result, d)[:, None], stream_shape),
    }
    return Case(b.build(), b.config, inputs, expected)


@pytest.mark.parametrize(
    ("name", "tokens", "is_together"),
    [("wse2", 1, False), ("wse2", 4, True), ("wse2", 24, True), ("wse3", 1, False), ("wse3", 4, False)],
)
def test_parts_cost_together_what_they_cost_one_by_one(name: str, tokens: int, is_together: bool):
    """Values of the whole against numpy; cycles against the sum of its parts, each run as a program of its own.

    Parts are the statistic of n words, a product of n vectors down and one back, two short vectors.  Cores leave a part at
    different times, so the next one starts earlier on some: up to 4 % for one token, 1 % for 24.
    """
    wafer, d, f = load_wafer(name), 8, 16
    case = half_layer(d, f, tokens, wafer, is_together=is_together)
    result = run_program(case.program, case.config, inputs=case.inputs)
    assert result.deadlock is None
    assert max_abs_error(case, result) == 0.0
    column = "vectors" if is_together else "weights"
    options = {"groups": GROUPS, "vectors": tokens, "column": column}
    parts = [
        ("allreduce", {"words": tokens}, Tiling(1, GRID, "grid", "k_tree", options={"groups": GROUPS})),
        ("gemv", {"m": GRID * d, "n": f}, Tiling(GRID, 1, "grid", options=options)),
        ("gemv", {"m": GRID * f, "n": d}, Tiling(GRID, 1, "grid", options=options)),
    ]
    apart = 0.0
    for kernel, dims, tiling in parts:
        own = family(kernel).program(dims, tiling, wafer, dtype="fp16")
        apart += run_program(own.program, own.config, functional=False).cycles
    apart += sum(
        wafer.vector_start_cycles + size * tokens / rate
        for size, rate in ((f, wafer.max_fp16_per_cycle), (d, wafer.peak_fma_fp16_per_cycle))
    )
    apart -= 2 * wafer.loop_cycles  # each product alone is one turn of a loop
    assert 0.96 * apart < result.cycles <= apart
