"""The two phases of a compilation: the layout, then one code class per (file, parameters)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Code
from wse_sim.csl.diagnostics import NOWHERE, CslError, warn
from wse_sim.csl.evaluate import Evaluator, Scope
from wse_sim.csl.modules import LayoutState, ProgramState
from wse_sim.csl.unit import CodeUnit, Compiler
from wse_sim.csl.values import Cell, Dsd, Dsr, Fifo, Function, Global, Instance, Operand, Range, Ref, Value


class EvaluatedUnit(CodeUnit):
    """A unit with its evaluator, and what lowering adds to it."""

    used: dict[int, Cell]  # variables that need memory
    constants: dict[tuple[ty.Type, str], Cell]
    comptime: Evaluator
    function: Callable[[Function, Mapping[str, Operand], ty.Type, int], Code]

    def __init__(
        self, compiler: Compiler, layout: LayoutState | None = None, program: ProgramState | None = None
    ) -> None:
        super().__init__(compiler, layout, program)
        self.evaluator = Evaluator(self)

    def import_module(self, name: str, params: dict[str, Value], importer: Instance, at: int) -> Instance:
        path, file, library = self.compiler.files.load(name, importer.path, at)
        return self.instantiate(path, file, params, library, at)

    def instantiate(
        self, path: str, file: tree.File, params: dict[str, Value], library: bool, at: int
    ) -> Instance:
        """A new instance; its imports and comptime blocks are evaluated at once."""
        instance = Instance(path, file, params, library, len(self.instances))
        self.instances.append(instance)
        if not library:
            for name in instance.unknown_params():
                if (path, name) not in self.compiler.warned:
                    self.compiler.warned.add((path, name))
                    warn(at, f"'{Path(path).name}' has no parameter '{name}'")
        evaluator = self.evaluator
        if self.program is not None:
            for g in instance.members.values():
                if isinstance(g, Global) and imports(g.decl.value):
                    evaluator.ensure(g)
        for block in instance.comptime:
            evaluator.exec(block.body, Scope(instance))
        return instance


def imports(node: tree.Node | None) -> bool:
    """Whether an initialiser imports a module: such globals are evaluated even if nobody names them."""
    if isinstance(node, tree.Builtin):
        return node.name == "@import_module"
    if isinstance(node, tree.IfExpr):
        return imports(node.yes) or imports(node.no)
    return False


@dataclass
class TileClass:
    """PEs that share file and parameters; `places` are (column, row)."""

    path: str
    params: dict[str, Value]
    at: int
    places: list[tuple[int, int]] = field(default_factory=list)


def freeze(value: Value) -> Hashable:
    """A hashable key: two values with one key compile to the same code."""
    data = value.data
    if isinstance(data, (int, float, str, bool)) or data is None:
        return (value.type.name, data)
    if isinstance(data, dict):
        return ("{}", tuple((k, freeze(v)) for k, v in data.items()))
    if isinstance(data, list):
        return (value.type, repr(data))
    if isinstance(data, (ty.Type, Dsr, Range)):
        return data
    if isinstance(data, Ref):
        return (value.type, data.key())
    if isinstance(data, (Function, Dsd, Fifo)):
        return id(data)
    return id(data)


def command_line_values(params: Mapping[str, Any], colors: Mapping[str, int]) -> dict[str, Value]:
    """`--params` (text, typed later by the declaration they meet) and `--colors`."""
    values = {n: v if isinstance(v, Value) else Value(ty.COMPTIME_STRING, str(v)) for n, v in params.items()}
    values.update({n: Value(ty.COLOR, c) for n, c in colors.items()})
    return values


def run_layout(compiler: Compiler, path: str, params: dict[str, Value]) -> LayoutState:
    """Evaluate the layout block of the top file.

    Raises :class:`CslError`: no layout block, a PE without code, an unknown parameter.
    """
    path, file, _ = compiler.files.load(Path(path).name, path, NOWHERE)
    state = LayoutState()
    unit = EvaluatedUnit(compiler, layout=state)
    root = Instance(path, file, params, False, 0)
    unit.instances.append(root)
    if root.layout is None:
        raise CslError(file.at, f"'{Path(path).name}' has no layout block; the top file of a program has one")
    unknown = root.unknown_params()
    if unknown:
        known = (
            ", ".join(n for n, g in root.members.items() if isinstance(g, Global) and g.kind == "param")
            or "none"
        )
        raise CslError(
            file.at,
            f"there is no parameter '{unknown[0]}' in '{Path(path).name}'; its parameters are {known}",
        )
    for block in root.comptime:
        unit.evaluator.exec(block.body, Scope(root))
    unit.evaluator.exec(root.layout.body, Scope(root))
    if not state.width:
        raise CslError(root.layout.at, "the layout block does not call @set_rectangle")
    for y in range(state.height):
        for x in range(state.width):
            if (x, y) not in state.tiles:
                raise CslError(
                    root.layout.at,
                    f"PE ({x}, {y}) has no code; call @set_tile_code for every PE of the rectangle",
                )
    compiler.layout = state
    return state


def group_tiles(state: LayoutState) -> list[TileClass]:
    """Code classes in the order of their first PE (row by row)."""
    classes: dict[Hashable, TileClass] = {}
    keys: dict[int, Hashable] = {}
    for (x, y), tile in sorted(state.tiles.items(), key=lambda item: (item[0][1], item[0][0])):
        key: list[Hashable] = [tile.path]
        for name, value in tile.params.items():
            known = keys.get(id(value))
            if known is None:
                known = keys[id(value)] = freeze(value)
            key.append((name, known))
        found = classes.setdefault(tuple(key), TileClass(tile.path, tile.params, tile.at))
        found.places.append((x, y))
    return list(classes.values())


def run_program(compiler: Compiler, tiles: TileClass) -> EvaluatedUnit:
    """Evaluate the comptime blocks of one code class."""
    unit = EvaluatedUnit(compiler, program=ProgramState())
    file = compiler.files.trees[tiles.path]
    unit.instantiate(tiles.path, file, tiles.params, False, tiles.at)
    return unit
