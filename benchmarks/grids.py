"""Fits two constants of grids of cores that few runs determine, with and without them: ``python -m benchmarks.grids
[--keep]``.

misaligned   What a misaligned fp16 vector costs (``misaligned_fp16_per_cycle``).  The prefill points have odd tiles only, so
             ``map_element_cycles`` is fitted to them twice: with the cost, and with none.  Published end-to-end requests,
             to which nothing was fitted, speak for one of the two.  A request of p tokens in and d tokens out takes
             p / prefill + d / decode seconds; decode has the context p + d / 2; its rate is d over that time.
die_edges    What the edge of a die costs a wavelet on its way along a column (``die_crossing_cycles``): runs of
             ``kernel.gemv`` on 80 rows and more, least squares of relative errors.  Free are the constants of the grids of
             a CS-3 and the relay (``forward_cycles``), once without edges and once with them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import f as f_distribution

from benchmarks import measurements
from benchmarks.fits import FITS, Figure, Fit, fitted
from benchmarks.measurements import Row
from wse_sim.hardware import Wafer
from wse_sim.uncertainty.draws import DrawnMachine
from wse_sim.validation.intervals import point_figure
from wse_sim.validation.predict import predict_on, wafer_of
from wse_sim.validation.suite import Point, load_suite

REQUESTS = ((2048, 128, 764.4), (2048, 2048, 2370.3))
"""Tokens in, tokens out, published tokens/s of LLaMA-3 8B (WaferLLM, arXiv 2502.04563v3)."""
PREFILL_GRID, DECODE_GRID = 660, 360
EVEN_GRID, EVEN_TOKENS = 720, 4096
LEAST_ROWS = 80
RELAY = "forward_cycles"
EDGE = "die_crossing_cycles"


def misaligned() -> Row:
    """Return the map element and the rates of requests, with the cost of a misaligned vector and without."""
    points = {point.id: point for point in load_suite().points}
    prefill, decode = points["prefill-llama3-8b-600"], points["decode-llama3-8b-420"]
    stated = wafer_of(prefill)
    free = stated.model_copy(update={"misaligned_fp16_per_cycle": stated.fma_fp16_per_cycle})
    return {
        "requests": [dict(zip(("tokens_in", "tokens_out", "published"), each, strict=True)) for each in REQUESTS],
        "with": _priced(stated, prefill, decode),
        "without": _priced(_refit(free), prefill, decode),
    }  # fmt: skip


def _refit(wafer: Wafer) -> Wafer:
    """Return the wafer with the map element that meets the prefill points best."""
    fit = Fit("prefill", ("map_element_cycles",), {"model.prefill": 0.002}, "wse2")
    points = [point for point in load_suite().points if fit.takes(point)]
    costs = {"misaligned_fp16_per_cycle": wafer.misaligned_fp16_per_cycle}

    def figure_without(point: Point) -> Figure:
        figure = point_figure(point)
        return lambda machine: figure(DrawnMachine(machine.wafer.model_copy(update=costs), machine.cluster))

    found = fitted(fit, points, {point.id: figure_without(point) for point in points})
    return wafer.model_copy(update={"map_element_cycles": wafer.map_element_cycles * float(found.factors[0])})


def _priced(wafer: Wafer, prefill: Point, decode: Point) -> Row:
    def rate(point: Point, **sizes: int) -> float:
        stated = point.model_copy(update={"params": {**point.params, **sizes}})
        return predict_on(stated, wafer).predicted or math.nan

    def request(tokens_in: int, tokens_out: int) -> float:
        first = tokens_in / rate(prefill, grid=PREFILL_GRID, tokens=tokens_in)
        rest = tokens_out / rate(decode, grid=DECODE_GRID, context=tokens_in + tokens_out // 2)
        return tokens_out / (first + rest)

    return {
        "map_element_cycles": wafer.map_element_cycles,
        "even_tokens_per_s": rate(prefill, grid=EVEN_GRID, tokens=EVEN_TOKENS),
        "requests": [request(tokens_in, tokens_out) for tokens_in, tokens_out, _ in REQUESTS],
    }


def die_edges() -> Row:
    """Fits without edges of dies and with them."""
    points = [
        point
        for point in load_suite().points
        if point.subject == "kernel.gemv" and point.system == "wse3" and point.params["rows"] >= LEAST_ROWS
    ]
    grid = next(fit.constants for fit in FITS if fit.name == "grids of a CS-3")
    free = (RELAY, *(name for name in grid if name != EDGE))
    plain, edges = _fit_edges(points, free), _fit_edges(points, (*free, EDGE))
    left = len(points) - len(free) - 1
    ratio = plain["squares"] / edges["squares"]
    strength = (ratio - 1) * left
    return {
        "runs": len(points),
        "nothing": plain,
        "edges": edges,
        "squares_ratio": ratio,
        "F": strength,
        "p": float(f_distribution.sf(strength, 1, left)),
    }


def _fit_edges(points: Sequence[Point], free: Sequence[str]) -> Row:
    """Least squares of relative errors over `free`, in relative steps; no edges unless they are free."""
    wafer = wafer_of(points[0])
    start = np.array([float(getattr(wafer, name)) for name in free])

    def residuals(factors: np.ndarray) -> np.ndarray:
        values = {EDGE: 0.0, **dict(zip(free, start * factors, strict=True))}
        other = wafer.model_copy(update=values)
        errors = [
            (predict_on(point, other).predicted or 0.0) / (point.measured or math.nan) - 1 for point in points
        ]
        return np.array(errors)

    found = least_squares(residuals, np.ones(len(free)), diff_step=1e-3)
    variance = 2 * found.cost / (len(points) - len(free))
    sigma = start * np.sqrt(np.diag(np.linalg.pinv(found.jac.T @ found.jac)) * variance)
    values = dict(zip(free, start * found.x, strict=True))
    answer: Row = {
        "relay_cycles": 2 * wafer.ramp_cycles + values[RELAY],
        "relay_sigma": float(sigma[0]),
        "rms": float(np.sqrt(np.mean(found.fun**2))),
        "largest": float(np.abs(found.fun).max()),
        "squares": float(np.sum(found.fun**2)),
    }
    if EDGE in values:
        answer |= {"edge_cycles": values[EDGE], "edge_sigma": float(sigma[-1])}
    return answer


def main() -> None:
    """Measure what is requested, print it, and keep it if asked."""
    parser = argparse.ArgumentParser(prog="benchmarks.grids", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="put the values into docs/measured.json")
    keeps = parser.parse_args().keep
    values = {"misaligned": misaligned(), "die_edges": die_edges()}
    print(json.dumps(values, indent=1))
    if keeps:
        measurements.keep("grids", values, "least squares; no draws, no clock")


if __name__ == "__main__":
    main()
