"""The number of generated cases of a test: few in `make test`, all in `make test-all`, many and new ones in `make
test-random`.

``$WSE_SIM_TESTS`` says which: "quick", "all" or "random".
"""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import settings

WHICH = os.environ.get("WSE_SIM_TESTS", "quick")
PERCENT = {"quick": 12, "all": 100, "random": 1000}[WHICH]  # of the cases that a test names
_first = random.SystemRandom().randrange(10**6) * 1000 if WHICH == "random" else 0


def cases(count: int) -> int:
    """Return the number of cases in this run, out of `count`, at least two."""
    return max(min(2, count), count * PERCENT // 100)


def examples(count: int, **others: Any) -> settings:
    """Return the settings of Hypothesis for a test of `count` examples."""
    return settings(max_examples=cases(count), **others)


def seeds(first: int, count: int) -> range:
    """Return the seeds of `count` random programs from `first` on; others in every run of `make test-random`."""
    return range(_first + first, _first + first + cases(count))
