"""Makes a captured program functional: operators that write in place become operators with a new result.

torch does this by tracing the whole program again, which takes as long as the capture. Here the nodes are copied in order.
Every value knows its base, the tensor that owns its memory, and the views that lead from there. A write gives the base a
new value, with the written part put in its place; a view that is read after a write is taken from that value again. What
this does not follow, such as operators that write several tensors, is left to torch (:class:`NotFollowedError`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch._ops import OpOverload
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
_Args = tuple[Argument, ...]
_Named = dict[str, Argument]
_STORED = {"BUFFER": OutputKind.BUFFER_MUTATION, "PARAMETER": OutputKind.PARAMETER_MUTATION}
_PARTS = ("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split", "unsafe_chunk")
_AS_THEY_ARE = ("alias", "detach", "lift_fresh", "contiguous", "to", "_to_copy")
_RESHAPED = (
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "view_as",
    "reshape_as",
)


class NotFollowedError(Exception):
    """A write in place that only torch's own way makes functional."""


@dataclass(eq=False)
class _Memory:
    """Memory that a base owns, its value in the new program, and the number of writes."""

    base: Node
    value: Argument = None
    writes: int = 0


@dataclass(eq=False)
class _Value:
    """A value of the old program: its memory, the value that it is a view of, and its node in the new program."""

    memory: _Memory
    node: Node
    parent: _Value | None = None
    copy: Node | None = None
    writes: int = 0  # to the memory when `copy` was taken


@dataclass
class _Copier:
    """Copies the nodes of a program to a new graph."""

    graph: Graph = field(default_factory=Graph)
    values: dict[Node, _Value] = field(default_factory=dict)

    def take(self, node: Node) -> None:
        """Copy one node.

        Raises
        ------
        NotFollowedError
            If it writes in a way that is not followed.
        """
        target = node.target
        if (
            node.op == "call_function"
            and not isinstance(target, OpOverload)
            and target is not operator.getitem
        ):
            raise NotFollowedError(str(target))
        if isinstance(target, OpOverload) and target._schema.is_mutable:
            self._write(node, target)
            return
        parent = self._parent(node)
        memory = parent.memory if parent is not None else _Memory(node)
        copy = self.graph.node_copy(node, self.now)
        if node.op == "placeholder":
            copy.name = node.name  # also one that torch would replace, such as "input"
        made = _Value(memory, node, parent, copy, memory.writes)
        if parent is None:
            memory.value = made.copy
        self.values[node] = made

    def now(self, node: Node) -> Node:
        """Return the node of the new program that has the value that `node` has at this point of the old one."""
        return self._now(self.values[node])

    def _now(self, value: _Value) -> Node:
        if value.parent is None:
            return cast("Node", value.memory.value)
        if value.writes != value.memory.writes:
            value.copy = self.graph.node_copy(value.node, self.now)
            value.writes = value.memory.writes
        return cast("Node", value.copy)

    def _parent(self, node: Node) -> _Value | None:
        """Return the value whose memory a node's result shares; None if the result has its own."""
        source = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(source, Node):
            return None
        if node.target is operator.getitem:
            return self.values[source] if self.values[source].parent is not None else None
        schema = cast("OpOverload", node.target)._schema
        if all(made.alias_info is None for made in schema.returns):
            return None
        return self.values[source] if _shares(node) else None

    def _write(self, node: Node, target: OpOverload) -> None:
        written = [i for i, a in enumerate(target._schema.arguments) if a.alias_info is not None]
        place = node.args[0] if node.args else None
        if written != [0] or not isinstance(place, Node) or len(target._schema.returns) != 1:
            raise NotFollowedError(str(target))
        made = self._changed(node, target, place)
        value = self.values[place]
        self._put(value, made)
        self.values[node] = value

    def _changed(self, node: Node, target: OpOverload, place: Node) -> Node:
        """Return the new value of the part that an operator writes."""
        before, name = place.meta["val"], target._schema.name.removeprefix("aten::").removesuffix("_")
        if name == "copy":
            return self._cast(
                node, self.now(cast("Node", node.args[1])), cast("Node", node.args[1]).meta["val"]
            )
        found = getattr(getattr(_aten, name, None), target._overloadname, None)
        taken = [(a.name, a.kwarg_only) for a in target._schema.arguments]
        if found is None or [(a.name, a.kwarg_only) for a in found._schema.arguments] != taken:
            raise NotFollowedError(str(target))
        args, kwargs = pytree.tree_map_only(Node, lambda x: x.meta["val"], (node.args, node.kwargs))
        try:
            after = found(*args, **kwargs)
        except Exception as fault:  # of torch's, of any type
            raise NotFollowedError(str(fault)) from fault
        if not isinstance(after, torch.Tensor) or after.shape != before.shape:
            raise NotFollowedError(str(target))
        given, named = torch.fx.map_arg((node.args, node.kwargs), self.now)
        return self._cast(node, self._new(node, found, given, named, after), after)

    def _cast(self, node: Node, made: Node, value: torch.Tensor) -> Node:
        """Return a value with the shape and the type of the result of `node`."""
        wanted = node.meta["val"]
        if value.dtype != wanted.dtype:
            made = self._new(
                node, _aten._to_copy.default, (made,), {"dtype": wanted.dtype}, value.to(wanted.dtype)
            )
        if value.shape != wanted.shape:
            made = self._new(node, _aten.expand.default, (made, list(wanted.shape)), {}, wanted)
        return made

    def _new(self, like: Node, target: OpOverload, args: _Args, kwargs: _Named, value: object) -> Node:
        made = self.graph.create_node("call_function", target, args, kwargs, name=f"{like.name}_made")
        made.meta = {**like.meta, "val": value}
        return made

    def _put(self, value: _Value, made: Node) -> None:
        """Let a value be `made`, and its memory have it in its place."""
        memory, inner = value.memory, made
        step = value
        while step.parent is not None:
            inner = self._around(step, inner)
            step = step.parent
            if step.node.target in _LISTS:
                step = cast("_Value", step.parent)
        memory.value, memory.writes = inner, memory.writes + 1
        value.copy, value.writes = made, memory.writes

    def _around(self, step: _Value, inner: Node) -> Node:
        """Return the value of what `step` is a view of, with `inner` in the place of the view."""
        node, parent = step.node, cast("_Value", step.parent)
        if node.target is operator.getitem:
            return self._around_part(node, parent, inner)
        whole = parent.node.meta["val"]
        name = cast("OpOverload", node.target)._schema.name.removeprefix("aten::")
        args = node.args[1:]
        if name in _AS_THEY_ARE:
            return inner
        if name in _RESHAPED:
            return self._new(node, _aten.reshape.default, (inner, list(whole.shape)), {}, whole)
        if name in ("slice", "select", "diagonal"):
            scatter = getattr(_aten, f"{name}_scatter").default
            return self._new(node, scatter, (self._now(parent), inner, *args), dict(node.kwargs), whole)
        if name in ("transpose", "t", "numpy_T", "mT", "swapaxes", "swapdims"):
            back = _aten.transpose.int, (inner, *(args or (0, 1)))
            if name in ("t", "numpy_T") and whole.dim() < 2:
                return inner
            if name == "mT":
                back = _aten.transpose.int, (inner, -2, -1)
            if name != "numpy_T" or whole.dim() == 2:
                return self._new(node, *back, {}, whole)
        if name == "permute":
            order = [int(d) % whole.dim() for d in cast("Sequence[int]", args[0])]
            back_order = [order.index(d) for d in range(len(order))]
            return self._new(node, _aten.permute.default, (inner, back_order), {}, whole)
        if name == "narrow":
            dim, start, length = cast("tuple[int, int, int]", args)
            start = start % whole.shape[dim] if start < 0 else start
            scattered = self._now(parent), inner, dim, start, start + length
            return self._new(node, _aten.slice_scatter.default, scattered, {}, whole)
        raise NotFollowedError(str(node.target))

    def _around_part(self, node: Node, parts: _Value, inner: Node) -> Node:
        """Return the value of a tensor with `inner` in the place of the part that `node` takes."""
        source = cast("_Value", parts.parent)
        whole, made = source.node.meta["val"], parts.node.meta["val"]
        name = cast("OpOverload", parts.node.target)._schema.name.removeprefix("aten::")
        place = int(cast("int", node.args[1])) % len(made)
        default = 0
        dim = parts.node.args[-1] if len(parts.node.args) > (1 if name == "unbind" else 2) else default
        dim = int(cast("int", parts.node.kwargs.get("dim", dim))) % whole.dim()
        before = self._now(source)
        if name == "unbind":
            return self._new(node, _aten.select_scatter.default, (before, inner, dim, place), {}, whole)
        start = sum(part.shape[dim] for part in made[:place])
        scattered = before, inner, dim, start, start + made[place].shape[dim]
        return self._new(node, _aten.slice_scatter.default, scattered, {}, whole)


_LISTS = frozenset(
    getattr(getattr(_aten, name), overload)
    for name in _PARTS
    if hasattr(_aten, name)
    for overload in getattr(_aten, name).overloads()
)


def _shares(node: Node) -> bool:
    """Return whether the result of a view has the memory of its operand: a reshape or a cast may copy."""
    args, kwargs = pytree.tree_map_only(Node, _blank, (node.args, node.kwargs))
    args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("meta"), (args, kwargs))
    try:
        made = cast("OpOverload", node.target)(*args, **kwargs)
    except Exception as fault:  # of torch's, of any type
        raise NotFollowedError(str(fault)) from fault
    first = made[0] if isinstance(made, (tuple, list)) and made else made
    return (
        isinstance(first, torch.Tensor) and first.untyped_storage()._cdata == args[0].untyped_storage()._cdata
    )


def _blank(node: Node) -> object:
    x = node.meta["val"]
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype, device="meta")


def functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program that writes nothing in place and states the new values of weights and buffers.

    Raises
    ------
    NotFollowedError
        If it has a write that is not followed.
    """
    signature, copier = program.graph_signature, _Copier()
    *nodes, output = program.graph.nodes
    for node in nodes:
        copier.take(node)
    kinds = {spec.arg.name: spec for spec in signature.input_specs}
    stored: list[tuple[Node, OutputSpec]] = []
    for node in nodes:
        spec = kinds.get(node.name) if node.op == "placeholder" else None
        if spec is not None and copier.values[node].memory.writes and spec.kind.name in _STORED:
            made = copier.now(node)
            stored.append((made, OutputSpec(_STORED[spec.kind.name], TensorArgument(made.name), spec.target)))
    results = cast("Sequence[Argument]", output.args[0])
    changed = [torch.fx.map_arg(x, copier.now) for x in results]
    made_output = copier.graph.output((*(node for node, _ in stored), *changed))
    made_output.meta = dict(output.meta)
    specs = [
        OutputSpec(spec.kind, type(spec.arg)(x.name), spec.target) if isinstance(x, Node) else spec
        for spec, x in zip(signature.output_specs, changed, strict=True)
    ]
    new = type(signature)(list(signature.input_specs), [spec for _, spec in stored] + specs)
    return program._update(GraphModule(program.graph_module, copier.graph), new)


def made_functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program that writes nothing in place, in torch's own way where writes are not followed here."""
    try:
        return functional(program)
    except NotFollowedError:
        return program.run_decompositions({})
