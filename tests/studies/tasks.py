"""Tasks that tests send to workers: graphs made by hand, so that a worker needs no torch; a task that ends its worker."""

from __future__ import annotations

import os
import signal
import time
from functools import lru_cache

from tests.handmade import transformer
from wse_sim.studies.evaluate import DONE, StudyRow


@lru_cache(maxsize=2)
def handmade(training: bool):
    """Return a small transformer."""
    return transformer(layers=1, hidden=64, seq=16, training=training)


def capture(request):
    """Replace a capture."""
    return handmade(request.options.phase == "training")


def hungry(graph, requests):
    """Return a task that ends its worker for one of its settings, as a lack of memory does."""
    rows = []
    for request in requests:
        if request.options.batch == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        rows.append(StudyRow(request.key, DONE, {"samples_per_s": 1.0}))
    return rows


def memory_hungry(graph, requests):
    """Use far more memory than the worker may, gradually, for one of the settings."""
    rows = []
    for request in requests:
        if request.options.batch == 13:
            held = []
            for _ in range(60):
                held.append(bytearray(os.urandom(1) * 50_000_000))
                time.sleep(0.05)
        rows.append(StudyRow(request.key, DONE, {"samples_per_s": 1.0}))
    return rows
