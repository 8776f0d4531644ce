"""Copies equal layers in a captured program: the operators of the first call replace each later call.

:mod:`wse_sim.frontend.equal_layers` captures the layers and records the original of each copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from wse_sim.frontend.equal_layers import AGAIN, BEGIN, END, Layers
from wse_sim.frontend.hidden_weights import returned

if TYPE_CHECKING:
    import torch
    from torch.export.graph_signature import InputSpec
    from torch.fx import Node


Names = Mapping[str, Sequence[str]]


class NotCopiedError(Exception):
    """The operators of a layer cannot be reused for another layer."""


def copied(program: torch.export.ExportedProgram, layers: Layers) -> torch.export.ExportedProgram:
    """Return the program with copies of the first call's operators instead of later calls, and without marks.

    The program is changed in place.

    Raises
    ------
    NotCopiedError
        If a copy would differ from what torch captures.
    """
    returned(program, layers.hidden)
    graph = program.graph_module.graph
    inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    held = {
        spec.target: node
        for node in graph.nodes
        if node.op == "placeholder" and (spec := inputs.get(node.name)) is not None and spec.target
    }
    mutated = {
        spec.arg.name: str(spec.target)
        for spec in program.graph_signature.output_specs
        if spec.kind.name == "BUFFER_MUTATION"
    }
    ties = _names_of_tensors(layers.module)
    regions: dict[torch.fx.Node, _Region] = {}
    stored: list[tuple[torch.fx.Node, str]] = []
    named: dict[str, torch.fx.Node] = {}  # new nodes of the program's results, by their old names
    for node in list(graph.nodes):
        if node.target is END:
            region = _Region(node, inputs, mutated, ties)
            regions[region.begin] = region
            _take_results(node, region.made, named)
        elif node.target is AGAIN:
            mark, given, key = cast("tuple[Node, list[Node], int]", node.args)
            made = regions[mark].copy(graph, node, given, layers.pairs[key], held, stored)
            _take_results(node, made, named)
    for node in reversed(list(graph.nodes)):
        if node.target is BEGIN:
            graph.erase_node(node)
    results = program.graph_signature.output_specs
    for place, spec in enumerate(results):
        if (node := named.get(getattr(spec.arg, "name", ""))) is not None:
            results[place] = dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=node.name))
    output = graph.output_node()
    output.args = ((*(node for node, _ in stored), *cast("Sequence[Node]", output.args[0])),)
    results[:0] = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(node.name), name) for node, name in stored
    ]
    layers.forget()  # the program's code is not compiled anew: only its nodes are read
    return program


def _names_of_tensors(module: torch.nn.Module) -> Names:
    """Return the names of each weight and buffer that has several, by each of them; torch captures it under one."""
    groups: dict[int, list[str]] = {}
    for found in (module.named_parameters, module.named_buffers):
        for name, tensor in found(remove_duplicate=False):
            groups.setdefault(id(tensor), []).append(name)
    return {name: names for names in groups.values() if len(names) > 1 for name in names}


def _take_results(
    node: torch.fx.Node, made: Sequence[torch.fx.Node], named: dict[str, torch.fx.Node]
) -> None:
    """Redirect the readers of an operator's results to the nodes `made`, and remove the operator.

    `named` receives the old names of results of the program.
    """
    for taken in list(node.users):
        place = cast("int", taken.args[1])
        if any(user.op == "output" for user in taken.users):
            named[taken.name] = made[place]
        taken.replace_all_uses_with(made[place])
        taken.graph.erase_node(taken)
    node.graph.erase_node(node)


class _Region:
    """The operators between two marks."""

    def __init__(
        self, end: torch.fx.Node, inputs: Mapping[str, InputSpec], mutated: Mapping[str, str], ties: Names
    ) -> None:
        self.begin, self.made = cast("tuple[Node, list[Node]]", end.args)
        self.inputs, self.mutated, self.ties = inputs, mutated, ties
        self.given = cast("list[Node]", self.begin.args[0])
        self.nodes: list[torch.fx.Node] = []
        node = self.begin.next
        while node is not end:
            if node.target is not BEGIN:
                self.nodes.append(node)
            node = node.next
        self.checked = False

    def copy(
        self,
        graph: torch.fx.Graph,
        at: torch.fx.Node,
        given: Sequence[torch.fx.Node],
        paths: tuple[str, str],
        held: Mapping[str, torch.fx.Node],
        stored: list[tuple[torch.fx.Node, str]],
    ) -> list[torch.fx.Node]:
        """Insert copies of the operators before the node `at` and return the results.

        `stored` receives the new values of buffers, with the names of the buffers.
        """
        self.check()
        new: dict[torch.fx.Node, torch.fx.Node] = dict(zip(self.given, given, strict=True))

        def place(node: torch.fx.Node) -> torch.fx.Node:
            if node not in new:
                new[node] = self._own(node, paths, held)
            return new[node]

        with graph.inserting_before(at):
            for node in self.nodes:
                twin = graph.node_copy(node, place)
                twin.meta = _moved(node.meta, self.begin.meta, at.meta)
                new[node] = twin
                if (name := self.mutated.get(node.name)) is not None:
                    stored.append((twin, paths[1] + name.removeprefix(paths[0])))
        return [place(node) for node in self.made]

    def _own(
        self, node: torch.fx.Node, paths: tuple[str, str], held: Mapping[str, torch.fx.Node]
    ) -> torch.fx.Node:
        """Return the node that a copy reads instead of `node`, which is outside the marks.

        Raises
        ------
        NotCopiedError
            If `node` is not a weight or buffer of the layer, nor a constant.
        """
        if node.op == "get_attr":
            return node
        spec = self.inputs.get(node.name) if node.op == "placeholder" else None
        if spec is None or spec.kind.name == "USER_INPUT":
            raise NotCopiedError(f"'{node.name}' comes from elsewhere")
        if spec.kind.name == "CONSTANT_TENSOR":
            return node
        first, own = paths
        names = self.ties.get(str(spec.target), [str(spec.target)])
        name = next((name for name in names if name.startswith(f"{first}.")), None)
        if name is None:
            raise NotCopiedError(f"'{spec.target}' belongs to another part")
        wanted = own + name.removeprefix(first)
        found = next((held[one] for one in self.ties.get(wanted, [wanted]) if one in held), None)
        if found is None:
            raise NotCopiedError(f"'{own}' has no '{spec.target}' of its own")
        return found

    def check(self) -> None:
        """Check that only results and new values of buffers are read outside the region.

        Raises
        ------
        NotCopiedError
            If another value is read there.
        """
        if self.checked:
            return
        inside = set(self.nodes)
        for node in self.nodes:
            for user in node.users:
                if (
                    user in inside
                    or user.target is BEGIN
                    or (user.op == "output" and node.name in self.mutated)
                ):
                    continue
                if node not in self.made:
                    raise NotCopiedError(f"'{node.name}' is read elsewhere")
        self.checked = True


Meta = dict[str, Any]  # torch's metadata of a node


def _moved(meta: Meta, begin: Meta, at: Meta) -> Meta:
    """Return torch's metadata of an operator with its module path moved from one layer to another."""
    stack, first, own = (list((m.get("nn_module_stack") or {}).items()) for m in (meta, begin, at))
    if len(stack) < len(first) or not own:
        raise NotCopiedError("an operator is in no layer")
    old, new = first[-1][1][0], own[-1][1][0]
    inner = {
        f"{key} of {new}": (new + path.removeprefix(old) if path.startswith(old) else path, kind)
        for key, (path, kind) in stack[len(first) :]
    }
    return {**meta, "nn_module_stack": {**dict(own), **inner}}
