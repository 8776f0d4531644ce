"""Builtins of tasks and queues: binding, activation, blocking, queue colors, and handlers of empty queues."""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_layout import color_argument, program_state
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluation import Evaluation, count
from wse_sim.csl.modules import BoundTask, Scope
from wse_sim.csl.rotation import rotating_task
from wse_sim.csl.strict import check_activation, check_queue, demand, judges, not_in_code, top_level
from wse_sim.csl.values import VOID_VALUE, Function, Operand, Value
from wse_sim.fabric.vm.opcodes import QUEUES

TASK_ID_TYPES = {"local": ty.LOCAL_TASK_ID, "data": ty.DATA_TASK_ID, "control": ty.CONTROL_TASK_ID}
RESERVED = {"local": (27, 28, 30), "data": (21, 22, 23), "control": tuple(range(33, 38))}
"""Task ids that memcpy uses, by kind (SDK documentation, tables of task ids); ids of data tasks are colors of WSE-2."""
SPACES = {"color": 1, "input_queue": 2, "ut_id": 3}


def task_argument(ev: Evaluation, arg: tree.Node, scope: Scope) -> Function:
    value = ev.known(arg, scope)
    if not isinstance(value.data, Function) or value.data.node.kind != "task":
        raise CslError(
            arg.at,
            f"expected a task, found '{value.type}'; a task is declared with 'task name(...) void'",
        )
    return value.data


def bind(ev: Evaluation, node: tree.Builtin, scope: Scope, kind: str) -> Value:
    count(node, 2)
    top_level(ev, node, scope)
    state = program_state(ev, node)
    task = task_argument(ev, node.args[0], scope)
    value = ev.known(node.args[1], scope)
    wanted = TASK_ID_TYPES[kind]
    if value.type is not wanted:
        raise CslError(
            node.args[1].at,
            f"{node.name} takes a value of type '{wanted}', found '{value.type}'; make one with @get_{wanted}",
        )
    key = ("task", value.data)
    if value.data in RESERVED[kind] and ev.options.memcpy:
        demand(
            ev,
            scope.instance.library or (kind == "data" and ev.options.wse3),
            node.args[1].at,
            f"the {wanted} {value.data} belongs to memcpy, which uses {', '.join(map(str, RESERVED[kind]))}; take another one",
        )
    if key in state.tasks:
        other = state.tasks[key].function.name
        raise CslError(
            node.at, f"task id {value.data} is already bound to '{other}'; an id can have one task"
        )
    if kind == "data" and not 1 <= len(task.node.params) <= 2:
        raise CslError(
            task.node.at,
            f"a data task takes one or two arguments, and '{task.name}' has {len(task.node.params)}",
        )
    state.tasks[key] = BoundTask(task, kind, value.data, node.at)
    return VOID_VALUE


def b_bind_local_task(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return bind(ev, node, scope, "local")


def b_bind_data_task(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return bind(ev, node, scope, "data")


def b_bind_control_task(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return bind(ev, node, scope, "control")


def b_bind_rotating_tasks(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 4)
    top_level(ev, node, scope)
    state = program_state(ev, node)
    if not ev.options.wse3:
        raise CslError(node.at, "@bind_rotating_tasks exists only on wse3")
    main, other = (task_argument(ev, a, scope) for a in node.args[:2])
    value = ev.known(node.args[2], scope)
    if value.type is not ty.DATA_TASK_ID:
        raise CslError(
            node.args[2].at,
            f"@bind_rotating_tasks takes a data_task_id, found '{value.type}'; make one with @get_data_task_id",
        )
    given = ev.coerce(ev.known(node.args[3], scope), ty.COMPTIME_STRUCT, node.args[3].at).data
    unknown = next((n for n in given if n not in ("limit", "init")), None)
    if unknown is not None or "limit" not in given:
        raise CslError(
            node.args[3].at,
            "the options of @bind_rotating_tasks are .limit (runs of the first task) and .init",
        )
    limit, start = (
        int(ev.coerce(given.get(n, Value(ty.COMPTIME_INT, 0)), ty.U16, node.args[3].at).data)
        for n in ("limit", "init")
    )
    if not limit >= 1 or start >= limit:
        raise CslError(
            node.args[3].at,
            f"the limit is {limit} and the count begins at {start}; the limit must be at least 1 and above the start",
        )
    if not 1 <= len(main.node.params) <= 2 or len(other.node.params) not in (0, len(main.node.params)):
        raise CslError(
            node.at,
            f"'{main.name}' takes the words of a data task; '{other.name}' must take the same words or none",
        )
    key = ("task", value.data)
    if key in state.tasks:
        raise CslError(
            node.at,
            f"task id {value.data} is bound to '{state.tasks[key].function.name}' already; an id takes one task",
        )
    task = rotating_task(main, other, limit, start, len(state.tasks))
    state.tasks[key] = BoundTask(task, "data", value.data, node.at, (main, other))
    return VOID_VALUE


def b_bind_task(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    """Bind a task in the form of older programs: the type of the id (a color, a queue or a task id)
    determines the kind of task."""
    count(node, 2)
    top_level(ev, node, scope)
    value = ev.known(node.args[1], scope)
    kinds: dict[ty.Type, str] = {
        ty.LOCAL_TASK_ID: "local",
        ty.DATA_TASK_ID: "data",
        ty.CONTROL_TASK_ID: "control",
    }
    task = task_argument(ev, node.args[0], scope)
    kind = kinds.get(value.type)
    if kind is None and value.type in (ty.COLOR, ty.INPUT_QUEUE):
        kind = "data" if task.node.params else "local"
    if kind is None:
        raise CslError(node.args[1].at, f"@bind_task takes a task id or a color, found '{value.type}'")
    state = program_state(ev, node)
    if ("task", value.data) in state.tasks:
        raise CslError(
            node.at,
            f"task id {value.data} is bound to '{state.tasks['task', value.data].function.name}' already",
        )
    state.tasks["task", value.data] = BoundTask(task, kind, value.data, node.at)
    return VOID_VALUE


def task_number(ev: Evaluation, value: Operand, at: int) -> Operand:
    """Return the id of a task, given as a task id, a color or the task's name.

    Raises
    ------
    CslError
        If it is a function, an unbound task, or neither a task nor an id.
    """
    if isinstance(value.type, ty.FnType) and type(value) is Value:
        for bound in ev.unit.program.tasks.values() if ev.unit.program is not None else ():
            if bound.function is value.data or value.data in bound.group:
                return Value(ty.U16, bound.id)
        name = value.data.name
        if value.data.node.kind != "task":
            raise CslError(at, f"'{name}' is a function, and this takes a task; declare it as task {name}")
        raise CslError(at, f"the task '{name}' is bound to no id; bind it with @bind_local_task")
    if value.type in TASK_ID_TYPES.values() or value.type is ty.COLOR:  # colors: older programs
        return value
    raise CslError(at, f"expected a task or a task id, found '{value.type}'")


def b_activate(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    state = program_state(ev, node)
    value = ev.known(node.args[0], scope)
    check_activation(ev, value, node, scope)
    state.active.append((value, node.at))
    return VOID_VALUE


def space_of(value: Operand, at: int) -> int:
    """Return the kind of ids that @block and @unblock use for a value of this type; 0 for tasks."""
    if value.type.name not in SPACES:
        return 0
    return SPACES[value.type.name]


def b_block(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    state = program_state(ev, node)
    state.blocked.append((ev.known(node.args[0], scope), True, node.at))
    return VOID_VALUE


def b_unblock(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    state = program_state(ev, node)
    state.blocked.append((ev.known(node.args[0], scope), False, node.at))
    return VOID_VALUE


def b_initialize_queue(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1, 2)
    not_in_code(ev, node, scope)
    state = program_state(ev, node)
    queue = ev.known(node.args[0], scope)
    if queue.type not in (ty.INPUT_QUEUE, ty.OUTPUT_QUEUE):
        raise CslError(
            node.args[0].at, f"@initialize_queue takes an input or output queue, found '{queue.type}'"
        )
    given = ev.known(node.args[1], scope).data if len(node.args) > 1 else {}
    for name in given:
        if name not in ("color", "priority", "ctrl_table_id", "fabric_color"):
            raise CslError(
                node.args[1].at,
                f"@initialize_queue has no option '{name}'; its options are color, priority, ctrl_table_id",
            )
    if judges(ev, scope):
        check_queue(ev, queue, given, node.at)
    color = given.get("color", given.get("fabric_color"))
    if color is not None and color.type is not ty.COLOR:
        raise CslError(node.args[1].at, f"the color of a queue must be a color, found '{color.type}'")
    if color is None and queue.type is ty.INPUT_QUEUE:
        raise CslError(node.at, "an input queue needs .color")
    key = (queue.type.name, queue.data)
    number = None if color is None else color.data
    if key in state.queues:
        raise CslError(node.at, f"{queue.type} {queue.data} is initialized twice; a queue has one color")
    state.queues[key] = (number, 0, node.at)
    if number is not None and queue.type is ty.INPUT_QUEUE:
        ev.unit.note_read(number, queue.data)
    return VOID_VALUE


def handler(ev: Evaluation, node: tree.Builtin, scope: Scope) -> tuple[Function, int]:
    value = ev.known(node.args[0], scope)
    if not isinstance(value.data, Function):
        raise CslError(node.args[0].at, f"expected a function, found '{value.type}'")
    return value.data, node.at


def b_set_teardown_handler(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    top_level(ev, node, scope)
    state = program_state(ev, node)
    color = color_argument(ev, node.args[1], scope)
    if color in state.teardown:
        raise CslError(node.at, f"color {color} already has a teardown handler")
    state.teardown[color] = handler(ev, node, scope)
    return VOID_VALUE


def b_set_empty_queue_handler(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    top_level(ev, node, scope)
    state = program_state(ev, node)
    if not ev.options.wse3:
        raise CslError(node.at, "@set_empty_queue_handler exists only on wse3")
    queue = ev.known(node.args[1], scope)
    if queue.type not in (ty.INPUT_QUEUE, ty.OUTPUT_QUEUE):
        raise CslError(
            node.args[1].at,
            f"@set_empty_queue_handler takes an input or output queue, found '{queue.type}'",
        )
    number = queue.data + QUEUES * (queue.type is ty.INPUT_QUEUE)
    if number in state.empty_handlers:
        raise CslError(node.at, f"{queue.type} {queue.data} has a handler already; a queue has one")
    state.empty_handlers[number] = handler(ev, node, scope)
    return VOID_VALUE
