"""One compilation and its units: the layout is a unit, and so is every code class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

from wse_sim.csl import types as ty
from wse_sim.csl.colors import ColorRoute
from wse_sim.csl.modules import Files, LayoutState, Options, ProgramState
from wse_sim.csl.values import Fifo, Instance, Value

INPUT_QUEUES = 8


class Compiler:
    """Compilation: options, parsed files, and data shared between its units."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.files = Files(options)
        self.sdk = options.sdk  # the release whose rules apply
        self.structs: dict[Hashable, ty.StructType | ty.EnumType] = {}
        self.addressed: dict[int, set[str]] = {}
        self.literals: dict[int, Value] = {}  # by node; trees live as long as the compilation
        self.notes: list[str] = []
        self.layout: LayoutState | None = None
        self.routes: dict[ColorRoute, ColorRoute] = {}
        self.queues: dict[
            tuple[str, int], dict[int, bool]
        ] = {}  # by kind and position of the use: number -> whether it has a color
        self.colorless: dict[
            tuple[int, int], bool
        ] = {}  # inputs without a color: (queue, position) -> whether the queue has a color
        self.tasks: dict[int, tuple[str, bool]] = {}  # by position: name, and whether a class binds it
        self.reached: set[int] = set()  # positions of the functions that code or an evaluation calls
        self.warned: set[tuple[str, str]] = set()
        self.host_colors: set[int] = set()  # colors that an import of the host interface binds to its streams

    def route(self, route: ColorRoute) -> ColorRoute:
        """Return the one object for equal configurations."""
        return self.routes.setdefault(route, route)


class CodeUnit(ABC):
    """Layout or code class: its module instances, and the results of its comptime blocks."""

    def __init__(
        self, compiler: Compiler, layout: LayoutState | None = None, program: ProgramState | None = None
    ) -> None:
        self.compiler = compiler
        self.options = compiler.options
        self.layout = layout
        self.program = program
        self.probing = False
        self.instances: list[Instance] = []
        self.fifos: list[Fifo] = []
        self.reads: dict[int, int] = {}
        self.queue_uses: list[
            tuple[str, int, int]
        ] = []  # queues that descriptors name: kind, number, position
        self.colorless: list[
            tuple[int, int]
        ] = []  # inputs that take the color of their queue: number, position
        self.sends: list[tuple[int, int, int]] = []  # color, output queue and position of output descriptors
        self.paths: dict[tuple[str, str], str] = {}

    def free_queue(self, color: int) -> int:
        """Return the input queue of a color without one in the program (WSE-2): the highest queue that no
        other color has."""
        taken = set(self.reads.values())
        return self.reads.get(color, max((q for q in range(INPUT_QUEUES) if q not in taken), default=0))

    def note_read(self, color: int, queue: int) -> None:
        """Record that a color arrives through an input queue, unless it already has one."""
        self.reads.setdefault(color, queue)

    def tile_path(self, name: str, importer: Instance, at: int) -> str:
        """Return the path of the file that `@set_tile_code` names."""
        key = (name, importer.path)
        if key not in self.paths:
            self.paths[key] = self.compiler.files.load(name, importer.path, at)[0]
        return self.paths[key]

    @abstractmethod
    def import_module(self, name: str, params: dict[str, Value], importer: Instance, at: int) -> Instance:
        """Create a new instance of the module that a file name or library name refers to."""
