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

from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.flow import run_steps, step
from wse_sim.compiler.plan import CoreMemory, Infeasible, Region
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.kernels.contract.equations import CODE_BYTES
from wse_sim.modes.generation.layer import LayerShape, decode_layer_cycles, prefill_layer_cycles
from wse_sim.modes.generation.plan import GenerationPlan, LayerRegion
from wse_sim.units import cycles_to_s

ELEMENT_BYTES = 2  # fp16 weights, activations and cache
LEAST_GRID, GRID_STEP = 120, 20  # grids that are tried when none is asked for
GATED = ("swiglu", "geglu")
NOTES = (
    "embedding, output head and sampling are not counted",
    "keys and values are computed at full width and stored at the model's",
    "prefill rate: prompts follow each other through the regions",
)


@dataclass(frozen=True)
class GenerationOptions:
    """What a user may fix: `batch` requests at a time; `prompt` None takes the context, `grid` None the fastest.

    The context, in tokens, is the sequence length of the graph; `groups` are those of an all-reduce.
    """

    batch: int = 1
    prompt: int | None = None
    grid: int | None = None
    groups: int | None = None


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder with a gated feed-forward network, as its graph states them."""

    layers: int
    hidden: int
    ffn: int
    key_width: int  # of the stored keys of a layer
    context: int


def plan_generation(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, systems: int, options: GenerationOptions
) -> GenerationPlan | Infeasible:
    """Run :data:`STEPS`."""
    given = {"graph": graph, "wafer": wafer, "cluster": cluster, "systems": systems, "options": options}
    return _plan_of(run_steps(STEPS, given))


def _plan_of(values: dict[str, object] | Infeasible) -> GenerationPlan | Infeasible:
    if isinstance(values, Infeasible):
        return values
    plan = values["plan"]
    assert isinstance(plan, GenerationPlan)  # of the lists below; not of a user
    return plan


# The steps, in the order in which they run


@step("decoder")
def read_decoder(graph: KernelGraph) -> Decoder:
    """Read the sizes of the decoder from the facts of its graph."""
    facts = graph.facts
    activation, family = str(facts.get("activation", "")), str(facts.get("family", "model"))
    if family != "decoder" or activation not in GATED or graph.training:
        what = "training graph" if graph.training else f"{family} with {activation or 'no stated activation'}"
        raise ModelError(
            f"'{graph.name}' is a {what}; generation needs the inference graph of a decoder with one of "
            f"{', '.join(GATED)}, for which prefill and decode kernels are published"
        )
    hidden, heads = int(facts["hidden"]), int(facts["heads"])
    return Decoder(
        layers=int(facts["layers"]),
        hidden=hidden,
        ffn=int(facts["ffn"]),
        key_width=hidden * int(facts.get("kv_heads") or heads) // heads,
        context=int(facts["seq"]),
    )


@step("prompt")
def check_request(
    wafer: Wafer, cluster: Cluster, systems: int, options: GenerationOptions, decoder: Decoder
) -> int:
    """Reject impossible requests; the prompt is the whole context unless asked."""
    _check(options, decoder.context, wafer, cluster, systems)
    return options.prompt or decoder.context


@step("plan")
def try_grids(
    graph: KernelGraph,
    wafer: Wafer,
    cluster: Cluster,
    systems: int,
    options: GenerationOptions,
    decoder: Decoder,
    prompt: int,
) -> GenerationPlan | Infeasible:
    """Run :data:`ATTEMPT` on every grid; take the fastest for one user, or the misfit that is closest."""
    given = {
        "graph": graph, "wafer": wafer, "cluster": cluster, "systems": systems, "options": options,
        "decoder": decoder, "prompt": prompt,
    }  # fmt: skip
    grids = [options.grid] if options.grid else _grids(wafer)
    answers = [_plan_of(run_steps(ATTEMPT, {**given, "grid": grid})) for grid in grids]
    fitting = [answer for answer in answers if isinstance(answer, GenerationPlan)]
    if fitting:
        return min(fitting, key=lambda plan: (token_s(plan), -plan.grid))
    return min(
        (answer for answer in answers if isinstance(answer, Infeasible)),
        key=lambda answer: answer.need / answer.limit,
    )


@step("split")
def split_layers(wafer: Wafer, systems: int, decoder: Decoder, grid: int) -> Split:
    """Share the layers over the regions of all wafers, as evenly as whole layers allow."""
    return split_of(decoder, wafer, systems, grid)


@step("memory")
def fit_memory(
    graph: KernelGraph, wafer: Wafer, options: GenerationOptions, decoder: Decoder, prompt: int, split: Split
) -> CoreMemory | Infeasible:
    """Weights, cache and buffers must fit a core."""
    memory = core_memory(split, context=decoder.context, prompt=prompt, batch=options.batch)
    if memory.total_bytes <= wafer.sram_usable_bytes:
        return memory
    return Infeasible(
        mode="generation",
        model=graph.name,
        binding="SRAM",
        need=memory.total_bytes,
        limit=float(wafer.sram_usable_bytes),
        unit="bytes",
        where=f"a core of {split.regions} regions of {split.grid} x {split.grid} ({split.layers} layers each)",
        remedy="use more systems, a shorter context, fewer requests or a smaller model",
    )


@step("regions")
def place_regions(
    wafer: Wafer, cluster: Cluster, decoder: Decoder, prompt: int, split: Split
) -> tuple[LayerRegion, ...]:
    """Lay the regions out in rows, back and forth, so that consecutive ones touch; price the ways between."""
    inside, between = _handover_s(split, 1, decoder, wafer, cluster)
    inside_prompt, between_prompt = _handover_s(split, prompt, decoder, wafer, cluster)
    across, wafers = wafer.program_cols // split.grid, -(-split.regions // split.per_wafer)
    found = []
    for number in range(split.regions):
        system, place = divmod(number, split.per_wafer)
        row, col = divmod(place, across)
        col = across - 1 - col if row % 2 else col
        first = number * split.layers
        layers = min(split.layers, decoder.layers - first)
        is_last = number == split.regions - 1
        leaves = not is_last and (number + 1) % split.per_wafer == 0
        # The sampled token goes back to the first region: over the fabric, or between wafers.
        back = between if wafers > 1 else (inside if split.regions > 1 else 0.0)
        found.append(
            LayerRegion(
                name=f"layer {first}" if layers == 1 else f"layers {first} to {first + layers - 1}",
                wafer=system,
                first_layer=first,
                layers=layers,
                region=Region(row * split.grid, col * split.grid, split.grid, split.grid, split.grid**2),
                token_handover_s=back if is_last else (between if leaves else inside),
                prompt_handover_s=0.0 if is_last else (between_prompt if leaves else inside_prompt),
            )
        )
    return tuple(found)


@step("plan")
def price_layers(
    machine: Machine,
    decoder: Decoder,
    prompt: int,
    split: Split,
    memory: CoreMemory,
    regions: tuple[LayerRegion, ...],
) -> GenerationPlan:
    """Price a layer for a token and for a prompt; put the plan together."""
    wafer, options = machine.wafer, machine.options
    shape = LayerShape(decoder.hidden, decoder.ffn)
    decode = decode_layer_cycles(shape, decoder.context, split.grid, wafer, groups=options.groups)
    prefill = prefill_layer_cycles(shape, prompt, split.grid, wafer)
    cache = 2 * decoder.key_width * decoder.layers * ELEMENT_BYTES
    return GenerationPlan(
        graph=machine.graph,
        wafer=wafer,
        cluster=machine.cluster,
        systems=machine.systems,
        batch=options.batch,
        context=decoder.context,
        prompt=prompt,
        hidden=decoder.hidden,
        ffn=decoder.ffn,
        grid=split.grid,
        groups=options.groups,
        regions_per_wafer=split.per_wafer,
        layers_per_region=split.layers,
        regions=regions,
        decode_cycles=float(np.asarray(decode.total)),
        decode_parts=frozen({name: float(np.asarray(part)) for name, part in decode.parts().items()}),
        prefill_cycles=float(np.asarray(prefill.total)),
        memory=memory,
        max_context=_max_context(split, wafer, prompt=prompt, batch=options.batch),
        max_context_wafer=_wafer_context(decoder, options, wafer, machine.systems, cache),
        cache_bytes_per_token=cache,
        widest_prompt_handover_s=max(_handover_s(split, prompt, decoder, wafer, machine.cluster)),
        notes=NOTES,
    )


@step("machine")
def state_machine(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, systems: int, options: GenerationOptions
) -> Machine:
    """What the plan states of the request beside its regions."""
    return Machine(graph, wafer, cluster, systems, options)


@dataclass(frozen=True)
class Machine:
    """A request and the systems that it asks for."""

    graph: KernelGraph
    wafer: Wafer
    cluster: Cluster
    systems: int
    options: GenerationOptions


STEPS = [read_decoder, check_request, try_grids]
"""From graph, wafer, cluster, systems and options to the plan."""
ATTEMPT = [split_layers, fit_memory, place_regions, state_machine, price_layers]
"""One grid: from what the steps above know, and `grid`, to a plan."""


def token_s(plan: GenerationPlan) -> float:
    """Seconds between two tokens of one request: the way through all regions, or all requests in the slowest."""
    return max(plan.latency_s, plan.batch * plan.stage_s)


@dataclass(frozen=True)
class Split:
    """A grid, and how layers and cache lie on it; d, v, f as at the top of the file."""

    grid: int
    per_wafer: int
    regions: int
    layers: int  # of a region
    d: int
    v: int
    f: int


def _grids(wafer: Wafer) -> list[int]:
    """Sides to try: even steps, and the largest squares of which several fill the wafer."""
    side = min(wafer.program_rows, wafer.program_cols)
    whole = {length // parts for length in (wafer.program_rows, wafer.program_cols) for parts in range(1, 7)}
    steps = set(range(LEAST_GRID, side + 1, GRID_STEP))
    return sorted(grid for grid in whole | steps if LEAST_GRID <= grid <= side)


def _check(options: GenerationOptions, context: int, wafer: Wafer, cluster: Cluster, systems: int) -> None:
    asked = {"context": context, "systems": systems, **vars(options)}
    for key, value in asked.items():
        if value is not None and value < 1:
            raise ModelError(f"{key} {value} is not positive; ask for at least 1")
    if systems > cluster.max_systems:
        raise ModelError(
            f"{systems} systems exceed the {cluster.max_systems} of cluster '{cluster.name}'; use fewer"
        )
    side = min(wafer.program_rows, wafer.program_cols)
    if options.grid is not None and options.grid > side:
        raise ModelError(f"grid {options.grid} exceeds the {side} of {wafer.name}; use a smaller grid")
    if options.grid is not None and (options.groups or 1) > options.grid:
        raise ModelError(f"groups {options.groups} exceed grid {options.grid}; use fewer groups")
    if options.prompt is not None and options.prompt > context:
        raise ModelError(f"prompt {options.prompt} exceeds context {context}; give a longer context")


def split_of(decoder: Decoder, wafer: Wafer, systems: int, grid: int) -> Split:
    """The layers on squares of `grid` x `grid` cores."""
    per_wafer = (wafer.program_rows // grid) * (wafer.program_cols // grid)
    layers = -(-decoder.layers // (per_wafer * systems))
    return Split(
        grid=grid,
        per_wafer=per_wafer,
        regions=-(-decoder.layers // layers),
        layers=layers,
        d=-(-decoder.hidden // grid),
        v=-(-decoder.key_width // grid),
        f=-(-decoder.ffn // grid),
    )


def core_memory(split: Split, *, context: int, prompt: int, batch: int) -> CoreMemory:
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


def _max_context(split: Split, wafer: Wafer, *, prompt: int, batch: int) -> int:
    """Longest context whose cache fits beside weights and buffers, in tokens; 0 if none does."""
    empty = core_memory(split, context=0, prompt=prompt, batch=batch).total_bytes
    slot = core_memory(split, context=split.grid, prompt=prompt, batch=batch).total_bytes - empty
    return max(0, int((wafer.sram_usable_bytes - empty) // slot)) * split.grid


def _handover_s(
    split: Split, tokens: int, decoder: Decoder, wafer: Wafer, cluster: Cluster
) -> tuple[float, float]:
    """Seconds to hand the hidden state of `tokens` tokens to the next region, on a wafer and between two."""
    elements = -(-tokens // split.grid) * split.d if tokens > 1 else split.d
    link = elements * ELEMENT_BYTES / wafer.link_bytes_per_cycle + split.grid * wafer.hop_cycles
    inside = cycles_to_s(link + wafer.task_start_cycles, wafer.clock_hz)
    size = tokens * decoder.hidden * ELEMENT_BYTES
    return inside, inside + size / wafer.io_bytes_per_s + cluster.swarmx_hop_s


def _wafer_context(
    decoder: Decoder, options: GenerationOptions, wafer: Wafer, systems: int, cache: int
) -> int:
    hidden, ffn = decoder.hidden, decoder.ffn
    weights = (
        ELEMENT_BYTES * decoder.layers * (2 * hidden**2 + 2 * hidden * decoder.key_width + 3 * hidden * ffn)
    )
    room = systems * wafer.program_cores * (wafer.sram_usable_bytes - CODE_BYTES) - weights
    return max(0, int(room // (cache * options.batch)))
