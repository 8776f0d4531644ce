"""Patterns of operators that models write out: attention, norms, rotary positions, activations.

Each pattern is a small class with the operators that it may start from (`roots`) and `match`, which returns
the operator that replaces the root, or None. Operators that only the replaced chain read are dropped
afterwards.
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wse_sim.frontend.classify import distinct_heads
from wse_sim.frontend.masks import ADDED, MASKING, Mask, masked_by, without_idle
from wse_sim.frontend.rotations import ROTARY, block_of, joined_heads, whole_head
from wse_sim.frontend.trace import PARTIAL_VIEWS, VIEWS, Argument, Node, NodeRef, Trace


class Pattern(Protocol):
    """A rule that replaces several operators by one."""

    name: str
    roots: frozenset[str]

    def match(self, node: Node, trace: Trace) -> Node | None:
        """Return the operator that replaces `node`, or None if the pattern does not match."""


def made_from(node: Node, op: str, args: tuple[Any, ...], **kwargs: Argument) -> Node:
    """Return a new operator with the name, result shape, module and source line of `node`."""
    return Node(
        node.name,
        op,
        args,
        kwargs,
        node.shape,
        node.dtype,
        (node.shape,),
        "call",
        node.layer,
        node.module,
        node.source,
        trains=node.trains,
    )


def _base(trace: Trace, value: Argument, *operators: str) -> Node | None:
    node = trace.base(value)
    return node if node is not None and node.kind == "call" and node.op in operators else None


def _sides(node: Node) -> list[tuple[Any, Any]]:
    if len(node.args) < 2:
        return []
    a, b = node.args[:2]
    return [(a, b), (b, a)]


def _number(value: Argument) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class SpelledRmsNorm:
    """Matches an RMS norm: x * rsqrt(mean(x^2) + e), optionally times a weight."""

    name = "rms norm"
    roots = frozenset({"mul"})

    def match(self, node: Node, trace: Trace) -> Node | None:
        for x, scale in _sides(node):
            root = _base(trace, scale, "rsqrt")
            if root is not None and self._is_mean_square(root.args[0], x, trace) and not _centred(trace, x):
                return made_from(node, "wse.rms_norm", (x,), eps=_offset(trace, root.args[0]))
            norm = _base(trace, x, "wse.rms_norm")
            if (
                norm is not None
                and len(norm.args) == 1
                and isinstance(scale, NodeRef)
                and not trace.nodes[scale.name].dynamic
            ):
                weight, offset = _without_offset(trace, scale)
                raised: dict[str, Argument] = {"raised": offset} if offset else {}
                return made_from(node, "wse.rms_norm", (norm.args[0], weight), **norm.kwargs, **raised)
        return None

    @staticmethod
    def _is_mean_square(value: Argument, x: Argument, trace: Trace) -> bool:
        total = _base(trace, value, "add")
        mean = _base(trace, total.args[0] if total else value, "mean")
        square = _base(trace, mean.args[0], "pow", "square", "mul") if mean else None
        return square is not None and trace.base(square.args[0]) is trace.base(x)


def _centred(trace: Trace, x: Argument) -> bool:
    """Return whether a value is another one less its mean, as in a layer norm."""
    less = _base(trace, x, "sub")
    mean = _base(trace, less.args[1], "mean") if less else None
    return less is not None and mean is not None and trace.base(mean.args[0]) is trace.base(less.args[0])


def _offset(trace: Trace, value: Argument) -> float:
    """Return the number in `value + number`; 0 if there is none."""
    total = _base(trace, value, "add")
    return next((n for n in map(_number, total.args[1:2]) if n is not None), 0.0) if total else 0.0


def _without_offset(trace: Trace, weight: Argument) -> tuple[Argument, float]:
    """Return the weight in `1 + weight` and the number; other weights as they are, and 0."""
    total = _base(trace, weight, "add")
    for one, other in _sides(total) if total is not None and "alpha" not in total.kwargs else []:
        if trace.is_parameter(one) and trace.is_constant(other):
            node = trace.node(other)
            values = trace.evaluate(node.name) if node is not None else np.asarray(other)
            if values is not None and values.size and (values == values.flat[0]).all():
                return one, float(values.flat[0])
    return weight, 0.0


class SpelledLayerNorm:
    """Matches a layer norm: (x - mean) / sqrt(var + e), optionally times a weight and plus a bias."""

    name = "layer norm"
    roots = frozenset({"div", "mul", "add"})

    def match(self, node: Node, trace: Trace) -> Node | None:
        for x, scale in _sides(node):
            centred = _base(trace, x, "sub")
            root = _base(trace, scale, "sqrt", "rsqrt")
            if centred is not None and root is not None and _base(trace, centred.args[1], "mean") is not None:
                total = _base(trace, root.args[0], "add")
                spread = _base(trace, total.args[0] if total else root.args[0], "var", "mean")
                if spread is not None:
                    eps = _offset(trace, root.args[0])
                    return made_from(node, "wse.layer_norm", (centred.args[0],), eps=eps)
            norm = _base(trace, x, "wse.layer_norm")
            wanted = {1: "mul", 2: "add"}.get(len(norm.args)) if norm is not None else None
            if (
                norm is not None
                and wanted == node.op
                and isinstance(scale, NodeRef)
                and not trace.nodes[scale.name].dynamic
            ):
                return made_from(node, "wse.layer_norm", (*norm.args, scale), **norm.kwargs)
        return None


HALF = {"mul": 0.5, "div": 2.0}
"""Number by which an operator halves its operand."""
GELU_TOLERANCE = 0.01  # of the argument of tanh or erf: models round its constants
GELU_DEPTH = 6  # operators from the input to the argument of tanh or erf
GELU_POINTS = np.array([-1.5, 0.25, 2.0])
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power}


class SpelledGelu:
    """Matches GELU: x/2 (1 + tanh(...)) and x/2 (1 + erf(x / sqrt 2)), with the factors in any order."""

    name = "gelu"
    roots = frozenset({"mul"})

    def match(self, node: Node, trace: Trace) -> Node | None:
        for half, one_plus in _sides(node):
            total = _base(trace, one_plus, "add")
            bend = (
                _base(trace, total.args[0], "tanh", "erf")
                if total and _number(total.args[1]) == 1.0
                else None
            )
            scaled = _base(trace, half, "mul", "div")
            if bend is None or scaled is None or _number(scaled.args[1]) != HALF[scaled.op]:
                continue
            source = trace.base(scaled.args[0])
            if source is not None and _is_gelu(trace, bend, source.name):
                return made_from(
                    node, "gelu", (scaled.args[0],), approximate="tanh" if bend.op == "tanh" else "none"
                )
        return None


def _is_gelu(trace: Trace, bend: Node, name: str) -> bool:
    """Return whether the argument of `bend` (tanh or erf) is that of a GELU of the result `name`."""
    x = GELU_POINTS
    expected = sqrt(2 / pi) * (x + 0.044715 * x**3) if bend.op == "tanh" else x / sqrt(2)
    with np.errstate(all="ignore"):
        found = _values(trace, bend.args[0], name, GELU_DEPTH)
    return found is not None and np.allclose(found, expected, rtol=GELU_TOLERANCE, atol=0)


def _values(trace: Trace, value: Argument, name: str, depth: int) -> NDArray[np.float64] | None:
    """Return `value` where the result `name` is :data:`GELU_POINTS`; None if it cannot be evaluated."""
    node = trace.base(value)
    if node is None:
        number = _number(value)
        return None if number is None else np.full_like(GELU_POINTS, number)
    if node.name == name:
        return GELU_POINTS
    if node.elements == 1 and trace.is_constant(value):
        constant = trace.evaluate(node.name)
        return None if constant is None else np.full_like(GELU_POINTS, constant.item())
    if depth == 0 or node.op not in BINARY or len(node.args) != 2 or set(node.kwargs) - {"alpha"}:
        return None
    left, right = (_values(trace, one, name, depth - 1) for one in node.args)
    alpha = _number(node.kwargs.get("alpha", 1))
    if left is None or right is None or alpha is None:
        return None
    return np.asarray(BINARY[node.op](left, alpha * right), np.float64)


class SpelledSilu:
    """Matches SiLU, x sigmoid(x), and the quick GELU, x sigmoid(c x) with c = 1.702 for example."""

    name = "silu"
    roots = frozenset({"mul"})

    def match(self, node: Node, trace: Trace) -> Node | None:
        for x, gate in _sides(node):
            bend = _base(trace, gate, "sigmoid")
            if bend is None:
                continue
            scaled = _base(trace, bend.args[0], "mul")
            if trace.base(bend.args[0]) is trace.base(x):
                return made_from(node, "silu", (x,))
            if scaled is not None and _number(scaled.args[1]) and trace.base(scaled.args[0]) is trace.base(x):
                return made_from(node, "gelu", (x,), approximate="quick", factor=scaled.args[1])
        return None


class Rotary:
    """Matches rotary positions, x cos + rotated(x) sin, on all or the first features of each head.

    The complex form is a product with complex numbers between ``view_as_complex`` and ``view_as_real``.
    """

    name = "rotary"
    roots = frozenset({"add", "cat", "view_as_real"})

    def match(self, node: Node, trace: Trace) -> Node | None:
        if node.op == "view_as_real":
            product = _base(trace, node.args[0], "mul")
            turned = _base(trace, product.args[0], "view_as_complex") if product else None
            return (
                made_from(node, "wse.rotary", (turned.args[0], product.args[1]))
                if turned and product
                else None
            )
        if node.op == "cat":
            return self._joined(node, trace) or self._partial(node, trace)
        for left, right in _sides(node):
            straight, crossed = _base(trace, left, "mul"), _base(trace, right, "mul")
            if straight is None or crossed is None or not isinstance(straight.args[1], NodeRef):
                continue
            turned = _base(trace, crossed.args[0], "cat", "stack")
            source = trace.base(straight.args[0])
            if turned is not None and source is not None and self._is_rotation(turned, source, trace):
                taken = straight.args[0], straight.args[1], crossed.args[1]
                return made_from(node, ROTARY, taken, block=block_of(trace, taken[0], turned, taken[1:]))
        return None

    @staticmethod
    def _is_rotation(turned: Node, source: Node, trace: Trace) -> bool:
        bases = [trace.base(ref) for ref in turned.refs()]
        plain = [b for b in bases if b is source]
        negated = [b for b in bases if b is not None and b.op == "neg" and trace.base(b.args[0]) is source]
        return len(plain) == 1 and len(negated) == 1

    @staticmethod
    def _joined(node: Node, trace: Trace) -> Node | None:
        turned = [one for one in (_base(trace, ref, ROTARY) for ref in node.refs()) if one is not None]
        if len(turned) < 2 or len(turned) != len(node.refs()):
            return None
        value, block = joined_heads(trace, turned)
        is_last = node.arg(1, "dim", 0) in (-1, len(node.shape) - 1)
        tables = tuple(table for one in turned for table in one.args[1:])
        return made_from(node, ROTARY, (value, *tables), block=block) if block and is_last else None

    @staticmethod
    def _partial(node: Node, trace: Trace) -> Node | None:
        refs = node.refs()
        turned = _base(trace, refs[0], "wse.rotary") if len(refs) == 2 else None
        rest = trace.node(refs[1]) if len(refs) == 2 else None
        if turned is None or rest is None or rest.op not in PARTIAL_VIEWS | VIEWS:
            return None
        source = trace.base(refs[1])
        if source is None or trace.base(turned.args[0]) is not source:
            return None
        whole = whole_head(trace, turned, rest)
        block = turned.kwargs.get("block", 0) if whole is not None else 0
        return made_from(node, ROTARY, (whole or NodeRef(source.name), *turned.args[1:]), block=block)


def _times(factor: float | None, step: Node, trace: Trace) -> float | None:
    """Return `factor` times the factor of a step; None if that is not a single number."""
    if factor is None or step.op not in ("mul", "div"):
        return None
    by, number = step.args[1], _number(step.args[1])
    if isinstance(by, NodeRef) and trace.nodes[by.name].elements == 1:
        found = trace.evaluate(by.name)
        number = float(found.reshape(-1)[0]) if found is not None else None
    if not number:
        return None
    return factor / number if step.op == "div" else factor * number


class SpelledAttention:
    """Matches attention as products of activations: softmax(scale q k + mask) v, perhaps with several masks."""

    name = "attention"
    roots = frozenset({"matmul", "bmm"})

    def match(self, node: Node, trace: Trace) -> Node | None:
        dropped = _base(trace, node.args[0], "dropout")
        p = float(dropped.arg(1, "p", 0.5)) if dropped else 0.0
        weights = _base(
            trace, dropped.args[0] if dropped else node.args[0], "softmax", "_softmax", "_safe_softmax"
        )
        if weights is None or weights.args[1] not in (-1, len(weights.shape) - 1):
            return None
        if not _is_alone(trace, weights, dropped or node) or (
            dropped and not _is_alone(trace, dropped, node)
        ):
            return None  # attention weights with other readers have to be computed
        masks: list[Mask] = []
        factor: float | None = 1.0  # of the scores; None if other operations are applied to them
        cap = 0.0  # of cap tanh(score / cap)
        value, reader = weights.args[0], weights
        for _ in range(8):
            step = trace.base(value)
            if step is None or step.kind != "call" or not _is_alone(trace, step, reader):
                return None  # so have scores with other readers
            reader = step
            if step.op in ("matmul", "bmm"):
                operands = []
                for operand in step.args[:2]:
                    scaled = trace.node(operand)
                    while scaled is not None and scaled.op in ("mul", "div") and _number(scaled.args[1]):
                        factor = _times(factor, scaled, trace)
                        operand = scaled.args[0]
                        scaled = trace.node(operand)
                    operands.append(operand)
                return self._made(node, step, tuple(operands), (masks, p, factor, cap), trace)
            if step.op == "baddbmm":  # a bias on the scores
                beta, alpha = (_number(step.arg(*at, 1)) for at in ((3, "beta"), (4, "alpha")))
                masks.append(Mask(step.args[0], ADDED, factor if beta == 1 and not cap else None))
                factor = None if factor is None or not alpha else factor * alpha
                return self._made(node, step, step.args[1:3], (masks, p, factor, cap), trace)
            if step.op in MASKING:
                found = masked_by(step, trace, factor)
                if found is None or (masks and not trace.is_constant(found[1].value)):
                    return None
                value = found[0]
                masks.append(found[1]._replace(factor=None) if cap else found[1])
            elif step.op == "tanh" and factor and not cap:
                cap, factor, value = factor, 1.0, step.args[0]
            elif step.op == "tanh" or (step.op in ("mul", "div") and trace.is_constant(step.args[1])):
                factor = _times(factor, step, trace)
                value = step.args[0]
            else:
                return None
        return None

    @staticmethod
    def _made(
        node: Node,
        scores: Node,
        operands: tuple[Any, ...],
        changes: tuple[list[Mask], float, float | None, float],
        trace: Trace,
    ) -> Node | None:
        masks, p, factor, cap = changes
        q, k = operands
        v = node.args[1]
        heads = _heads(trace, q, scores)
        rows, width = trace.nodes[q.name].shape[-2:]
        keys = trace.nodes[k.name].shape[-1]
        normalized = trace.nodes[v.name].shape[-2]
        if keys != normalized:  # views between scores and softmax
            if rows != normalized:
                return None
            q, k, rows, keys = k, q, keys, rows  # keys times queries
        b = max(1, scores.elements // (heads * rows * keys))
        sizes = {
            "b": b,
            "heads": heads,
            "kv_heads": min(heads, distinct_heads(trace, v, heads)),
            "q": rows,
            "kv": keys,
            "d": width,
        }
        kind, masks = without_idle(trace, masks)
        if any(mask.factor is None for mask in masks):
            factor = None
        return made_from(
            node,
            "wse.attention",
            (
                q,
                k,
                v,
                masks[0].value if masks else None,
                p,
                kind == "causal",
                *(one.value for one in masks[1:]),
            ),
            sizes=tuple(sizes.items()),
            value_width=node.shape[-1],
            scale=factor * cap if factor and cap else factor,
            cap=cap,
            reshaped=factor is None,
            masked=tuple((mask.how, mask.factor) for mask in masks),
        )


def _is_alone(trace: Trace, node: Node, reader: Node) -> bool:
    """Return whether only `reader` reads a result, and the model neither returns nor stores it."""
    results = (*trace.outputs, *trace.updates)
    return all(trace.base(ref) is not node for ref in results) and trace.readers(node.name) == [reader]


def _heads(trace: Trace, q: Argument, scores: Node) -> int:
    """Return the heads of the scores: their second dimension, or that before batch and heads were merged."""
    if len(scores.shape) == 4:
        return scores.shape[1]
    node = trace.node(q)
    rows, width = node.shape[-2:] if node is not None else (0, 0)
    while node is not None and node.kind == "call" and node.op in VIEWS:
        if len(node.shape) == 4 and node.shape[2:] == (rows, width):
            return node.shape[1]
        source = trace.node(node.refs()[0])
        if source is not None and len(source.shape) > 1 and len(node.shape) > 1 and node.shape[-1] == width:
            heads, rest = divmod(
                source.shape[-1], width
            )  # (..., b, heads x width) to (..., b x heads, width)
            if heads > 1 and not rest and source.shape[-2] * heads == node.shape[-2] == scores.shape[0]:
                return heads
        node = source
    return scores.shape[0] if len(scores.shape) == 3 else 1


class SplitCrossEntropy:
    """Matches nll_loss of log_softmax, which becomes one cross-entropy kernel."""

    name = "cross entropy"
    roots = frozenset({"nll_loss", "nll_loss_nd", "nll_loss_forward"})

    def match(self, node: Node, trace: Trace) -> Node | None:
        logs = _base(trace, node.args[0], "log_softmax", "_log_softmax")
        return (
            made_from(node, "wse.cross_entropy", (logs.args[0], node.args[1])) if logs is not None else None
        )


PATTERNS: list[Pattern] = [
    SpelledRmsNorm(),
    SpelledLayerNorm(),
    SpelledGelu(),
    SpelledSilu(),
    Rotary(),
    SpelledAttention(),
    SplitCrossEntropy(),
]
