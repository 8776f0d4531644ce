"""A captured program without torch: operator nodes with shapes, types and origins.

:mod:`wse_sim.frontend.capture` makes a :class:`Trace`, the clean-up and rewrites change it, and
classification converts the remaining nodes to kernels. Arguments are plain Python values; a :class:`NodeRef`
represents the result of another node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NodeRef:
    """A reference to the result of the node `name`."""

    name: str


Argument = (
    NodeRef | str | int | float | complex | slice | tuple["Argument", ...] | dict[str, "Argument"] | None
)
"""An argument of an operator: the result of a node, a value that is known at capture, or several of these."""


@dataclass
class Node:
    """One operator (kind "call") or one leaf ("input", "parameter" or "buffer").

    `op` is the operator without overload: "linear" for ``aten.linear.default``, "wse.rotary" for a recognised
    pattern. `shape` and `dtype` are those of the result, or of the first of several; `shapes` has all.
    `layer` is the path of the module, `module` its class, `source` the user's line. `dynamic` states whether
    the result depends on the user's inputs.
    """

    name: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    shape: Shape = ()
    dtype: str = ""
    shapes: tuple[Shape, ...] = ()
    kind: str = "call"
    layer: str = ""
    module: str = ""
    source: str = ""
    overload: str = ""
    dynamic: bool = False
    trains: bool = True  # a parameter requires a gradient; an operator did not run under no_grad

    @property
    def elements(self) -> int:
        """Number of elements of the result."""
        return prod(self.shape)

    def arg(self, index: int, name: str, default: Argument = None) -> Any:
        """Return an argument by position or keyword."""
        if index < len(self.args):
            return self.args[index]
        return self.kwargs.get(name, default)

    def refs(self) -> list[NodeRef]:
        """Return references to all nodes that this one reads, in order."""
        found: list[NodeRef] = []
        _collect((self.args, tuple(self.kwargs.values())), found)
        return found


def _collect(value: Argument, found: list[NodeRef]) -> None:
    if isinstance(value, NodeRef):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, found)


def renamed(value: Argument, names: Mapping[str, str]) -> Argument:
    """Return `value` with references renamed by `names`; references that are not in `names` do not change."""
    if isinstance(value, NodeRef):
        return NodeRef(names.get(value.name, value.name))
    if isinstance(value, (tuple, list)):
        return tuple(renamed(item, names) for item in value)
    if isinstance(value, dict):
        return {key: renamed(item, names) for key, item in value.items()}
    return value


def distinct(name: str, leaves: Collection[str], taken: set[str]) -> str:
    """Return a name of a node that is not that of a leaf: `name`, or a longer one that is not `taken`, which is added there.

    >>> distinct("mul", {"mul", "weight"}, {"mul", "mul_", "weight"}), distinct("add", {"mul"}, {"add", "mul"})
    ('mul__', 'add')
    """
    if name not in leaves:
        return name
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def substitute(value: Argument, old: str, new: NodeRef) -> Argument:
    """Return `value` with references to `old` replaced by `new`."""
    if isinstance(value, NodeRef):
        return new if value.name == old else value
    if isinstance(value, (tuple, list)):
        return tuple(substitute(item, old, new) for item in value)
    return value


# Operators that only reorder or select elements. They cost nothing on a dataflow machine, because the
# compiler chooses the order of a stream.
VIEWS = frozenset(
    [
        "view",
        "reshape",
        "transpose",
        "permute",
        "t",
        "unsqueeze",
        "squeeze",
        "expand",
        "expand_as",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "chunk",
        "flatten",
        "unflatten",
        "alias",
        "detach",
        "getitem",
        "contiguous",
        "clone",
        "unbind",
        "narrow",
        "view_as",
        "numpy_T",
        "mT",
        "movedim",
        "swapaxes",
        "diagonal",
        "lift_fresh_copy",
        "lift_fresh",
        "_unsafe_view",
        "reshape_as",
        "positive",
        "tensor_split",
        "broadcast_to",
        "_reshape_alias",
        "swapdims",
        "adjoint",
        "dropout_off",
        "no_op_cast",
        "resolve_conj",
        "resolve_neg",
    ]
)

# Operators that no kernel computes: views, and operators that only check something.
NO_WORK = VIEWS | {
    *("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size")
}

# Operators that use the shape or type of their first argument, not its elements.
SHAPE_ONLY = frozenset(
    [
        *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", "fill", "zero"),
        "normal_functional",
    ]
)

# Operators that use the shape or type of their second argument, not its elements.
SHAPE_SECOND = frozenset(["expand_as", "view_as", "reshape_as", "type_as"])


def shape_operand(op: str) -> int | None:
    """Return the position of the argument that only provides a shape or a type; None if there is none."""
    return 0 if op in SHAPE_ONLY else 1 if op in SHAPE_SECOND else None


# Views that select some of the elements.
PARTIAL_VIEWS = frozenset(
    ["slice", "select", "split", "split_with_sizes", "chunk", "unbind", "narrow", "diagonal"]
)


@dataclass
class Trace:
    """A program in topological order.

    Tied parameters are one leaf. `evaluate` returns the value of a node that depends only on constants as a
    numpy array, else None. `log` records the clean-up; `notes` become notes of the graph.
    """

    name: str
    nodes: dict[str, Node]
    outputs: tuple[NodeRef, ...]
    evaluate: Callable[[str], Any] = lambda name: None
    log: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Functions that count the FLOPs of a step with torch, in order of preference. Each takes a function that states
    # whether the parameter of a name trains, or None for inference.
    counts: tuple[Callable[[Callable[[str], bool] | None], Any], ...] = ()
    # Whether forward() seems to have products that reach no result.
    may_be_unread: bool = False
    # Weights that forward() writes, without gradients, by the node of their new value.
    written: dict[str, str] = field(default_factory=dict)
    # New values of buffers that follow from the inputs. Their work stays, as that of the outputs does.
    updates: tuple[NodeRef, ...] = ()
    # Captures the module again with more samples; None if it cannot be.
    again: Callable[[], Trace] | None = None
    _users: dict[str, list[str]] | None = None
    _constant: dict[str, bool] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self.nodes.values()))

    def node(self, ref: Argument) -> Node | None:
        """Return the node that a value refers to; None if the value is not a reference."""
        return self.nodes.get(ref.name) if isinstance(ref, NodeRef) else None

    def base(self, ref: Argument) -> Node | None:
        """Return the node that made the elements of a value, found by following views back, or None."""
        node = self.node(ref)
        while node is not None and node.op in VIEWS and node.kind == "call":
            refs = node.refs()
            node = self.node(refs[0]) if refs else None
        return node

    def users(self, name: str) -> list[str]:
        """Return the names of the nodes that read `name`."""
        if self._users is None:
            self._users = {}
            for node in self.nodes.values():
                for ref in node.refs():
                    readers = self._users.setdefault(ref.name, [])
                    if node.name not in readers:
                        readers.append(node.name)
        return self._users.get(name, [])

    def readers(self, name: str) -> list[Node]:
        """Return the nodes that read the elements of `name`, directly or through views."""
        found: dict[str, Node] = {}
        waiting = [name]
        while waiting:
            users = [self.nodes[user] for user in self.users(waiting.pop())]
            waiting += [node.name for node in users if node.op in VIEWS]
            found.update((node.name, node) for node in users if node.op not in VIEWS)
        return list(found.values())

    def forget_users(self) -> None:
        """Discard the cached readers; call this after changing arguments of nodes in place."""
        self._users = None

    def replace(self, old: str, node: Node) -> None:
        """Replace the node `old` by `node`, which takes its name, so that readers of `old` read `node`."""
        node.name = old
        if self._users is not None:
            for ref in self.nodes[old].refs():
                readers = self._users.get(ref.name, [])
                if old in readers:
                    readers.remove(old)
            for ref in node.refs():
                readers = self._users.setdefault(ref.name, [])
                if old not in readers:
                    readers.append(old)
        node.dynamic = self.nodes[old].dynamic
        self.nodes[old] = node

    def redirect(self, old: str, new: NodeRef) -> None:
        """Make all readers of `old` read `new`."""
        for user in self.users(old):
            node = self.nodes[user]
            node.args = tuple(substitute(item, old, new) for item in node.args)
            node.kwargs = {k: substitute(v, old, new) for k, v in node.kwargs.items()}
        self.rename_results({old: new.name})
        self._users = None

    def rename_results(self, names: Mapping[str, str]) -> None:
        """Let outputs and updates refer to the nodes to which `names` maps theirs."""
        self.outputs = tuple(NodeRef(names.get(ref.name, ref.name)) for ref in self.outputs)
        self.updates = tuple(NodeRef(names.get(ref.name, ref.name)) for ref in self.updates)

    def prune(self) -> int:
        """Remove calls that neither an output nor an update depends on; return their number."""
        live: set[str] = set()
        stack = [ref.name for ref in (*self.outputs, *self.updates)]
        while stack:
            name = stack.pop()
            if name in live or name not in self.nodes:
                continue
            live.add(name)
            stack.extend(ref.name for ref in self.nodes[name].refs())
        before = len(self.nodes)
        self.nodes = {n: node for n, node in self.nodes.items() if n in live or node.kind != "call"}
        self._users = None
        return before - len(self.nodes)

    def keep_weights(self) -> None:
        """Make readers of weights that forward() writes read the weights as they are.

        A write without gradients does not change where gradients go: as in torch, they arrive at the weight.
        """
        kept = {made: weight for made, weight in self.written.items() if self.nodes[weight].trains}
        for made, weight in kept.items():
            self.redirect(made, NodeRef(weight))
        if kept:
            names = ", ".join(sorted({*kept.values()}))
            self.notes.append(
                f"weights: forward() writes {names} without gradients; the weights train, and the work of the writes is left out"
            )
        self.written = {}

    def drop_prefix(self, prefix: str, inputs: Sequence[str] = ()) -> None:
        """Remove the name of a wrapping module from module paths and weights; rename the inputs to `inputs`."""
        cut = f"{prefix}."
        names = {
            n: n.removeprefix(cut) for n, node in self.nodes.items() if node.kind in ("parameter", "buffer")
        }
        given = [n for n, node in self.nodes.items() if node.kind == "input"]
        names |= dict(zip(given, inputs, strict=False))
        leaves = {*names.values()}
        taken = {*leaves, *self.nodes}
        names |= {n: distinct(n, leaves, taken) for n in self.nodes if n not in names and n in leaves}
        nodes = {}
        for node in self.nodes.values():
            node.layer = "" if node.layer == prefix else node.layer.removeprefix(cut)
            node.args = tuple(renamed(item, names) for item in node.args)
            node.kwargs = {key: renamed(item, names) for key, item in node.kwargs.items()}
            node.name = names.get(node.name, node.name)
            nodes[node.name] = node
        self.nodes, self._users, self._constant = nodes, None, {}
        self.written = {made: names.get(weight, weight) for made, weight in self.written.items()}
        self.rename_results(names)
        ways = self.counts
        self.counts = tuple(
            lambda trains, way=way: way(trains and (lambda name: trains(name.removeprefix(cut))))  # type: ignore[misc]
            for way in ways
        )

    def spread(self) -> None:
        """Mark the nodes that depend on the user's inputs."""
        for node in self.nodes.values():
            if node.kind == "call":
                node.dynamic = any(self.nodes[r.name].dynamic for r in node.refs() if r.name in self.nodes)
            else:
                node.dynamic = node.kind == "input"

    def is_parameter(self, ref: Argument) -> bool:
        """Return whether a value is a view of a parameter or of a buffer."""
        base = self.base(ref)
        return base is not None and base.kind in ("parameter", "buffer")

    def is_constant(self, ref: Argument) -> bool:
        """Return whether a value is not a node, or depends neither on inputs nor on parameters."""
        if not isinstance(ref, NodeRef):
            return True
        known = self._constant.get(ref.name)
        if known is None:
            node = self.nodes[ref.name]
            if node.kind != "call":
                known = node.kind == "buffer"
            else:
                known = not node.dynamic and all(self.is_constant(r) for r in node.refs())
            self._constant[ref.name] = known
        return known
