"""Simulate a complete small model on the fabric, wavelet by wavelet.

A pipelined plan (all regions, the streams between them and the host streams) or a weight-streaming plan
becomes one fabric program.

    lower.py         passes over a kernel graph, and the layout of each kernel, before a plan is made
    prices.py        which prices a pipelined plan uses: those of these programs, or plain ones
    paths.py         the links of a stream, cell by cell, along the plan's route
    coverage.py      which wafers, kernel graphs and plans are supported
    regions/         kinds of regions under one contract: dense layers of several rows, norms, attention
    trees.py         multicast routes of a tensor to all of its readers
    network.py       regions, multicast trees and host streams as one fabric program: inference
    areas.py         places and streams that are compared with the event engine
    trained/         training of networks with regions of several kinds
    run.py           values, step time and busy time of inference, compared with the event engine
    training_run.py  the same for a batch of training
    page.py          counters of a run for the report page
    streaming/       a weight-streaming plan as one fabric program: inference and training

An unsupported input raises :class:`~wse_sim.errors.ModelError` with one sentence.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wse_sim.whole.coverage import check_outer_rows, check_streamed_graph, check_wafer
    from wse_sim.whole.host_values import constants_of, host_rows
    from wse_sim.whole.lower import inputs_over_rows
    from wse_sim.whole.page import measured
    from wse_sim.whole.run import Compared, WholeRun, compare_with_engine, run_whole
    from wse_sim.whole.streaming import (
        ComparedStreaming,
        StreamedRun,
        compare_streaming,
        run_streamed,
        train_streamed,
    )
    from wse_sim.whole.trained.coverage import check_any as check_graph
    from wse_sim.whole.training_run import ComparedTraining, TrainedRun, compare_training, train_whole

_HOME = {
    "coverage": ("check_outer_rows", "check_streamed_graph", "check_wafer"),
    "host_values": ("constants_of", "host_rows"),
    "training_run": ("ComparedTraining", "TrainedRun", "compare_training", "train_whole"),
    "lower": ("inputs_over_rows",),
    "page": ("measured",),
    "run": ("Compared", "WholeRun", "compare_with_engine", "run_whole"),
    "streaming": ("ComparedStreaming", "StreamedRun", "compare_streaming", "run_streamed", "train_streamed"),
}

__all__ = [
    "Compared",
    "ComparedStreaming",
    "ComparedTraining",
    "StreamedRun",
    "TrainedRun",
    "WholeRun",
    "check_graph",
    "check_outer_rows",
    "check_streamed_graph",
    "check_wafer",
    "compare_streaming",
    "compare_training",
    "compare_with_engine",
    "constants_of",
    "host_rows",
    "inputs_over_rows",
    "measured",
    "run_streamed",
    "run_whole",
    "train_streamed",
    "train_whole",
]


def __getattr__(name: str) -> object:
    """Import a name of this package on first use, so that pricing a plan does not load the executors."""
    if name == "check_graph":
        return import_module("wse_sim.whole.trained.coverage").check_any
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"wse_sim.whole.{module}"), name)
    raise AttributeError(f"module 'wse_sim.whole' has no attribute '{name}'")
