"""Builtins of a core's program: symbols, registers that are loaded at the start, and configuration
registers."""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_layout import program_state
from wse_sim.csl.diagnostics import CslError, warn
from wse_sim.csl.evaluation import Evaluation, count
from wse_sim.csl.modules import ExportedSymbol, Scope
from wse_sim.csl.strict import demand, judges, not_in_code
from wse_sim.csl.values import FALSE, TRUE, VOID_VALUE, Dsd, Dsr, Function, Global, Operand, Ref, Value, show
from wse_sim.fabric.vm.registers import FIRST_REGISTER, REGISTER_COLORS, REGISTERS, ROUTES, SWITCH

CONTROL_TABLE = {"instructions": (2, 4, 8), "stride": range(1, 8)}
"""Fields of `@set_control_task_table` and their values."""


def b_export_symbol(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1, 2)
    not_in_code(ev, node, scope)
    state = program_state(ev, node)
    target = ev.access(node.args[0], scope)
    if type(target) is Value and not isinstance(target.data, Function):
        found = exported_constant(ev, node.args[0], scope)
        if found is not None:
            target = Ref(found, (), found.type)
    thing: Ref | Function
    if type(target) is Value and isinstance(target.data, Function):
        default, thing = target.data.name, target.data
    elif type(target) is Ref and isinstance(target.root, Global):
        default, thing = target.root.name, target
    else:
        raise CslError(node.at, "@export_symbol takes a variable or a function of a module")
    name = ev.data(node.args[1], scope, ty.COMPTIME_STRING) if len(node.args) > 1 else default
    if name in state.symbols and not same_symbol(state.symbols[name].target, thing):
        raise CslError(node.at, f"the symbol '{name}' is exported twice in this program")
    if name in state.symbols and judges(ev, scope):
        raise CslError(node.at, f"the symbol '{name}' is exported twice; one @export_symbol is enough")
    state.symbols[name] = ExportedSymbol(name, thing, node.at)
    return VOID_VALUE


def same_symbol(a: Ref | Function, b: Ref | Function) -> bool:
    if isinstance(a, Ref) and isinstance(b, Ref):
        return a.root is b.root and a.path == b.path
    return a is b


def exported_constant(ev: Evaluation, node: tree.Node, scope: Scope) -> Global | None:
    """Return the global variable that a name or `module.name` refers to, or None."""
    if isinstance(node, tree.Name):
        found: object = ev.lookup(node, scope)
    elif isinstance(node, tree.Member):
        base = ev.access(node.base, scope)
        found = base.data.members.get(node.name) if base.type is ty.MODULE else None
    else:
        return None
    return found if isinstance(found, Global) else None


def plain_load(ev: Evaluation, node: tree.Builtin, scope: Scope, kinds: tuple[str, ...]) -> tree.Builtin:
    """Convert a load that names extended and stride registers to a plain load: the simulated machine
    stores a descriptor in one register.

    Raises
    ------
    CslError
        If an argument is not such a register.
    """
    count(node, 2 + len(kinds), 3 + len(kinds))
    for k, kind in enumerate(kinds, 1):
        value = ev.known(node.args[k], scope)
        parts = list(value.data.values()) if isinstance(value.data, dict) else [value]
        if any(part.type is not ty.DSRS[kind] for part in parts):
            raise CslError(
                node.args[k].at, f"{node.name} takes a value of @get_{kind} here, found '{value.type}'"
            )
    return tree.Builtin(node.at, "@load_to_dsr", [node.args[0], *node.args[1 + len(kinds) :]])


def b_load_to_dsr_xdsr(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return ev.eval(plain_load(ev, node, scope, ("xdsr",)), scope)


def b_load_to_dsr_xdsr_sr(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return ev.eval(plain_load(ev, node, scope, ("xdsr", "sr")), scope)


def b_load_to_dsr(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2, 3)
    state = program_state(ev, node)
    dsr, dsd = ev.known(node.args[0], scope), ev.known(node.args[1], scope)
    if not isinstance(dsr.data, Dsr) or not isinstance(dsd.data, Dsd):
        raise CslError(node.at, f"@load_to_dsr takes a DSR and a DSD, found '{dsr.type}' and '{dsd.type}'")
    state.startup.append((node, scope))
    return VOID_VALUE


def deferred(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    """Schedule the builtin for the start of the program on the core."""
    program_state(ev, node).startup.append((node, scope))
    return VOID_VALUE


b_set_dsr_base_addr = deferred


def at_start(ev: Evaluation, node: tree.Builtin, scope: Scope, values: Sequence[Value]) -> None:
    """Schedule a builtin for the start of the program on the core, with its last arguments fixed to
    `values`."""
    inner = Scope(scope.instance, scope)
    names: list[tree.Node] = []
    for k, value in enumerate(values):
        inner.names[f"#{k}"] = value
        names.append(tree.Name(node.at, f"#{k}"))
    kept = node.args[: len(node.args) - len(values)]
    program_state(ev, node).startup.append((tree.Builtin(node.at, node.name, [*kept, *names]), inner))


def register_address(ev: Evaluation, node: tree.Builtin, scope: Scope, ranges: int) -> Operand:
    """Return the address of a configuration register; argument number `ranges`, if present, names ranges
    that must contain it.

    Raises
    ------
    CslError
        If the address is not that of a register or is outside the ranges.
    """
    address = ev.coerce(ev.eval(node.args[0], scope), ty.U16, node.args[0].at)
    if len(node.args) > ranges:
        check_ranges(ev, address, ev.known(node.args[ranges], scope), node.args[ranges].at)
    if type(address) is Value:
        check_register(ev, address.data, node)
    return address


def check_register(ev: Evaluation, number: int, node: tree.Builtin) -> None:
    """Check the address of a configuration register; warn if the register is not modelled and has no
    effect.

    Raises
    ------
    CslError
        If it is not the address of a register.
    """
    if not FIRST_REGISTER <= number < FIRST_REGISTER + REGISTERS:
        raise CslError(
            node.args[0].at,
            f"{number:#x} is not a configuration register; their word addresses are {FIRST_REGISTER:#x} to {FIRST_REGISTER + REGISTERS - 1:#x}",
        )
    has_model = not ev.options.wse3 and any(
        0 <= number - first < REGISTER_COLORS for first in (ROUTES, SWITCH)
    )
    said = (str(number), node.name)
    if not has_model and said not in ev.unit.compiler.warned:
        ev.unit.compiler.warned.add(said)
        warn(
            node.at,
            f"the register {number:#x} is not modelled: it stores what is written and has no other effect",
        )


def check_ranges(ev: Evaluation, address: Operand, given: Value, at: int) -> None:
    items = list(given.data.values()) if isinstance(given.data, dict) else []
    pairs = items if items and all(isinstance(i.data, dict) for i in items) else [given]
    held = False
    for pair in pairs:
        ends = (
            [ev.coerce(v, ty.U16, at).data for v in pair.data.values()] if isinstance(pair.data, dict) else []
        )
        if len(ends) != 2 or ends[0] > ends[1]:
            raise CslError(
                at,
                "the range of a register is .{first, last}, or several of them in .{ }, first not above last",
            )
        held |= type(address) is Value and ends[0] <= address.data <= ends[1]
    if type(address) is Value and not held:
        raise CslError(at, f"the register {address.data:#x} is in none of the ranges given")


def b_set_config(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2, 3)
    state = program_state(ev, node)
    address = register_address(ev, node, scope, 2)
    value = ev.coerce(ev.known(node.args[1], scope), ty.U16, node.args[1].at)
    state.registers[address.data] = value.data
    at_start(
        ev,
        tree.Builtin(node.at, node.name, node.args[:2]),
        scope,
        [Value(ty.U16, address.data), Value(ty.U16, value.data)],
    )
    return VOID_VALUE


def b_get_config(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1, 2)
    state = program_state(ev, node)
    address = register_address(ev, node, scope, 1)
    if address.data not in state.registers:
        raise CslError(
            node.at,
            f"the register {address.data:#x} has no value at compile time; @get_config reads here what @set_config wrote before it",
        )
    return Value(ty.U16, state.registers[address.data])


b_set_config_unchecked, b_get_config_unchecked = b_set_config, b_get_config


def b_rpc(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    """Accept the command task that older programs declare; here commands need no task."""
    return VOID_VALUE


def b_set_control_task_table(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    """Accept a control task table, which has no effect here; strict mode checks its fields."""
    count(node, 0, 1)
    if not judges(ev, scope):
        return VOID_VALUE
    demand(ev, ev.options.wse3, node.at, "@set_control_task_table exists only on wse3")
    state = program_state(ev, node)
    demand(
        ev,
        not state.has_control_table,
        node.at,
        "@set_control_task_table is called twice; a program has one table",
    )
    state.has_control_table = True
    config = ev.known(node.args[0], scope).data if node.args else {}
    for name, value in config.items() if isinstance(config, dict) else ():
        legal = CONTROL_TABLE.get(str(name), ())
        demand(
            ev,
            value.data in legal,
            node.args[0].at,
            f".{name} is {show(value)}; a control task table has .instructions of 2, 4 or 8 and a .stride of 1 to 7",
        )
    return VOID_VALUE


def b_has_exported_tensors(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    layout = ev.unit.compiler.layout
    some = layout is not None and any(isinstance(n.type, ty.PointerType) for n in layout.names.values())
    return TRUE if some else FALSE


def b_get_symbol_id(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    name = symbol_argument(ev, node, scope)
    names = list(ev.unit.compiler.layout.names) if ev.unit.compiler.layout else []
    if name not in names:
        raise CslError(
            node.at, f"the layout exports no name '{name}'; it exports {', '.join(names) or 'none'}"
        )
    return Value(ty.U16, names.index(name))


def symbol_argument(ev: Evaluation, node: tree.Builtin, scope: Scope) -> str:
    """Return the exported name of a symbol, or the name that a string gives.

    Raises
    ------
    CslError
        If the argument is neither an exported symbol nor a string.
    """
    place = ev.access(node.args[0], scope)
    if place.type is ty.COMPTIME_STRING:
        return str(ev.load(place, node.at).data)
    target: Ref | Function | None = place if type(place) is Ref else None
    if type(place) is Value:
        target = place.data if isinstance(place.data, Function) else None
        constant = exported_constant(ev, node.args[0], scope)
        if target is None and constant is not None:
            target = Ref(constant, (), constant.type)
    symbols = ev.unit.program.symbols if ev.unit.program is not None else {}
    found = [n for n, s in symbols.items() if target is not None and same_symbol(s.target, target)]
    if not found:
        raise CslError(
            node.args[0].at, "@get_symbol_id takes a symbol that @export_symbol names, or its name"
        )
    return found[0]
