"""A complete joined layer as one fabric program: its values against PyTorch, its cycles against the closed form and its
parts.
"""

from __future__ import annotations

import pytest

from tests.timing.joined_layer import JoinedLayer, Sizes
from tests.timing.joined_values import case_of
from wse_sim.errors import KernelError
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.lines import Line, new_builder, route_reduce
from wse_sim.kernels.blocks.trees import two_phase
from wse_sim.kernels.contract.testing import max_abs_error
from wse_sim.modes.generation.joined_layer import joined_layer_cycles
from wse_sim.modes.generation.layer_parts import joined_layer
from wse_sim.timing.layers import time_layer

FP16_ERROR = 0.012  # of results of size 1 to 4 after seven products in fp16


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_small_layer_is_that_of_pytorch(tokens: int):
    """With two heads on 4 x 4 cores, the stream and the new keys and values in the resident cache equal PyTorch's."""
    sizes = Sizes(grid=4, groups=2, d=4, q=4, f=6, tokens=tokens, heads=2, head_groups=1)
    case = case_of(JoinedLayer(sizes, load_wafer("wse2"), is_together=False))
    result = run_program(case.program, case.config, inputs=case.inputs)
    assert result.deadlock is None
    assert max_abs_error(case, result) < FP16_ERROR


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tokens", "is_together", "heads", "over_form", "over_parts"),
    [
        ("wse2", 1, False, 1, 0.928, 0.981),
        ("wse2", 4, False, 4, 0.970, 1.005),
        ("wse2", 8, False, 1, 0.988, 1.013),
        ("wse2", 16, True, 1, 1.004, 1.020),
        ("wse3", 1, False, 1, 0.820, 0.962),
        ("wse3", 4, False, 1, 0.903, 1.019),
        ("wse3", 16, True, 4, 0.988, 1.048),
    ],
)
def test_a_whole_layer_costs_what_serving_takes_for_it(
    name: str, tokens: int, is_together: bool, heads: int, over_form: float, over_parts: float
):
    """On 16 x 16 cores, with the faster order of products, cycles are compared with the closed form and with the parts
    run one by one.

    Both ratios are pinned where they were measured.  The form may be too dear on so few cores, where the eight handovers that it
    counts for an all-reduce do not all are on the way, but not too cheap.
    """
    wafer, sizes = load_wafer(name), Sizes(16, 4, 8, 8, 16, tokens, heads)
    case = case_of(JoinedLayer(sizes, wafer, is_together=is_together))
    result = run_program(case.program, case.config, inputs=case.inputs)
    assert result.deadlock is None
    assert max_abs_error(case, result) < FP16_ERROR
    form = float(joined_layer_cycles(sizes.work(), tokens, 16, wafer, groups=4).total)
    assert result.cycles < 1.01 * form
    assert result.cycles / form == pytest.approx(over_form, abs=0.01)
    parts = time_layer(joined_layer(sizes.work(), tokens, 16, wafer, groups=4), wafer)
    assert result.cycles / (form * parts.factors["chunk"]) == pytest.approx(over_parts, abs=0.01)


def test_a_tree_of_two_phases_is_not_repeated():
    line = Line(new_builder(1, 9, load_wafer("wse2")), vertical=False)
    with pytest.raises(KernelError, match="cannot be repeated"):
        route_reduce(line, two_phase(9, 3), 0, is_repeated=True)
