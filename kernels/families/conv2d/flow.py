"""Convolution with stationary weights as a fabric program: pixels arrive unfolded.

Filters are stationary: channels and taps over the rows, filters over the columns (or vice versa). The cores
at the head of the rows store the lines of the image. For every pixel of the result they send the c r s values
under its taps. The rest is the product of :mod:`wse_sim.kernels.blocks.triggered_products`, and for the weight
gradient that of :mod:`wse_sim.kernels.blocks.outer`.  A transposed convolution of stride z has up to z z
classes of results, each with the taps that reach it. One gradient pixel gives one round per class; the
formula counts the words of all these rounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.outer import outer_program, tiles
from wse_sim.kernels.blocks.triggered_products import Operands, TriggeredShape, shape_program
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Array, Case, Dims, ProgramOptions, Tiling, asked
from wse_sim.kernels.families.conv2d import reference as values
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.convolve import blocks, reference
from wse_sim.kernels.families.conv2d.cost import as_product
from wse_sim.kernels.families.conv2d.strip import Strip, strip_of


def flowing_program(dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
    """Return the program and the values of one group of channels and filters, or of the groups of one row of
    cores.

    Raises
    ------
    KernelError
        For the weight gradient of a transposed convolution.
    """
    phase, dtype, attrs = asked(options)
    groups = Conv2dAttributes.of(attrs).groups
    way = as_product(dims, tiling, wafer, asked(options)).way
    rows, cols = int(way.along), int(way.across)
    strip = strip_of({**dims, "b": 1}, Tiling(1, 1, "streamed"), attrs)
    rng = np.random.default_rng(int(options.get("seed", 0)))
    c, k = int(dims["c"]) // groups, int(dims["k"]) // groups
    # Groups share the rows; with more groups than rows, those of a row follow each other.
    each, rows = ceil_div(groups, rows), max(1, rows // groups)
    if phase is Phase.WEIGHT_GRADIENT and strip.transposed:
        raise KernelError("conv2d: the weight gradient of a transposed convolution has no fabric program")
    size = (int(dims["b"]), strip.height, strip.width, c)
    images = [rng.integers(-2, 3, size).astype(np.float32) for _ in range(each)]
    given: dict[str, Any] = {"dtype": dtype, "attrs": {"accumulate": Conv2dAttributes.of(attrs).accumulate}}
    if phase is Phase.WEIGHT_GRADIENT:
        gradients = [_gradient(strip, image, rng, k) for image in images]
        sizes = {"m": gradients[0][0].shape[1], "k": gradients[0][0].shape[0], "n": k}
        return outer_program(sizes, Tiling(rows, cols), wafer, groups=each, operands=gradients, **given)
    weights = [rng.integers(-2, 3, (strip.r, strip.s, c, k)).astype(np.float32) for _ in images]
    out = int(dims["out_h"]), int(dims["out_w"])
    pairs = list(zip(images, weights, strict=True))
    words, rest = zip(
        *(_operands(strip, image, filters, rows, cols) for image, filters in pairs), strict=True
    )
    wanted = [_wanted(strip, image, filters, out, cols) for image, filters in pairs]
    pieces = tuple(ceil_div(len(matrix), rows) for matrix in _by_class(strip, weights[0]))
    operands = Operands(np.stack(words, axis=1)[None], np.stack(rest, axis=2)[None])
    rounds, f = words[0].shape[1:]
    shape = TriggeredShape(cols, rows, rounds, f, ceil_div(k, cols), False, parts=pieces, groups=each)
    case = shape_program(shape, wafer, operands=operands, **given)
    return replace(case, expected={"sums0": np.stack(wanted, axis=1).reshape(1, cols, -1)})


def _operands(strip: Strip, images: Array, weights: Array, rows: int, cols: int) -> tuple[Any, Any]:
    """Return words (rows, rounds, f) and stationary operands (columns, rows, f, v), class after class."""
    words, rest = [], []
    for matrix, filters in zip(unfold(strip, images), _by_class(strip, weights), strict=True):
        words.append(tiles(matrix.T, rows).transpose(0, 2, 1))
        rest.append(tiles(tiles(filters, rows).transpose(2, 0, 1), cols).transpose(0, 2, 3, 1))
    return np.concatenate(words, axis=-1), np.concatenate(rest, axis=2)


def unfold(strip: Strip, images: Array) -> list[Any]:
    """Return the operands of the taps per class of results, (rounds, taps x channels); a round is a pixel of
    the strip."""
    b, _, _, c = images.shape
    stored = np.zeros((b, strip.held, strip.phases * strip.reach, c), np.float32)
    width = min(strip.width, stored.shape[2] - strip.left)
    height = min(strip.height, strip.held - strip.above)
    stored[:, strip.above :, strip.left :][:, :height, :width] = images[:, :height, :width]
    found: list[list[Any]] = [[] for _ in strip.classes]
    for tap in strip.taps:
        lines = stored[:, tap.line :: tap.step][:, : strip.lines]
        first = strip.phases * tap.position + tap.phase
        met = lines[:, :, first :: strip.phases][:, :, : strip.pixels]
        found[tap.cls].append(met.reshape(-1, c))
    return [np.concatenate(parts, axis=1) for parts in found]


def _by_class(strip: Strip, weights: Array) -> list[Any]:
    """Return the weights (taps x channels, filters) per class of results, in the order of :func:`unfold`."""
    found: list[list[Any]] = [[] for _ in strip.classes]
    for tap in strip.taps:
        found[tap.cls].append(weights[tap.i, tap.j])
    return [np.concatenate(parts, axis=0) for parts in found]


def _wanted(strip: Strip, images: Array, weights: Array, out: tuple[int, int], cols: int) -> Array:
    """Return the expected sums (columns, rounds x classes x filters of a column), by `compute` or
    `gradient`."""
    results = [blocks(strip, reference(strip, image, weights, 1, out))[0] for image in images]
    # (filters, images, classes, pixels of the strip)
    whole = np.stack(results, axis=1).reshape(weights.shape[-1], len(images), len(strip.classes), -1)
    ordered = tiles(whole, cols).transpose(0, 2, 4, 3, 1)
    return ordered.reshape(cols, -1)


def _gradient(strip: Strip, images: Array, rng: np.random.Generator, k: int) -> tuple[Array, Array, Array]:
    """Return unfolded pixels, gradients, and the filters' gradient (taps x channels, filters) by
    `gradient`."""
    (unfolded,) = unfold(strip, images)
    gradient = rng.integers(-2, 3, (len(images), strip.lines, strip.pixels, k)).astype(np.float32)
    filters = np.zeros((strip.r, strip.s, images.shape[-1], k), np.float32)
    how: dict[str, Any] = {"stride": strip.stride, "padding": strip.pad, "dilation": strip.dilation}
    wanted = values.gradient(images, filters, gradient, **how)[1]
    return unfolded, gradient.reshape(-1, k), wanted.reshape(-1, k)
