"""A weight-streaming plan as one fabric program: weights stream in, activations are stationary, gradients
stream out.

Symbols: R rows and L lanes of c columns; k inputs and n outputs of a layer; T tokens (rows of samples) of a
batch; per core t = ceil(T / (R L)) tokens, f = ceil(k / c) inputs and s = ceil(n / c) outputs of them::

    row above    feeders of some columns      < weights, < gradients of other columns
    R x L c      cores: t tokens, f features; a lane holds whole tokens
    row below    feeders of the other columns < weights, < gradients

* weights: a *round* is one output: w = ceil(f / 2) words for every column. Both edges of both outer rows
  carry part of the columns. All feeders of a stream receive all its words, keep their own and send them down
  (or up) their column in every lane.
* forward: every word triggers 2 t multiply-accumulates. Sums run along the lane from its first core to its
  last, which sends the result back to the core that stores this output as an input of the next layer; that
  core adds the bias and applies the activation.
* loss: squared error on the cores that store the outputs.
* dW: gradients of one output run along the lane from the core that stores them, each triggers f products;
  sums over tokens run along the columns to the outer row, there over the lanes, and leave in fp16.
* dx: as forward, with weights of one input per round; then the derivative of the activation.

Owners of rounds change from the last column to the first in products (:mod:`products` explains why), from the
first to the last in weight gradients.

    layout.py   placement of the model, and which stream feeds which column
    products.py forward and backward products on the cores
    weights.py  the weight gradient on the cores
    edges.py    feeders, collectors, host streams
    program.py  all of them as one program; values in and out
    run.py      a batch with its values; times compared with the event engine's
"""

from wse_sim.whole.streaming.run import (
    ComparedStreaming,
    StreamedRun,
    compare_streaming,
    run_streamed,
    train_streamed,
)

__all__ = [
    "ComparedStreaming",
    "StreamedRun",
    "compare_streaming",
    "run_streamed",
    "train_streamed",
]
