"""Closed-form costs of the vector unit and of rows of cores, from which every `cost` is built.

Symbols: o = vector_start_cycles, o_map = map_element_cycles, L = loop_cycles, S = step_cycles, s =
triggered_start_cycles, w = elements per cycle, hop = hop_cycles, T_R = ramp_cycles. All functions broadcast
over integer arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import overload

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import (
    Cost,
    Footprint,
    Size,
    Tiling,
    check_tiling,  # noqa: F401  families know it from here
)
from wse_sim.kernels.contract.parameters import HALF_SUMS, Bundles, spaced
from wse_sim.units import BYTES_PER_DTYPE, BYTES_PER_WAVELET

FloatArray = NDArray[np.float64]
PRECISIONS = ("fp32", "fp16", "bf16", "cbfloat16", "int8")

# Functions that a core computes element by element in scalar code.
SPECIAL_FUNCTIONS = frozenset(
    [
        "gelu",
        "gelu_tanh",
        "silu",
        "swish",
        "tanh",
        "sigmoid",
        "exp",
        "log",
        "erf",
        "softplus",
        "sin",
        "cos",
        "pow",
        "mish",
        "elu",
        "selu",
        "hardswish",
        "rsqrt",
        "sqrt",
        "div",
        "reciprocal",
        "dropout",
        "rand",
        "softmax",
        "logsumexp",
        "swiglu",
        "geglu",
        "glu",
    ]
)


@overload
def ceil_div(a: int, b: int) -> int: ...


@overload
def ceil_div(a: Size, b: Size) -> Size: ...


def ceil_div(a: Size, b: Size) -> Size:
    """Return the ceiling of `a / b` for integers or integer arrays."""
    return -(-a // b)


def least_share(items: int, cores: Size) -> Size:
    """Return the items per core with equally loaded cores: the least divisor of the items that needs at most
    `cores` cores."""
    divisors = np.array([d for d in range(1, items + 1) if items % d == 0])
    return divisors[np.searchsorted(divisors, ceil_div(items, np.asarray(cores)))]


def ceil_rate(n: Size, rate: float | FloatArray) -> Size:
    """Return the cycles to issue `n` elements at `rate` elements per cycle (one rate, or one per draw):
    ``ceil(n / rate)``."""
    if isinstance(rate, np.ndarray):
        return np.where(rate == 1.0, np.asarray(n) * 1.0, np.ceil(np.asarray(n) / rate - 1e-9))
    if rate == 1.0:
        return n * 1.0
    # A small relative correction keeps 3 x 1.1 / 1.1 from rounding up.
    return np.ceil(np.asarray(n) / rate - 1e-9) if np.ndim(n) else float(np.ceil(n / rate - 1e-9))


def check_precision(dtype: str) -> None:
    """Check that cores have a precision.

    Raises
    ------
    KernelError
        If `dtype` is not one of fp32, fp16, bf16, cbfloat16, int8.
    """
    if dtype not in PRECISIONS:
        raise KernelError(f"precision '{dtype}' is unknown to the cores; use one of {', '.join(PRECISIONS)}")


def bytes_of(dtype: str) -> int:
    """Return the bytes of one element.

    Raises
    ------
    KernelError
        If the precision is unknown.
    """
    try:
        return BYTES_PER_DTYPE[dtype]
    except KeyError:
        raise KernelError(
            f"precision '{dtype}' is unknown; use one of {', '.join(sorted(BYTES_PER_DTYPE))}"
        ) from None


@overload
def words(elements: int, dtype: str) -> int: ...


@overload
def words(elements: Size, dtype: str) -> Size: ...


def words(elements: Size, dtype: str) -> Size:
    """Return the wavelets that carry `elements` elements: one per fp32 element, one per two 16-bit
    elements."""
    per_wavelet = max(1, BYTES_PER_WAVELET // bytes_of(dtype)) if dtype != "int8" else 2
    return ceil_div(elements, per_wavelet)


def fma_rate(dtype: str, wafer: Wafer, accumulate: str = "fp32") -> float:
    """Return the multiply-accumulates per cycle: fp32; 16-bit operands with fp32 sums (mixed); or 16 bits
    throughout."""
    check_precision(dtype)
    if dtype == "fp32":
        return wafer.fma_fp32_per_cycle
    return wafer.fma_fp16_per_cycle if accumulate in HALF_SUMS else wafer.fma_mixed_per_cycle


def add_rate(dtype: str, wafer: Wafer) -> float:
    """Return the additions per cycle of two vectors in memory."""
    return wafer.add_fp32_memory_per_cycle if dtype == "fp32" else wafer.add_fp16_per_cycle


def mov_rate(dtype: str, wafer: Wafer) -> float:
    """Return the elements copied per cycle."""
    return wafer.mov_fp32_per_cycle if dtype == "fp32" else wafer.mov_fp16_per_cycle


def max_rate(dtype: str, wafer: Wafer) -> float:
    """Return the maxima per cycle of two vectors."""
    return wafer.max_fp32_per_cycle if dtype == "fp32" else wafer.max_fp16_per_cycle


def relay_cycles(wafer: Wafer) -> float:
    """Return the cycles to receive a word, process it and send it to the next core: one hop and ``2 T_R +
    1``."""
    return wafer.hop_cycles + wafer.handover_cycles


def crossing_cycles(rows: Size, wafer: Wafer) -> Size:
    """Return the cycles for die edges between the first row of a program and its row `rows`."""
    if not wafer.die_crossing_cycles:
        return 0
    found: Size = wafer.die_crossing_cycles * np.searchsorted(wafer.die_edges(wafer.rows), rows, side="right")
    return found


def fill_cycles(rows: Size, cols: Size, wafer: Wafer) -> Size:
    """Return the cycles in which the first word crosses a rectangle, with one ramp at each end."""
    return (rows + cols - 2) * wafer.hop_cycles + wafer.handover_cycles


def per_core(elements: Size, tiling: Tiling) -> Size:
    """Return the elements of the fullest core if they are spread over the whole rectangle."""
    return ceil_div(elements, tiling.rows * tiling.cols)


def edge_wait(elements_in: Size, busy: Size, tiling: Tiling, dtype: str, wafer: Wafer) -> Size:
    """Return the cycles that a pipelined region waits for its operands, beyond `busy`.

    Operands enter over the west edge, on one link per row. Those of a streamed kernel are already on the
    wafer.
    """
    if tiling.mapping != "stationary":
        return 0.0 * busy
    arrive = words(ceil_div(elements_in, tiling.rows), dtype) * wafer.wavelet_cycles
    return np.maximum(0.0, arrive - busy)


def divisors(count: int, most: int) -> tuple[int, ...]:
    """Return the divisors of `count` up to `most`; at least 1.

    >>> divisors(12, 4)
    (1, 2, 3, 4)
    """
    return (1, *(part for part in range(2, most + 1) if count % part == 0))


def up_to(counts: Sequence[int], limit: Size) -> Size:
    """Return the last of the ascending `counts` up to `limit`, a number or an array; the first if none is."""
    return np.array(counts)[np.maximum(0, np.searchsorted(counts, limit, side="right") - 1)]


def largest_of(elements: Size, count: int, bundles: Bundles | None) -> Size:
    """Return the elements of the largest of `count` bundles, of a tensor of `elements`; parts of a token differ by
    at most one word.

    >>> largest_of(28, 3, Bundles(4, 7))
    12
    """
    if count == 1 or bundles is None:
        return elements
    return elements // bundles.of_token * -(-bundles.of_token // count)


def has_room(elements: Size, bundles: Bundles | None, wafer: Wafer) -> Size:
    """Return whether a core with `elements` of a sample has room for the samples in flight; vectors start every four."""
    kept = 0 if bundles is None else bundles.kept
    return kept * 4 * ceil_div(elements, 4) <= wafer.sram_bytes


def stored_cycles(elements: Size, wafer: Wafer) -> Size:
    """Return the cycles in which a core stores fp16 elements of an operand that waits, and sends them word by word."""
    return elements / wafer.mov_fp16_per_cycle + words(elements, "fp16")


def pointwise(
    elements: Size,
    tiling: Tiling,
    wafer: Wafer,
    *,
    dtype: str,
    issue: float = 0.0,
    special: float = 0.0,
    scalar: float = 0.0,
    instructions: int = 1,
    inputs: int = 1,
    bundles: Bundles | None = None,
) -> Cost:
    """Return the cost of work on `elements` elements spread over all cores of the rectangle.

    T = n (issue + special e + scalar) + instructions o + fill,  n = ceil(elements / cores)

    `bundles`, if not None: n is rounded up to whole words (or units), which a core receives operand by operand, and
    sends. In a region all operands share the links of its cores. The rows form up to `bundles.most` bands with
    one bundle of the words of every token each, and the fastest number is counted. Cores of a column send in
    sequence, so a region of the wafer's full height leaves its last row to other streams.

    All pixels of an image may meet the one pixel of `bundles.shared` operands: a core has whole pixels, and works on one
    after the other.

    Per element: `issue` vector issue cycles, `special` special elements, `scalar` cycles of other scalar
    code. `instructions`: vector starts. `inputs`: operands that arrive.
    """

    on_links = bundles is not None and tiling.mapping == "stationary"
    high = (
        tiling.rows - ((tiling.rows == wafer.rows) & (wafer.rows > 1)) if bundles is not None else tiling.rows
    )

    def band(count: int) -> Cost:
        rows = np.maximum(1, high // count)
        size = largest_of(elements, count, bundles)
        n = ceil_div(size, rows * tiling.cols) if bundles is not None else per_core(elements, tiling)
        if bundles is not None:
            unit = bundles.unit * 4 // bytes_of(dtype)
            if bundles.shared:
                unit *= ceil_div(bundles.of_token, count)
            n = ceil_div(n, unit) * unit
        whole, pixel = (inputs - bundles.shared, unit) if bundles is not None else (inputs, 0)
        held = (inputs - whole) * words(pixel, dtype)
        compute = n * (issue + scalar)
        odd = n * special * wafer.special_element_cycles
        startup = instructions * wafer.vector_start_cycles + 0.0 * n
        if whole < inputs:
            compute = n // unit * ceil(unit * (issue + scalar))
            startup = n // unit * instructions * ceil(wafer.vector_start_cycles) + 0.0 * n
        ramp = (whole + 1) * words(n, dtype) + held if bundles is not None else 0.0 * n
        busy = compute + odd + startup + ramp
        streams = max(whole, bundles.streams) if bundles is not None else inputs
        linked = (streams * words(size, dtype) + held) * wafer.wavelet_cycles if on_links else 0.0
        if on_links and whole < inputs:  # the image comes first and waits
            linked = np.maximum(linked, stored_cycles(size, wafer))
        late = np.maximum(0.0, linked - busy)
        return Cost(
            ramp=ramp,
            compute=compute,
            special=odd,
            startup=startup,
            stalled_input=np.where(
                np.logical_and(is_possible(count), has_room(n, bundles, wafer)), late, np.inf
            ),
            fabric=0.0 * n if on_links else edge_wait(elements * inputs, busy, tiling, dtype, wafer),
            idle=fill_cycles(tiling.rows, tiling.cols, wafer) if tiling.mapping == "stationary" else 0.0 * n,
        )

    stores = bundles.stores if bundles is not None else 0

    def is_possible(count: int) -> Size:
        if bundles is not None and bundles.unit > 1 and bundles.of_token // bundles.unit % count:
            return np.zeros(np.shape(high), bool)
        has_rows = (count == 1) | (high >= count * (inputs + stores))
        return has_rows & (bundles is None or count >= bundles.least)

    found = band(1)
    for count in spaced(range(2, bundles.most + 1)) if bundles is not None else ():
        found = found.or_faster(band(count))
    return found


def pointwise_footprint(
    elements: Size, tiling: Tiling, wafer: Wafer, dtype: str, buffers: int = 2
) -> Footprint:
    """Return the footprint of elementwise work: stage buffers and code; the compiler counts resident
    operands.

    Pipelined regions store one piece per buffer; streamed kernels work in place with a short buffer.
    """
    n = per_core(elements, tiling)
    chunk = np.minimum(n, CHUNK_ELEMENTS) if tiling.mapping == "streamed" else n
    return Footprint(buffers_bytes=buffers * chunk * bytes_of(dtype), code_bytes=wafer.kernel_code_bytes)


# Streamed kernels work through resident data in pieces of this many elements.
CHUNK_ELEMENTS = 256


def row_allreduce(n: Size, cols: Size, wafer: Wafer) -> Cost:
    """Return the cost of an all-reduce of `n` fp32 words along rows of `cols` cores: a chain, then a
    multicast back.

    T = n + (hop + 2 T_R + 1)(P - 1) + o   and   n + hop (P - 1) + 2 T_R + o
    """
    n = n * 1.0
    latency = (cols - 1) * (relay_cycles(wafer) + wafer.hop_cycles) + 2 * wafer.ramp_cycles
    return Cost(
        fabric=2 * n * wafer.wavelet_cycles,
        startup=2 * wafer.vector_start_cycles + 0.0 * n,
        idle=latency + 0.0 * n,
    )
