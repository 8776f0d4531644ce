"""Storage classes: an `extern` declaration refers to the variable or function that the program exports under
its symbol name.

The symbol name is that of `linkname`, or else the declared one; all modules of a program share it. An export
may come after its `extern` declarations, which then use its declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError, where
from wse_sim.csl.values import Function, Global, Instance

Declared = tree.Declaration | tree.Function


@dataclass
class Shared:
    """Declarations of one symbol name: its one variable, or its functions, and every declaration with its
    module."""

    name: str
    exported: tuple[Declared, Instance] | None = None
    variable: Global | None = None
    functions: list[Function] = field(default_factory=list)
    declared: list[tuple[Declared, Instance]] = field(default_factory=list)


class SharedNames:
    """Symbol names of one program."""

    def __init__(self) -> None:
        self.names: dict[str, Shared] = {}

    def add(self, instance: Instance, symbol_name: Callable[[tree.Node, Instance], str]) -> None:
        """Add the `extern` and `export` declarations of a new module; `symbol_name` evaluates a `linkname`.

        Raises
        ------
        CslError
            If declarations of one symbol conflict.
        """
        for item in instance.file.items:
            if not isinstance(item, (tree.Declaration, tree.Function)):
                continue
            kinds = {"extern", "export"} & set(item.modifiers)
            if not kinds:
                continue
            name = item.name
            for word, value in item.attributes:
                if word == "linkname":
                    name = symbol_name(value, instance)
            shared = self.names.setdefault(name, Shared(name))
            check_form(item, "extern" in kinds)
            self._agree(shared, item)
            shared.declared.append((item, instance))
            if "export" in kinds:
                if shared.exported is not None:
                    raise CslError(
                        item.at,
                        f"the symbol '{name}' is exported at {where(shared.exported[0].at)} already; give one of them another linkname",
                    )
                shared.exported = (item, instance)
            self._unite(shared, item, instance, "export" in kinds)

    def _agree(self, shared: Shared, item: Declared) -> None:
        """Check that all declarations of a symbol name are of one kind."""
        if shared.declared and kind_of(shared.declared[0][0]) != kind_of(item):
            other = shared.declared[0][0]
            raise CslError(
                item.at,
                f"the symbol '{shared.name}' is a '{kind_of(item)}' here and a '{kind_of(other)}' at {where(other.at)}; both must be of the same kind",
            )

    def _unite(self, shared: Shared, item: Declared, instance: Instance, is_export: bool) -> None:
        mine = instance.members[item.name]
        if isinstance(mine, Function):
            shared.functions.append(mine)
            if shared.exported is not None:
                node, home = shared.exported
                assert isinstance(node, tree.Function)
                for fn in shared.functions:
                    fn.node, fn.instance = node, home
            return
        if shared.variable is None:
            shared.variable = mine
        elif is_export:  # earlier externs have created the variable; this declaration defines it
            one = shared.variable
            one.decl, one.instance, one.at, one.kind, one.mutable = (
                mine.decl,
                instance,
                mine.at,
                mine.kind,
                mine.mutable,
            )
            one.name = mine.name
            one.state = Global.UNSEEN
        instance.members[item.name] = shared.variable

    def check(
        self, type_of: Callable[[tree.Node, Instance], ty.Type], ensure: Callable[[Global], None]
    ) -> None:
        """Check that all declarations of a variable have the type of the declaration that the program uses.

        Raises
        ------
        CslError
            If one differs.
        """
        for shared in self.names.values():
            one = shared.variable
            if one is None or len(shared.declared) < 2:
                continue
            ensure(one)
            for item, instance in shared.declared:
                if isinstance(item, tree.Declaration) and item.type is not None:
                    t = type_of(item.type, instance)
                    if t is not one.type:
                        raise CslError(
                            item.at,
                            f"'{item.name}' has type '{t}' here and '{one.type}' at {where(one.decl.at)}; both are the symbol '{shared.name}'",
                        )

    def exported_variables(self) -> list[Global]:
        """Return the variables with `export`, which are allocated even if no code reads them."""
        return [s.variable for s in self.names.values() if s.exported is not None and s.variable is not None]


def kind_of(item: Declared) -> str:
    """Return the kind of a declaration: `var`, `const`, `param`, `fn` or `task`."""
    return item.kind


def check_form(item: Declared, is_extern: bool) -> None:
    """Check that an extern declaration has neither a value nor a body, and that an exported function has a
    body.

    Raises
    ------
    CslError
        If it breaks this rule, or an extern variable has no type.
    """
    if isinstance(item, tree.Declaration):
        if is_extern and item.value is not None:
            raise CslError(
                item.at, f"'{item.name}' is extern and has a value; the value belongs to the export"
            )
        if is_extern and item.type is None:
            raise CslError(
                item.at, f"'{item.name}' is extern and needs a type, as in 'extern var {item.name}: i16;'"
            )
    elif is_extern and item.body is not None:
        raise CslError(item.at, f"'{item.name}' is extern and has a body; the body belongs to the export")
    elif not is_extern and item.body is None:
        raise CslError(item.at, f"'{item.name}' is exported without a body")


def check_defined(g: Global) -> None:
    """Check that an extern variable that is used is exported somewhere.

    Raises
    ------
    CslError
        If it is not.
    """
    if "extern" in g.decl.modifiers:
        raise CslError(
            g.decl.at,
            f"'{g.name}' is extern, and no module of the program exports it; write 'export {g.kind} {g.name}: ...' in one of them",
        )
