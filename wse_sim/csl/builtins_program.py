"""Builtins of the two phases: rectangle, tiles, colors and names of a layout; tasks, queues, symbols and initial states of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.colors import read_route
from wse_sim.csl.diagnostics import CslError, warn
from wse_sim.csl.lanes import Lanes
from wse_sim.csl.modules import (
    BoundTask,
    ExportedName,
    ExportedSymbol,
    LayoutState,
    ProgramState,
    Scope,
)
from wse_sim.csl.rotation import rotating_task
from wse_sim.csl.strict import StrictRules
from wse_sim.csl.values import FALSE, TRUE, VOID_VALUE, Dsd, Dsr, Function, Global, Operand, Ref, Value, show
from wse_sim.fabric.vm.registers import FIRST_REGISTER, REGISTER_COLORS, REGISTERS, ROUTES, SWITCH

CONTROL_TABLE = {"instructions": (2, 4, 8), "stride": range(1, 8)}
"""Fields of `@set_control_task_table` and their values."""
TASK_ID_TYPES = {"local": ty.LOCAL_TASK_ID, "data": ty.DATA_TASK_ID, "control": ty.CONTROL_TASK_ID}
SPACES = {"color": 1, "input_queue": 2, "ut_id": 3}


class ProgramBuiltins(StrictRules):
    """Mixed into the evaluator."""

    def layout_state(self, node: tree.Builtin) -> LayoutState:
        state = self.unit.layout
        if state is None:
            raise CslError(node.at, f"{node.name} belongs in the layout block")
        return state

    def program_state(self, node: tree.Builtin) -> ProgramState:
        state = self.unit.program
        if state is None:
            raise CslError(node.at, f"{node.name} belongs in the program of a PE, not in the layout")
        return state

    def b_import_module(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1, 2)
        self.not_in_code(node, scope)
        name = self.data(node.args[0], scope, ty.COMPTIME_STRING)
        params: dict[str, Value] = {}
        if len(node.args) > 1:
            given = self.coerce(self.known(node.args[1], scope), ty.COMPTIME_STRUCT, node.args[1].at)
            params = {str(k): v for k, v in given.data.items()}
        return Value(ty.MODULE, self.unit.import_module(name, params, scope.instance, node.at))

    # ---- layout
    def b_set_rectangle(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2)
        state = self.layout_state(node)
        if state.width:
            raise CslError(
                node.at,
                f"@set_rectangle is called twice; the rectangle is already {state.width} x {state.height}",
            )
        width, height = (self.data(a, scope, ty.COMPTIME_INT) for a in node.args)
        if width < 1 or height < 1:
            raise CslError(node.at, f"a rectangle of {width} x {height} PEs; both sides must be at least 1")
        state.set_rectangle(width, height, node.at)
        return VOID_VALUE

    def pe(self, node: tree.Builtin, scope: Scope, state: LayoutState) -> npt.NDArray[np.int64]:
        """Row-major index of the PE that a call names; of many where the iterations of a loop are evaluated together."""
        x, y = (self.data(a, scope, ty.COMPTIME_INT) for a in node.args[:2])
        if not state.width:
            raise CslError(node.at, f"{node.name} is called before @set_rectangle; set the rectangle first")
        if not (0 <= x < state.width and 0 <= y < state.height):
            raise CslError(
                node.at, f"PE ({x}, {y}) is outside the rectangle of {state.width} x {state.height} PEs"
            )
        return self.cores(y * state.width + x)

    def cores(self, index: int | Lanes) -> npt.NDArray[np.int64]:
        return np.array([index], np.int64)

    def effect(self, act: Callable[..., None], *args: object) -> None:
        """Apply the effect of a builtin to the layout."""
        act(*args)

    def b_set_tile_code(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2, 4)
        state = self.layout_state(node)
        where = self.pe(node, scope, state)
        if len(node.args) == 2:  # the program is in this file
            self.effect(state.set_code, scope.instance.path, {}, where, node.at)
            return VOID_VALUE
        name = self.data(node.args[2], scope, ty.COMPTIME_STRING)
        params: dict[str, Value] = {}
        if len(node.args) > 3:
            given = self.coerce(self.known(node.args[3], scope), ty.COMPTIME_STRUCT, node.args[3].at)
            params = given.data
        path = self.unit.tile_path(name, scope.instance, node.at)
        self.effect(state.set_code, path, params, where, node.at)
        return VOID_VALUE

    def color_argument(self, arg: tree.Node, scope: Scope) -> int:
        value = self.known(arg, scope)
        if value.type is not ty.COLOR:
            raise CslError(arg.at, f"expected a color, found '{value.type}'; make one with @get_color")
        if not 0 <= value.data < 24:
            raise CslError(arg.at, f"color {value.data} cannot be routed; the routable colors are 0 to 23")
        return int(value.data)

    def b_set_color_config(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 4)
        state = self.layout_state(node)
        where = self.pe(node, scope, state)
        color = self.color_argument(node.args[2], scope)
        route = read_route(
            self.known(node.args[3], scope), color, self.options.arch, node.at, strict=self.judges(scope)
        )
        self.effect(state.set_color, color, self.unit.compiler.route(route), where, node.at)
        return VOID_VALUE

    def b_set_local_color_config(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2)
        self.not_in_code(node, scope)
        state = self.program_state(node)
        color = self.color_argument(node.args[0], scope)
        if color in state.colors:
            raise CslError(node.at, f"color {color} of this PE is already configured")
        route = read_route(
            self.known(node.args[1], scope), color, self.options.arch, node.at, strict=self.judges(scope)
        )
        state.colors[color] = (self.unit.compiler.route(route), node.at)
        return VOID_VALUE

    def b_export_name(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2, 3)
        state = self.layout_state(node)
        name = self.data(node.args[0], scope, ty.COMPTIME_STRING)
        t = self.type_of(node.args[1], scope)
        mutable = self.condition(node.args[2], scope) if len(node.args) > 2 else False
        if not isinstance(t, (ty.PointerType, ty.FnType)) and len(node.args) < 3:
            raise CslError(
                node.at,
                f"the name '{name}' of type '{t}' needs a third argument that states whether the host may write it",
            )
        if name in state.names:
            raise CslError(node.at, f"the name '{name}' is exported twice")
        self.check_export(name, t, node.args[1].at)
        self.effect(state.names.__setitem__, name, ExportedName(name, t, mutable, node.at))
        return VOID_VALUE

    # ---- program
    def b_export_symbol(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1, 2)
        self.not_in_code(node, scope)
        state = self.program_state(node)
        target = self.access(node.args[0], scope)
        if type(target) is Value and not isinstance(target.data, Function):
            found = self.exported_constant(node.args[0], scope)
            if found is not None:
                target = Ref(found, (), found.type)
        thing: Ref | Function
        if type(target) is Value and isinstance(target.data, Function):
            default, thing = target.data.name, target.data  # a function or a place
        elif type(target) is Ref and isinstance(target.root, Global):
            default, thing = target.root.name, target
        else:
            raise CslError(node.at, "@export_symbol takes a variable or a function of a module")
        name = self.data(node.args[1], scope, ty.COMPTIME_STRING) if len(node.args) > 1 else default
        if name in state.symbols and not self.same_symbol(state.symbols[name].target, thing):
            raise CslError(node.at, f"the symbol '{name}' is exported twice in this program")
        if name in state.symbols and self.judges(scope):
            raise CslError(node.at, f"the symbol '{name}' is exported twice; one @export_symbol is enough")
        state.symbols[name] = ExportedSymbol(name, thing, node.at)
        return VOID_VALUE

    def same_symbol(self, a: Ref | Function, b: Ref | Function) -> bool:
        if isinstance(a, Ref) and isinstance(b, Ref):
            return a.root is b.root and a.path == b.path
        return a is b

    def exported_constant(self, node: tree.Node, scope: Scope) -> Global | None:
        """The global behind a name or `module.name`, if it is one."""
        if isinstance(node, tree.Name):
            found: object = self.lookup(node, scope)
        elif isinstance(node, tree.Member):
            base = self.access(node.base, scope)
            found = base.data.members.get(node.name) if base.type is ty.MODULE else None
        else:
            return None
        return found if isinstance(found, Global) else None

    def task_argument(self, arg: tree.Node, scope: Scope) -> Function:
        value = self.known(arg, scope)
        if not isinstance(value.data, Function) or value.data.node.kind != "task":
            raise CslError(
                arg.at,
                f"expected a task, found '{value.type}'; a task is declared with 'task name(...) void'",
            )
        return value.data

    def bind(self, node: tree.Builtin, scope: Scope, kind: str) -> Value:
        self.count(node, 2)
        self.top_level(node, scope)
        state = self.program_state(node)
        task = self.task_argument(node.args[0], scope)
        value = self.known(node.args[1], scope)
        wanted = TASK_ID_TYPES[kind]
        if value.type is not wanted:
            raise CslError(
                node.args[1].at,
                f"{node.name} takes a value of type '{wanted}', found '{value.type}'; make one with @get_{wanted}",
            )
        key = ("task", value.data)
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

    def b_bind_local_task(self, node: tree.Builtin, scope: Scope) -> Value:
        return self.bind(node, scope, "local")

    def b_bind_data_task(self, node: tree.Builtin, scope: Scope) -> Value:
        return self.bind(node, scope, "data")

    def b_bind_control_task(self, node: tree.Builtin, scope: Scope) -> Value:
        return self.bind(node, scope, "control")

    def b_bind_rotating_tasks(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 4)
        self.top_level(node, scope)
        state = self.program_state(node)
        if not self.options.wse3:
            raise CslError(node.at, "@bind_rotating_tasks exists only on wse3")
        main, other = (self.task_argument(a, scope) for a in node.args[:2])
        value = self.known(node.args[2], scope)
        if value.type is not ty.DATA_TASK_ID:
            raise CslError(
                node.args[2].at,
                f"@bind_rotating_tasks takes a data_task_id, found '{value.type}'; make one with @get_data_task_id",
            )
        given = self.coerce(self.known(node.args[3], scope), ty.COMPTIME_STRUCT, node.args[3].at).data
        unknown = next((n for n in given if n not in ("limit", "init")), None)
        if unknown is not None or "limit" not in given:
            raise CslError(
                node.args[3].at,
                "the options of @bind_rotating_tasks are .limit (runs of the first task) and .init",
            )
        limit, start = (
            int(self.coerce(given.get(n, Value(ty.COMPTIME_INT, 0)), ty.U16, node.args[3].at).data)
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

    def b_bind_task(self, node: tree.Builtin, scope: Scope) -> Value:
        """The form of older programs: a color, a queue or an id says which kind of task it is."""
        self.count(node, 2)
        self.top_level(node, scope)
        value = self.known(node.args[1], scope)
        kinds: dict[ty.Type, str] = {
            ty.LOCAL_TASK_ID: "local",
            ty.DATA_TASK_ID: "data",
            ty.CONTROL_TASK_ID: "control",
        }
        task = self.task_argument(node.args[0], scope)
        kind = kinds.get(value.type)
        if kind is None and value.type in (ty.COLOR, ty.INPUT_QUEUE):
            kind = "data" if task.node.params else "local"
        if kind is None:
            raise CslError(node.args[1].at, f"@bind_task takes a task id or a color, found '{value.type}'")
        state = self.program_state(node)
        if ("task", value.data) in state.tasks:
            raise CslError(
                node.at,
                f"task id {value.data} is bound to '{state.tasks['task', value.data].function.name}' already",
            )
        state.tasks["task", value.data] = BoundTask(task, kind, value.data, node.at)
        return VOID_VALUE

    def task_number(self, value: Operand, at: int) -> Operand:
        """The id behind a task id or a task's name; an operand when it is known only at run time."""
        if isinstance(value.type, ty.FnType) and type(value) is Value:
            for bound in self.unit.program.tasks.values() if self.unit.program is not None else ():
                if bound.function is value.data or value.data in bound.group:
                    return Value(ty.U16, bound.id)
            raise CslError(
                at, f"the task '{value.data.name}' is bound to no id; bind it with @bind_local_task"
            )
        if value.type in TASK_ID_TYPES.values() or value.type is ty.COLOR:  # colors: older programs
            return value
        raise CslError(at, f"expected a task or a task id, found '{value.type}'")

    def b_activate(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        state = self.program_state(node)
        value = self.known(node.args[0], scope)
        self.check_activation(value, node, scope)
        state.active.append((value, node.at))
        return VOID_VALUE

    def space(self, value: Operand, at: int) -> int:
        """Return the kind of ids that @block and @unblock use for a value of this type."""
        if value.type.name not in SPACES:
            return 0
        return SPACES[value.type.name]

    def b_block(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        state = self.program_state(node)
        state.blocked.append((self.known(node.args[0], scope), True, node.at))
        return VOID_VALUE

    def b_unblock(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        state = self.program_state(node)
        state.blocked.append((self.known(node.args[0], scope), False, node.at))
        return VOID_VALUE

    def b_initialize_queue(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1, 2)
        self.not_in_code(node, scope)
        state = self.program_state(node)
        queue = self.known(node.args[0], scope)
        if queue.type not in (ty.INPUT_QUEUE, ty.OUTPUT_QUEUE):
            raise CslError(
                node.args[0].at, f"@initialize_queue takes an input or output queue, found '{queue.type}'"
            )
        given = self.known(node.args[1], scope).data if len(node.args) > 1 else {}
        for name in given:
            if name not in ("color", "priority", "ctrl_table_id", "fabric_color"):
                raise CslError(
                    node.args[1].at,
                    f"@initialize_queue has no option '{name}'; its options are color, priority, ctrl_table_id",
                )
        if self.judges(scope):
            self.check_queue(queue, given, node.at)
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
            self.unit.note_read(number, queue.data)
        return VOID_VALUE

    def handler(self, node: tree.Builtin, scope: Scope) -> tuple[Function, int]:
        value = self.known(node.args[0], scope)
        if not isinstance(value.data, Function):
            raise CslError(node.args[0].at, f"expected a function, found '{value.type}'")
        return value.data, node.at

    def b_set_teardown_handler(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2)
        self.top_level(node, scope)
        state = self.program_state(node)
        color = self.color_argument(node.args[1], scope)
        if color in state.teardown:
            raise CslError(node.at, f"color {color} already has a teardown handler")
        state.teardown[color] = self.handler(node, scope)
        return VOID_VALUE

    def b_set_empty_queue_handler(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2)
        state = self.program_state(node)
        queue = self.known(node.args[1], scope)
        if queue.type is not ty.OUTPUT_QUEUE:
            raise CslError(
                node.args[1].at, f"@set_empty_queue_handler takes an output queue, found '{queue.type}'"
            )
        state.empty_handlers[queue.data] = self.handler(node, scope)
        return VOID_VALUE

    def plain_load(self, node: tree.Builtin, scope: Scope, kinds: tuple[str, ...]) -> tree.Builtin:
        """A load that names extended and stride registers as the load of the descriptor: the machine holds it in one piece."""
        self.count(node, 2 + len(kinds), 3 + len(kinds))
        for k, kind in enumerate(kinds, 1):
            value = self.known(node.args[k], scope)
            parts = list(value.data.values()) if isinstance(value.data, dict) else [value]
            if any(part.type is not ty.DSRS[kind] for part in parts):
                raise CslError(
                    node.args[k].at, f"{node.name} takes a value of @get_{kind} here, found '{value.type}'"
                )
        return tree.Builtin(node.at, "@load_to_dsr", [node.args[0], *node.args[1 + len(kinds) :]])

    def b_load_to_dsr_xdsr(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.b_load_to_dsr(self.plain_load(node, scope, ("xdsr",)), scope)

    def b_load_to_dsr_xdsr_sr(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.b_load_to_dsr(self.plain_load(node, scope, ("xdsr", "sr")), scope)

    def b_load_to_dsr(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2, 3)
        state = self.program_state(node)
        dsr, dsd = self.known(node.args[0], scope), self.known(node.args[1], scope)
        if not isinstance(dsr.data, Dsr) or not isinstance(dsd.data, Dsd):
            raise CslError(
                node.at, f"@load_to_dsr takes a DSR and a DSD, found '{dsr.type}' and '{dsd.type}'"
            )
        state.startup.append((node, scope))
        return VOID_VALUE

    def deferred(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Runs on the core at its start."""
        self.program_state(node).startup.append((node, scope))
        return VOID_VALUE

    b_set_active_prng = b_set_dsr_base_addr = deferred

    def at_start(self, node: tree.Builtin, scope: Scope, values: Sequence[Value]) -> None:
        """Run a builtin on the core before the program begins, with the values that its last arguments have now."""
        inner = Scope(scope.instance, scope)
        names: list[tree.Node] = []
        for k, value in enumerate(values):
            inner.names[f"#{k}"] = value
            names.append(tree.Name(node.at, f"#{k}"))
        kept = node.args[: len(node.args) - len(values)]
        self.program_state(node).startup.append((tree.Builtin(node.at, node.name, [*kept, *names]), inner))

    def register_address(self, node: tree.Builtin, scope: Scope, ranges: int) -> Operand:
        """Return the address of a configuration register; argument `ranges` names ranges that contain it."""
        address = self.coerce(self.eval(node.args[0], scope), ty.U16, node.args[0].at)
        if len(node.args) > ranges:
            self.check_ranges(address, self.known(node.args[ranges], scope), node.args[ranges].at)
        if type(address) is Value:
            self.check_register(address.data, node)
        return address

    def check_register(self, number: int, node: tree.Builtin) -> None:
        """Reject addresses that are no register; warn about registers without a model, which have no effect."""
        if not FIRST_REGISTER <= number < FIRST_REGISTER + REGISTERS:
            raise CslError(
                node.args[0].at,
                f"{number:#x} is not a configuration register; their word addresses are {FIRST_REGISTER:#x} to {FIRST_REGISTER + REGISTERS - 1:#x}",
            )
        has_model = not self.options.wse3 and any(
            0 <= number - first < REGISTER_COLORS for first in (ROUTES, SWITCH)
        )
        said = (str(number), node.name)
        if not has_model and said not in self.unit.compiler.warned:
            self.unit.compiler.warned.add(said)
            warn(
                node.at,
                f"the register {number:#x} is not modelled: it stores what is written and has no other effect",
            )

    def check_ranges(self, address: Operand, given: Value, at: int) -> None:
        items = list(given.data.values()) if isinstance(given.data, dict) else []
        pairs = items if items and all(isinstance(i.data, dict) for i in items) else [given]
        held = False
        for pair in pairs:
            ends = (
                [self.coerce(v, ty.U16, at).data for v in pair.data.values()]
                if isinstance(pair.data, dict)
                else []
            )
            if len(ends) != 2 or ends[0] > ends[1]:
                raise CslError(
                    at,
                    "the range of a register is .{first, last}, or several of them in .{ }, first not above last",
                )
            held |= type(address) is Value and ends[0] <= address.data <= ends[1]
        if type(address) is Value and not held:
            raise CslError(at, f"the register {address.data:#x} is in none of the ranges given")

    def b_set_config(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2, 3)
        state = self.program_state(node)
        address = self.register_address(node, scope, 2)
        value = self.coerce(self.known(node.args[1], scope), ty.U16, node.args[1].at)
        state.registers[address.data] = value.data
        self.at_start(
            tree.Builtin(node.at, node.name, node.args[:2]),
            scope,
            [Value(ty.U16, address.data), Value(ty.U16, value.data)],
        )
        return VOID_VALUE

    def b_get_config(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1, 2)
        state = self.program_state(node)
        address = self.register_address(node, scope, 1)
        if address.data not in state.registers:
            raise CslError(
                node.at,
                f"the register {address.data:#x} has no value at compile time; @get_config reads here what @set_config wrote before it",
            )
        return Value(ty.U16, state.registers[address.data])

    b_set_config_unchecked, b_get_config_unchecked = b_set_config, b_get_config

    def b_rpc(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Older programs declare the command task themselves; commands need no task here."""
        return VOID_VALUE

    def b_set_control_task_table(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Control tasks have separate ids here anyway; the sizes of their code change nothing."""
        self.count(node, 0, 1)
        if not self.judges(scope):
            return VOID_VALUE
        self.demand(self.options.wse3, node.at, "@set_control_task_table exists only on wse3")
        state = self.program_state(node)
        self.demand(
            not state.has_control_table,
            node.at,
            "@set_control_task_table is called twice; a program has one table",
        )
        state.has_control_table = True
        config = self.known(node.args[0], scope).data if node.args else {}
        for name, value in config.items() if isinstance(config, dict) else ():
            legal = CONTROL_TABLE.get(str(name), ())
            self.demand(
                value.data in legal,
                node.args[0].at,
                f".{name} is {show(value)}; a control task table has .instructions of 2, 4 or 8 and a .stride of 1 to 7",
            )
        return VOID_VALUE

    def b_has_exported_tensors(self, node: tree.Builtin, scope: Scope) -> Value:
        layout = self.unit.compiler.layout
        some = layout is not None and any(isinstance(n.type, ty.PointerType) for n in layout.names.values())
        return TRUE if some else FALSE

    def b_get_symbol_id(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        name = self.symbol_argument(node, scope)
        names = list(self.unit.compiler.layout.names) if self.unit.compiler.layout else []
        if name not in names:
            raise CslError(
                node.at, f"the layout exports no name '{name}'; it exports {', '.join(names) or 'none'}"
            )
        return Value(ty.U16, names.index(name))

    def symbol_argument(self, node: tree.Builtin, scope: Scope) -> str:
        """Return the exported name of a symbol, or the one that a string gives."""
        place = self.access(node.args[0], scope)
        if place.type is ty.COMPTIME_STRING:
            return str(self.load(place, node.at).data)
        target: Ref | Function | None = place if type(place) is Ref else None
        if type(place) is Value:
            target = place.data if isinstance(place.data, Function) else None
            constant = self.exported_constant(node.args[0], scope)
            if target is None and constant is not None:
                target = Ref(constant, (), constant.type)
        symbols = self.unit.program.symbols if self.unit.program is not None else {}
        found = [n for n, s in symbols.items() if target is not None and self.same_symbol(s.target, target)]
        if not found:
            raise CslError(
                node.args[0].at, "@get_symbol_id takes a symbol that @export_symbol names, or its name"
            )
        return found[0]

    def b_get_rectangle(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 0)
        layout = self.unit.compiler.layout if self.unit.layout is None else self.unit.layout
        if layout is None or not layout.width:
            raise CslError(node.at, "@get_rectangle before @set_rectangle")

        def pair(size: tuple[int, int]) -> Value:
            return Value(
                ty.COMPTIME_STRUCT, {"width": Value(ty.U16, size[0]), "height": Value(ty.U16, size[1])}
            )

        fields = {
            **pair((layout.width, layout.height)).data,
            "fabric": pair(self.options.fabric),
            "offsets": pair(self.options.offsets),
        }
        return Value(ty.COMPTIME_STRUCT, fields)
