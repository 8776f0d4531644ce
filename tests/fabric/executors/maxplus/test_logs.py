"""The log of a max-plus run: arithmetic runs of passing words, node by node."""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors.maxplus.graph import LOGGED, NODE_FIELDS, RUN_N, RUN_START, RUN_STEP
from wse_sim.fabric.executors.maxplus.records import N_SETTINGS, S_LOG
from wse_sim.fabric.executors.maxplus.solve import flush_runs, grown


def test_open_runs_are_logged_once_however_often_the_log_grows() -> None:
    """Four of five nodes are logged, three of these have an open run; a log of one entry grows to 2 and then to 4."""
    runs = [(1, 10, 3, 4), (0, 11, 1, 5), (1, 12, 2, 6), (1, 13, 5, 0), (1, 14, 7, 2)]
    nodes, settings = np.zeros((5, NODE_FIELDS), np.int32), np.zeros(N_SETTINGS, np.int64)
    nodes[:, [LOGGED, RUN_START, RUN_STEP, RUN_N]] = runs
    log = np.empty((1, 4), np.int32)
    while not flush_runs(nodes, log, settings):
        log = grown(log, int(settings[S_LOG]), 0)
    assert log[: settings[S_LOG]].tolist() == [
        [u, *run] for u, (is_logged, *run) in enumerate(runs) if is_logged and run[2]
    ]
    assert len(log) == 4
