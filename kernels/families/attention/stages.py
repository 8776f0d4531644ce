"""Softmax of attention scores and its gradient, as vector instructions over the scores of a core."""

from __future__ import annotations

from wse_sim.kernels.blocks.line_stages import MATRIX, ROW, Shape
from wse_sim.kernels.blocks.softmax import gradient_vectors, softmax_vectors

# Scores, and the gradient of the probabilities, in the precision in which they are stored; one statistic per
# query.
SOFTMAX_SHAPES = {
    "scores": Shape(MATRIX, "fp16"),
    "gradient": Shape(MATRIX, "fp16"),
    "statistic": Shape(ROW),
}
SOFTMAX = softmax_vectors("scores")
SOFTMAX_GRADIENT = gradient_vectors("scores", "gradient")
