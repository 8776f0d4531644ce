"""Generation with a decoder model: prefill, decode, and the key-value cache that fits.

The layers of the model are split over square regions of P x P cores, on one wafer or over several; a
request passes through the regions one after the other.  Symbols: L layers, R regions in use, l =
ceil(L / R) layers of a region, B requests, C tokens of context, c_p and c_d cycles of a layer in prefill
and in decode (:mod:`wse_sim.modes.generation.layer`), f clock, h seconds to hand a token to the next region::

    stage         T = l c_d / f + h
    latency       t = L c_d / f + R h           the way through all regions, and back to the first
    token         max(t, B T)                   seconds between two tokens of one request
    per user      1 / token                     total B / token
    first token   L c_p / f + (R - 1) h_p       one prompt, alone in the pipeline

Requests take turns in a region, one token each; they are not joined into one product (no joined kernel
is published).  Memory of a core, with d = ceil(hidden / P), v = ceil(key width / P), s = ceil(C / P)::

    weights   2 l (2 d^2 + 2 d v + 3 d f)    bytes, fp16, f = ceil(ffn / P)
    cache     2 l B s 2 v                    bytes, fp16; the cache is kept even over all cores
    buffers   prefill of p tokens, q = ceil(p / P): x, q, k, v, context, gate, up, scores, moving tiles

As in the published kernels, embedding, output head and sampling are left out of time and memory, and
keys and values are computed at full width; they are stored at the width of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.compiler.plan import CoreMemory, Infeasible
from wse_sim.errors import ModelError
from wse_sim.frontend.parameters import ModelParameters, named_model, parse_parameters, read_model_file
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.kernels.contract.equations import CODE_BYTES
from wse_sim.modes.generation.layer import LayerShape, decode_layer_cycles, prefill_layer_cycles
from wse_sim.options import GenerationOptions
from wse_sim.units import cycles_to_s

ELEMENT_BYTES = 2  # fp16 weights, activations and cache
LEAST_GRID, GRID_STEP = 120, 20  # grids that are tried when none is asked for
GATED = ("swiglu", "geglu")
MODE = "generation"


@dataclass(frozen=True)
class Generation:
    """Speed and capacity of a decoder model; rates are tokens per second."""

    model: str
    wafer: str
    systems: int
    grid: int
    regions_per_wafer: int
    regions: int
    layers_per_region: int
    context: int
    prompt: int
    batch: int
    tokens_per_s_per_user: float
    tokens_per_s: float
    time_to_first_token_s: float
    prefill_tokens_per_s: float
    max_context: int  # of each of `batch` requests, in the regions in use
    max_context_wafer: int  # the same if every core of the systems could hold cache
    cache_bytes_per_token: int
    memory: CoreMemory
    memory_limit_bytes: int
    binding: str  # "latency" of one token through all layers, or "stage": regions are always busy
    parts: Mapping[str, float]  # seconds of one token on its way: by cause of cycles, and "handover"
    notes: tuple[str, ...]
    feasible: bool = True


@dataclass(frozen=True)
class _Split:
    """A grid, and how layers and cache lie on it."""

    grid: int
    per_wafer: int
    regions: int
    layers: int  # of a region
    d: int
    v: int
    f: int


def read_decoder(model: str | Mapping[str, Any]) -> tuple[str, ModelParameters]:
    """Name and sizes of a decoder with a gated feed-forward network.

    Raises
    ------
    ModelError
        If the model is no such decoder.
    """
    if isinstance(model, Mapping):
        name, sizes = "model", parse_parameters(model.get("model", model))
    elif model.endswith((".yaml", ".yml")):
        file = read_model_file(Path(model))
        name, sizes = file.name, file.model
    else:
        name, sizes = model, named_model(model).model
    if sizes.family != "decoder" or sizes.activation not in GATED:
        raise ModelError(
            f"'{name}' is a {sizes.family} with {sizes.activation}; generation needs a decoder with one of "
            f"{', '.join(GATED)}, for which prefill and decode kernels are published"
        )
    return name, sizes


def generate(
    model: str | Mapping[str, Any], options: GenerationOptions | None = None
) -> Generation | Infeasible:
    """Speed and capacity of generation with a model; a model that does not fit is a result.

    Raises
    ------
    ModelError
        If the model or an option is at fault.
    """
    options = options or GenerationOptions()
    wafer, cluster = machine_of(options)
    name, sizes = read_decoder(model)
    _check(options, wafer, cluster)
    grids = [options.grid] if options.grid else _grids(wafer)
    answers = [on_grid(name, sizes, options, wafer, cluster, grid) for grid in grids]
    fitting = [answer for answer in answers if isinstance(answer, Generation)]
    if fitting:
        return max(fitting, key=lambda answer: (answer.tokens_per_s_per_user, answer.grid))
    misfits = [answer for answer in answers if isinstance(answer, Infeasible)]
    return min(misfits, key=lambda answer: answer.need / answer.limit)


def machine_of(options: GenerationOptions) -> tuple[Wafer, Cluster]:
    wafer = load_wafer(options.wafer) if isinstance(options.wafer, str) else options.wafer
    cluster = load_cluster(options.cluster) if isinstance(options.cluster, str) else options.cluster
    return wafer, cluster


def _grids(wafer: Wafer) -> list[int]:
    """Sides to try: even steps, and the largest squares of which several fill the wafer."""
    side = min(wafer.program_rows, wafer.program_cols)
    whole = {length // parts for length in (wafer.program_rows, wafer.program_cols) for parts in range(1, 7)}
    steps = set(range(LEAST_GRID, side + 1, GRID_STEP))
    return sorted(grid for grid in whole | steps if LEAST_GRID <= grid <= side)


def _check(options: GenerationOptions, wafer: Wafer, cluster: Cluster) -> None:
    if options.systems > cluster.max_systems:
        raise ModelError(
            f"{options.systems} systems exceed the {cluster.max_systems} of cluster '{cluster.name}'; use fewer"
        )
    side = min(wafer.program_rows, wafer.program_cols)
    if options.grid is not None and options.grid > side:
        raise ModelError(f"grid {options.grid} exceeds the {side} of {wafer.name}; use a smaller grid")
    if options.grid is not None and (options.groups or 1) > options.grid:
        raise ModelError(f"groups {options.groups} exceed grid {options.grid}; use fewer groups")
    if options.prompt is not None and options.prompt > options.context:
        raise ModelError(f"prompt {options.prompt} exceeds context {options.context}; give a longer context")


def _width(sizes: ModelParameters) -> int:
    """Width of the stored keys of a layer."""
    hidden, heads = int(sizes.hidden or 0), int(sizes.heads or 1)
    return hidden * int(sizes.kv_heads or heads) // heads


def _split(sizes: ModelParameters, wafer: Wafer, systems: int, grid: int) -> _Split:
    per_wafer = (wafer.program_rows // grid) * (wafer.program_cols // grid)
    layers = -(-sizes.layers // (per_wafer * systems))
    hidden, ffn = int(sizes.hidden or 0), int(sizes.ffn or 0)
    return _Split(
        grid=grid,
        per_wafer=per_wafer,
        regions=-(-sizes.layers // layers),
        layers=layers,
        d=-(-hidden // grid),
        v=-(-_width(sizes) // grid),
        f=-(-ffn // grid),
    )


def core_memory(split: _Split, *, context: int, prompt: int, batch: int) -> CoreMemory:
    """Bytes of a core of a region; see the top of this file."""
    d, v, f = split.d, split.v, split.f
    s, q = -(-context // split.grid), -(-prompt // split.grid)
    moving = max(d * f, d * d, q * d, q * f)
    elements = 5 * q * d + q * q + 2 * q * f + 2 * moving
    return CoreMemory(
        weights_bytes=float(ELEMENT_BYTES * split.layers * (2 * d * d + 2 * d * v + 3 * d * f)),
        activations_bytes=float(ELEMENT_BYTES * split.layers * batch * s * 2 * v),
        buffers_bytes=float(ELEMENT_BYTES * elements),
        code_bytes=float(CODE_BYTES),
    )


def _max_context(split: _Split, wafer: Wafer, *, prompt: int, batch: int) -> int:
    """Longest context whose cache fits beside weights and buffers, in tokens; 0 if none does."""
    empty = core_memory(split, context=0, prompt=prompt, batch=batch).total_bytes
    slot = core_memory(split, context=split.grid, prompt=prompt, batch=batch).total_bytes - empty
    return max(0, int((wafer.sram_usable_bytes - empty) // slot)) * split.grid


def on_grid(
    name: str,
    sizes: ModelParameters,
    options: GenerationOptions,
    wafer: Wafer,
    cluster: Cluster,
    grid: int,
    factors: Mapping[str, float] | None = None,
) -> Generation | Infeasible:
    """One grid; `factors` scale the cycles of a layer in "decode" and in "prefill"."""
    slower = {"decode": 1.0, "prefill": 1.0, **(factors or {})}
    prompt = options.prompt or options.context
    split = _split(sizes, wafer, options.systems, grid)
    memory = core_memory(split, context=options.context, prompt=prompt, batch=options.batch)
    if memory.total_bytes > wafer.sram_usable_bytes:
        return Infeasible(
            mode=MODE,
            model=name,
            binding="SRAM",
            need=memory.total_bytes,
            limit=float(wafer.sram_usable_bytes),
            unit="bytes",
            where=f"a core of {split.regions} regions of {grid} x {grid} ({split.layers} layers each)",
            remedy="use more systems, a shorter context, fewer requests or a smaller model",
        )
    shape = LayerShape(int(sizes.hidden or 0), int(sizes.ffn or 0))
    decode = slower["decode"] * decode_layer_cycles(
        shape, options.context, grid, wafer, groups=options.groups
    )
    prefill = slower["prefill"] * prefill_layer_cycles(shape, prompt, grid, wafer)
    clock = wafer.clock_hz
    layer_s = cycles_to_s(float(np.asarray(decode.total)), clock)
    prefill_s = cycles_to_s(float(np.asarray(prefill.total)), clock)
    inside, between = _handover_s(split, 1, sizes, wafer, cluster)
    inside_p, between_p = _handover_s(split, prompt, sizes, wafer, cluster)
    wafers = -(-split.regions // split.per_wafer)
    steps_inside = split.regions - wafers
    # The sampled token goes back to the first region: over the fabric, or between wafers.
    back = between if wafers > 1 else (inside if split.regions > 1 else 0.0)
    handover = steps_inside * inside + (wafers - 1) * between + back
    latency = sizes.layers * layer_s + handover
    stage = split.layers * layer_s + max(inside if steps_inside else 0.0, between if wafers > 1 else 0.0)
    token = max(latency, options.batch * stage)
    first = sizes.layers * prefill_s + steps_inside * inside_p + (wafers - 1) * between_p
    parts = {
        key: cycles_to_s(sizes.layers * float(np.asarray(part)), clock)
        for key, part in decode.parts().items()
    }
    cache = 2 * _width(sizes) * sizes.layers * ELEMENT_BYTES
    return Generation(
        model=name,
        wafer=wafer.name,
        systems=options.systems,
        grid=grid,
        regions_per_wafer=split.per_wafer,
        regions=split.regions,
        layers_per_region=split.layers,
        context=options.context,
        prompt=prompt,
        batch=options.batch,
        tokens_per_s_per_user=1.0 / token,
        tokens_per_s=options.batch / token,
        time_to_first_token_s=first,
        prefill_tokens_per_s=prompt / (split.layers * prefill_s + max(inside_p, between_p)),
        max_context=_max_context(split, wafer, prompt=prompt, batch=options.batch),
        max_context_wafer=_wafer_context(sizes, options, wafer, cache),
        cache_bytes_per_token=cache,
        memory=memory,
        memory_limit_bytes=wafer.sram_usable_bytes,
        binding="latency" if latency >= options.batch * stage else "stage",
        parts={**parts, "handover": handover},
        notes=(
            "embedding, output head and sampling are not counted",
            "keys and values are computed at full width and stored at the model's",
            "prefill rate: prompts follow each other through the regions",
        ),
    )


def _handover_s(
    split: _Split, tokens: int, sizes: ModelParameters, wafer: Wafer, cluster: Cluster
) -> tuple[float, float]:
    """Seconds to hand the hidden state of `tokens` tokens to the next region, on a wafer and between two."""
    elements = -(-tokens // split.grid) * split.d if tokens > 1 else split.d
    link = elements * ELEMENT_BYTES / wafer.link_bytes_per_cycle + split.grid * wafer.hop_cycles
    inside = cycles_to_s(link + wafer.task_start_cycles, wafer.clock_hz)
    size = tokens * int(sizes.hidden or 0) * ELEMENT_BYTES
    return inside, inside + size / wafer.io_bytes_per_s + cluster.swarmx_hop_s


def _wafer_context(sizes: ModelParameters, options: GenerationOptions, wafer: Wafer, cache: int) -> int:
    hidden, ffn = int(sizes.hidden or 0), int(sizes.ffn or 0)
    weights = ELEMENT_BYTES * sizes.layers * (2 * hidden**2 + 2 * hidden * _width(sizes) + 3 * hidden * ffn)
    room = options.systems * wafer.program_cores * (wafer.sram_usable_bytes - CODE_BYTES) - weights
    return max(0, int(room // (cache * options.batch)))
