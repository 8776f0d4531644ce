"""Better hardware is never slower: constants of wafer and cluster are changed in both directions, a few here, all in
the slow tests.
"""

from __future__ import annotations

import json
from itertools import cycle

import pytest

pytest.importorskip("torch")

from benchmarks import constants

NAMES = tuple(constants.MODELS)


def test_what_better_means():
    """More is better for a rate or a size, less is better for a time or a loss."""
    assert constants.is_better("fma_mixed_per_cycle", 2.0)
    assert constants.is_better("hop_cycles", 0.5)
    assert not constants.is_better("sram_reserved_bytes", 2.0)
    assert constants.is_better("swarmx_bytes_per_s", 2.0)


@pytest.mark.slow
def test_a_small_model_in_both_modes_never_loses_by_better_constants():
    """Arithmetic, starts, links and the host's connection; a constant that the plan does not read causes no second
    compilation.
    """
    names = ("fma_mixed_per_cycle", "vector_start_cycles", "memoryx_bytes_per_s", "microthreads")
    found = list(constants.changes(names, models=("perceptron",)))
    assert {one.constant for one in found} == set(names[:3])
    assert max(one.lost for one in found) <= constants.TOLERANCE
    assert max(one.moved for one in found) > 0.1  # the starts count


def test_the_file_names_every_constant_and_no_loss_above_the_tolerance():
    """`docs/constants.json`, from which the table of the page is written."""
    data = json.loads(constants.FILE.read_text(encoding="utf-8"))
    assert set(data["changes"]) == set(constants.names())
    assert (
        max(one["lost"] for found in data["changes"].values() for one in found["models"]) <= data["tolerance"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), [*zip(constants.names()[::3], cycle(NAMES))])
def test_no_model_in_any_mode_loses_by_a_better_constant(name: str, model: str):
    """One model, both modes, both directions; the file has all constants and models. Searched layouts may differ by 2 %."""
    found = constants.changes([name], models=(model,))
    assert max((one.lost for one in found), default=0.0) <= 2 * constants.TOLERANCE
