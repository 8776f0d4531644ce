"""Storage classes: an `extern` declaration is the variable or function that the program exports under its symbol name.

The symbol name is that of `linkname`, else the declared one; it is shared by all modules of a program.  An export may come after the
externs that mean it: these then take its declaration.
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
    """Meaning of one symbol name: the one variable, or the functions that become one; every declaration with
    its module."""

    name: str
    exported: tuple[Declared, Instance] | None = None
    variable: Global | None = None
    functions: list[Function] = field(default_factory=list)
    declared: list[tuple[Declared, Instance]] = field(default_factory=list)


class SharedNames:
    """The symbol names of one program."""

    def __init__(self) -> None:
        self.names: dict[str, Shared] = {}

    def add(self, instance: Instance, symbol_name: Callable[[tree.Node, Instance], str]) -> None:
        """Take in the `extern` and `export` declarations of a new module; `symbol_name` evaluates a `linkname`."""
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
        """All declarations of a symbol name are of one kind."""
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
        elif is_export:  # the externs before it have their place; it is filled by this declaration
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
        """All declarations of a variable have the type of the one that the program holds."""
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
        """Variables with `export`: they are allocated even if nothing reads them."""
        return [s.variable for s in self.names.values() if s.exported is not None and s.variable is not None]


def kind_of(item: Declared) -> str:
    """`var`, `const`, `param`, `fn` or `task`."""
    return item.kind


def check_form(item: Declared, is_extern: bool) -> None:
    """An extern declaration has neither a value nor a body; an exported function has a body."""
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
    """An extern variable that is used must be exported somewhere."""
    if "extern" in g.decl.modifiers:
        raise CslError(
            g.decl.at,
            f"'{g.name}' is extern, and no module of the program exports it; write 'export {g.kind} {g.name}: ...' in one of them",
        )
