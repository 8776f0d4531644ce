"""Reads an exported program of torch as a trace: nodes with operators, shapes, types and the user's lines."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.fx.node import Argument as FxArgument
from torch.utils import _pytree as pytree

from wse_sim.errors import ModelError
from wse_sim.frontend.faults import (
    unwanted_operator,
)
from wse_sim.frontend.known_values import placeholder, says_shape
from wse_sim.frontend.regions import FROZEN
from wse_sim.frontend.source_lines import user_line
from wse_sim.frontend.trace import Argument, Node, NodeRef, Trace, distinct
from wse_sim.frontend.unread import changes_statistics

if TYPE_CHECKING:
    import numpy as np
    from torch.export.graph_signature import InputSpec

IN_NUMPY = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
"""Types of constants that numpy has; others, such as bfloat16, become fp32."""
MAX_FOLDED_ELEMENTS = 1 << 28
"""Constants with more elements are not evaluated; a mask of 16,384 x 16,384 positions still is."""

_DTYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.uint8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}


def kinds_of(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the kinds of the inputs of a program by name."""
    return {spec.arg.name: spec.kind.name for spec in program.graph_signature.input_specs}


def is_counter(node: torch.fx.Node, kinds: Mapping[str, str]) -> bool:
    """Return whether a node changes a buffer that no other operator reads, such as a batch norm's counter."""
    target, changed = node.target, node.args[0] if node.args else None
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(changed, torch.fx.Node):
        return False
    writes = [argument.alias_info is not None for argument in target._schema.arguments]
    return (
        target._schema.is_mutable
        and writes == [True] + [False] * (len(writes) - 1)
        and kinds.get(changed.name) == "BUFFER"
        and all(user is node or user.op == "output" for user in changed.users)
        and all(user.op == "output" for user in node.users)
    )


class ProgramReader:
    """Converts the nodes of one exported program to a trace."""

    def __init__(self, program: torch.export.ExportedProgram, ties: Mapping[str, str], name: str) -> None:
        self.program, self.ties, self.name = program, ties, name
        self.fx_nodes: dict[str, torch.fx.Node] = {}
        self.values: dict[str, Any] = {}

    def trace(self) -> Trace:
        kinds = {s.arg.name: s for s in self.program.graph_signature.input_specs}
        plain = kinds_of(self.program)
        nodes: dict[str, Node] = {}
        renamed: dict[str, NodeRef] = {}
        outputs: tuple[NodeRef, ...] = ()
        wanted = {s.arg.name for s in self.program.graph_signature.output_specs if s.kind.name in _RESULTS}
        # torch numbers the nodes without regard to the names of weights: a parameter may be called "linear" or "mul".
        weights = {*self.ties, *(self._weight_name(s.target) for s in kinds.values() if s.target)}
        taken = {*weights, *(fx.name for fx in self.program.graph.nodes)}
        for fx in self.program.graph.nodes:
            self.fx_nodes[fx.name] = fx
            if fx.op == "placeholder":
                node = self._leaf(fx, kinds[fx.name])
                if node.kind == "input":
                    node.name = distinct(fx.name, weights, taken)
                renamed[fx.name] = NodeRef(node.name)
                nodes.setdefault(node.name, node)
            elif fx.op == "output":
                flat = [r.name for r in pytree.tree_leaves(fx.args) if isinstance(r, torch.fx.Node)]
                outputs = tuple(renamed[n] for n in dict.fromkeys(flat) if n in wanted)
            elif fx.op == "call_function" and is_counter(fx, plain):
                continue
            elif fx.op == "call_function":
                node = self._call(fx, renamed)
                node.name = distinct(fx.name, weights, taken)
                renamed[fx.name] = NodeRef(node.name)
                nodes[node.name] = node
            else:
                raise ModelError(
                    f"graph node '{fx.name}' is a {fx.op}, which an exported program does not have"
                )
        self.names = {ref.name: fx for fx, ref in renamed.items()}
        trace = Trace(self.name, nodes, outputs, self._evaluate)
        updates = [
            ref for ref in renamed.values() if changes_statistics(nodes[ref.name].op, nodes[ref.name].args)
        ]
        for spec in self.program.graph_signature.output_specs:
            if spec.kind.name == "PARAMETER_MUTATION" and spec.target and spec.arg.name in renamed:
                trace.written[renamed[spec.arg.name].name] = self._weight_name(spec.target)
            if spec.kind.name == "BUFFER_MUTATION" and spec.arg.name in renamed:
                updates.append(renamed[spec.arg.name])
        trace.spread()
        trace.updates = tuple(ref for ref in dict.fromkeys(updates) if nodes[ref.name].dynamic)
        return trace

    def _weight_name(self, target: str) -> str:
        """Return the name of a parameter or buffer: of tied weights, the one that is kept."""
        return self.ties.get(target, target)

    def _leaf(self, fx: torch.fx.Node, spec: InputSpec) -> Node:
        value = fx.meta.get("val")
        kind = {"PARAMETER": "parameter", "USER_INPUT": "input"}.get(spec.kind.name, "buffer")
        target = spec.target or fx.name
        name = self._weight_name(target)
        if kind == "input":
            name = fx.name
        if kind == "parameter" and isinstance(value, torch.Tensor):
            kind = kind if value.dtype.is_floating_point or value.dtype.is_complex else "buffer"
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        stored = self.program.state_dict.get(target)
        trains = bool(stored.requires_grad) if isinstance(stored, torch.nn.Parameter) else True
        return Node(
            *(name, kind),
            kind=kind,
            shape=shape,
            dtype=_dtype(value),
            layer=name.rpartition(".")[0],
            trains=trains,
        )

    def _call(self, fx: torch.fx.Node, renamed: Mapping[str, NodeRef]) -> Node:
        op, overload = operator_of(fx.target)
        value = fx.meta.get("val")
        several = value if isinstance(value, (tuple, list)) else (value,)
        shapes = tuple(tuple(v.shape) for v in several if isinstance(v, torch.Tensor))
        first = next((v for v in several if isinstance(v, torch.Tensor)), None)
        stack = list((fx.meta.get("nn_module_stack") or {}).values())
        layer, module = (str(stack[-1][0]), _class_name(stack[-1][1])) if stack else ("", "")
        if isinstance(fx.target, torch._ops.OpOverload) and fx.target._schema.is_mutable:
            raise ModelError(unwanted_operator("mutable", str(fx.target), source_of(fx)))
        return Node(
            name=fx.name,
            op=op,
            overload=overload,
            args=tuple(_plain(a, renamed) for a in fx.args),
            kwargs={k: _plain(v, renamed) for k, v in fx.kwargs.items()},
            shape=shapes[0] if shapes else (),
            shapes=shapes,
            dtype=_dtype(first),
            layer=layer,
            module=module,
            source=source_of(fx),
            trains=not (fx.meta.get("custom") or {}).get(FROZEN),
        )

    def _evaluate(self, name: str) -> np.ndarray | None:
        """Return the value of a constant node as a numpy array; None if it needs weights or is too large."""
        value = self._value(self.fx_nodes.get(self.names.get(name, "")))
        if not isinstance(value, torch.Tensor):
            return None
        return (value if value.dtype in IN_NUMPY else value.float()).numpy()

    def _value(self, fx: torch.fx.Node | None) -> object:
        if fx is None or fx.op != "call_function":
            return self._leaf_value(fx)
        if fx.name in self.values:
            return self.values[fx.name]
        meta = fx.meta.get("val")
        self.values[fx.name] = None
        if isinstance(meta, torch.Tensor) and prod(meta.shape) > MAX_FOLDED_ELEMENTS:
            return None
        known = True

        def resolve(item: torch.fx.Node) -> FxArgument:
            nonlocal known
            value = self._value(item) if known else None
            if value is None and says_shape(fx, item):
                value = placeholder(item)
            known = known and value is not None
            return cast(FxArgument, value)

        args = torch.fx.map_arg(fx.args, resolve)
        kwargs = torch.fx.map_arg(fx.kwargs, resolve)
        if known and not _is_random(fx.target):
            self.values[fx.name] = fx.target(*args, **kwargs)  # type: ignore[operator]
        return self.values[fx.name]

    def _leaf_value(self, fx: torch.fx.Node | None) -> torch.Tensor | None:
        """Return the value of a constant or buffer that has one; fake and subclassed tensors have none."""
        if fx is None:
            return None
        for spec in self.program.graph_signature.input_specs:
            if spec.arg.name == fx.name and spec.kind.name in ("CONSTANT_TENSOR", "BUFFER"):
                value = self.program.constants.get(spec.target or "")
                if value is None:
                    value = self.program.state_dict.get(spec.target or "")
                plain = (
                    isinstance(value, torch.Tensor)
                    and type(value) is torch.Tensor
                    and value.device.type == "cpu"
                )
                return value if plain else None
        return None


_RESULTS = ("USER_OUTPUT", "LOSS_OUTPUT")


def _is_random(target: object) -> bool:
    tags = getattr(target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _dtype(value: object) -> str:
    return _DTYPES.get(value.dtype, str(value.dtype)) if isinstance(value, torch.Tensor) else ""


def _class_name(value: str | type) -> str:
    return value if isinstance(value, str) else f"{value.__module__}.{value.__qualname__}"


# ATen's synonyms of operators, and the names used here.
_SAME = {
    **{"multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub", "negative": "neg"},
    **{"absolute": "abs", "clip": "clamp", "concat": "cat", "concatenate": "cat", "fix": "trunc"},
    **{"greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne"},
    **{"arctan": "atan", "arctan2": "atan2", "special_expit": "sigmoid", "vdot": "dot", "mH": "mT"},
    **{"__lshift__": "bitwise_left_shift", "__rshift__": "bitwise_right_shift", "__xor__": "bitwise_xor"},
}


def operator_of(target: Callable[..., Any] | str) -> tuple[str, str]:
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, op = target._schema.name.partition("::")
        op = op if op in _SAME else op.removeprefix("special_")
        return (_SAME.get(op, op) if namespace == "aten" else f"{namespace}.{op}"), target._overloadname
    if target is operator.getitem:
        return "getitem", ""
    return getattr(target, "__name__", str(target)), ""


def _plain(value: FxArgument, renamed: Mapping[str, NodeRef]) -> Argument:
    if isinstance(value, torch.fx.Node):
        return renamed[value.name]
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item, renamed) for item in value)
    if isinstance(value, torch.dtype):
        return _DTYPES.get(value, str(value))
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return str(value)
    return cast(Argument, value)  # a number, a text, a slice or None


_sources: dict[str, str] = {}


def source_of(fx: torch.fx.Node) -> str:
    """Return the user's line of a node: the innermost frame outside torch."""
    text = fx.meta.get("stack_trace") or ""
    if text not in _sources:
        if len(_sources) > 65536:
            _sources.clear()
        _sources[text] = user_line(text)
    return _sources[text]
