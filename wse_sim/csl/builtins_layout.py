"""Builtins of the layout block: rectangle, code of cores, colors, exported names and imported modules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.colors import read_route
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluation import Evaluation, count
from wse_sim.csl.modules import ExportedName, LayoutState, ProgramState, Scope
from wse_sim.csl.strict import check_export, judges, not_in_code
from wse_sim.csl.values import VOID_VALUE, Value


def layout_state(ev: Evaluation, node: tree.Builtin) -> LayoutState:
    state = ev.unit.layout
    if state is None:
        raise CslError(node.at, f"{node.name} belongs in the layout block")
    return state


def program_state(ev: Evaluation, node: tree.Builtin) -> ProgramState:
    state = ev.unit.program
    if state is None:
        raise CslError(node.at, f"{node.name} belongs in the program of a PE, not in the layout")
    return state


def b_import_module(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1, 2)
    not_in_code(ev, node, scope)
    name = ev.data(node.args[0], scope, ty.COMPTIME_STRING)
    params: dict[str, Value] = {}
    if len(node.args) > 1:
        given = ev.coerce(ev.known(node.args[1], scope), ty.COMPTIME_STRUCT, node.args[1].at)
        params = {str(k): v for k, v in given.data.items()}
    return Value(ty.MODULE, ev.unit.import_module(name, params, scope.instance, node.at))


def b_set_rectangle(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    state = layout_state(ev, node)
    if state.width:
        raise CslError(
            node.at,
            f"@set_rectangle is called twice; the rectangle is already {state.width} x {state.height}",
        )
    width, height = (ev.data(a, scope, ty.COMPTIME_INT) for a in node.args)
    if width < 1 or height < 1:
        raise CslError(node.at, f"a rectangle of {width} x {height} PEs; both sides must be at least 1")
    state.set_rectangle(width, height, node.at)
    return VOID_VALUE


def pe(ev: Evaluation, node: tree.Builtin, scope: Scope, state: LayoutState) -> npt.NDArray[np.int64]:
    """Return the row-major index of the core that a call names; several if loop iterations are evaluated
    together.

    Raises
    ------
    CslError
        If the rectangle is not set or does not contain the core.
    """
    x, y = (ev.data(a, scope, ty.COMPTIME_INT) for a in node.args[:2])
    if not state.width:
        raise CslError(node.at, f"{node.name} is called before @set_rectangle; set the rectangle first")
    if not (0 <= x < state.width and 0 <= y < state.height):
        raise CslError(
            node.at, f"PE ({x}, {y}) is outside the rectangle of {state.width} x {state.height} PEs"
        )
    return ev.cores(y * state.width + x)


def b_set_tile_code(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2, 4)
    state = layout_state(ev, node)
    where = pe(ev, node, scope, state)
    if len(node.args) == 2:  # without a file name: the program is in this file
        ev.effect(state.set_code, scope.instance.path, {}, where, node.at)
        return VOID_VALUE
    name = ev.data(node.args[2], scope, ty.COMPTIME_STRING)
    params: dict[str, Value] = {}
    if len(node.args) > 3:
        given = ev.coerce(ev.known(node.args[3], scope), ty.COMPTIME_STRUCT, node.args[3].at)
        params = given.data
    path = ev.unit.tile_path(name, scope.instance, node.at)
    ev.effect(state.set_code, path, params, where, node.at)
    return VOID_VALUE


def color_argument(ev: Evaluation, arg: tree.Node, scope: Scope) -> int:
    value = ev.known(arg, scope)
    if value.type is not ty.COLOR:
        raise CslError(arg.at, f"expected a color, found '{value.type}'; make one with @get_color")
    if not 0 <= value.data < 24:
        raise CslError(arg.at, f"color {value.data} cannot be routed; the routable colors are 0 to 23")
    return int(value.data)


def b_set_color_config(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 4)
    state = layout_state(ev, node)
    where = pe(ev, node, scope, state)
    color = color_argument(ev, node.args[2], scope)
    route = read_route(
        ev.known(node.args[3], scope), color, ev.options.arch, node.at, strict=judges(ev, scope)
    )
    ev.effect(state.set_color, color, ev.unit.compiler.route(route), where, node.at)
    return VOID_VALUE


def b_set_local_color_config(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    not_in_code(ev, node, scope)
    state = program_state(ev, node)
    color = color_argument(ev, node.args[0], scope)
    if color in state.colors:
        raise CslError(node.at, f"color {color} of this PE is already configured")
    route = read_route(
        ev.known(node.args[1], scope), color, ev.options.arch, node.at, strict=judges(ev, scope)
    )
    state.colors[color] = (ev.unit.compiler.route(route), node.at)
    return VOID_VALUE


def b_export_name(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2, 3)
    state = layout_state(ev, node)
    name = ev.data(node.args[0], scope, ty.COMPTIME_STRING)
    t = ev.type_of(node.args[1], scope)
    mutable = ev.condition(node.args[2], scope) if len(node.args) > 2 else False
    if not isinstance(t, (ty.PointerType, ty.FnType)) and len(node.args) < 3:
        raise CslError(
            node.at,
            f"the name '{name}' of type '{t}' needs a third argument that states whether the host may write it",
        )
    if name in state.names:
        raise CslError(node.at, f"the name '{name}' is exported twice")
    check_export(ev, name, t, node.args[1].at)
    ev.effect(state.names.__setitem__, name, ExportedName(name, t, mutable, node.at))
    return VOID_VALUE


def b_get_rectangle(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 0)
    layout = ev.unit.compiler.layout if ev.unit.layout is None else ev.unit.layout
    if layout is None or not layout.width:
        raise CslError(node.at, "@get_rectangle before @set_rectangle")

    def pair(size: tuple[int, int]) -> Value:
        return Value(ty.COMPTIME_STRUCT, {"width": Value(ty.U16, size[0]), "height": Value(ty.U16, size[1])})

    fields = {
        **pair((layout.width, layout.height)).data,
        "fabric": pair(ev.options.fabric),
        "offsets": pair(ev.options.offsets),
    }
    return Value(ty.COMPTIME_STRUCT, fields)
