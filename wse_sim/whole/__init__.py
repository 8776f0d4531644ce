"""A whole small model on the fabric: one program of all regions of a pipelined plan, wavelet by wavelet.

layout.py    where the parts of a dense layer lie in the region that the plan gives it
paths.py     the links of a stream, cell by cell, along the plan's route
covered.py   what is covered of a wafer, a kernel graph and a plan
bundles.py   how many links side by side, and their ways
program.py   regions, streams and host streams as one fabric program: inference
training/    the same for a batch of training: forward, loss, gradients, update
run.py       values, step time and busy time of inference, held against the event engine
learn.py     the same for a batch of training

Chains of dense layers (product, bias, ReLU) are covered; everything else is refused in one sentence.
"""

from wse_sim.whole.covered import check_graph, check_wafer
from wse_sim.whole.learn import ComparedTraining, TrainedRun, compare_training, train_whole
from wse_sim.whole.run import Compared, WholeRun, compare_with_engine, inputs_over_rows, run_whole

__all__ = [
    "Compared",
    "ComparedTraining",
    "TrainedRun",
    "WholeRun",
    "check_graph",
    "check_wafer",
    "compare_training",
    "compare_with_engine",
    "inputs_over_rows",
    "run_whole",
    "train_whole",
]
