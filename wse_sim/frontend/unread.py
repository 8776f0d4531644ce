"""Finds work of forward() that reaches no result: neither an output, nor a gradient, nor a buffer.

Eager torch runs such work, and its FLOP counter counts it; a compiled program does not have it. :class:`Followed`
finds its FLOPs in a run, by the memory that each operator reads and writes. :func:`may_be_unread` finds from a captured
program, without a run, whether there may be any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch.fx.node import Argument as FxArgument

from wse_sim.frontend.trace import SHAPE_ONLY

_NORMS = ("batch_norm", "instance_norm")
_STATISTICS = (*_NORMS, "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
_PRODUCTS = (
    *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "inner", "outer"),
    *("einsum", "bilinear", "tensordot", "conv", "scaled_dot_product", "_scaled_dot_product", "lstm", "gru", "rnn"),
    *("chain_matmul", "multi_head_attention", "_grouped_mm", "cdist", "_euclidean", "linalg_", "again", "end"),
)  # fmt: skip
"""Beginnings of names of operators with products; the last two are calls of layers that are captured once."""


def changes_statistics(name: str, args: Sequence[object]) -> bool:
    """Return whether an operator changes the running statistics among its operands, which its schema does not tell."""
    return name in _STATISTICS and args[3] is not None and bool(args[5])


def _tensors(x: object) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from _tensors(part)


def _written(
    func: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[object]:
    """Return the operands that an operator changes."""
    if changes_statistics(_name(func), args):
        return list(args[3:5])
    if not func._schema.is_mutable:
        return []
    taken = {argument.name: x for argument, x in zip(func._schema.arguments, args, strict=False)} | {**kwargs}
    return [
        taken.get(argument.name)
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _name(func: torch._ops.OpOverload) -> str:
    return func._schema.name.partition("::")[2]


class Followed:
    """The operators of a run, in order, with the memory that each reads and writes."""

    def __init__(self) -> None:
        self.done: list[tuple[int, set[int], set[int] | None]] = []
        self.kept: dict[int, object] = {}  # so that the ids of memory are not reused

    def add(
        self,
        func: torch._ops.OpOverload,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        out: object,
        flops: int | None,
    ) -> None:
        """Add an operator with its result; one of the backward pass has no `flops` and counts as a result."""
        name = _name(func)
        given = list(args[name in SHAPE_ONLY :])
        reads = self._memory([*given, *kwargs.values()])
        writes = self._memory([out, *_written(func, args, kwargs)])
        is_result = flops is None or not writes  # a value that Python reads
        self.done.append((flops or 0, reads, None if is_result else writes))

    def unread(self, results: Iterable[torch.Tensor]) -> int:
        """Return the FLOPs of the operators that neither `results` nor the backward pass depend on."""
        needed, left = self._memory(list(results)), 0
        for flops, reads, writes in reversed(self.done):
            if writes is None or not needed.isdisjoint(writes):
                needed |= reads
            else:
                left += flops
        return left

    def _memory(self, x: object) -> set[int]:
        found = set()
        for tensor in _tensors(x):
            try:
                memory: object = tensor.untyped_storage()
                key = tensor.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):  # a sparse tensor, or one of another kind
                memory, key = tensor, id(tensor)
            self.kept[key] = memory
            found.add(key)
        return found


def may_be_unread(program: torch.export.ExportedProgram) -> bool:
    """Return whether products of a captured program, which may write in place, seem to reach no result.

    Memory is followed through views by the schemas of the operators.
    """
    signature = program.graph_signature
    buffers = {s.arg.name for s in signature.input_specs if s.kind.name == "BUFFER"}
    needed: set[torch.fx.Node] = {n for n in program.graph.nodes if n.name in buffers}
    bases: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in program.graph.nodes:
        source = _source(node)
        bases[node] = bases[source] if source is not None else node
    for node in reversed(program.graph.nodes):
        if node.op not in ("call_function", "output"):
            continue
        target, name = node.target, getattr(node.target, "__name__", "")
        if isinstance(target, torch._ops.OpOverload):
            name = _name(target)
            written = [x for x in _written(target, node.args, node.kwargs) if isinstance(x, torch.fx.Node)]
            is_needed = not needed.isdisjoint(bases[x] for x in (node, *written))
        else:
            is_needed = node.op == "output" or bases[node] in needed
        if is_needed:
            skipped = name in SHAPE_ONLY and node.args and node.args[0]
            needed |= {bases[x] for x in node.all_input_nodes if x is not skipped}
        elif name.startswith(_PRODUCTS):
            return True
    return False


def _source(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the operand whose memory a result is, by the schema; None if its memory is new."""
    if node.op != "call_function":
        return None
    first: FxArgument = node.args[0] if node.args else None
    if isinstance(node.target, torch._ops.OpOverload):
        schema = node.target._schema
        if not any(made.alias_info is not None for made in schema.returns):
            return None
        place = next((i for i, taken in enumerate(schema.arguments) if taken.alias_info is not None), 0)
        first = node.args[place] if place < len(node.args) else None
    return first if isinstance(first, torch.fx.Node) else None
