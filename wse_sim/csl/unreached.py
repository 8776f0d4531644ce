"""Functions that no task or exported name calls: `--strict` compiles them too, and discards their code.

Names, types and arguments of such code are checked like those of other code. A class of cores may contain
code that only another class can compile, so a function is an error only if no class calls it and none can
compile it. Exempt are libraries, tasks (an unbound one is an error anyway), functions with comptime
parameters, and functions that call builtins of a layout block.
"""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Code, Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.layout import EvaluatedUnit
from wse_sim.csl.lower import Lowerer, ProgramCode
from wse_sim.csl.values import Function

LAYOUT_BUILTINS = frozenset({"@set_rectangle", "@set_tile_code", "@set_color_config", "@export_name"})


class Unreached:
    """Errors of unreached functions by position; None if at least one class can compile the function."""

    def __init__(self) -> None:
        self.faults: dict[int, CslError | None] = {}

    def note(self, unit: EvaluatedUnit, program: ProgramCode) -> None:
        """Compile the functions that a linked class does not call, and record errors. The unit and its
        program must not be used afterwards."""
        compiler = unit.compiler
        notes, reached = len(compiler.notes), set(compiler.reached)
        for instance in unit.instances:
            for item in instance.members.values():
                if instance.library or not isinstance(item, Function):
                    continue
                at = item.node.at
                if at in reached or self.faults.get(at, item) is None:
                    continue
                try:
                    compile_alone(unit, program, item)
                except CslError as fault:
                    self.faults.setdefault(at, fault)
                else:
                    self.faults[at] = None
        del compiler.notes[notes:]
        compiler.reached = reached  # these compilations do not count as calls

    def check(self, reached: set[int]) -> None:
        """Raise the first error of a function that no class calls and no class can compile.

        Raises
        ------
        CslError
            If there is such a function.
        """
        for at, fault in sorted(self.faults.items()):
            if fault is not None and at not in reached:
                raise fault


def compile_alone(unit: EvaluatedUnit, program: ProgramCode, fn: Function) -> None:
    """Compile a function with run-time arguments; functions that can run only at compile time are skipped.

    Raises
    ------
    CslError
        If it cannot be compiled.
    """
    node = fn.node
    if node.body is None or node.kind == "task" or "inline" in node.modifiers or calls_layout(node.body):
        return
    if any(p.comptime or p.type is None for p in node.params):
        return
    lowerer, scope = Lowerer(unit, Code("alone")), Scope(fn.instance)
    types = [lowerer.type_of(p.type, scope) for p in node.params if p.type is not None]
    result = lowerer.type_of(node.result, scope)
    if not all(is_passed(t) for t in types) or not (result is ty.VOID or is_passed(result)):
        return
    given = {str(p.name): Run(t, 0, node.at) for p, t in zip(node.params, types, strict=True)}
    program.function(fn, given, result, node.at)


def is_passed(t: ty.Type) -> bool:
    """Return whether a value of this type can be passed at run time."""
    if isinstance(t, ty.StructType):
        return t.kind == "struct" and all(is_passed(f) for _, f in t.fields)
    return t.runtime and not isinstance(t, ty.ArrayType)


def calls_layout(node: object) -> bool:
    """Return whether code calls a builtin of a layout block."""
    if isinstance(node, (list, tuple)):
        return any(calls_layout(item) for item in node)
    if not isinstance(node, tree.Node):
        return False
    if isinstance(node, tree.Builtin) and node.name in LAYOUT_BUILTINS:
        return True
    return any(calls_layout(getattr(node, name)) for name in tree.fields_of(type(node)))
