"""Finds the dimension of each kernel that grows with the batch, where one capture leaves it in doubt.

A view may merge the samples with heads, channels, windows or experts, and a weight may be repeated for every
sample. The program of one batch does not tell a merged dimension from another one of the same size. In such
cases (:func:`in_doubt`) the module is captured again with :data:`FACTOR` times as many samples, and the sizes
of the kernels of both programs are compared (:func:`settled`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from wse_sim.errors import ModelError
from wse_sim.frontend.classify import MERGED, Draft, axes
from wse_sim.frontend.classify_rows import works_along
from wse_sim.frontend.cleanup import clean
from wse_sim.frontend.rewrites import rewrite
from wse_sim.frontend.trace import NO_WORK, VIEWS, Argument, Node, NodeRef, Trace
from wse_sim.kernels import family

FACTOR = 2
"""How many times as many samples the second capture has; models that halve the batch accept an even factor."""
NOTE = "samples"
"""Beginning of a note on the sizes of other batches."""
_REPEATS = frozenset(
    ["expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave", "tile", "cat", "stack"]
)
_BROADCASTS = frozenset(["add", "sub", "mul", "div", "eq", "maximum", "minimum", "where", "pow"])
Drafts = Mapping[str, Draft]


@dataclass
class Settled:
    """Kernels with the dimensions that grow with the batch, notes, and the results that grow by name."""

    drafts: dict[str, Draft]
    notes: list[str] = field(default_factory=list)
    grows: dict[str, bool] = field(default_factory=dict)


def in_doubt(drafts: Drafts, trace: Trace, samples: int) -> bool:
    """Return whether the batch is not certain to be the sample dimension of some kernel."""
    return any(_is_doubtful(trace.nodes[name], draft, trace, samples) for name, draft in drafts.items())


def _is_doubtful(node: Node, draft: Draft, trace: Trace, samples: int) -> bool:
    if not node.dynamic:  # weights that may be repeated for every sample
        return node.op in _REPEATS or any(_repeats(trace, ref) for ref in node.refs())
    if draft.sample_dim is None or draft.dims[draft.sample_dim] % samples:
        return True
    if {"b", "m"} <= {*draft.dims}:
        return draft.dims["b"] == 1 or _has_samples_in_rows(node, trace, draft)
    if node.op.startswith("conv"):
        return _is_dynamic(trace, draft, 1)  # filters of samples
    if works_along(draft, node):
        return bool(node.shape) and 0 in axes(node, trace)  # along what may be the samples
    return node.op in _BROADCASTS and node.elements > max(_sizes(node, trace), default=0)


def _repeats(trace: Trace, ref: Argument) -> bool:
    """Return whether the views between a value and its origin repeat elements."""
    node = trace.node(ref)
    while node is not None and node.kind == "call" and node.op in VIEWS:
        if node.op in _REPEATS:
            return True
        refs = node.refs()
        node = trace.node(refs[0]) if refs else None
    return False


def _has_samples_in_rows(node: Node, trace: Trace, draft: Draft) -> bool:
    """Return whether the rows of a batched product may contain the samples, instead of the products."""
    if node.op != "einsum":
        return not all(_is_dynamic(trace, draft, place) for place in (0, 1))
    operands, _, result = str(node.args[0]).replace(" ", "").partition("->")
    return any(name[:1] != result[:1] for name in operands.split(","))


def _is_dynamic(trace: Trace, draft: Draft, place: int) -> bool:
    node = trace.node((draft.operands or [])[place])
    return node is not None and node.dynamic


def _sizes(node: Node, trace: Trace) -> list[int]:
    return [prod(trace.nodes[r.name].shape) for r in node.refs() if trace.nodes[r.name].dynamic]


def settled(
    drafts: Drafts, trace: Trace, samples: int, classified: Callable[[Node, Trace], Draft]
) -> Settled:
    """Return kernels whose sample dimension is the one that grows in a second capture.

    If there is no second capture (a saved program), or it has other operators, the kernels are returned as they
    are, with a note.
    """
    made = Settled(dict(drafts))
    if trace.again is None:
        made.notes.append(
            f"{NOTE}: which sizes grow with the batch is not certain, and this program cannot be captured with more "
            f"samples, so sizes for other batches than {samples} are estimates; export it with the batch that runs, or "
            "give the module"
        )
        return made
    try:
        again = clean(trace.again())
        rewrite(again)
    except ModelError:
        made.notes.append(_uncertain(samples, "cannot be captured"))
        return made
    mine, theirs = computed(trace), computed(again)
    if [(n.op, n.layer, len(n.refs())) for n in mine] != [(n.op, n.layer, len(n.refs())) for n in theirs]:
        made.notes.append(_uncertain(samples, "has other operators"))
        return made
    odd: list[str] = []
    for node, twin in zip(mine, theirs, strict=True):
        draft = drafts[node.name]
        found = _compared(draft, classified(twin, again), samples)
        made.drafts[node.name] = found or draft
        if found is None:
            odd.append(node.source or node.name)
        # Constants, such as masks, may have more operators with more samples, so their readers pair them.
        for ref, other in zip(node.refs(), twin.refs(), strict=True):
            base, more = trace.base(ref), again.base(other)
            if base is not None and more is not None and base.kind == more.kind == "call":
                made.grows[base.name] = base.shape != more.shape
        made.grows[node.name] = node.shape != twin.shape
    if odd:
        places = ", ".join(dict.fromkeys(odd))
        made.notes.append(
            f"{NOTE}: the work at {places} does not grow in proportion to the samples; its sizes are exact for "
            f"{samples} samples, so capture the model with the batch that runs"
        )
    return made


def computed(trace: Trace) -> list[Node]:
    """Return the operators of a trace that become kernels: no views, checks and constants."""
    return [
        node
        for node in trace
        if node.kind == "call" and node.op not in NO_WORK and not trace.is_constant(NodeRef(node.name))
    ]


def _uncertain(samples: int, what: str) -> str:
    return (
        f"{NOTE}: with {FACTOR * samples} samples the model {what}, so sizes for other batches than {samples} "
        "are estimates; capture the model with the batch that runs"
    )


def _compared(draft: Draft, more: Draft, samples: int) -> Draft | None:
    """Return the kernel with the dimension that grows from `draft` to `more`.

    Return None if its FLOPs or elements do not grow in proportion to the samples.
    """
    if (draft.family, {*draft.dims}) != (more.family, {*more.dims}):
        return None
    grown = [name for name, size in draft.dims.items() if more.dims[name] != size]
    if not grown:
        return replace(draft, sample_dim=None)
    apart = _samples_apart(draft, grown, samples)
    if apart is not None:
        return apart
    kept = draft.sample_dim if draft.sample_dim in grown else grown[0]
    if more.dims[kept] != FACTOR * draft.dims[kept] or not _is_linear(draft, more, kept):
        return None
    return replace(draft, sample_dim=kept)


def _is_linear(draft: Draft, more: Draft, grows: str) -> bool:
    """Return whether growth of one dimension gives the FLOPs of the second kernel."""
    found, dims = family(draft.family), {**draft.dims, grows: more.dims[grows]}
    if "elements" in dims and dims["elements"] != more.dims["elements"]:
        return False
    return int(found.flops(dims, draft.attrs)) == int(found.flops(more.dims, more.attrs))


def _samples_apart(draft: Draft, grown: list[str], samples: int) -> Draft | None:
    """Return a kernel whose samples are a dimension, if they were merged with heads, groups or rows."""
    dims = dict(draft.dims)
    grows, *names = MERGED.get(draft.family, ("",))
    if not names or {*grown} != {*names} or any(dims[name] % samples for name in names):
        return None
    attrs = dict(draft.attrs)
    if "groups" in attrs:
        if attrs["groups"] % samples:
            return None
        attrs["groups"] //= samples
    dims |= {grows: dims.get(grows, 1) * samples, **{name: dims[name] // samples for name in names}}
    return replace(draft, dims=dims, attrs=attrs, sample_dim=grows)


def first_samples(trace: Trace) -> int:
    """Return the number of samples of a trace: the first dimension of the first input that has one."""
    first = next((n for n in trace.nodes.values() if n.kind == "input" and n.shape), None)
    return first.shape[0] if first is not None else 1


def is_uncertain(notes: Sequence[str]) -> bool:
    """Return whether notes of a graph state that its sizes for other batches are not exact."""
    return any(note.startswith(f"{NOTE}: ") for note in notes)
