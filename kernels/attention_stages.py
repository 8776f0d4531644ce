"""The softmax of attention's scores and its gradient, as vector instructions over the scores of a core."""

from __future__ import annotations

from wse_sim.kernels.line_stages import MATRIX, ROW, Shape, Vector

# Scores, and the gradient of the probabilities, in the precision in which they rest; one statistic per query.
SOFTMAX_SHAPES = {
    "scores": Shape(MATRIX, "fp16"),
    "gradient": Shape(MATRIX, "fp16"),
    "statistic": Shape(ROW),
}

# Of the scores: maximum, difference, exponentials, sum, quotient.
SOFTMAX = (
    Vector("mov", "statistic", (-3e38,)),
    Vector("max", "statistic", ("statistic", "scores")),
    Vector("share max", "statistic"),
    Vector("sub", "scores", ("scores", "statistic")),
    Vector("exp", "scores", ("scores",)),
    Vector("mov", "statistic", (0.0,)),
    Vector("add", "statistic", ("statistic", "scores")),
    Vector("share add", "statistic"),
    Vector("reciprocal", "statistic", ("statistic",)),
    Vector("mul", "scores", ("scores", "statistic")),
)
# Of the gradient of the probabilities: sum of products, difference, product.
SOFTMAX_GRADIENT = (
    Vector("mov", "statistic", (0.0,)),
    Vector("mac", "statistic", ("scores", "gradient")),
    Vector("share add", "statistic"),
    Vector("sub", "gradient", ("gradient", "statistic")),
    Vector("mul", "gradient", ("gradient", "scores")),
)
