"""Numbers as people read them."""

import pytest

from wse_sim.report.text import percent


@pytest.mark.parametrize(
    ("fraction", "said"),
    [
        (0.5334, "53.3 %"),
        (0.0, "0.0 %"),
        (0.0004, "0.04 %"),
        (3.1e-8, "under 0.001 %"),
        (float("nan"), "n/a"),
    ],
)
def test_a_fraction_in_percent_has_no_exponent(fraction: float, said: str) -> None:
    assert percent(fraction) == said
