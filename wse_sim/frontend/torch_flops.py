"""Counts the FLOPs of a training step with torch and compares them with those of the kernel graph.

The module runs forward and backward on the device "meta", where tensors have shapes and no values, and every
product that torch's autograd runs is counted by the formulas of ``torch.utils.flop_counter``. The count
depends neither on the capture nor on the gradient rules. If the module cannot run without values, or its
control flow is random, its captured program is counted instead.

What forward() runs without a reader counts apart (:mod:`wse_sim.frontend.unread`): the graph does not have it.

If graph and count differ by more than :data:`TOLERANCE`, the graph gets a note with the products that only
one of them has. If no count can be made, it gets a note too. Neither case stops a capture.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from wse_sim.frontend.containers import decomposed_result
from wse_sim.frontend.regions import FROZEN
from wse_sim.frontend.trace import SHAPE_ONLY, Trace
from wse_sim.frontend.training import FLOPS_CHECKED, FLOPS_NOTE
from wse_sim.frontend.unread import Followed
from wse_sim.frontend.watch import as_it_was, held_tensors, quiet, seeded, unchecked
from wse_sim.graph import Kernel, KernelGraph, Phase, frozen

TOLERANCE = 0.005
"""Largest relative difference to torch's FLOPs that no note reports."""
MOST_SHOWN = 3  # most products in a list of a note
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_KNOWN = ("aten::", "prims::", "prim::", "quantized_decomposed::", "wse_sim::ctc")
# Operands of vector products whose gradient is an outer product, which autograd computes elementwise.
_OUTER = {"aten::mv": (0,), "aten::addmv": (1,), "aten::dot": (0, 1), "aten::vdot": (0, 1)}
_UNCOUNTED = frozenset(
    f"aten::{name}"
    for name in (
        "_trilinear",
        "_euclidean_dist",
        "_cdist_forward",
        "_cdist_backward",
        "affine_grid_generator",
    )
)
"""Operators of torch that contain products but have no formula."""
Product = tuple[str, int]
"""The text of an operator with the sizes of its operands, and its FLOPs."""


@dataclass
class Counted:
    """FLOPs of one step: forward, backward, and the forward passes that checkpoints repeat.

    `unread` are those of forward that reach neither a result, nor a gradient, nor a buffer.
    """

    forward: int = 0
    backward: int = 0
    again: int = 0
    unread: int = 0
    products: Counter[Product] = field(default_factory=Counter)
    strange: set[str] = field(default_factory=set)  # operators without a formula that may contain products

    @property
    def total(self) -> int:
        """FLOPs of the step without recomputation by checkpoints and without what nothing reads."""
        return self.forward - self.unread + self.backward


def _convolution_backward(args: Sequence[Any]) -> list[int]:
    """Return the FLOPs of the wanted gradients of operand and weights.

    They follow from the weights of a group; torch's own formula counts all channels.
    """
    g, x, w, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    each = 2 * x.shape[0] * prod((x if transposed else g).shape[2:]) * prod(w.shape)
    return [each for wanted in mask[:2] if wanted]


def _grouped_product(args: Sequence[Any]) -> list[int]:
    """Return the FLOPs of a grouped product, for which torch has no formula.

    Each row, or each column, is multiplied by one matrix.
    """
    a, b = args[:2]
    return [2 * a.shape[1] * b.numel() if a.dim() == 3 and b.dim() == 2 else 2 * a.numel() * b.shape[-1]]


_aten = torch.ops.aten
_OWN: dict[str, Callable[[Sequence[Any]], list[int]]] = {
    "aten::convolution_backward": _convolution_backward,
    "aten::_grouped_mm": _grouped_product,
    **dict.fromkeys(("aten::mv", "aten::dot", "aten::vdot"), lambda args: [2 * args[0].numel()]),
    "aten::addbmm": lambda args: [2 * args[1].numel() * args[2].shape[-1]],
    "aten::addmv": lambda args: [2 * args[1].numel()],
    "transformers::grouped_mm_fallback": _grouped_product,
    "transformers::grouped_mm_fallback_backward": lambda args: _grouped_product(args) * 2,
}


class _Counting(TorchDispatchMode):
    """Counts products.

    The result of an operator with known shapes is created directly, without a call of torch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found, self.followed = Counted(), Followed()
        self.phase = "forward"
        self.known: dict[object, object] = {}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if torch.is_inference_mode_enabled() and func.has_kernel_for_dispatch_key(_COMPOSITE):
            # In inference mode composite operators arrive undecomposed.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        key = _key(func, args, kwargs)
        shapes = self.known.get(key) if key is not None else None
        if shapes is not None:
            out = _made(shapes)
        else:
            out = func(*args, **(kwargs or {}))
            if key is not None and (shapes := _shapes(out)) is not None:
                self.known[key] = shapes
        flops = self._count(func, args, kwargs or {}, out)
        self.followed.add(func, args, kwargs or {}, out, flops if self.phase == "forward" else None)
        return out

    def _count(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: object
    ) -> int:
        packet, name = func._overloadpacket, func._schema.name
        if name in _OWN:
            counts = _OWN[name](args)
            if self.phase == "forward" and torch.is_grad_enabled():
                trained = [args[place] for place in _OUTER.get(name, ()) if args[place].requires_grad]
                self.found.backward += sum(2 * x.numel() for x in trained)
        elif packet in flop_registry:
            counts = [int(flop_registry[packet](*args, **kwargs, out_val=out))]
        else:
            if not name.startswith(_KNOWN) or name in _UNCOUNTED:
                self.found.strange.add(name)
            return 0
        if any(isinstance(x, torch.Tensor) and x.is_complex() for x in args):
            counts = [4 * count for count in counts]  # torch's formulas ignore the type
        # Gradients are computed without a record for further gradients. What a backward pass computes with one is
        # a forward pass that a checkpoint repeats, of torch or of the model's author.
        phase = "again" if self.phase == "backward" and torch.is_grad_enabled() else self.phase
        setattr(self.found, phase, getattr(self.found, phase) + sum(counts))
        if phase != "again":
            sizes = [tuple(x.shape) for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
            text = f"{packet.__name__} of {' and '.join(' x '.join(map(str, s)) for s in sizes[:3])}"
            self.found.products.update((text, count) for count in counts)
        return sum(counts)


def _described(x: object) -> object:
    return (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else x


def _key(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> object:
    """Return a key that determines the shapes of the results.

    Return None for operators that return or change their operands.
    """
    if func._schema.is_mutable or any(r.alias_info is not None for r in func._schema.returns):
        return None
    try:
        key = func, tuple(map(_of_list, args)), tuple((k, _of_list(v)) for k, v in (kwargs or {}).items())
        hash(key)
    except TypeError:
        return None
    return key


def _of_list(x: object) -> object:
    # The type is part of the key, because 1, 1.0 and True are equal but give results of different types.
    return tuple(map(_of_list, x)) if isinstance(x, (list, tuple)) else (type(x), _described(x))


def _shapes(out: object) -> object:
    """Return the shapes, strides and types of results on "meta"; None if other objects are among them."""
    if isinstance(out, torch.Tensor):
        plain = type(out) is torch.Tensor and out.device.type == "meta" and not out.is_sparse
        return (tuple(out.shape), out.stride(), out.dtype) if plain else None
    if isinstance(out, (tuple, list)):
        parts = [None if x is None else _shapes(x) for x in out]
        whole = all(p is not None or x is None for p, x in zip(parts, out, strict=True))
        return (type(out), parts) if whole else None
    return None


def _made(shapes: Any) -> object:
    if shapes is None:
        return None
    if len(shapes) == 2:
        return shapes[0](_made(part) for part in shapes[1])
    return torch.empty_strided(shapes[0], shapes[1], dtype=shapes[2], device="meta")


Trains = Callable[[str], bool] | None
"""States for the name of a parameter whether it may train; None for inference, which has no backward pass."""


def _step(
    run: Callable[[], object],
    trained: Sequence[torch.Tensor] | None,
    buffers: Callable[[], Iterable[torch.Tensor]],
) -> Counted:
    """Count one call of `run` and the backward pass of its result to the trained tensors; None for no backward pass.

    `buffers` returns, after the call, the tensors that stay.
    """
    counting = _Counting()
    attention = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operator has no formula
    try:
        with (
            torch.device("meta"),
            torch.set_grad_enabled(trained is not None),
            sdpa_kernel(SDPBackend.MATH),
            counting,
        ):
            made = run()
            leaves = pytree.tree_leaves(dict(made) if isinstance(made, Mapping) else decomposed_result(made))
            wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
            counting.phase = "backward"
            if trained is not None:
                # Reentrant checkpoints do not support a list of inputs.
                into = list(trained) if _leaves_of(wanted) - {id(x) for x in trained} else None
                torch.autograd.backward(wanted, [torch.empty_like(x) for x in wanted], inputs=into)
    finally:
        torch.backends.mha.set_fastpath_enabled(attention)
    results = [x for x in (*leaves, *buffers()) if isinstance(x, torch.Tensor)]
    counting.found.unread = counting.followed.unread(results)
    return counting.found


def _leaves_of(results: Sequence[torch.Tensor]) -> set[int]:
    """Return the ids of the leaf tensors that get a gradient from results."""
    found, seen = set[int](), set[object]()
    waiting = [x.grad_fn for x in results]
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if (variable := getattr(function, "variable", None)) is not None:
            found.add(id(variable))
        waiting += [after for after, _ in function.next_functions]
    return found


def _on_meta(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype, device="meta")
    return torch.nn.Parameter(made, x.requires_grad) if isinstance(x, torch.nn.Parameter) else made


def counted_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    trains: Trains = lambda name: True,
) -> Counted:
    """Return the FLOPs of a step of a module, with weights and arguments on "meta".

    A copy of the module runs. Any error of a module that cannot run without values is raised.
    """
    tensors = dict[str, torch.Tensor](module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    memo = {id(x): _on_meta(x) for x in (*tensors.values(), *held_tensors(module).values())}
    own = copy.deepcopy(module, cast("dict[int, Any]", memo))
    with contextlib.suppress(NotImplementedError):
        own.train(trains is not None)
    for name, parameter in own.named_parameters():
        if trains is not None and parameter.requires_grad and not trains(name):
            parameter.requires_grad_(False)
    given = pytree.tree_map_only(torch.Tensor, _on_meta, (tuple(args), dict(kwargs or {})))
    # A hook of the copy may refer to the original module and store tensors there.
    with seeded(), unchecked(), quiet(), as_it_was(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = None if trains is None else [p for p in own.parameters() if p.requires_grad]
        return _step(lambda: own(*given[0], **given[1]), trained, own.buffers)


def counted_program(program: torch.export.ExportedProgram, trains: Trains) -> Counted:
    """Return the FLOPs of a step of a captured program. Parts that ran under no_grad have no gradients."""
    signature = program.graph_signature
    values: list[object] = []
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            value = torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, torch.Tensor) and spec.kind.name == "PARAMETER":
            stored = program.state_dict.get(spec.target or "")
            value.requires_grad_(
                trains is not None
                and value.is_floating_point()
                and (stored is None or stored.requires_grad)
                and trains(spec.target or "")
            )
        values.append(value)
    wanted = {s.arg.name for s in signature.output_specs if s.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")}
    output = next(node for node in program.graph.nodes if node.op == "output")
    results = [x for x in output.args[0] if isinstance(x, torch.fx.Node) and x.name in wanted]

    held = {spec.target: value for spec, value in zip(signature.input_specs, values, strict=True)}
    written = {
        made: held[spec.target]
        for made, spec in zip(output.args[0], signature.output_specs, strict=True)
        if spec.kind.name == "PARAMETER_MUTATION"
    }
    kinds = [spec.kind.name for spec in signature.output_specs]
    buffers = [x for spec, x in zip(signature.input_specs, values, strict=True) if spec.kind.name == "BUFFER"]

    def run() -> object:
        made = _OnMeta(program.graph_module, written).run(*values, enable_io_processing=False)
        buffers.extend(x for kind, x in zip(kinds, made, strict=True) if kind == "BUFFER_MUTATION")
        return [x for node, x in zip(output.args[0], made, strict=True) if node in results]

    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained = [x for x in values if isinstance(x, torch.Tensor) and x.requires_grad]
        return _step(
            run,
            None if trains is None else trained,
            lambda: [x for x in buffers if isinstance(x, torch.Tensor)],
        )


def _said_shape(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the operand whose shape alone an operator uses; None if there is none."""
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    operand = node.args[0] if name in SHAPE_ONLY and node.args else None
    return operand if isinstance(operand, torch.fx.Node) and operand.op == "call_function" else None


def read_by(results: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the nodes whose elements `results` depend on, and `results`."""
    found: set[torch.fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [x for x in node.all_input_nodes if x is not _said_shape(node)]
    return found


class _OnMeta(torch.fx.Interpreter):
    """Runs a captured program on "meta".

    `written` maps the new value of a weight that the program writes in place to the weight, which still trains.
    """

    def __init__(self, module: torch.fx.GraphModule, written: Mapping[torch.fx.Node, object]) -> None:
        super().__init__(module)
        self.written = written

    def run_node(self, n: torch.fx.Node) -> object:
        if n in self.written:
            return self.written[n]
        if n.op == "get_attr":
            return pytree.tree_map_only(torch.Tensor, _on_meta, super().run_node(n))
        is_frozen = (n.meta.get("custom") or {}).get(FROZEN)
        with torch.set_grad_enabled(not is_frozen):
            return super().run_node(n)

    def call_function(
        self, target: torch.fx.node.Target, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("meta"), (args, kwargs))
        if target is _aten.copy.default:  # torch has no derivative of it
            return args[1].to(args[0].dtype).expand_as(args[0]).clone()
        if target is _aten.index_put.default and getattr(args[1][0], "dtype", None) is torch.bool:
            x, (mask, *_), value = args[:3]  # the number of selected rows is unknown, and not needed
            wide = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
            return torch.where(wide, value.sum().to(x.dtype), x)
        if target is torch.ops.prims.fft_c2r.default:  # torch has no derivative of it
            return _aten._fft_c2r(args[0], kwargs["dim"], 0, kwargs["last_dim_size"])
        # The results of products may have other strides than during the capture, so a view may fail.
        target = _aten.reshape.default if target is _aten.view.default else target
        return super().call_function(target, args, kwargs)


def compared(graph: KernelGraph, kept: KernelGraph, trace: Trace, chosen: bool) -> KernelGraph:
    """Return a training graph with the verdict on its FLOPs as a fact, and notes on differences from torch's.

    Parameters
    ----------
    graph
        The training graph.
    kept
        The same graph without recomputation, which is compared.
    trace
        The captured program with its counters.
    chosen
        Whether the parameters that train are those of the trace, instead of those of the module.
    """
    trained = {node.name for node in trace.nodes.values() if node.kind == "parameter" and node.trains}
    faults: list[str] = []
    counts: list[Counted] = []
    for count in trace.counts:
        if counts and _is_equal(kept, counts[0]):
            break
        try:
            counts.append(count(lambda name: not chosen or name in trained))
        except Exception as fault:  # the model's own or torch's, of any type
            faults.append(f"{type(fault).__name__}: {' '.join(str(fault).split())[:120]}")
    notes = []
    if not counts:
        notes.append(f"{FLOPS_NOTE} are not compared with torch's, which cannot count them ({faults[-1]})")
        return _noted(graph, "not compared", notes)
    first, last = counts[0], counts[-1]
    if first.again:
        notes.append(
            f"recomputation of checkpoints, {first.again:,} FLOPs a step by torch, is not in the graph, which keeps what "
            "gradients need"
        )
    has_module = len(trace.counts) > 1  # a program that was made functional lacks what nothing reads
    notes += unread_note(first) if has_module else unread_notes(trace)
    lacking = bool(first.strange) and first.strange <= _UNCOUNTED  # the captured program has them decomposed
    if _is_equal(kept, first) or (lacking and _is_equal(kept, last)):
        return _noted(graph, "as torch counts", notes)
    if first.strange:
        notes.append(
            f"{FLOPS_NOTE} are not compared with torch's, which has no formula for {', '.join(sorted(first.strange))}"
        )
        return _noted(graph, "not compared", notes)
    notes.append(_difference(kept, first, last if len(counts) > 1 else None))
    return _noted(graph, "differ from torch's", notes)


def unread_note(by_torch: Counted) -> list[str]:
    """Return a note on work of forward() that nothing reads, which torch counts."""
    if not by_torch.unread:
        return []
    return [
        f"forward: {by_torch.unread:,} of {by_torch.forward:,} FLOPs reach no result, gradient or buffer; they are left out, "
        "but torch.utils.flop_counter counts them"
    ]


def unread_notes(trace: Trace) -> list[str]:
    """Return the note of :func:`unread_note` for inference with a trace."""
    for count in trace.counts if trace.may_be_unread else ():
        with contextlib.suppress(Exception):  # of a module that cannot run without values, of any type
            return unread_note(count(None))
    return []


def _noted(graph: KernelGraph, verdict: str, notes: Sequence[str]) -> KernelGraph:
    return dataclasses.replace(
        graph, facts=frozen({**graph.facts, FLOPS_CHECKED: verdict}), notes=(*graph.notes, *notes)
    )


def _is_equal(graph: KernelGraph, by_torch: Counted) -> bool:
    return abs(graph.total_flops - by_torch.total) <= TOLERANCE * by_torch.total


def _difference(graph: KernelGraph, module: Counted, program: Counted | None) -> str:
    """Return one sentence with both counts and the products that only one of them has."""
    ours: Counter[Product] = Counter()
    for kernel in graph.kernels:
        ours.update((kernel.name, part) for part in _parts(kernel))
    mine = _without(ours, module.products)
    theirs = _without(module.products, ours)
    text = (
        f"{FLOPS_NOTE}: {graph.total_flops:,} in the graph, {module.total:,} by torch "
        f"({100 * (graph.total_flops / module.total - 1 if module.total else 1):+.1f} %); "
        f"only in the graph: {_listed(mine)}; only in torch: {_listed(theirs)}"
    )
    if program is not None and _is_equal(graph, program):
        text += "; torch counts the graph's FLOPs for the captured program, so the module itself runs other operators"
    return text + "; please report it with the model"


def _parts(kernel: Kernel) -> list[int]:
    """Return the FLOPs of a kernel, one number per product that torch counts."""
    if not kernel.flops:
        return []
    if kernel.family == "attention":
        count = 2 if kernel.phase is Phase.FORWARD else 4
        return [kernel.flops // count] * count
    return [kernel.flops]


def _without(some: Counter[Product], others: Counter[Product]) -> Counter[Product]:
    """Return the products of `some` that have no counterpart with the same FLOPs in `others`."""
    sizes: Counter[int] = Counter()
    for (_, flops), count in others.items():
        sizes[flops] += count
    left: Counter[Product] = Counter()
    for (name, flops), count in some.items():
        met = min(count, sizes[flops])
        sizes[flops] -= met
        if count > met:
            left[name, flops] = count - met
    return left


def _listed(products: Counter[Product]) -> str:
    rows = sorted(products.items(), key=lambda item: (-item[0][1] * item[1], item[0]))
    shown = [f"{name} ({flops:,}{f', {count} times' if count > 1 else ''})" for (name, flops), count in rows]
    more = f" and {len(rows) - MOST_SHOWN} more" if len(rows) > MOST_SHOWN else ""
    return ", ".join(shown[:MOST_SHOWN]) + more if shown else "nothing"
