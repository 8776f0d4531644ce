"""Maps inverses, determinants and solutions of linear systems to elimination."""

from __future__ import annotations

from math import prod

from wse_sim.frontend.classify import Draft, handles, shape_of
from wse_sim.frontend.trace import Argument, Node, Trace

INVERSES = ("inverse", "linalg_inv", "linalg_inv_ex")
DETERMINANTS = ("det", "logdet", "slogdet", "linalg_det", "linalg_slogdet", "_linalg_det", "_linalg_slogdet")
SOLUTIONS = ("linalg_solve", "linalg_solve_ex", "_linalg_solve_ex")
TRIANGULAR = ("linalg_solve_triangular",)
FACTORS = ("cholesky", "linalg_cholesky", "linalg_cholesky_ex")
SYSTEMS = (*INVERSES, *DETERMINANTS, *SOLUTIONS, *TRIANGULAR, *FACTORS)
"""Operators that become elimination; torch's own are the same up to the order of their pivots."""


@handles(*INVERSES, *DETERMINANTS, *FACTORS)
def _matrix(node: Node, trace: Trace) -> Draft:
    n = shape_of(trace, node.args[0])[-1]
    kind = "cholesky" if node.op in FACTORS else "solve"
    return _draft(node, trace, n if node.op in INVERSES else 0, kind, [node.args[0]])


@handles(*SOLUTIONS, *TRIANGULAR)
def _solution(node: Node, trace: Trace) -> Draft:
    shape, right = (shape_of(trace, node.args[place]) for place in (0, 1))
    if len(right) == 1 or right == shape[:-1]:  # vectors
        columns = 1
    else:
        columns = right[-1 if node.op in TRIANGULAR or node.arg(2, "left", True) else -2]
    kind = "triangular" if node.op in TRIANGULAR else "solve"
    return _draft(node, trace, columns, kind, [*node.args[:2]])


def _draft(node: Node, trace: Trace, r: int, kind: str, operands: list[Argument]) -> Draft:
    """Return the kernel of as many matrices as the largest operand has."""
    n = shape_of(trace, operands[0])[-1]
    many = [max(1, prod(shape_of(trace, operands[0])[:-2]))]
    if len(operands) > 1:
        many.append(max(1, prod(shape_of(trace, operands[1])) // max(1, n * r)))
    sample = "b" if node.dynamic and max(many) > 1 else None
    dims = {"b": max(many), "n": n} | ({"r": r} if r else {})
    return Draft("elimination", dims, sample, {"kind": kind}, operands)
