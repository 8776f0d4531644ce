"""Builds the kernel graph from a cleaned trace: names and types of kernels and tensors."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from wse_sim.errors import ModelError, UnsupportedOpError
from wse_sim.frontend.attention_layout import ATTENTION, HEAD_AXES, stated
from wse_sim.frontend.classify import Draft, axes, classify, opaque, shape_of
from wse_sim.frontend.classify_rows import REDUCTIONS, known_operators
from wse_sim.frontend.cleanup import clean
from wse_sim.frontend.fusions import DraftGraph
from wse_sim.frontend.gradient_cuts import Cuts, cuts_of
from wse_sim.frontend.obstacles import met
from wse_sim.frontend.orders import (
    channels_moved,
    channels_taken,
    is_straight,
    operand_order,
    reordered,
    rows_joined,
    transposed_weight,
    view_taken,
)
from wse_sim.frontend.pairs import COMPLEX, as_pairs, is_complex, pair_shape
from wse_sim.frontend.precision import Precision
from wse_sim.frontend.repeats import find_repeats
from wse_sim.frontend.rewrites import Applied, fuse, rewrite
from wse_sim.frontend.rotations import NORMS, OF_HEADS, ROTARY, Taken, heads_taken
from wse_sim.frontend.samples import computed, in_doubt, settled
from wse_sim.frontend.steps import says_more, steps_of
from wse_sim.frontend.trace import Argument, Node, Trace
from wse_sim.graph import Access, Kernel, KernelGraph, Step, Tensor, TensorKind, frozen
from wse_sim.graph.access import START, Runs, channel_axis
from wse_sim.kernels import Family, check_graph, family
from wse_sim.kernels.blocks.training import fused_items


@dataclass
class LoweredModel:
    """A kernel graph with the record of its construction.

    `nodes_of` maps each forward kernel to its operators in order; the result of the kernel is that of the
    last one. `tensor_of` maps an operator to the tensor of the graph that has its result.
    """

    graph: KernelGraph
    applied: list[Applied]
    log: list[str]
    trace: Trace
    nodes_of: dict[str, tuple[Node, ...]]
    tensor_of: dict[str, str]


def lower_trace(
    trace: Trace,
    *,
    precision: Precision,
    training: bool,
    samples: int = 1,
    facts: dict[str, Any] | None = None,
    skip: frozenset[str] = frozenset(),
) -> LoweredModel:
    """Clean, rewrite, classify and fuse a trace, and return its kernel graph with the record of its
    construction.

    `samples` is the number of samples in the trace; `facts` become facts of the graph; `skip` are the names
    of fusions that are left out.

    Raises
    ------
    UnsupportedOpError
        If an operator has no kernel.
    ModelError
        If no kernel is left.
    """
    assert known_operators(), "the handlers register themselves on import"
    clean(trace)
    applied = rewrite(trace)
    builder = _Builder(trace, precision, training, samples)
    draft = builder.draft()
    applied += fuse(draft, skip)
    kernels = draft.in_order()
    if not kernels:
        raise ModelError(
            f"model '{trace.name}' computes nothing from its inputs: it returns them, or constants; give a module "
            "whose result depends on its inputs by some operator"
        )
    nodes_of = {k.name: tuple(trace.nodes[n] for n in draft.covers[k.name]) for k in kernels}
    turned = {
        builder.tensor_of[base.name]
        for ref in trace.outputs
        if (base := trace.base(ref)) is not None
        and base.name in builder.tensor_of
        and not is_straight(trace, ref, samples)
    }
    kernels = tuple(
        _with_rows_of_a_sample(builder.viewed(kernel, nodes_of[kernel.name], turned), samples)
        for kernel in kernels
    )
    droppable = {TensorKind.CONSTANT}
    if any(node.kind == "buffer" and node.dtype == "int8" for node in trace):
        droppable.add(TensorKind.PARAMETER)  # a conversion to int8 leaves the old weights unused
    read = {name for kernel in kernels for name in (*kernel.inputs, *kernel.parameters)}
    tensors = {n: t for n, t in draft.tensors.items() if t.kind not in droppable or n in read}
    graph = KernelGraph(
        name=trace.name,
        kernels=kernels,
        tensors=frozen(tensors),
        samples=samples,
        repeats=find_repeats(kernels, tensors),
        facts=frozen(facts),
        notes=tuple(trace.notes),
    )
    check_graph(graph)
    return LoweredModel(graph, applied, trace.log, trace, nodes_of, builder.tensor_of)


def _with_rows_of_a_sample(kernel: Kernel, samples: int) -> Kernel:
    """Return a kernel whose elements grow with the batch with the rows of one sample.

    If the batch does not divide the rows of all samples, the columns contain it.
    """
    dims = kernel.dims
    if kernel.sample_dim != "elements" or "rows" not in dims:
        return kernel
    whole = next((name for name in ("rows", "cols") if dims.get(name, 1) % samples == 0), None)
    if whole is None or whole not in dims:
        return kernel
    return dataclasses.replace(kernel, dims=frozen({**dims, whole: dims[whole] // samples}))


class _Builder:
    """Makes named kernels and tensors from the nodes of one trace."""

    def __init__(self, trace: Trace, precision: Precision, training: bool, samples: int = 1) -> None:
        self.trace, self.precision, self.training, self.samples = trace, precision, training, samples
        self.cuts = cuts_of(trace) if training else Cuts()
        self.grows: dict[str, bool] = {}  # which results grow with the batch, if two captures tell
        self.tensors: dict[str, Tensor] = {}
        self.tensor_of: dict[str, str] = {}
        self.names: set[str] = set()

    def draft(self) -> DraftGraph:
        """Return one kernel per operator, with its tensors, before fusion."""
        read = {ref.name for node in self.trace for ref in node.refs()}
        for node in self.trace:
            if node.kind != "call" and (node.kind != "input" or node.name in read or node.shape):
                self._leaf(node)
        kernels: dict[str, Kernel] = {}
        covers: dict[str, tuple[str, ...]] = {}
        for name, draft in self._drafts().items():
            kernel = self._kernel(self.trace.nodes[name], draft)
            kernels[kernel.name] = kernel
            covers[kernel.name] = (name,)
        outputs = set()
        for ref in self.trace.outputs:
            base = self.trace.base(ref)
            if base is not None and base.name in self.tensor_of and base.kind == "call":
                outputs.add(self._as_output(self.tensor_of[base.name]))
        return DraftGraph(kernels, self.tensors, outputs, self.training, covers=covers)

    def _drafts(self) -> dict[str, Draft]:
        """Return the kernels of all operators by name, with the dimensions that grow with the batch."""
        drafts = {node.name: self._classified(node, self.trace) for node in computed(self.trace)}
        if not in_doubt(drafts, self.trace, self.samples):
            return drafts
        found = settled(drafts, self.trace, self.samples, self._classified)
        self.trace.notes += found.notes
        self.grows = found.grows
        return found.drafts

    @staticmethod
    def _classified(node: Node, trace: Trace) -> Draft:
        """Return the kernel of a node.

        An operator without a kernel raises, or becomes a kernel that moves its elements while obstacles are
        collected.
        """
        try:
            found = as_pairs(classify(node, trace), node, trace)
            if not node.elements:  # an empty slice: a kernel has at least one element
                found.dims = {name: max(1, size) for name, size in found.dims.items()}
            return found
        except UnsupportedOpError as fault:
            met(fault, "operator", node.source, node=node.name)
            return opaque(node)

    def viewed(self, kernel: Kernel, nodes: tuple[Node, ...], turned: set[str]) -> Kernel:
        """Return the kernel with the views between it and its operands described in its `access`.

        Results in `turned` leave the model through a view.
        """
        names = reordered(self.trace, nodes, self.tensor_of, self.samples)
        is_cut = bool(names) or nodes[0].op == "cat"
        operands = self.tensor_of, self.tensors
        slices = channels_taken(self.trace, nodes, *operands, self.samples) if is_cut else ()
        names += tuple(name for name in kernel.outputs if name in turned)
        is_chain = len(nodes) > 1 and family(kernel.family).link(kernel.attrs) is not None
        order = operand_order(self.trace, nodes, self.tensor_of) if is_chain else ()
        if set(order) != {*kernel.inputs, *kernel.parameters} or order == kernel.inputs:
            order = ()
        heads, apart = self._heads(kernel, nodes[0])
        view, token = view_taken(self.trace, nodes, self.tensor_of, self.samples) if names else ("", None)
        access = Access(
            reordered=names,
            view=view,
            token=token,
            slices=slices,
            order=rows_joined(self.trace, nodes[0], self.tensor_of) or order,
            transposed=transposed_weight(self.trace, nodes[0], self.tensor_of) if names else "",
            factor=self._factor(nodes) if "scale" in fused_items(kernel) else 1.0,
            steps=self._steps(kernel, nodes, is_cut=bool(slices)),
            heads=heads,
            apart=apart,
            axes=self._axes(kernel, nodes[0], is_cut=bool(slices)),
            channels=channels_moved(self.trace, nodes, self.tensor_of, self.samples)
            if names or is_chain
            else (),
            raised=self._raised(nodes[0]),
        )
        return dataclasses.replace(kernel, access=access)

    def _raised(self, node: Node) -> tuple[tuple[str, float], ...]:
        """Return the scale of a norm to which the model adds a number, and the number."""
        base = self.trace.base(node.args[1]) if node.kwargs.get("raised") else None
        return ((self.tensor_of[base.name], float(node.kwargs["raised"])),) if base is not None else ()  # type: ignore[arg-type]

    def _axes(self, kernel: Kernel, node: Node, *, is_cut: bool) -> tuple[int, ...]:
        """Return the dimensions along which a reduction is, if it reads its only operand in the shape in which it is stored, but
        for channels that it leaves out."""
        if node.op not in REDUCTIONS.split() or len(kernel.inputs) != 1:
            return ()
        stored, seen = self.tensors[kernel.inputs[0]].shape, shape_of(self.trace, node.args[0])
        if is_cut and len(seen) == len(stored):
            channels = channel_axis(len(stored))
            stored = (*stored[:channels], seen[channels], *stored[channels + 1 :])
        return axes(node, self.trace) if seen == stored else ()

    def _heads(self, kernel: Kernel, node: Node) -> tuple[tuple[Taken, ...], tuple[Runs, ...]]:
        """Return what a kernel takes head by head, as :func:`heads_taken` does: a rotation, a norm of heads, or attention that
        reads one of these, has fewer heads of keys, or takes all operands of one tensor in an unusual order."""
        if node.op in NORMS:
            of_heads = node.op.startswith("wse.") or len(node.args[1]) == 1
            is_headed = of_heads and len(node.shape) == HEAD_AXES
        elif node.op in ATTENTION:
            bases = [self.trace.base(ref) for ref in node.args[:3]]
            is_made = any(
                base is not None and base.op in OF_HEADS and len(base.shape) == HEAD_AXES for base in bases
            )
            is_one = all(base is bases[0] for base in bases) and not kernel.attrs.get("packed")
            is_headed = is_made or is_one or kernel.dims.get("kv_heads") != kernel.dims.get("heads")
        else:
            is_headed = node.op == ROTARY
        return heads_taken(self.trace, node, self.tensor_of) if is_headed else ((), ())

    def _steps(self, kernel: Kernel, nodes: tuple[Node, ...], *, is_cut: bool) -> tuple[Step, ...]:
        """Return the elementwise steps of a kernel that takes operands whole or `is_cut`, or of the epilogue of a product.

        Return () if the names of the operators already state everything, or if a step cannot be described.
        """
        if any(
            node.dtype in COMPLEX or any(is_complex(self.trace, r) for r in node.refs()) for node in nodes
        ):
            return ()
        items = fused_items(kernel)
        behind = [node for node in nodes[1:] if "batch_norm" not in node.op]
        if items:
            own = nodes[0].name if len(behind) == len(nodes) - 1 else nodes[len(nodes) - len(behind) - 1].name
        elif family(kernel.family).link(kernel.attrs) is None:
            return ()
        else:
            behind, own = list(nodes), ""
        if not is_cut and reordered(self.trace, behind, self.tensor_of, self.samples):
            return ()
        steps = steps_of(self.trace, behind, self.tensor_of, own)
        taken = {name for _, name in steps if isinstance(name, str)} - {"", START}
        known = {*kernel.inputs, *kernel.parameters}
        return steps if says_more(steps, behind) and (taken <= known if own else taken == known) else ()

    @staticmethod
    def _factor(nodes: tuple[Node, ...]) -> float:
        """Return the product of the factors of these operators; 0 if one of them is not a nonzero number."""
        found = 1.0
        for node in nodes[1:]:
            if node.op in ("mul", "div", "true_divide"):
                number = node.args[1]
                if not isinstance(number, (int, float)) or not number:
                    return 0.0
                found *= number if node.op == "mul" else 1 / number
        return found

    def _as_output(self, name: str) -> str:
        self.tensors[name] = dataclasses.replace(self.tensors[name], kind=TensorKind.OUTPUT)
        return name

    def _leaf(self, node: Node) -> None:
        kind = {"input": TensorKind.INPUT, "parameter": TensorKind.PARAMETER}.get(
            node.kind, TensorKind.CONSTANT
        )
        if kind is TensorKind.CONSTANT and node.dtype == "int8" and len(node.shape) > 1:
            kind = TensorKind.PARAMETER  # a quantised weight
        weight = kind is TensorKind.PARAMETER
        dtype = (
            self.precision.stored(node.dtype, self.training)
            if weight
            else self.precision.computed(node.dtype)
        )
        per_sample = kind is TensorKind.INPUT and (not node.shape or node.shape[0] % self.samples == 0)
        trains = node.trains and node.name not in self.cuts.off
        self.tensors[node.name] = Tensor(node.name, pair_shape(node), dtype, kind, per_sample, trains)
        self.tensor_of[node.name] = node.name

    def _name(self, node: Node, found: Family) -> str:
        """Return a unique name for a kernel.

        It is the path of its module, followed by the operator if the module is not a layer of torch.nn.
        """
        operator = found.name if node.op in found.named_for else node.op.removeprefix("wse.")
        leaf = (
            node.module.startswith("torch.nn.modules.")
            and node.layer
            and not node.module.endswith("Sequential")
        )
        wanted = node.layer if leaf else f"{node.layer}.{operator}" if node.layer else operator
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}_{count}"
        self.names.add(name)
        return name

    def _kernel(self, node: Node, draft: Draft) -> Kernel:
        operands = draft.operands if draft.operands is not None else list(node.refs())
        inputs: list[str] = []
        parameters: list[str] = []
        for operand in operands:
            tensor = self._operand(operand)
            if tensor is None:
                continue
            weight = self.tensors[tensor].kind in (TensorKind.PARAMETER, TensorKind.CONSTANT)
            target = parameters if weight else inputs
            if tensor not in target:
                target.append(tensor)
        found = family(draft.family)
        name = self._name(node, found)
        out = f"{name}.out"
        self.tensor_of[node.name] = out
        shape, per_sample = self._samples_first(node)
        self.tensors[out] = Tensor(
            out,
            shape,
            self.precision.computed(node.dtype),
            TensorKind.ACTIVATION,
            per_sample,
            node.name not in self.cuts.off,
        )
        attrs = dict(draft.attrs)
        known = found.parameters()
        if "packed" in known:
            attrs |= stated(self.trace, node, draft.dims)
        if "accumulate" in known:
            attrs |= self.precision.matrix_attrs(node.dtype)
            if "weights" in known and any(self.tensors[p].dtype == "int8" for p in parameters):
                attrs["weights"] = "int8"
            elif "weights" in known and self.training and self._is_frozen(parameters):
                attrs["weights"] = "frozen"
        return Kernel(
            name=name,
            family=draft.family,
            dims=frozen(draft.dims),
            inputs=tuple(inputs),
            outputs=(out,),
            parameters=tuple(parameters),
            attrs=frozen(attrs),
            sample_dim=self._growing(node, draft),
            layer=node.layer,
            source=node.source,
            flops=int(found.flops(draft.dims, attrs)),
            dtype=self.precision.kernel(found.sums_rows),
            stops=tuple(self.tensor_of[base] for base in self.cuts.stops(node, self.trace)),
        )

    def _samples_first(self, node: Node) -> tuple[tuple[int, ...], bool]:
        """Return the shape of a result, with its samples in the first dimension, and whether it grows with the
        batch."""
        shape = pair_shape(node)
        if not self.grows.get(node.name, node.dynamic) or not shape:
            return shape, not shape and node.dynamic
        at = next((i for i, size in enumerate(shape) if size % self.samples == 0), None)
        return (shape, False) if at is None else ((shape[at], *shape[:at], *shape[at + 1 :]), True)

    def _growing(self, node: Node, draft: Draft) -> str | None:
        """Return the dimension that grows with the batch; None for kernels that sum over all samples, and for
        work with single numbers, such as the sum of two losses."""
        operands = (self.trace.nodes[ref.name] for ref in node.refs())
        is_number = not any(one.shape for one in (node, *operands) if one.dynamic)
        grows = draft.sample_dim is not None and draft.dims[draft.sample_dim] % self.samples == 0
        if is_number and node.dynamic:
            return None
        return draft.sample_dim if grows else None

    def _is_frozen(self, parameters: list[str]) -> bool:
        """Return whether a kernel has parameters and all of them are frozen."""
        own = [self.tensors[p] for p in parameters if self.tensors[p].kind is TensorKind.PARAMETER]
        return bool(own) and not any(t.trains for t in own)

    def _operand(self, operand: Argument) -> str | None:
        base = self.trace.base(operand)
        if base is None:
            return None
        if base.name not in self.tensor_of:  # a folded constant (mask, table)
            dtype = self.precision.computed(base.dtype)
            shape, per_sample = self._samples_first(base)
            self.tensors[base.name] = Tensor(base.name, shape, dtype, TensorKind.CONSTANT, per_sample)
            self.tensor_of[base.name] = base.name
        return self.tensor_of[base.name]
