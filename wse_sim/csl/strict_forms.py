"""Rules of the language guide for `--strict` that need only the syntax of a file."""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl.diagnostics import CslError


def check_forms(node: object, labels: tuple[str, ...] = ()) -> None:
    """Check a part of a file that is inside the loops and blocks with these labels.

    Raises
    ------
    CslError
        If a label is used again inside its loop or block, or the address of a literal is taken.
    """
    if isinstance(node, (list, tuple)):
        for item in node:
            check_forms(item, labels)
        return
    if not isinstance(node, tree.Node):
        return
    if isinstance(node, (tree.For, tree.While, tree.Block)) and node.label is not None:
        if node.label in labels:
            raise CslError(
                node.at, f"the label '{node.label}' is in use around this place; give this one another name"
            )
        labels = (*labels, node.label)
    if isinstance(node, tree.Unary) and node.op == "&" and is_temporary(node.operand):
        raise CslError(
            node.at, "only variables have an address; assign the literal to a 'const' or 'var' first"
        )
    for name in tree.fields_of(type(node)):
        check_forms(getattr(node, name), labels)


def is_temporary(node: tree.Node) -> bool:
    """Return whether an operand of `&` is a literal, or an element or field of one."""
    while isinstance(node, (tree.Index, tree.Member)):
        node = node.base
    return isinstance(node, tree.Literal)
