"""Decomposes operators of a captured program once per kind of call, instead of once per call.

``ExportedProgram.run_decompositions`` traces the whole program again, which takes longer than the capture
did. Here a small program has each kind of call once: the same operator, plain arguments, and shapes, strides
and types of tensors. Torch decomposes that program, and its parts replace every call of the kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from operator import getitem
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node, map_arg

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Table = Mapping[OpOverload, Callable[..., object]]


class NotBySortError(Exception):
    """The parts of a call cannot be determined without the rest of its program."""


@dataclasses.dataclass
class _Sort:
    """One kind of call: its calls, and the inputs, operators and results of its decomposition."""

    calls: list[Node]
    inputs: list[Node] = dataclasses.field(default_factory=list)  # in the small program
    parts: list[Node] = dataclasses.field(default_factory=list)
    results: dict[int, Node] = dataclasses.field(default_factory=dict)  # by position; -1 for a single result


def by_sort(program: ExportedProgram, table: Table) -> ExportedProgram:
    """Replace the operators in `table` by their decompositions, in place, and return the program.

    Raises
    ------
    NotBySortError
        If the whole program has to be traced again; the program is then unchanged.
    """
    sorts: dict[Hashable, _Sort] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target in table:
            sorts.setdefault(_key(node), _Sort([])).calls.append(node)
    _take_apart(list(sorts.values()), table)
    graph, named = program.graph, dict[str, str]()
    for sort in sorts.values():
        for call in sort.calls:
            _put(graph, call, sort, named)
    results = program.graph_signature.output_specs
    for place, spec in enumerate(results):
        if (name := getattr(spec.arg, "name", None)) in named:
            results[place] = dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=named[name]))
    program.graph_module.recompile()
    return program


def _key(call: Node) -> Hashable:
    """Return a key that is equal for two calls whose decompositions are equal."""
    places = {node: place for place, node in enumerate(call.all_input_nodes)}
    tensors = []
    for node in places:
        value = node.meta.get("val")
        if not isinstance(value, FakeTensor) or any(type(n) is not int for n in value.shape):
            raise NotBySortError(f"'{node.name}' is not a tensor of a known shape")
        tensors.append((tuple(value.shape), value.stride(), value.dtype, value.device))
    arguments = map_arg((call.args, call.kwargs), lambda node: cast(Node, f"tensor {places[node]}"))
    return call.target, tuple(tensors), repr(arguments)


def _take_apart(sorts: list[_Sort], table: Table) -> None:
    """Decompose a small program that has one call of each kind, and record the parts in `sorts`.

    Raises
    ------
    NotBySortError
        If torch fails, or the small program has more than operators on its inputs.
    """
    graph, given, values = Graph(), list[dict[Node, Node]](), list[torch.Tensor]()
    for sort in sorts:
        given.append({})
        for node in sort.calls[0].all_input_nodes:
            given[-1][node] = graph.placeholder(f"given_{len(values)}")
            values.append(_like(node.meta["val"]))
    made: list[Node] = []
    for sort, inputs in zip(sorts, given, strict=True):
        call = graph.node_copy(sort.calls[0], lambda node, inputs=inputs: inputs[node])  # type: ignore[misc]
        places = _results_of(sort.calls[0])
        made += [call] if places is None else [graph.call_function(getitem, (call, i)) for i in places]
    graph.output(tuple(made))
    try:
        small = torch.export.export(GraphModule(torch.nn.Module(), graph), tuple(values))
        small = small.run_decompositions(cast(Any, table))
    except Exception as fault:  # of any type, as a decomposition or torch raises it
        raise NotBySortError("torch does not decompose these operators by themselves") from fault
    signature = small.graph_signature
    kinds = {spec.kind.name for spec in (*signature.input_specs, *signature.output_specs)}
    found = iter([node for node in small.graph.nodes if node.op == "placeholder"])
    outputs = iter(next(node for node in small.graph.nodes if node.op == "output").args[0])
    plain = all(node.op in ("placeholder", "call_function", "output") for node in small.graph.nodes)
    if not plain or kinds != {"USER_INPUT", "USER_OUTPUT"}:
        raise NotBySortError("parts have constants or change their operands")
    for sort, inputs in zip(sorts, given, strict=True):
        sort.inputs = [next(found) for _ in inputs]
        places = _results_of(sort.calls[0])
        sort.results = {place: next(outputs) for place in ([-1] if places is None else places)}
        sort.parts = _between(sort.inputs, list(sort.results.values()))


def _like(value: FakeTensor) -> torch.Tensor:
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _results_of(call: Node) -> list[int] | None:
    """Return the positions of a call's results that are tensors; None if it has a single result."""
    value = call.meta.get("val")
    if isinstance(value, (tuple, list)):
        return [place for place, item in enumerate(value) if isinstance(item, torch.Tensor)]
    if not isinstance(value, torch.Tensor):
        raise NotBySortError(f"'{call.name}' gives no tensor")
    return None


def _between(inputs: list[Node], results: list[Node]) -> list[Node]:
    """Return the operators between inputs and results, in order."""
    needed, waiting = set(inputs), list(results)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return (
        [node for node in inputs[0].graph.nodes if node in needed and node.op == "call_function"]
        if inputs
        else []
    )


def _put(graph: Graph, call: Node, sort: _Sort, named: dict[str, str]) -> None:
    """Replace a call by its parts; `named` receives the new names of results by their old ones."""
    new = dict(zip(sort.inputs, call.all_input_nodes, strict=True))
    with graph.inserting_before(call):
        for part in sort.parts:
            twin = graph.node_copy(part, lambda node: new[node])
            twin.meta = {**call.meta, "val": part.meta.get("val")}
            new[part] = twin
    places = {call: -1} if -1 in sort.results else {r: cast("int", r.args[1]) for r in call.users}
    for old, place in places.items():
        result = new[sort.results[place]]
        named[old.name] = result.name
        old.replace_all_uses_with(result)
        graph.erase_node(old)
    if call not in places:
        graph.erase_node(call)
