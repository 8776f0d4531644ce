"""Numerics of the CPU: fp32, mixed (a half type by the rules of autocast), compiled (fp32 by Inductor);
checks.

Mixed rewrites the recorded graph, forward and backward. Values are stored in fp32; a *low* value is one of
the half type. With round(x) the nearest value of the half type (infinite beyond its range)::

    products          round(op(round(a), round(b)))      sums in fp32, as the wafer's mixed products
    kept in fp32      op(a)                              exponentials, norms, losses, sums
    all others        round(op(a)) if every operand is low, else op(a): mixed operands are computed in fp32

Weights, stored gradients and the optimizer stay in fp32. On level 2 softmax is among the others. The formats
by exponent and mantissa bits: float16 5 and 10, bfloat16 8 and 7, cbfloat16 6 and 9 (bias 31, no subnormal
numbers). The rules are those of ``torch.amp`` on the level of ATen operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from wse_sim.cstorch import faults
from wse_sim.cstorch.program import StepProgram, compiled_graph
from wse_sim.cstorch.stores import of_run
from wse_sim.cstorch.tensors import schema_facts

if TYPE_CHECKING:
    from wse_sim.cstorch import runtime

PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "addbmm", "addmv", "mv", "dot", "baddbmm", "linear", "matmul", "convolution",
     "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu",
     "_scaled_dot_product_flash_attention_for_cpu_backward"}
)  # fmt: skip
SOFTMAX = frozenset({"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"})
IN_FP32 = SOFTMAX | frozenset(
    {"native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
     "native_batch_norm", "_native_batch_norm_legit", "native_batch_norm_backward", "linalg_vector_norm",
     "_foreach_norm", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss",
     "mse_loss_backward", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
     "exp", "log", "log2", "log10", "log1p", "expm1", "logsumexp", "pow", "rsqrt", "sqrt", "reciprocal", "sum", "mean",
     "prod", "cumsum", "cumprod", "var", "var_mean", "std", "softplus", "erfinv", "acos", "asin", "cosh", "sinh", "tan"}
)  # fmt: skip


# -- half types on fp32 storage -----------------------------------------------------------------------
def rounded_float16(x: torch.Tensor) -> torch.Tensor:
    """Nearest float16 values, in fp32."""
    return x.to(torch.float16).to(torch.float32)


def rounded_bfloat16(x: torch.Tensor) -> torch.Tensor:
    """Nearest bfloat16 values, in fp32."""
    return x.to(torch.bfloat16).to(torch.float32)


CB_DROPPED = 23 - 9
"""Mantissa bits of fp32 that cbfloat16 does not have."""
CB_LARGEST, CB_LEAST = (2.0 - 2.0**-9) * 2.0**31, 2.0**-30
"""Largest and least number of cbfloat16: exponents -30 to 31 about the bias 31, as in IEEE formats.

The range of the training stack: the `GradScaler` of cerebras-pytorch 2.10 begins at the largest power of two of the half type, 2**15 for
float16 and 2**31 for cbfloat16.  Programs in CSL have the bias 42 (bits of 6.0 in the language guide, `wse_sim/fabric/vm/half_floats.py`).  Both
can hold, because the exponent bias of the floating-point unit is programmable (US patent 11,062,202).
"""


def rounded_cbfloat16(x: torch.Tensor) -> torch.Tensor:
    """Nearest values of 6 exponent and 9 mantissa bits (ties to even), in fp32; small ones are zero, large ones infinite."""
    bits = x.contiguous().view(torch.int32)
    odd = (bits >> CB_DROPPED) & 1
    kept = (bits + ((1 << (CB_DROPPED - 1)) - 1) + odd) & -(1 << CB_DROPPED)
    near = torch.where(torch.isfinite(x), kept.view(torch.float32), x)
    near = torch.where(near.abs() > CB_LARGEST, torch.copysign(torch.full_like(near, torch.inf), near), near)
    return torch.where(near.abs() < CB_LEAST, torch.zeros_like(near), near)


ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float16": rounded_float16,
    "bfloat16": rounded_bfloat16,
    "cbfloat16": rounded_cbfloat16,
}


# -- the rewrite --------------------------------------------------------------------------------------
class _Mixed:
    """Copies a recorded graph and inserts roundings."""

    def __init__(self, program: StepProgram, half: str, level: int) -> None:
        self.program, self.round = program, ROUNDED[half]
        self.in_fp32 = IN_FP32 - SOFTMAX if level == 2 else IN_FP32
        recorder = program.recorder
        self.tensors = {
            node: recorder.fakes[key] for key, node in recorder.nodes.items() if key in recorder.fakes
        }
        self.graph = Graph()
        self.copy: dict[Node, Node] = {}
        self.low: set[Node] = set()  # nodes of the recorded graph whose values are of the half type
        self.low_lists: set[Node] = set()

    def rewritten(self) -> Graph:
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            else:
                self.copy[node] = self.graph.node_copy(node, self.copy.__getitem__)
        return self.graph

    def _is_float(self, node: Node) -> bool:
        tensor = self.tensors.get(node)
        return tensor is not None and tensor.dtype is torch.float32

    def _floats(self, node: Node) -> list[Node]:
        return [n for n in node.all_input_nodes if self._is_float(n)]

    def _call(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._item(node)
            return
        name = _name(node)
        writes, positions = schema_facts(cast(OpOverload, node.target))
        floats = self._floats(node)
        if name in PRODUCTS and not writes:
            low = {n: self.copy[n] if n in self.low else self._rounded(self.copy[n]) for n in floats}
            made = self.graph.node_copy(node, lambda n: low.get(n, self.copy[n]))
            self._keep(node, made, is_low=True)
            return
        made = self.graph.node_copy(node, self.copy.__getitem__)
        all_low = bool(floats) and all(n in self.low for n in floats)
        if writes:
            self.copy[node] = made
            for position in positions:
                target = node.args[position] if position < len(node.args) else None
                if isinstance(target, Node) and target in self.low and not all_low:
                    self.graph.call_function(
                        torch.ops.aten.copy_.default,
                        (self.copy[target], self._rounded(self.copy[target])),
                    )
            return
        if name in self.in_fp32:
            all_low = False
        self._keep(node, made, is_low=all_low, is_view=_is_view(node))

    def _keep(self, node: Node, made: Node, is_low: bool, is_view: bool = False) -> None:
        """Copy a node; a low result is rounded unless it is a view."""
        self.copy[node] = made
        if not is_low:
            return
        if node in self.tensors:
            if not self._is_float(node):
                return
            if not is_view:
                self.copy[node] = self._rounded(made)
            self.low.add(node)
        else:
            self.low_lists.add(node)

    def _item(self, node: Node) -> None:
        """Copy one of several results; what an operator saves for its backward pass (all but the first) stays
        unchanged."""
        made = self.graph.node_copy(node, self.copy.__getitem__)
        self.copy[node] = made
        source = node.args[0]
        assert isinstance(source, Node)
        if source not in self.low_lists or not self._is_float(node):
            return
        if node.args[1] == 0 or _name(source).endswith("backward") or _is_view(source):
            if not _is_view(source):
                self.copy[node] = self._rounded(made)
            self.low.add(node)

    def _rounded(self, node: Node) -> Node:
        return self.graph.call_function(self.round, (node,))


def _name(node: Node) -> str:
    return str(getattr(node.target, "_schema", None) and node.target._schema.name).removeprefix("aten::")  # type: ignore[union-attr]


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


# -- checks -------------------------------------------------------------------------------------------
class Checks:
    """Checks every result of a replay; names the first operator that returns an infinity or a NaN for finite operands."""

    def __init__(self, sources: list[str]) -> None:
        self.sources = sources

    def __call__(self, number: int, result: torch.Tensor, *operands: torch.Tensor) -> None:
        from wse_sim.cstorch import runtime

        if not result.is_floating_point() or bool(torch.isfinite(result).all()):
            return
        is_nan = bool(torch.isnan(result).any())
        floats = [t for t in operands if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if any(bool(torch.isnan(t).any()) for t in floats):
            return
        if not is_nan and any(not bool(torch.isfinite(t).all()) for t in floats):
            return
        step = runtime.run().global_step + 1
        what = "NaN" if is_nan else "infinity"
        faults.warn_once(
            ("check values", number),
            f"step {step}: {self.sources[number]} is the first operator with a result that is not finite ({what})",
        )


# Operators that make infinities on purpose: masks, and constants.
MASKS = frozenset({"masked_fill", "masked_fill_", "full", "full_like", "fill", "fill_", "where", "scalar_tensor",
                   "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "new_full"})  # fmt: skip


def checked(graph: Graph) -> tuple[Graph, Checks]:
    """Return a graph that checks every result."""
    out = Graph()
    copy: dict[Node, Node] = {}
    sources: list[str] = []
    checks = Checks(sources)
    for node in graph.nodes:
        copy[node] = made = out.node_copy(node, copy.__getitem__)
        made.meta = dict(node.meta)
        if node.op != "call_function" or _name(node) in (*MASKS, "None") or _is_view(node):
            continue
        schema = node.target._schema
        if len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
            continue
        line = node.meta.get("source", "")
        sources.append(f"{schema.name}{f' at {line}' if line else ''}")
        out.call_function(
            _looked, (checks_key(checks), len(sources) - 1, made, *(copy[n] for n in node.all_input_nodes))
        )
    return out, checks


_CHECKS: dict[int, Checks] = of_run({})


def checks_key(checks: Checks) -> int:
    """Return a number by which generated code finds its checks."""
    _CHECKS[id(checks)] = checks
    return id(checks)


def _looked(key: int, number: int, result: torch.Tensor, *operands: torch.Tensor) -> None:
    _CHECKS[key](number, result, *operands)


# -- what is replayed ---------------------------------------------------------------------------------
def runnable(program: StepProgram, run: runtime.Run) -> Callable[..., Any]:
    """Return the function that replays a program with the run's options."""
    options, settings, graph = run.options, run.settings, program.graph
    if options.numerics == "mixed" and settings.mixed_precision:
        graph = _Mixed(program, settings.half_dtype, settings.precision_level).rewritten()
    if options.check_values:
        graph, _ = checked(graph)
    if options.numerics == "compiled":
        return by_inductor(graph, program.name)
    return compiled_graph(graph)


def by_inductor(graph: Graph, name: str) -> Callable[..., Any]:
    """Return the graph compiled by Inductor at its first call; random numbers are those of eager PyTorch.

    Raises
    ------
    ProgramError
        If Inductor cannot compile it here.
    """
    import torch._inductor.config as inductor

    inductor.fallback_random = True
    quick = torch.compile(GraphModule(torch.nn.Module(), graph), fullgraph=True, dynamic=False)

    def call(*given: torch.Tensor) -> object:
        try:
            return quick(*given)
        except torch._dynamo.exc.TorchDynamoException as fault:
            first = str(fault).strip().splitlines()[0]
            raise faults.program_error(
                f"Inductor cannot compile {name} here ({first[:160]}); use --numerics fp32", where=""
            ) from fault

    call.is_compiled = True  # type: ignore[attr-defined]
    return call
