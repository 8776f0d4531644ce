"""The rewrites of the simulated compiler as lists, in the order in which they run.

1. :data:`PATTERNS`: chains of operators that are one kernel (attention, norms, rotary, gelu).
2. :data:`FUSIONS`: kernels that one kernel can execute together (product epilogues, elementwise chains).

To add a rule, write a small class in :mod:`~wse_sim.frontend.patterns` or :mod:`~wse_sim.frontend.fusions`
and append it to the list. Each application of a rule is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.frontend.fusions import FUSIONS, DraftGraph
from wse_sim.frontend.patterns import PATTERNS
from wse_sim.frontend.trace import Trace

__all__ = ["FUSIONS", "PATTERNS", "Applied", "fuse", "rewrite"]


@dataclass(frozen=True)
class Applied:
    """One application of a rule: the name of the rule, a description, the module and the user's line."""

    rule: str
    what: str
    layer: str = ""
    source: str = ""

    def __str__(self) -> str:
        place = f" [{self.layer}]" if self.layer else ""
        return f"{self.rule}: {self.what}{place}"


def rewrite(trace: Trace) -> list[Applied]:
    """Apply all patterns to a trace in place and return their applications."""
    done: list[Applied] = []
    for pattern in PATTERNS:
        roots = [node.name for node in trace.nodes.values() if node.op in pattern.roots]
        for name in roots:
            node = trace.nodes[name]
            found = pattern.match(node, trace) if node.op in pattern.roots else None
            if found is not None:
                done.append(Applied(pattern.name, f"{node.op} -> {found.op}", node.layer, node.source))
                trace.replace(name, found)
    if done:
        trace.prune()
    return done


def fuse(draft: DraftGraph, skip: frozenset[str] = frozenset()) -> list[Applied]:
    """Apply all fusions but those named in `skip` to a draft in place, and return their applications.

    Each fusion is applied to a kernel as often as possible.
    """
    done: list[Applied] = []
    for fusion in FUSIONS:
        if fusion.name in skip:
            continue
        for name in [kernel.name for kernel in draft.in_order()]:
            while name in draft.kernels:
                kernel = draft.kernels[name]
                what = fusion.apply(draft, kernel)
                if what is None:
                    break
                done.append(Applied(fusion.name, what, kernel.layer, kernel.source))
    return done
