"""Quantized weights of 8 or 4 bits, and the distribution of experts over tokens.

A weight of a layer is stored as a number of `bits` bits, with an fp16 scale for every :data:`GROUP` weights
of a core's tile. It is converted to fp16 once per turn, for any number of tokens, one group at a time. The
time is measured: ``unpack/pe.csl`` runs on this project's CSL machine, for the given wafer. Embedding and
head are stored in fp16.

Assumed: groups of 128, which is usual; the tile's product starts after its weights are unpacked, without
overlap.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np

from wse_sim.errors import ModelError
from wse_sim.files import read_json
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Size
from wse_sim.modes.generation.decoder import LayerWork, Product
from wse_sim.modes.generation.grid import Sides

GROUP = 128  # weights with one scale
SOURCES = Path(__file__).parent / "unpack"
ARCH = "wse2"  # an architecture name of the language; cycles come from the wafer's constants
FULL_BITS, ELEMENT_BYTES, WORD_BYTES = 16, 2, 2


def weight_bytes(bits: int) -> float:
    """Return the bytes of a stored weight, with its part of a scale.

    Example
    -------
    >>> weight_bytes(16), weight_bytes(4)
    (2.0, 0.515625)
    """
    return bits / 8 + (ELEMENT_BYTES / GROUP if bits < FULL_BITS else 0.0)


def unpacked_bytes(bits: int) -> float:
    """Return the bytes per core for a group being unpacked: numbers, and fp16."""
    return float(GROUP * (WORD_BYTES + ELEMENT_BYTES)) if bits < FULL_BITS else 0.0


def packed(work: LayerWork, bits: int, wafer: Wafer) -> LayerWork:
    """Return the layer with its weights stored in `bits` bits."""
    if bits == FULL_BITS:
        return work
    return dataclasses.replace(work, bits=bits, unpack_cycles=group_cycles(bits, wafer) / GROUP)


def unpacked_cycles(work: LayerWork, product: Product, grid: Sides) -> Size:
    """Return the cycles in which a core unpacks the matrices of a product for one token, rounded up to whole groups."""
    if not work.unpack_cycles:
        return 0.0
    # With experts on separate cores, a core has one expert; otherwise it has tiles of all.
    times = product.times / product.share if work.has_squares(product) else product.times
    return times * ceil_div(work.tile(product, grid), GROUP) * GROUP * work.unpack_cycles


def group_cycles(bits: int, wafer: Wafer) -> float:
    """Return the cycles to unpack one group, measured by the program once per wafer."""
    return _measured(bits, _Machine(wafer, wafer.model_dump_json(exclude={"provenance"})))


@dataclasses.dataclass(frozen=True)
class _Machine:
    """A wafer as a cache key that compares by its constants."""

    wafer: Wafer = dataclasses.field(compare=False)
    constants: str


@functools.lru_cache(maxsize=64)
def _measured(bits: int, machine: _Machine) -> float:
    from wse_sim.csl.timed import timed_cycles, timed_run

    run = timed_run(
        {
            "layout": "layout.csl",
            "params": {"elements": GROUP, "bits": bits},
            "launch": ["fill", "unpack"],
            "stamps": "stamps",
        },
        "unpack",
    )
    return timed_cycles(SOURCES, run, machine.wafer, ARCH)


def loaded(work: LayerWork, experts: str, layout: str = "spread") -> LayerWork:
    """Return the layer with experts distributed as `experts` (uniform, identical, or table:FILE); `layout`:
    spread or apart.

    Raises
    ------
    ModelError
        If the distribution or layout is unknown, or the layer has no experts.
    """
    if layout == "apart":
        if work.experts == 1:
            raise ModelError("experts apart need a model with experts; leave --expert-layout out")
        work = dataclasses.replace(work, is_apart=True)
    if experts == "uniform":
        return work
    groups, share = max(((p.groups, p.share) for p in work.products), default=(1, 1.0))
    if groups == 1:
        raise ModelError(f"experts '{experts[:60]}' need a model with experts; leave --experts out")
    if experts == "identical":
        return dataclasses.replace(work, is_identical=True)
    form, _, name = experts.partition(":")
    if form != "table" or not name:
        raise ModelError(f"experts '{experts[:60]}' are not known; use uniform, identical or table:FILE")
    return dataclasses.replace(work, expert_loads=probabilities(read_loads(name, groups), share))


def read_loads(name: str, groups: int) -> tuple[float, ...]:
    """Return relative loads of experts from a JSON list of numbers.

    Raises
    ------
    ModelError
        If the file has no such list.
    """
    data: object = read_json(Path(name), "table of experts")
    if not isinstance(data, list) or len(data) != groups:
        raise ModelError(f"{name} contains no list of {groups} loads; give one number for each expert")
    for number, one in enumerate(data):
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one < 1e18:
            raise ModelError(f"{name}: load {number} is '{str(one)[:40]}'; give a number above 0")
    return tuple(float(one) for one in data)


def probabilities(loads: tuple[float, ...], share: float) -> tuple[float, ...]:
    """Return the probability that a token uses each expert, in proportion to its load but at most 1; their
    sum is `share`.

    Example
    -------
    >>> probabilities((1.0, 1.0, 97.0), 2.0)
    (0.5, 0.5, 1.0)
    """
    weights, found = np.array(loads), np.zeros(len(loads))
    while True:
        rest = found < 1.0
        scale = (share - (~rest).sum()) / weights[rest].sum() if rest.any() else 0.0
        over = rest & (scale * weights >= 1.0)
        if not over.any():
            found[rest] = scale * weights[rest]
            return tuple(found.tolist())
        found[over] = 1.0
