"""A whole small model on the fabric, wavelet by wavelet: a pipelined plan or one of weight streaming as one program.

Of a pipelined plan: all regions, the streams between them, host streams.

lower.py     what is done to a graph, and the layout of each kernel, before a plan is made
prices.py    which prices a pipeline takes: those of these programs, or plain ones
layout.py    where the parts of a dense layer that trains in a chain are in the region that the plan gives it
paths.py     the links of a stream, cell by cell, along the plan's route
covered.py   what is covered of a wafer, a kernel graph and a plan
regions/     kinds of regions under one contract: dense layers of several rows, norms, attention
trees.py     the ways of a tensor to all of its readers
network.py   regions of several kinds, trees and host streams as one fabric program: inference
areas.py     what all these programs say of themselves
training/    a chain of dense layers that trains: forward, loss, gradients, update
trained/     the same for networks of regions of several kinds
run.py       values, step time and busy time of inference, compared with the event engine
learn.py     the same for a batch of training
page.py      counters of a run for the page
streaming/   a plan of weight streaming as one fabric program: inference and training

What is not covered is refused in one sentence.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wse_sim.whole.covered import check_outer_rows, check_streamed_graph, check_wafer
    from wse_sim.whole.front import host_rows
    from wse_sim.whole.learn import ComparedTraining, TrainedRun, compare_training, train_whole
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
    from wse_sim.whole.trained.covered import check_any as check_graph

_HOME = {
    "covered": ("check_outer_rows", "check_streamed_graph", "check_wafer"),
    "front": ("host_rows",),
    "learn": ("ComparedTraining", "TrainedRun", "compare_training", "train_whole"),
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
    "host_rows",
    "inputs_over_rows",
    "measured",
    "run_streamed",
    "run_whole",
    "train_streamed",
    "train_whole",
]


def __getattr__(name: str) -> object:
    """A name of the room, loaded when it is first used: a plan takes prices without the executors."""
    if name == "check_graph":
        return import_module("wse_sim.whole.trained.covered").check_any
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"wse_sim.whole.{module}"), name)
    raise AttributeError(f"module 'wse_sim.whole' has no attribute '{name}'")
