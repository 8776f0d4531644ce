"""Builtins of the layout block: rectangle, code of cores, colors, exported names and imported modules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.colors import read_route
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.lanes import Lanes
from wse_sim.csl.modules import ExportedName, LayoutState, ProgramState, Scope
from wse_sim.csl.strict import StrictRules
from wse_sim.csl.values import VOID_VALUE, Value


class LayoutBuiltins(StrictRules):
    """Builtins of the layout block, a base class of the evaluator."""

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
        """Return the row-major index of the core that a call names; several if loop iterations are evaluated
        together.

        Raises
        ------
        CslError
            If the rectangle is not set or does not contain the core.
        """
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
        """Apply the effect of a builtin; evaluators of several iterations at once delay it."""
        act(*args)

    def b_set_tile_code(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2, 4)
        state = self.layout_state(node)
        where = self.pe(node, scope, state)
        if len(node.args) == 2:  # without a file name: the program is in this file
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
