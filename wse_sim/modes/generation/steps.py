"""Generation with a decoder model: prefill, decode, and the key-value cache that fits.

The layers of the model are split over regions of P x Q cores, on one wafer or over several; a request passes
through the regions one after the other.  The published kernels run on squares (P = Q).  Symbols: L layers, R regions in use, l =
ceil(L / R) layers of a region, B requests, C tokens of context, c_p and c_d cycles of a layer in prefill
and in decode (:mod:`wse_sim.modes.generation.layer`), f clock, h seconds to hand a token to the next region::

    stage         T = l c_d / f + h
    latency       t = L c_d / f + R h           through all regions, and back to the first
    token         max(t, B T)                   seconds between two tokens of one request
    per user      1 / token                     total B / token
    first token   c_R of the last chunk         one prompt, alone in the pipeline (:mod:`wse_sim.modes.generation.prompt_reading`)

Requests alternate in a region, one token each; they are not joined into one product (no joined kernel is
published). Embedding, head and sampling have a separate region if one is free, otherwise the last region. If
that is too full, they use the largest square of E x E cores outside the regions.  Memory of a core, with
tiles of the products (:mod:`wse_sim.modes.generation.grid`), v = ceil(key width / Q), s = ceil(C / P)::

    weights   2 l (sum of the tiles, all experts)      bytes, fp16; in the region of the ends 2 (tables / E^2)
    cache     2 l B s 2 v                              bytes, fp16; the cache is kept even over all cores
    buffers   the prompt as one block, or the rows of a chunk, whichever is larger (:mod:`wse_sim.modes.generation.memory`)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.defects import no_rectangle, whole_rectangle
from wse_sim.compiler.flow import run_steps, step
from wse_sim.compiler.plan import CoreMemory, Infeasible, Region
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster, Wafer
from wse_sim.modes.generation.decoder import Decoder, decoder_of
from wse_sim.modes.generation.layer import (
    decode_layer_cycles,
    ends_cycles,
    prefill_layer_cycles,
)
from wse_sim.modes.generation.memory import (
    ELEMENT_BYTES,
    Split,
    core_memory,
    max_context,
    split_of,
    wafer_context,
)
from wse_sim.modes.generation.plan import MOVING, GenerationPlan, LayerRegion, PromptTurn, Reading
from wse_sim.modes.generation.prompt_reading import chunk_rows, handover_s, with_reading
from wse_sim.modes.generation.quantized_weights import loaded, packed
from wse_sim.options import GenerationChoice

LEAST_GRID, GRID_STEP = 120, 20  # sides of the grids that are tried when none is requested
PARTS = range(1, 7)  # into which a side of the wafer is divided
NOTES = (
    "products of parallel matrices have an all-reduce each; requests are not joined into one product",
    "scores and values have the width of all queries; keys are stored once for each group of heads",
    "prefill rate: prompts follow each other through the regions, each as one block of moving tiles",
)
ON_RECTANGLES = (
    *NOTES[:2],
    "prefill rate: prompts follow each other through the regions in chunks, as tiles cannot move on a rectangle",
    "regions are rectangles: the published runs, which the formulas meet, are of squares",
)


def plan_generation(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, systems: int, options: GenerationChoice
) -> GenerationPlan | Infeasible:
    """Run :data:`STEPS`."""
    wafer, note = whole_rectangle(wafer)
    if not wafer.program_cores:
        return no_rectangle("generation", graph.name, wafer)
    given = {"graph": graph, "wafer": wafer, "cluster": cluster, "systems": systems, "options": options}
    plan = _plan_of(run_steps(STEPS, given))
    return (
        plan
        if isinstance(plan, Infeasible) or not note
        else dataclasses.replace(plan, notes=(*plan.notes, note))
    )


def _plan_of(values: dict[str, object] | Infeasible) -> GenerationPlan | Infeasible:
    if isinstance(values, Infeasible):
        return values
    plan = values["plan"]
    assert isinstance(plan, GenerationPlan)  # of the lists below; not a user option
    return plan


# The steps, in the order in which they run


@step("decoder")
def read_decoder(graph: KernelGraph, wafer: Wafer, options: GenerationChoice) -> Decoder:
    """Read layers, head and embedding from the graph; apply the quantization and the distribution of experts."""
    decoder = decoder_of(graph)
    bits = packed(decoder.layer, int(options.weights_bits), wafer)
    layer = loaded(bits, options.experts, options.expert_layout)
    return dataclasses.replace(decoder, layer=layer)


@step("prompt")
def check_request(
    wafer: Wafer, cluster: Cluster, systems: int, options: GenerationChoice, decoder: Decoder
) -> int:
    """Check that the options are in range; by default the prompt is the whole context."""
    _check(options, decoder.context, wafer, cluster, systems)
    return options.prompt or decoder.context


@step("plan", "split")
def try_grids(
    graph: KernelGraph,
    wafer: Wafer,
    cluster: Cluster,
    systems: int,
    options: GenerationChoice,
    decoder: Decoder,
    prompt: int,
) -> tuple[GenerationPlan, Split] | Infeasible:
    """Run :data:`ATTEMPT` on every grid; return the plan that is fastest for one user, or the closest
    misfit."""
    given = {
        "graph": graph, "wafer": wafer, "cluster": cluster, "systems": systems, "options": options,
        "decoder": decoder, "prompt": prompt,
    }  # fmt: skip
    answers = [run_steps(ATTEMPT, {**given, "grid": grid}) for grid in _grids(wafer, options)]
    fitting = [(_plan_of(found), found["split"]) for found in answers if not isinstance(found, Infeasible)]
    if fitting:
        return min(fitting, key=lambda found: (token_s(found[0]), -found[0].grid))  # type: ignore
    return min(
        (answer for answer in answers if isinstance(answer, Infeasible)),
        key=lambda answer: answer.need / answer.limit,
    )


@step("split")
def split_layers(
    wafer: Wafer,
    systems: int,
    options: GenerationChoice,
    decoder: Decoder,
    prompt: int,
    grid: tuple[int, int],
) -> Split:
    """Distribute the layers over the regions of all wafers as evenly as whole layers allow; find a place for
    embedding and head."""
    ways = _splits(decoder, wafer, systems, grid)
    rows, limit = chunk_rows(options, prompt), wafer.sram_usable_bytes

    def need(way: Split, chunk: int) -> float:
        return core_memory(
            way, wafer, context=decoder.context, prompt=prompt, batch=options.batch, chunk=chunk
        ).total_bytes

    # A chunk that fits in no placement is a separate error, reported for the placement with the most room.
    fitting = [way for way in ways if need(way, rows) <= limit]
    fitting = fitting or sorted(
        (way for way in ways if need(way, 0) <= limit), key=lambda way: need(way, rows)
    )
    return fitting[0] if fitting else ways[-1]


def _splits(decoder: Decoder, wafer: Wafer, systems: int, grid: tuple[int, int]) -> tuple[Split, ...]:
    """Return the possible placements of layers, embedding and head on regions of `grid` cores, the preferred
    one first."""
    split = split_of(decoder, wafer, systems, grid)
    left = _square_left(wafer, grid)
    if not decoder.tables or split.has_own_ends or not left:
        return (split,)
    ends = float(-(-decoder.tables // left.cores))
    return split, dataclasses.replace(split, ends=ends, has_own_ends=True, ends_at=left)


def split_of_plan(plan: GenerationPlan) -> Split:
    """Return the placement of the layers of a finished plan."""
    decoder, last = dataclasses.replace(decoder_of(plan.graph), layer=plan.layer), plan.regions[-1]
    ways = _splits(decoder, plan.wafer, plan.systems, plan.sides)
    return next(
        way
        for way in ways
        if way.regions + way.has_own_ends == len(plan.regions) and way.ends_at in (None, last.region)
    )


def _square_left(wafer: Wafer, grid: tuple[int, int]) -> Region | None:
    """Return the largest square of cores east or south of the regions of `grid` cores; None if they fill the
    wafer."""
    lengths = wafer.program_rows, wafer.program_cols
    row, col = (length // side * side for length, side in zip(lengths, grid, strict=True))
    east, south = (
        min(wafer.program_rows, wafer.program_cols - col),
        min(wafer.program_cols, wafer.program_rows - row),
    )
    side = max(east, south)
    if not side:
        return None
    return Region(0, col, side, side, side**2) if east >= south else Region(row, 0, side, side, side**2)


@step("memory")
def fit_memory(
    graph: KernelGraph, wafer: Wafer, options: GenerationChoice, decoder: Decoder, prompt: int, split: Split
) -> CoreMemory | Infeasible:
    """Check that weights, cache and buffers fit in a core."""
    memory = core_memory(split, wafer, context=decoder.context, prompt=prompt, batch=options.batch)
    if memory.total_bytes <= wafer.sram_usable_bytes:
        return memory
    return Infeasible(
        mode="generation",
        model=graph.name,
        binding="SRAM",
        need=memory.total_bytes,
        limit=float(wafer.sram_usable_bytes),
        unit="bytes",
        where=f"a core of {split.regions} regions of {split.rows} x {split.cols} ({split.layers} layers each)",
        remedy="use more systems, a shorter context, fewer requests or a smaller model",
    )


@step("regions")
def place_regions(wafer: Wafer, cluster: Cluster, decoder: Decoder, split: Split) -> tuple[LayerRegion, ...]:
    """Lay the regions out in rows, back and forth, so that consecutive ones are adjacent; price the routes
    between them."""
    inside, between = handover_s(split, 1, wafer, cluster)
    places = [_place(split, wafer, number) for number in range(split.regions + split.has_own_ends)]
    if split.ends_at:
        places[-1] = places[-2][0], split.ends_at
    regions, wafers = len(places), places[-1][0] + 1
    found = []
    for number, (system, region) in enumerate(places):
        first = number * split.layers
        layers = max(0, min(split.layers, decoder.layers - first))
        is_last = number == regions - 1
        leaves = not is_last and places[number + 1][0] != system
        # The sampled token goes back to the first region: over the fabric, or between wafers.
        back = between if wafers > 1 else (inside if regions > 1 else 0.0)
        found.append(
            LayerRegion(
                name=_name(first, layers),
                wafer=system,
                first_layer=first,
                layers=layers,
                region=region,
                token_handover_s=back if is_last else (between if leaves else inside),
                leaves="" if is_last else "between" if leaves else "inside",
                has_ends=is_last and bool(decoder.tables),
            )
        )
    return tuple(found)


def _place(split: Split, wafer: Wafer, number: int) -> tuple[int, Region]:
    """Return the wafer and the cores of a region; regions are in rows, in serpentine order."""
    across = wafer.program_cols // split.cols
    system, place = divmod(number, split.per_wafer)
    row, col = divmod(place, across)
    col = across - 1 - col if row % 2 else col
    rows, cols = split.grid
    return system, Region(row * rows, col * cols, rows, cols, rows * cols)


def _name(first: int, layers: int) -> str:
    if not layers:
        return "embedding and head"
    return f"layer {first}" if layers == 1 else f"layers {first} to {first + layers - 1}"


@step("plan")
def price_layers(
    machine: GenerationRequest,
    decoder: Decoder,
    prompt: int,
    split: Split,
    memory: CoreMemory,
    regions: tuple[LayerRegion, ...],
) -> GenerationPlan:
    """Compute the cost of a layer for a token and for a prompt; assemble the plan."""
    wafer, options = machine.wafer, machine.options
    decode = decode_layer_cycles(decoder.layer, decoder.context, split.grid, wafer, groups=options.groups)
    ends = ends_cycles(decoder, split.ends_grid, wafer, groups=options.groups)
    prompt_ends = ends_cycles(decoder, split.ends_grid, wafer, groups=options.groups, tokens=prompt)
    cache = 2 * decoder.key_width * decoder.layers * ELEMENT_BYTES
    prefill_cycles, prompt_end_cycles = None, float(np.asarray(prompt_ends.total))
    ways = handover_s(split, prompt, wafer, machine.cluster)
    block: tuple[PromptTurn, ...] = ()
    if split.is_square:
        prefill = prefill_layer_cycles(decoder.layer, prompt, split.rows, wafer)
        prefill_cycles = float(np.asarray(prefill.total))
        block = (PromptTurn(1, prompt, prefill_cycles, prompt_end_cycles, *ways),)
    return GenerationPlan(
        graph=machine.graph,
        wafer=wafer,
        cluster=machine.cluster,
        systems=machine.systems,
        batch=options.batch,
        context=decoder.context,
        prompt=prompt,
        hidden=decoder.hidden,
        layer=decoder.layer,
        grid=split.rows,
        cols=split.cols,
        groups=options.groups,
        regions_per_wafer=split.per_wafer,
        layers_per_region=split.layers,
        regions=regions,
        decode_cycles=float(np.asarray(decode.total)),
        decode_parts=frozen({name: float(np.asarray(part)) for name, part in decode.parts().items()}),
        prefill_cycles=prefill_cycles,
        end_cycles=float(np.asarray(ends.total)),
        end_parts=frozen({name: float(np.asarray(part)) for name, part in ends.parts().items()}),
        prompt_end_cycles=prompt_end_cycles,
        memory=memory,
        max_context=max(
            max_context(way, wafer, prompt=prompt, batch=options.batch, chunk=chunk_rows(options, prompt))
            for way in _splits(decoder, wafer, machine.systems, split.grid)
        ),
        max_context_wafer=wafer_context(decoder, options.batch, wafer, machine.systems, cache),
        cache_bytes_per_token=cache,
        widest_prompt_handover_s=max(ways),
        reading=Reading(MOVING, prompt, block),
        notes=(*decoder.notes, *(NOTES if split.is_square else ON_RECTANGLES)),
    )


@step("machine")
def state_machine(
    graph: KernelGraph, wafer: Wafer, cluster: Cluster, systems: int, options: GenerationChoice
) -> GenerationRequest:
    """Collect the facts of the request that the plan states in addition to its regions."""
    return GenerationRequest(graph, wafer, cluster, systems, options)


@dataclass(frozen=True)
class GenerationRequest:
    """A request and the systems that it uses."""

    graph: KernelGraph
    wafer: Wafer
    cluster: Cluster
    systems: int
    options: GenerationChoice


@step("plan")
def read_prompt(
    plan: GenerationPlan, split: Split, decoder: Decoder, options: GenerationChoice
) -> GenerationPlan:
    """Read the prompt in chunks: as requested, or those with the earliest first token that leave room for the
    cache."""
    return with_reading(plan, split, decoder, options)


STEPS = [read_decoder, check_request, try_grids, read_prompt]
"""From graph, wafer, cluster, systems and options to the plan."""
ATTEMPT = [split_layers, fit_memory, place_regions, state_machine, price_layers]
"""Steps for one grid: from the values of the steps above, and `grid`, to a plan."""


def token_s(plan: GenerationPlan) -> float:
    """Return the seconds between two tokens of one request: its latency, or the time of all requests in the
    slowest region."""
    return max(plan.latency_s, plan.batch * plan.stage_s)


def _grids(wafer: Wafer, options: GenerationChoice) -> list[tuple[int, int]]:
    """Return the grids to try: the requested one; else squares with sides in even steps, and every rectangle that
    divides both sides of the wafer into a few parts, or the square of one of its sides; all of a small wafer."""
    if options.grid:
        return [(options.grid, options.grid_cols or options.grid)]
    rows, cols = ([length // n for n in PARTS] for length in (wafer.program_rows, wafer.program_cols))
    sides = {*rows, *cols, *range(LEAST_GRID, max(rows) + 1, GRID_STEP)}
    found = {(row, col) for row in rows for col in cols} | {(side, side) for side in sides}
    large = [grid for grid in found if min(grid) >= LEAST_GRID and grid[0] <= rows[0] and grid[1] <= cols[0]]
    return sorted(large) or [(rows[0], cols[0])]


def _check(options: GenerationChoice, context: int, wafer: Wafer, cluster: Cluster, systems: int) -> None:
    asked = {"context": context, "systems": systems, **vars(options)}
    for key, value in asked.items():
        if isinstance(value, int) and value < 1:
            raise ModelError(f"{key} {value} is not positive; ask for at least 1")
    if systems > cluster.max_systems:
        raise ModelError(
            f"{systems} systems exceed the {cluster.max_systems} of cluster '{cluster.name}'; use fewer"
        )
    side = min(wafer.program_rows, wafer.program_cols)
    if options.grid is None and options.grid_cols is not None:
        raise ModelError(f"grid_cols {options.grid_cols} needs the rows of a region; give grid too")
    if options.grid_cols is not None:
        for name, length, limit in (
            ("grid", options.grid, wafer.program_rows), ("grid_cols", options.grid_cols, wafer.program_cols),
        ):  # fmt: skip
            if length is not None and length > limit:
                raise ModelError(f"{name} {length} exceeds the {limit} of {wafer.name}; use a smaller grid")
    elif options.grid is not None and options.grid > side:
        raise ModelError(f"grid {options.grid} exceeds the {side} of {wafer.name}; use a smaller grid")
    if options.grid is not None and (options.groups or 1) > options.grid:
        raise ModelError(f"groups {options.groups} exceed grid {options.grid}; use fewer groups")
    if options.prompt is not None and options.prompt > context:
        raise ModelError(
            f"prompt {options.prompt} exceeds context {context}; give a longer context (of a model that is no name or "
            "configuration: longer example arguments), or shorter prompts"
        )
