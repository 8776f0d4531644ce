"""Attention on uneven parts of tokens: values against PyTorch, cycles against the price of the plan, without divisors
of tokens.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.whole.plans import beside_pytorch, corner
from tests.whole.test_norm_blocks import MOVING
from tests.whole.test_regions import Heads
from wse_sim import api
from wse_sim.graph import frozen
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows
from wse_sim.whole.regions.attention_bands import BandedAttention

SIDE = 48


@dataclasses.dataclass(frozen=True)
class Case:
    """Tokens, heads and features of a head; rows and columns of cores that compute; the load of the fullest core, and
    the number of such cores.
    """

    tokens: int
    heads: int
    width: int
    rows: int
    cols: int
    parts: tuple[int, int]  # queries, keys
    used: tuple[int, int]  # rows, columns
    is_causal: bool = False
    bands: int = 1  # of rows, with some of the heads each; rows in use are those of a band


def made(case: Case) -> tuple[Heads, PipelinedPlan]:
    """Make attention between its four layers, on a region of that many cores; the host is no slower than a link."""
    torch.manual_seed(0)
    features = case.heads * case.width
    model = Heads(features, case.heads, case.is_causal).half().float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, case.tokens, features),)))
    how = {"bands": case.bands, "pin_rows": case.rows, "pin_cols": int(np.ceil(case.cols / MOVING))}
    kernels = [
        dataclasses.replace(one, attrs=frozen({**one.attrs, **how})) if one.family == "attention" else one
        for one in graph.kernels
    ]
    graph = dataclasses.replace(graph, kernels=tuple(kernels))
    return model, expect(
        api.compile(graph, wafer=corner(SIDE), mode="pipelined", batch=8, replicas=1), PipelinedPlan
    )


CASES = {
    "13 tokens on 5 x 4": Case(13, 2, 8, 5, 4, (3, 4), (5, 4)),
    "17 tokens on 5 x 4, causal": Case(17, 4, 4, 5, 4, (4, 5), (5, 4), is_causal=True),
    "12 tokens on 5 x 4": Case(12, 1, 16, 5, 4, (3, 3), (4, 4)),
    "14 tokens on 4 x 3, causal": Case(14, 2, 8, 4, 3, (4, 5), (4, 3), is_causal=True),
    "more rows than tokens": Case(13, 2, 8, 14, 3, (1, 5), (13, 3)),
    "13 tokens, two bands of 5 rows": Case(13, 2, 8, 11, 4, (3, 4), (5, 4), bands=2),
    "12 tokens, three bands, causal": Case(12, 3, 4, 7, 3, (6, 4), (2, 3), is_causal=True, bands=3),
    "two rows": Case(13, 2, 4, 2, 13, (7, 1), (2, 13), is_causal=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_uneven_parts_give_the_values_of_pytorch_at_the_price(name: str) -> None:
    """Random samples are compared with PyTorch; the busiest core is exact to the cycle, and the step within 5 % of the
    price.

    Four layers and attention round to fp16 (2^-11) a few times each.
    """
    case = CASES[name]
    model, plan = made(case)
    x = torch.randn(3, case.tokens, case.heads * case.width).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    assert np.abs(run.outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    found = compare_with_engine(plan, 4)
    at = next(i for i, stage in enumerate(plan.stages) if stage.family == "attention")
    stage, times, region = plan.stages[at], found.regions[at], cast(BandedAttention, found.whole.regions[at])
    one = region.bands[0]
    assert (one.queries, one.keys) == case.parts
    assert (one.height, one.cols) == case.used
    assert region.bundles.get(region.kernel.outputs[0], 1) == case.bands
    # A control word takes a cycle and has no price.
    assert times.issued == pytest.approx(stage.forward_cycles - sum(stage.forward_stalls), abs=1)
    assert times.busiest == pytest.approx(times.issued, abs=1)
    assert times.busiest + sum(times.waits) == pytest.approx(stage.forward_cycles, rel=0.05)
    assert found.fabric_period == pytest.approx(found.engine_period, rel=0.05)


@pytest.mark.slow
@examples(8)
@given(
    tokens=st.integers(2, 19), heads=st.integers(1, 3), half=st.integers(2, 4), rows=st.integers(2, 9), cols=st.integers(3, 9),
    is_causal=st.booleans(),
)  # fmt: skip
def test_any_parts_keep_their_price(
    tokens: int, heads: int, half: int, rows: int, cols: int, is_causal: bool
) -> None:
    """For random sizes no run stops, values are those of PyTorch, and the plan prices the cycles of the busiest core.

    A query and a key of a head with 6 features start in the same memory bank, so most of their products take two cycles per
    element, which the price does not include.
    """
    case = Case(tokens, heads, 2 * half, rows, cols, (0, 0), (0, 0), is_causal)
    model, plan = made(case)
    x = torch.randn(2, tokens, heads * 2 * half).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    assert np.abs(run.outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()
    at = next(i for i, stage in enumerate(plan.stages) if stage.family == "attention")
    found = compare_with_engine(plan, 4).regions[at]
    stage = plan.stages[at]
    off = 0.01 if half % 2 == 0 else 0.03
    assert found.busiest == pytest.approx(stage.forward_cycles - sum(stage.forward_stalls), rel=off)
