"""Computes the values of the tensors of a graph by running the captured program with PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from wse_sim.frontend.attention_layout import ATTENTION
from wse_sim.frontend.build import lower_trace
from wse_sim.frontend.capture import export, trace_exported
from wse_sim.frontend.masks import ADDED, MASK, sum_of_masks
from wse_sim.frontend.orders import ROWS
from wse_sim.frontend.precision import precision_of
from wse_sim.frontend.rotations import ROTARY, TABLES
from wse_sim.frontend.trace import Node, NodeRef


class _Recorder(torch.fx.Interpreter):
    """Runs a program and stores every intermediate value."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, object] = {}

    def run_node(self, n: torch.fx.Node) -> object:
        self.values[n.name] = super().run_node(n)
        return self.values[n.name]


def _leaves(args: object) -> Iterator[object]:
    """Yield the leaves of nested tuples, lists and dictionaries, in the order of PyTorch's export."""
    if isinstance(args, dict):
        args = tuple(args.values())
    if not isinstance(args, (tuple, list)):
        yield args
        return
    for item in args:
        yield from _leaves(item)


def _mask_of(node: Node, values: Mapping[str, object]) -> torch.Tensor | None:
    """Return what is added to the scores of one sample of attention, (heads or 1, queries, keys); None without such values."""
    named = [one.name for one in (node.arg(3, "attn_mask"), *node.args[6:]) if isinstance(one, NodeRef)]
    masks = [one.detach().cpu().numpy() for one in map(values.get, named) if isinstance(one, torch.Tensor)]
    hows = node.kwargs.get("masked") or ((ADDED, 1.0),)
    if len(hows) != len(masks) or any(factor is None for _, factor in hows):
        return None
    found = torch.tensor(sum_of_masks(hows, masks))
    return found.reshape(-1, *found.shape[-2:]) if found.ndim > 1 else None


def values_of(
    module: torch.nn.Module, args: tuple[object, ...], names: Collection[str]
) -> dict[str, NDArray[np.float32]]:
    """Return the values of the tensors in `names` of the module's inference graph, as fp32 arrays.

    The name of a kernel with the suffix :data:`ROWS` is the operand that the kernel reads through its view of
    an input; that of a rotation of positions with those of :data:`TABLES` its cosines or sines; that of attention with :data:`MASK`
    what is added to its scores. Names without a value are left out.
    """
    was_training = module.training
    module.eval()
    try:
        program = export(module, args, None, False).run_decompositions({})
    finally:
        module.train(was_training)
    lowered = lower_trace(trace_exported(program, {}), precision=precision_of("mixed"), training=False)
    given = iter(_leaves(args))
    inputs = [
        next(given)
        if spec.kind.name == "USER_INPUT"
        else program.state_dict.get(spec.target, program.constants.get(spec.target))
        for spec in program.graph_signature.input_specs
    ]
    recorder = _Recorder(program.graph_module)
    with torch.no_grad():
        recorder.run(*inputs)
    recorder.values |= {
        spec.target: value
        for spec, value in zip(program.graph_signature.input_specs, inputs, strict=True)
        if spec.target is not None
    }
    of_node = {lowered.tensor_of[name]: name for name in lowered.tensor_of if name in recorder.values}
    for kernel in (one for one in lowered.graph.kernels if one.access.view):
        for ref in lowered.nodes_of[kernel.name][0].refs():
            base = lowered.trace.base(ref)
            if base is not None and base.kind == "input" and ref.name in recorder.values:
                of_node[kernel.name + ROWS] = ref.name
    for kernel in lowered.graph.kernels:
        node = lowered.nodes_of[kernel.name][0]
        if node.op == ROTARY and node.kwargs.get("block"):
            for number, end in enumerate(TABLES, 1):
                refs = node.args[number :: len(TABLES)]
                parts = [recorder.values[ref.name] for ref in refs if ref.name in recorder.values]
                if len(parts) == len(refs):
                    of_node[kernel.name + end] = kernel.name + end
                    recorder.values[kernel.name + end] = torch.cat(torch.broadcast_tensors(*parts), -1)
        if node.op in ATTENTION and (mask := _mask_of(node, recorder.values)) is not None:
            of_node[kernel.name + MASK] = kernel.name + MASK
            recorder.values[kernel.name + MASK] = mask
    found = {name: recorder.values[of_node[name]] for name in names if name in of_node}
    return {
        name: value.detach().float().numpy()
        for name, value in found.items()
        if isinstance(value, torch.Tensor)
    }
