"""Syntax tree of CSL.

Every node has `at`, its position. Two trees are equal if they differ only in positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Node:
    at: int = field(compare=False)


# ---- expressions


@dataclass(slots=True)
class Name(Node):
    id: str


@dataclass(slots=True)
class Number(Node):
    value: int | float


@dataclass(slots=True)
class Bool(Node):
    value: bool


@dataclass(slots=True)
class String(Node):
    value: str


@dataclass(slots=True)
class Char(Node):
    value: str


@dataclass(slots=True)
class Unary(Node):
    op: str
    operand: Node


@dataclass(slots=True)
class Binary(Node):
    op: str
    left: Node
    right: Node


@dataclass(slots=True)
class Call(Node):
    callee: Node
    args: list[Node]


@dataclass(slots=True)
class Builtin(Node):
    name: str
    args: list[Node]


@dataclass(slots=True)
class Member(Node):
    base: Node
    name: str


@dataclass(slots=True)
class Index(Node):
    base: Node
    indices: list[Node]


@dataclass(slots=True)
class Deref(Node):
    base: Node


@dataclass(slots=True)
class Literal(Node):
    """Literal `.{ ... }` (type None) or `T{ ... }`; a field without a name has the name None."""

    type: Node | None
    fields: list[tuple[str | None, Node]]


@dataclass(slots=True)
class IfExpr(Node):
    test: Node
    yes: Node
    no: Node | None


@dataclass(slots=True)
class Tensor(Node):
    """Access `|i, j|{n, m} -> a[i, j]` of a tensor."""

    names: list[str]
    extents: list[Node]
    body: Node


@dataclass(slots=True)
class ComptimeExpr(Node):
    value: Node


@dataclass(slots=True)
class Switch(Node):
    """Switch with arms (keys, value); `else` has None as its keys."""

    subject: Node
    arms: list[tuple[list[Node] | None, Node]]


@dataclass(slots=True)
class Block(Node):
    statements: list[Node]
    label: str | None = None


# ---- types


@dataclass(slots=True)
class PointerType(Node):
    const: bool
    many: bool
    target: Node


@dataclass(slots=True)
class ArrayType(Node):
    sizes: list[Node]
    const: bool
    element: Node


@dataclass(slots=True)
class Parameter(Node):
    """Parameter of a function (type None: `anytype`) or field of a structure."""

    name: str | None
    type: Node | None
    comptime: bool = False


@dataclass(slots=True)
class FnType(Node):
    kind: str
    params: list[Parameter]
    result: Node


@dataclass(slots=True)
class StructType(Node):
    """`struct` or `union` type, with `layout` "", "packed" or "extern"."""

    kind: str
    layout: str
    fields: list[Parameter]


@dataclass(slots=True)
class EnumType(Node):
    base: Node
    names: list[tuple[str, Node | None]]


# ---- statements and declarations


@dataclass(slots=True)
class Declaration(Node):
    """Declaration of a global or local `const`, `var` or `param`."""

    kind: str
    name: str
    type: Node | None
    attributes: list[tuple[str, Node]]
    value: Node | None
    modifiers: list[str]
    comptime: bool = False


@dataclass(slots=True)
class Assign(Node):
    op: str
    target: Node
    value: Node


@dataclass(slots=True)
class ExprStatement(Node):
    value: Node


@dataclass(slots=True)
class If(Node):
    test: Node
    yes: Node
    no: Node | None


@dataclass(slots=True)
class While(Node):
    test: Node
    step: Node | None
    body: Block
    unroll: bool
    label: str | None = None


@dataclass(slots=True)
class For(Node):
    over: Node
    names: list[str]
    body: Block
    unroll: bool
    label: str | None = None


@dataclass(slots=True)
class Return(Node):
    value: Node | None


@dataclass(slots=True)
class Break(Node):
    label: str | None
    value: Node | None


@dataclass(slots=True)
class Continue(Node):
    label: str | None


@dataclass(slots=True)
class Comptime(Node):
    """`comptime` before a block or a statement; at top level also before an expression."""

    body: Node


@dataclass(slots=True)
class Layout(Node):
    body: Block


@dataclass(slots=True)
class Function(Node):
    """`fn` or `task`; a declaration without a body has body None."""

    kind: str
    name: str
    params: list[Parameter]
    result: Node
    modifiers: list[str]
    attributes: list[tuple[str, Node]]
    body: Block | None


@dataclass(slots=True)
class File(Node):
    items: list[Node]


_fields: dict[type, tuple[str, ...]] = {}


def fields_of(kind: type) -> tuple[str, ...]:
    """Return the names of a node type's fields, without its position."""
    if kind not in _fields:
        _fields[kind] = tuple(n for n in kind.__dataclass_fields__ if n != "at")  # type: ignore[attr-defined]
    return _fields[kind]
