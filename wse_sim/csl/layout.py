"""Two phases of a compilation: the layout, then one code class per (file, parameters)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Code
from wse_sim.csl.diagnostics import NOWHERE, CslError, warn, where
from wse_sim.csl.evaluate import Evaluator, Scope
from wse_sim.csl.evaluate_loops import LoopEvaluator
from wse_sim.csl.modules import LayoutState, ProgramState
from wse_sim.csl.storage import SharedNames
from wse_sim.csl.tiles import CodeClass, freeze
from wse_sim.csl.unit import CodeUnit, Compiler
from wse_sim.csl.values import Cell, CommandLineText, Function, Global, Instance, Operand, Value

MOST_IMPORTS = 60
HOST_INTERFACE = ("<memcpy/get_params>", "<memcpy/memcpy>")


class EvaluatedUnit(CodeUnit):
    """Compilation unit with its evaluator, and the data that lowering adds to it."""

    used: dict[int, Cell]  # variables that need memory
    assigned: set[int]  # variables that code assigns, or whose address it takes
    taken: dict[
        int, tuple[Global, int]
    ]  # variables that operations use as descriptors, each with the position of one use
    elements: dict[
        tuple[int, ty.FloatType], tuple[Global, str, int]
    ]  # by variable and element type: an operation that uses it as its descriptor (name and position)
    constants: dict[tuple[ty.Type, str], Cell]
    comptime: Evaluator
    function: Callable[[Function, Mapping[str, Operand], ty.Type, int], Code]

    def __init__(
        self, compiler: Compiler, layout: LayoutState | None = None, program: ProgramState | None = None
    ) -> None:
        super().__init__(compiler, layout, program)
        self.evaluator = LoopEvaluator(self) if layout is not None else Evaluator(self)
        self.shared = SharedNames()
        self.importing: list[tuple[str, Hashable]] = []

    def import_module(self, name: str, params: dict[str, Value], importer: Instance, at: int) -> Instance:
        """Create a new instance of the module that a file name or library name refers to.

        Raises
        ------
        CslError
            If the file cannot be read or parsed, or modules import each other in a cycle.
        """
        path, file, library = self.compiler.files.load(name, importer.path, at)
        key = (path, freeze(Value(ty.COMPTIME_STRUCT, params)))
        if key in self.importing or len(self.importing) >= MOST_IMPORTS:
            chain = [p for p, _ in self.importing]
            names = " imports ".join(
                Path(p).name for p in [*chain[chain.index(path) if path in chain else 0 :], path][-6:]
            )
            raise CslError(
                at, f"modules import each other in a cycle: {names}; put what both need into a third module"
            )
        self.importing.append(key)
        try:
            return self.instantiate(path, file, params, library, at)
        finally:
            self.importing.pop()

    def instantiate(
        self, path: str, file: tree.File, params: dict[str, Value], library: bool, at: int
    ) -> Instance:
        """Create an instance of a module and evaluate its imports and comptime blocks."""
        instance = Instance(path, file, params, library, len(self.instances))
        self.instances.append(instance)
        instance.imported_at = at if self.importing else NOWHERE
        if path in HOST_INTERFACE:
            self.compiler.host_colors |= stream_colors(params)
        for name in instance.unknown_params():
            if (path, name) not in self.compiler.warned:
                self.compiler.warned.add((path, name))
                warn(at, f"'{path if library else Path(path).name}' has no parameter '{name}'")
        evaluator = self.evaluator
        if self.program is not None:
            self.shared.add(instance, self.symbol_name)
            for g in instance.members.values():
                if isinstance(g, Global) and imports(g.decl.value):
                    evaluator.ensure(g)
        for block in instance.comptime:
            evaluator.exec(block.body, Scope(instance))
        return instance

    def warn_of_colors(self, state: ProgramState) -> None:
        """Warn of every output descriptor that names another color than its queue has: on WSE-3 its words
        take the color of the queue."""
        warned = self.compiler.warned
        for color, queue, at in self.sends if self.options.wse3 else ():
            bound = state.queues.get((ty.OUTPUT_QUEUE.name, queue), (None, 0, 0))[0]
            said = (where(at), "fabout_dsd")
            if bound is not None and bound != color and said not in warned:
                warned.add(said)
                warn(
                    at,
                    f"the fabout_dsd names color {color}, and on wse3 its words take color {bound}, that of output_queue {queue}; "
                    f"name color {bound} here, or initialize the queue with color {color}",
                )

    def symbol_name(self, node: tree.Node, instance: Instance) -> str:
        """Return the value of a `linkname`."""
        return str(self.evaluator.data(node, Scope(instance), ty.COMPTIME_STRING))


def stream_colors(params: Mapping[str, Value]) -> set[int]:
    """Return the colors that an import of the host interface binds to its streams (`.MEMCPYH2D_1 = color` and
    similar; numbers since SDK 2.10)."""
    return {
        int(v.data)
        for n, v in params.items()
        if n.startswith(("MEMCPYH2D_", "MEMCPYD2H_")) and (v.type is ty.COLOR or ty.is_int(v.type))
    }


def imports(node: tree.Node | None) -> bool:
    """Return whether an initialiser imports a module, or allocates a FIFO with options; such initialisers are
    always evaluated."""
    if isinstance(node, tree.Builtin):
        return node.name == "@import_module" or (node.name == "@allocate_fifo" and len(node.args) > 1)
    if isinstance(node, tree.IfExpr):
        return imports(node.yes) or imports(node.no)
    return False


def command_line_values(params: Mapping[str, Any], colors: Mapping[str, int]) -> dict[str, Value]:
    """Return the values of `--params` (text that the declarations give a type later) and `--colors`."""
    values = {
        n: v if isinstance(v, Value) else Value(ty.COMPTIME_STRING, CommandLineText(v))
        for n, v in params.items()
    }
    values.update({n: Value(ty.COLOR, c) for n, c in colors.items()})
    return values


def run_layout(compiler: Compiler, path: str, params: dict[str, Value]) -> LayoutState:
    """Evaluate the layout block of the top file.

    Raises
    ------
    CslError
        If there is no layout block, a core has no code, or a parameter is unknown.
    """
    compiler.files.home = Path(path).parent
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
    missing = state.tiles.missing()
    if missing >= 0:
        raise CslError(
            root.layout.at,
            f"PE {state.place(missing)} has no code; call @set_tile_code for every PE of the rectangle",
        )
    compiler.layout = state
    return state


def run_program(compiler: Compiler, code: CodeClass) -> EvaluatedUnit:
    """Evaluate the comptime blocks of one code class, and return its unit."""
    unit = EvaluatedUnit(compiler, program=ProgramState())
    file = compiler.files.trees[code.path]
    unit.importing.append((code.path, freeze(Value(ty.COMPTIME_STRUCT, code.params))))
    unit.instantiate(code.path, file, code.params, False, code.at)
    unit.shared.check(lambda node, of: unit.evaluator.type_of(node, Scope(of)), unit.evaluator.ensure)
    return unit


def read_params(unit: EvaluatedUnit) -> frozenset[str]:
    """Return the parameters of the file that were read; others do not affect the code."""
    members = unit.instances[0].members.values()
    return frozenset(
        g.name for g in members if isinstance(g, Global) and g.kind == "param" and g.state != Global.UNSEEN
    )
