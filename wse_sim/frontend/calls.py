"""Lowers recorded calls with a module whose ``forward`` repeats them (:mod:`wse_sim.cstorch.tape`).

A script trains everything that the CPU can train, so an operator without a rule is not rejected. Torch's own
decompositions are applied to it; an operator that remains moves its operands and its result through memory,
and a note of the graph names it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from wse_sim.errors import UnsupportedOpError
from wse_sim.frontend import capture, torch_flops
from wse_sim.frontend.api import Lowering, finish
from wse_sim.frontend.obstacles import Obstacle, collecting
from wse_sim.frontend.precision import precision_of
from wse_sim.frontend.torch_state import kept
from wse_sim.frontend.trace import Trace
from wse_sim.graph import KernelGraph, frozen

WITHOUT_RULE = "operators_without_rule"
"""Fact of a graph: names and counts of the operators that have neither rule nor decomposition, as text."""
UNRULED = "wse_sim.unruled"
"""Operator of a recorded step that replaces one that torch cannot capture; its last argument is the name."""
MOST_ROUNDS = 8  # of decompositions whose results are decomposed again


@kept()
def lower_calls(
    module: torch.nn.Module,
    args: Sequence[Any],
    *,
    name: str,
    samples: int,
    training: bool,
    optimizer: str = "adamw",
    precision: str = "mixed",
    recompute: str = "none",
) -> KernelGraph:
    """Return the kernel graph of recorded calls for `samples` samples.

    `module` repeats the calls on `args`; the other options are those of
    :class:`~wse_sim.frontend.lowering.LoweringOptions`.

    Raises
    ------
    ModelError
        If torch cannot capture a call.
    """
    notes: list[str] = []
    program = capture.export(module, args, None, training, notes)
    how = Lowering(training, optimizer, recompute, precision_of(precision))

    def trace() -> Trace:
        made = capture.trace_exported(program, name=name)
        made.notes += notes
        made.counts = (lambda trains: torch_flops.counted_module(module, args, None, trains), *made.counts)
        return made

    try:
        return _steady(finish(trace(), how, samples)[0])
    except UnsupportedOpError:
        pass
    whole: set[torch._ops.OpOverload] = set()  # operators that torch cannot decompose
    for _ in range(MOST_ROUNDS):
        unknown = _without_rule(trace(), replace(how, training=False), samples)
        targets = [target for target in _targets(program, unknown) if target not in whole]
        if not targets:
            break
        for target in targets:
            taken = _decomposed(program, target)
            if taken is None:
                whole.add(target)
                continue
            program = taken
            notes.append(f"operator {target} has no rule and is decomposed by torch")
    last = trace()
    with collecting() as left:
        graph = finish(last, how, samples)[0]
    return _steady(_noted(graph, last, left))


def _steady(graph: KernelGraph) -> KernelGraph:
    """Return the graph with sample dimensions only in kernels whose size is a multiple of the samples.

    Other kernels, such as products of features by features, do not grow with the batch.
    """
    odd = [k for k in graph.kernels if k.sample_dim is not None and k.dims[k.sample_dim] % graph.samples]
    if not odd:
        return graph
    kernels = tuple(replace(k, sample_dim=None) if k in odd else k for k in graph.kernels)
    return replace(graph, kernels=kernels)


def _without_rule(trace: Trace, how: Lowering, samples: int) -> set[str]:
    """Return the names of the nodes of a trace that have no handler."""
    with collecting() as found:
        finish(trace, how, samples)
    return {obstacle.node for obstacle in found if obstacle.kind == "operator"}


def _targets(program: torch.export.ExportedProgram, names: set[str]) -> list[torch._ops.OpOverload]:
    found = (
        node.target
        for node in program.graph.nodes
        if (node.name in names or f"{node.name}_" in names) and isinstance(node.target, torch._ops.OpOverload)
    )
    return list(dict.fromkeys(found))


def _decomposition(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Return torch's decomposition of an operator; None if it has none.

    It is the one in the ATen table, that of the C++ composite, or the reference in prims.
    """
    from torch._decomp import decomposition_table
    from torch._export.utils import _get_decomp_for_cia

    known = decomposition_table.get(target)
    if known is not None:
        return known
    if target._can_decompose():
        return _get_decomp_for_cia(target)
    reference = getattr(torch._refs, target._schema.name.partition("::")[2], None)
    return reference if callable(reference) else None


def _decomposed(
    program: torch.export.ExportedProgram, target: torch._ops.OpOverload
) -> torch.export.ExportedProgram | None:
    """Return the program with an operator decomposed; None if torch cannot decompose it."""
    rule = _decomposition(target)
    if rule is None:
        return None
    try:
        with warnings.catch_warnings(), capture.quiet():
            warnings.simplefilter("ignore")
            made = program.run_decompositions({target: rule})
    except Exception:  # of any type: a decomposition may reject these operands
        return None
    return None if any(node.target is target for node in made.graph.nodes) else made


def _noted(graph: KernelGraph, trace: Trace, left: Sequence[Obstacle]) -> KernelGraph:
    """Return the graph with a note and a fact on its operators without a rule."""
    if not left:
        return graph
    names = [
        node.args[-1] if node.op == UNRULED else node.op for o in left if (node := trace.nodes.get(o.node))
    ]
    counts = Counter(str(name) for name in names)
    text = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in counts.items())
    note = f"without a rule: {text}; priced by the bytes that they move, so the time is less certain"
    facts = {**graph.facts, WITHOUT_RULE: text}
    return replace(graph, notes=(*graph.notes, note), facts=frozen(facts))
