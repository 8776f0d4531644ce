"""Represents complex numbers as pairs of real numbers: kernels on pairs, and Fourier transforms.

A trace has complex tensors as in torch. The kernel of a complex node works on pairs: its tensors have a last
dimension of 2, a product becomes four real ones (its dimensions k and n are doubled), and elementwise work is
that of both parts.
"""

from __future__ import annotations

from math import prod

from wse_sim.frontend.classify import Draft, handles, shape_of, unsupported
from wse_sim.frontend.trace import Argument, Node, NodeRef, Trace

COMPLEX = frozenset(["complex64", "complex128"])
_REMEDY = "keep real and imaginary parts as two tensors"
# Real operators per word of a result of two complex operands; with one real operand, the operator itself.
_BOTH = {"mul": "mul,mul,add", "div": "mul,mul,add,mul,mul,add,div"}
# Real operators per word of a result of one complex operand.
_ALONE = {
    **{"abs": "mul,mul,add,sqrt", "angle": "atan2", "exp": "exp,cos,mul", "reciprocal": "mul,mul,add,div"},
    **{"square": "mul,mul,add", "sgn": "mul,mul,add,sqrt,div", "_conj": "neg", "conj_physical": "neg"},
}
_SAME = frozenset(
    ["add", "sub", "rsub", "neg", "where", "masked_fill", "eq", "ne", "sum", "mean", "lerp", "mul_add"]
)
FREE = frozenset(["resolve_conj", "resolve_neg"])
"""Operators that change nothing, because the machine has no lazy negation or conjugation."""


def is_complex(trace: Trace, value: Argument) -> bool:
    """Return whether a value is a complex tensor."""
    node = trace.node(value)
    return node is not None and node.dtype in COMPLEX


def pair_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor on the machine, with a last dimension of 2 for complex numbers."""
    return (*node.shape, 2) if node.dtype in COMPLEX else node.shape


def as_pairs(draft: Draft, node: Node, trace: Trace) -> Draft:
    """Return the kernel of a node, on pairs if the node has complex operands or a complex result.

    Raises
    ------
    UnsupportedOpError
        If the operator is not supported for complex numbers.
    """
    operands = [ref for ref in node.refs() if is_complex(trace, ref)]
    if draft.family == "fft" or node.op.startswith("wse.") or not (operands or node.dtype in COMPLEX):
        return draft
    width = 2 if node.dtype in COMPLEX else 1
    dims = draft.dims
    if draft.family in ("gemm", "batch_gemm"):
        dims["k"] *= 2  # both operands are complex, because torch does not multiply complex by real matrices
        dims["n"] *= 2
    elif draft.family == "elementwise":
        ops = str(draft.attrs["ops"])
        if node.op in _BOTH:
            ops = _BOTH[node.op] if len(operands) > 1 or _is_square(node) else ops
        elif node.op in _ALONE:
            ops = _ALONE[node.op]
        elif node.op not in _SAME and node.op != "polar":
            raise unsupported(node, "works on complex numbers", _REMEDY)
        dims["elements"] *= width
        draft.attrs["ops"] = ops
    elif draft.family == "layout":
        dims["elements"] *= width
    elif draft.family == "reduce" and node.op in ("sum", "mean"):
        dims["rows"] *= 2
    elif draft.family in ("indexed", "embedding"):
        dims["cols"] *= 2
    elif draft.family == "scan" and draft.attrs.get("kind") == "cumsum":
        dims["batch"] *= 2
    else:
        raise unsupported(node, "works on complex numbers", _REMEDY)
    return draft


def _is_square(node: Node) -> bool:
    """Return whether both operands are the same tensor."""
    return len(node.args) > 1 and isinstance(node.args[0], NodeRef) and node.args[0] == node.args[1]


@handles("_fft_c2c _fft_r2c _fft_c2r prims.fft_c2c prims.fft_r2c prims.fft_c2r")
def _transform(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    whole = node.shape if node.op.endswith("c2r") else shape  # the half-sized spectrum has fewer points
    found = node.arg(1, "dim")
    axes = found if isinstance(found, (tuple, list)) else (found,)
    points = [whole[int(axis) % len(whole)] for axis in axes]
    if len(points) > 3:
        raise unsupported(node, f"is over {len(points)} axes", "transform three axes, then the others")
    names = ("n", "n2", "n3")
    sizes = dict(zip(names, reversed(points), strict=False))
    dims = {"rows": max(1, prod(whole) // prod(points)), **sizes}
    attrs = {} if node.op.endswith("c2c") else {"real": True}
    samples = node.dynamic and 0 not in [int(axis) % len(whole) for axis in axes]
    return Draft("fft", dims, "rows" if samples else None, attrs, [node.args[0]])


@handles("complex", "view_as_complex", "view_as_real", "real", "imag")
def _made(node: Node, trace: Trace) -> Draft:
    """Return the kernel that combines two real tensors to pairs, reinterprets a tensor as pairs, or takes one
    part of each pair."""
    return Draft(
        "layout",
        {"elements": max(1, node.elements)},
        "elements" if node.dynamic else None,
        {"op": "cat" if node.op == "complex" else "view"},
    )


@handles("polar", "angle", "_conj", "conj_physical")
def _elementwise(node: Node, trace: Trace) -> Draft:
    ops = "cos,mul" if node.op == "polar" else node.op
    inputs = max(1, sum(1 for ref in node.refs() if not trace.is_constant(ref)))
    return Draft(
        "elementwise",
        {"elements": node.elements},
        "elements" if node.dynamic else None,
        {"ops": ops, "inputs": inputs},
    )
