"""Rules of the language guide that this compiler enforces only with `--strict`, which `wse-sim csl check`
sets.

Functions raise :class:`CslError` with the guide's rule; without `strict` most do nothing. Libraries are not
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluation import Evaluation
from wse_sim.csl.modules import ExportedName, ExportedSymbol, ProgramState, Scope
from wse_sim.csl.values import Function, Global, Operand, Value, show

MOST_HOST_ARGUMENTS = 15


def judges(ev: Evaluation, scope: Scope | None = None) -> bool:
    """Return whether strict rules apply in this scope: with `--strict`, outside libraries."""
    return ev.options.strict and (scope is None or not scope.instance.library)


def demand(ev: Evaluation, holds: bool, at: int, rule: str) -> None:
    """Check a strict rule.

    Raises
    ------
    CslError
        If strict rules apply and `holds` is false.
    """
    if ev.options.strict and not holds:
        raise CslError(at, rule)


def top_level(ev: Evaluation, node: tree.Builtin, scope: Scope) -> None:
    """Check that a builtin is in a comptime block of a module and not in a function."""
    if judges(ev, scope) and (ev.is_code or ev.strict or ev.depth > 0):
        raise CslError(node.at, f"{node.name} must appear in a top-level comptime block, not in a function")


def not_in_code(ev: Evaluation, node: tree.Builtin, scope: Scope) -> None:
    """Check that a builtin is evaluated with the comptime blocks of a module, possibly in a function that
    they call."""
    if judges(ev, scope) and (ev.is_code or ev.strict):
        raise CslError(
            node.at, f"{node.name} can only be called while a top-level comptime block is evaluated"
        )


# ---- operators and switches
def check_sides(
    ev: Evaluation, op: str, left: Operand, right: Operand, node: tree.Node, scope: Scope
) -> None:
    """Check that number operands have one type, unless one is a comptime number, and that shift amounts
    are unsigned."""
    if not judges(ev, scope) or not (ty.is_number(left.type) and ty.is_number(right.type)):
        return
    a, b = left.type, right.type
    if op in ("<<", ">>"):
        if isinstance(b, ty.IntType) and b.signed:
            raise CslError(node.at, f"the amount of '{op}' has type '{b}'; it must be unsigned")
        return
    if op == "/" and a is b is ty.COMPTIME_FLOAT and type(right) is Value and right.data == 0:
        raise CslError(node.at, "a comptime_float is divided by zero")
    free = (ty.COMPTIME_INT, ty.COMPTIME_FLOAT)
    if a is not b and a not in free and b not in free:
        raise CslError(
            node.at, f"'{op}' between '{a}' and '{b}'; both operands must have exactly the same type"
        )


def check_activation(ev: Evaluation, value: Operand, node: tree.Builtin, scope: Scope) -> None:
    """Check that `@activate` takes the id of a local task."""
    if not judges(ev, scope):
        return
    t = value.type
    if isinstance(t, ty.HandleType) and t is not ty.LOCAL_TASK_ID:
        raise CslError(node.args[0].at, f"@activate takes a local_task_id, found '{t}'")
    state = ev.unit.program
    if ev.is_code and t is ty.LOCAL_TASK_ID and type(value) is Value and state is not None:
        bound = state.tasks.get(("task", value.data))
        if bound is None or bound.kind != "local":
            raise CslError(
                node.args[0].at,
                f"task id {value.data} is bound to no local task; bind one with @bind_local_task",
            )


def check_cases(ev: Evaluation, node: tree.Switch, t: ty.Type, scope: Scope) -> None:
    """Check that every value of the subject's type has exactly one arm."""
    if not judges(ev, scope):
        return
    if t is ty.COMPTIME_INT:
        raise CslError(
            node.subject.at,
            "the subject of a switch has type 'comptime_int'; give it a type of fixed width with @as",
        )
    seen: set[object] = set()
    for keys, _ in node.arms:
        for key in keys or ():
            value = ev.coerce(ev.known(key, scope), t, key.at)
            if value.data in seen:
                raise CslError(
                    key.at, f"the case {case_name(t, value)} occurs twice; case values must be unique"
                )
            seen.add(value.data)
    if any(keys is None for keys, _ in node.arms):
        return
    if isinstance(t, ty.EnumType):
        left = [n for n, k in t.names.items() if k not in seen]
        if left:
            raise CslError(
                node.at, f"the switch covers no {', '.join(left)} of the enum; add them or an 'else'"
            )
    elif isinstance(t, ty.IntType) and len(seen) < 1 << t.bits:
        raise CslError(node.at, f"not all possible '{t}' values are covered; an 'else' branch is needed")
    elif t is ty.BOOL and len(seen) < 2:
        raise CslError(node.at, "not both values of a bool are covered; an 'else' branch is needed")


def check_enums(ev: Evaluation, s: ty.EnumType, t: ty.Type, at: int) -> None:
    """Check that a value of one enum is not converted directly to another enum."""
    different = isinstance(t, ty.EnumType) and t is not s
    demand(
        ev, not different, at, "a value of one enum is not a value of another; convert it to a number first"
    )


def check_exported(ev: Evaluation, g: Global) -> None:
    """Check that an exported or extern variable has a type with a public layout."""
    t = g.type
    while isinstance(t, (ty.ArrayType, ty.PointerType)):
        t = t.element if isinstance(t, ty.ArrayType) else t.target
    demand(
        ev,
        not (isinstance(t, ty.StructType) and not t.layout),
        g.decl.at,
        f"the exported variable '{g.name}' holds a plain {getattr(t, 'kind', 'struct')}, which has no public layout; make it extern or packed",
    )


# ---- vector operations
def check_operands(ev: Evaluation, name: str, operands: Sequence[Operand], places: Sequence[int]) -> None:
    """Check the kinds of descriptors and registers of a vector operation's operands, the destination
    first.

    Directions of fabric descriptors are checked without `strict` too.
    """
    for k, (value, at) in enumerate(zip(operands, places, strict=True)):
        t = value.type
        if t is ty.FABIN and k == 0:
            raise CslError(
                at, f"the destination of {name} is a fabin_dsd; words are read from it, not written"
            )
        if t is ty.FABOUT and k > 0:
            raise CslError(at, f"a source of {name} is a fabout_dsd; words are written to it, not read")
        if isinstance(t, ty.DsrType) and ev.options.strict:
            kind = t.name.replace("fifo_", "")
            if k == 0 and kind == "dsr_src1":
                raise CslError(
                    at, f"the destination of {name} is a dsr_src1; it must be a dsr_dest or a dsr_src0"
                )
            if k > 0 and kind == "dsr_dest":
                raise CslError(at, f"a source of {name} is a dsr_dest; it must be a dsr_src0 or a dsr_src1")
    sources = operands[1:]
    if ev.options.strict and len(sources) > 1 and sources[0].type is ty.FIFO:
        raise CslError(places[1], f"a FIFO must not be the first source of {name}; give it as the second one")
    inputs = [at for value, at in zip(operands, places, strict=True) if value.type is ty.FABIN]
    if len(inputs) > 1 and ev.options.wse3:
        demand(ev, False, inputs[1], "on wse3 an operation has at most one fabric input")


def check_load(ev: Evaluation, file: str, t: ty.Type, at: int) -> None:
    """Check that fabric descriptors are loaded to registers of their direction."""
    demand(ev, not (t is ty.FABIN and file == "dsr_dest"), at, "a fabin_dsd cannot be loaded to a dsr_dest")
    demand(ev, not (t is ty.FABOUT and file != "dsr_dest"), at, f"a fabout_dsd cannot be loaded to a {file}")


# ---- queues
def check_queue(ev: Evaluation, queue: Value, given: dict[str, Value], at: int) -> None:
    """Check the options of `@initialize_queue` for the architecture."""
    is_output = queue.type is ty.OUTPUT_QUEUE
    if ev.options.wse3:
        demand(ev, "color" in given or "fabric_color" in given, at, f"on wse3 an {queue.type} needs .color")
        demand(ev, "priority" not in given, at, "on wse3 a queue has no .priority; it is in the DSD")
        demand(
            ev, not (is_output and "ctrl_table_id" in given), at, ".ctrl_table_id is for input queues only"
        )
    else:
        demand(
            ev,
            not (is_output and given),
            at,
            "on wse2 @initialize_queue of an output queue takes the queue alone",
        )
        demand(ev, "ctrl_table_id" not in given, at, ".ctrl_table_id exists only on wse3")


def check_program(
    ev: Evaluation, state: ProgramState, uses: Iterable[tuple[str, int, int]], names: dict[str, ExportedName]
) -> None:
    """Check the symbols, queues and tasks of a whole program, and record them for :func:`check_queues`
    and :func:`check_tasks`."""
    if not ev.options.strict:
        return
    if ev.options.wse3:
        bound = [("input_queue", b.id, b.at) for b in state.tasks.values() if b.kind == "data"]
        for kind, number, at in [*uses, *bound]:
            found = ev.unit.compiler.queues.setdefault((kind, at), {})
            found[number] = found.get(number, False) or (kind, number) in state.queues
    for symbol in state.symbols.values():
        check_symbol(ev, symbol, names)
    note_tasks(ev, state)
    if (state.teardown or state.empty_handlers) and ("task", 29) in state.tasks:
        kind = "a teardown handler" if state.teardown else "a handler of an empty queue"
        raise CslError(
            state.tasks["task", 29].at,
            f"task id 29 is that of teardown, and {kind} is set; bind one of the two",
        )


def note_tasks(ev: Evaluation, state: ProgramState) -> None:
    """Record which tasks of the program's own files this class binds."""
    bound = {id(f.node) for b in state.tasks.values() for f in (b.function, *b.group)}
    bound |= {id(s.target.node) for s in state.symbols.values() if isinstance(s.target, Function)}
    known = ev.unit.compiler.tasks
    for instance in ev.unit.instances:
        for item in () if instance.library else instance.members.values():
            if isinstance(item, Function) and item.node.kind == "task":
                is_bound = id(item.node) in bound or known.get(item.node.at, ("", False))[1]
                known[item.node.at] = (item.name, is_bound)


def check_symbol(ev: Evaluation, symbol: ExportedSymbol, names: dict[str, ExportedName]) -> None:
    """Check that an exported symbol agrees with a name that the layout exports."""
    declared = names.get(symbol.name)
    if declared is None:
        raise CslError(
            symbol.at, f"the layout exports no name '{symbol.name}'; declare it there with @export_name"
        )
    if isinstance(symbol.target, Function):
        t: ty.Type = ev.function_type(symbol.target)
        is_same = (
            isinstance(declared.type, ty.FnType)
            and str(t).partition("(")[2] == str(declared.type).partition("(")[2]
        )
    else:
        t, is_same = symbol.target.type, symbol.target.type is declared.type
        if symbol.target.path:
            raise CslError(
                symbol.at,
                f"'{symbol.name}' is a part of '{symbol.target.root.name}'; a symbol is a whole variable or a function",
            )
        is_variable = isinstance(symbol.target.root, Global) and symbol.target.root.kind == "var"
        if is_same and declared.mutable != is_variable:
            told, found = ("mutable", "a constant") if declared.mutable else ("immutable", "a 'var'")
            raise CslError(
                symbol.at,
                f"the layout exports '{symbol.name}' as {told}, and here it is {found}; both must agree",
            )
    if not is_same:
        raise CslError(
            symbol.at,
            f"'{symbol.name}' has type '{t}' here and '{declared.type}' in @export_name; both must be the same",
        )


def check_export(ev: Evaluation, name: str, t: ty.Type, at: int) -> None:
    """Check that the host can use the type of an exported name."""
    if not isinstance(t, ty.FnType):
        demand(
            ev, not unknown_to_host(t), at, f"the name '{name}' cannot have type '{t}'; {unknown_to_host(t)}"
        )
        return
    demand(
        ev,
        len(t.params) <= MOST_HOST_ARGUMENTS,
        at,
        f"'{name}' has {len(t.params)} parameters; at most 15 are allowed",
    )
    for part in (*t.params, t.result):
        why = "" if part is ty.VOID else "give it a type" if part is None else unknown_to_host(part)
        demand(ev, not why, at, f"the function '{name}' cannot have '{part or 'anytype'}' in its type; {why}")


def unknown_to_host(t: ty.Type) -> str:
    """Return the remedy for a type that an exported name cannot have, or '' for other types."""
    if isinstance(t, ty.ArrayType):
        return f"arrays are exported by a pointer, as [*]{t.element}"
    if isinstance(t, ty.StructType):
        return "structures are exported by a pointer to their words, as [*]u16"
    if isinstance(t, ty.EnumType):
        return f"use the integer below it, {t.base}"
    return "" if t.runtime else "it is known to the compiler only; use a type of run time such as i16 or f32"


def check_queues(uses: dict[tuple[str, int], dict[int, bool]]) -> None:
    """Check that a queue in use has a color in at least one of its classes: a core may contain code that it
    does not run.

    Raises
    ------
    CslError
        If it has none.
    """
    for (kind, at), numbers in uses.items():
        if not any(numbers.values()):
            raise CslError(
                at,
                f"{kind} {min(numbers)} is never initialized; on wse3 @initialize_queue gives every queue in use its color",
            )


def check_tasks(tasks: dict[int, tuple[str, bool]]) -> None:
    """Check that every task is bound in at least one class.

    Raises
    ------
    CslError
        If one is not.
    """
    for at, (name, is_bound) in tasks.items():
        if not is_bound:
            raise CslError(
                at,
                f"the task '{name}' is bound to no id, so it never runs; bind it in a comptime block, or remove it",
            )


def check_inputs(uses: dict[tuple[int, int], bool]) -> None:
    """Check that the queue of a `fabin_dsd` without a color has one in at least one class (WSE-2).

    Raises
    ------
    CslError
        If it has none.
    """
    for (queue, at), has_color in uses.items():
        if not has_color:
            raise CslError(
                at,
                f"the fabin_dsd has no .fabric_color, and input_queue {queue} has no color either; give it one with @initialize_queue",
            )


def case_name(t: ty.Type, value: Operand) -> str:
    """Return a case value as the program writes it."""
    if isinstance(t, ty.EnumType):
        return next((n for n, k in t.names.items() if k == value.data), show(value))
    return show(value)
