"""Linker: addresses, frames and code of a class of cores, and the pools that all classes of an image share.

Memory of a core (16-bit words): 0..15 are free, then variables in the order of their declaration (module
instances in the order of import), constants, and the frames of the functions. Values of 32 bits are at even
words, variables of more than 16 bytes at multiples of 16 bytes, as LLVM places them, and `align(n)` at
multiples of n bytes. A function's frame is behind those of all its callers, so frames of functions that are
never active together share memory. Code needs 2 words per row.

Equal functions of different classes share their code.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl import types as ty
from wse_sim.csl.builtins_dsd import check_element, check_reach
from wse_sim.csl.builtins_tasks import space_of, task_number
from wse_sim.csl.code import JUMPS, Code, FrameCell
from wse_sim.csl.colors import ColorRoute
from wse_sim.csl.data_words import ConstantPool, DataWords, roots_of
from wse_sim.csl.diagnostics import SOURCES, CslError
from wse_sim.csl.evaluate import Evaluator
from wse_sim.csl.layout import EvaluatedUnit
from wse_sim.csl.lower import ProgramCode
from wse_sim.csl.modules import ExportedSymbol, ProgramState
from wse_sim.csl.optimised import fold_calls, inline_calls, keep_scalars, read_only_variables
from wse_sim.csl.storage import check_defined
from wse_sim.csl.strict import check_exported, check_program
from wse_sim.csl.unit import Compiler
from wse_sim.csl.values import Cell, Function, Global, Ref, Value
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import ColorConfig, CoreClass, FieldPlace, Symbol, Task
from wse_sim.fabric.vm.opcodes import Op

Array = npt.NDArray[Any]
FIRST_WORD = 16
CODE_WORDS = 2  # estimated words per row
CLASSES_PER_COLLECTION = 500  # a class leaves about 0.3 MB in reference cycles
LARGE_WORDS = 8  # LLVM places variables of more than 16 bytes at multiples of 16 bytes
RECURSION_REGISTERS, RECURSION_DEPTH = 1024, 64


class Linker:
    """Pools of rows that all classes of the image share."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.constants: ConstantPool[int] = ConstantPool()
        self.vectors: ConstantPool[tuple[int, ...]] = ConstantPool()
        self.dsr_loads: ConstantPool[tuple[int, ...]] = ConstantPool()
        self.shapes: ConstantPool[tuple[int, ...]] = ConstantPool()
        self.rings: ConstantPool[tuple[int, ...]] = ConstantPool()
        self.filters: ConstantPool[tuple[int, ...]] = ConstantPool()
        self.prints: ConstantPool[tuple[str, str]] = ConstantPool()
        self.asserts: ConstantPool[str] = ConstantPool()
        self.positions: ConstantPool[tuple[str, int, int, str]] = ConstantPool()
        self.configs: ConstantPool[ColorConfig] = ConstantPool()
        self.local_names: list[tuple[str, str, int, int, int, int]] = []
        self.structures: dict[str, tuple[str, str, tuple[FieldPlace, ...]]] = {}
        self.code: list[Array] = []
        self.costs: list[Array] = []
        self.sources: list[Array] = []
        self.rows = 0
        self.known: dict[Hashable, int] = {}
        self.tables: dict[int, tuple[Array, int]] = {}
        self.places: dict[tuple[int, str], int] = {}

    def position(self, at: int, function: str) -> int:
        key = (at, function)
        if key not in self.places:
            place = SOURCES.place(at)
            self.places[key] = (
                -1 if place is None else self.positions.add((place[0].name, place[1], place[2], function))
            )
        return self.places[key]

    def type_name(self, t: ty.Type) -> str:
        """Return the spelling of a type, and record the fields of structures and enums in it for
        debuggers."""
        inner: ty.Type | None = t
        while isinstance(inner, (ty.ArrayType, ty.PointerType)):
            inner = inner.element if isinstance(inner, ty.ArrayType) else inner.target
        name = str(inner)
        if isinstance(inner, ty.StructType) and name not in self.structures:
            kind = "packed" if inner.layout == "packed" else inner.kind
            self.structures[name] = (name, kind, ())  # may point to itself
            rows = zip(inner.fields, inner.offsets, inner.shifts, strict=True)
            fields = tuple(
                FieldPlace(n, self.type_name(f), at, bit, ty.bits_of(f) if bit >= 0 else 0)
                for (n, f), at, bit in rows
                if f.words
            )
            self.structures[name] = (name, kind, fields)
        elif isinstance(inner, ty.EnumType):
            cases = tuple(FieldPlace(n, str(inner.base), int(value)) for n, value in inner.names.items())
            self.structures[name] = (name, "enum", cases)
        return str(t)

    def config(self, route: ColorRoute) -> int:
        """Return the number of a color configuration, and add it to the image if it is new."""
        row = -1 if route.filter is None else self.filters.add(route.filter)
        return self.configs.add(
            ColorConfig(
                route.positions, route.position, route.ring, route.pop, route.teardown, route.swap, row
            )
        )


class ClassLinker:
    """Linker of one class, which determines its memory and code."""

    def __init__(self, linker: Linker, unit: EvaluatedUnit, name: str) -> None:
        self.linker, self.unit, self.name = linker, unit, name
        self.program = ProgramCode(unit)
        self.data = DataWords(unit.evaluator, linker.shapes, linker.rings)
        self.end = FIRST_WORD
        self.memory: list[tuple[int, Array]] = []
        self.initial: list[tuple[int, int]] = []
        self.constant_words, self.frame_words = 0, 0
        self.deepest: tuple[tuple[str, int], ...] = ()
        self.totals: dict[int, tuple[int, int]] = {}
        self.visiting: set[int] = set()
        self.late: list[tuple[int, Code]] = []
        self.counted: set[int] = set()
        self.code_rows = 0

    # ---- collect
    def link(self) -> CoreClass:
        """Link the class: place variables and frames, apply the cost model, and store the code.

        Raises
        ------
        CslError
            If the program breaks a rule that is checked after lowering.
        """
        state = self.unit.program
        assert state is not None
        tasks = [(bound, self.program.task(bound.function, bound.kind)) for bound in state.tasks.values()]
        functions = {
            n: self.program.exported(s.target, s.at)
            for n, s in state.symbols.items()
            if isinstance(s.target, Function)
        }
        teardown = [(c, self.program.plain(f, at)) for c, (f, at) in sorted(state.teardown.items())]
        empty = [(q, self.program.plain(f, at)) for q, (f, at) in sorted(state.empty_handlers.items())]
        start = self.program.startup(state.startup)
        used: dict[int, Cell] = self.unit.used
        for s in state.symbols.values():
            if isinstance(s.target, Ref):
                used.setdefault(id(s.target.root), s.target.root)
        for g in self.unit.shared.exported_variables():
            self.evaluator.ensure(g)
            check_exported(self.evaluator, g)
            if g.type.runtime:
                used.setdefault(id(g), g)
        self.data.fifo_rows = {id(f): i for i, f in enumerate(self.unit.fifos)}
        for f in self.unit.fifos:
            used.setdefault(id(f.buffer.root), f.buffer.root)
        roots = (
            [c for _, c in tasks]
            + [c for c, _ in functions.values()]
            + [c for _, c in teardown]
            + [c for _, c in empty]
        )
        roots += [start] if start is not None else []
        for queue, at in () if self.unit.options.wse3 else self.unit.colorless:
            found = self.unit.compiler.colorless
            found[queue, at] = found.get((queue, at), False) or ("input_queue", queue) in state.queues
        self.unit.warn_of_colors(state)
        self.place_variables(used)
        for g, at in self.unit.taken.values():
            if id(g) not in self.unit.assigned:
                check_reach(Value(g.type, g.data), at)
        for (key, wanted), (g, name, at) in self.unit.elements.items():
            if key not in self.unit.assigned:
                check_element(Value(g.type, g.data), wanted, name, at)
        order = self.order(roots)
        if self.unit.options.memcpy:  # without it the host reads and writes every variable by its name
            read_only_variables(order, self.reached(used))
        fold_calls(order, roots)
        inline_calls(order, roots)
        self.place_frames(order)
        self.fill(used)
        for code in order:
            self.emit(code)
        for row, callee in self.late:
            table, first = self.linker.tables[row]
            table[row - first, 3] = callee.entry
        layout = self.unit.compiler.layout
        check_program(self.evaluator, state, self.unit.queue_uses, {} if layout is None else layout.names)
        depth = max([self.total(c)[1] for c in roots], default=0)
        registers = max([self.total(c)[0] for c in roots], default=1)
        symbols = [self.symbol(n, s, functions) for n, s in state.symbols.items()]
        symbols += self.variables(used, {s.name for s in symbols})
        active = sorted({task_number(self.evaluator, v, at).data for v, at in state.active})
        blocked, threads = self.blocked(state)
        queues = state.queues
        extra: dict[str, Any] = {}
        if start is not None:
            extra["start"] = start.entry
        return CoreClass(
            name=self.name,
            tasks=tuple(Task(b.id, b.kind, c.entry, b.function.name) for b, c in tasks),
            active=tuple(active),
            blocked=tuple(blocked),
            blocked_threads=tuple(threads),
            memory=tuple(self.memory),
            initial=tuple(sorted(self.initial)),
            registers=max(8, registers + 1),
            call_depth=depth + 2,
            dsrs=self.dsrs(order),
            fifos=tuple(self.data.fifo(f) for f in self.unit.fifos),
            input_colors=tuple(
                sorted(
                    (q, c)
                    for (kind, q), (c, _, _) in queues.items()
                    if kind == "input_queue" and c is not None
                )
            ),
            output_colors=tuple(
                sorted(
                    (q, c)
                    for (kind, q), (c, _, _) in queues.items()
                    if kind == "output_queue" and c is not None
                )
            ),
            reads=tuple(sorted(self.reads().items())),
            teardown=tuple((c, code.entry) for c, code in teardown),
            empty_handlers=tuple((q, code.entry) for q, code in empty),
            symbols=tuple(symbols),
            code_words=CODE_WORDS * self.code_rows,
            data_words=self.end,
            constant_words=self.constant_words,
            frame_words=self.frame_words,
            deepest=self.deepest,
            **extra,
        )

    @property
    def evaluator(self) -> Evaluator:
        return self.unit.evaluator

    def reached(self, used: Mapping[int, Cell]) -> set[int]:
        """Return variables that the host or a pointer in another variable reaches, by identity."""
        state = self.unit.program
        assert state is not None
        found = {id(s.target.root) for s in state.symbols.values() if isinstance(s.target, Ref)}
        found |= {id(g) for g in self.unit.shared.exported_variables()}
        found |= {id(f.buffer.root) for f in self.unit.fifos}
        return found | {id(inner) for root in used.values() for inner in roots_of(root.data)}

    def blocked(self, state: ProgramState) -> tuple[list[int], list[int]]:
        """Return the ids that are blocked at the start: (tasks, microthreads); a blocked color or queue
        blocks its data task."""
        tasks: set[int] = set()
        threads: set[int] = set()
        for value, on, at in state.blocked:
            space = space_of(value, at)
            number = value.data if space else task_number(self.evaluator, value, at).data
            group = threads if space == 3 else tasks
            group.add(number) if on else group.discard(number)
        return sorted(tasks), sorted(threads)

    def reads(self) -> dict[int, int]:
        """Return the input queue of every color that the class reads (WSE-2).

        A color that is unblocked by its number, without a data task and without a DSD, carries control
        wavelets for control tasks; it gets the highest queue that is not in use.
        """
        reads = dict(self.unit.reads)
        state = self.unit.program
        assert state is not None
        if self.unit.options.wse3:
            return reads
        bound = {b.id for b in state.tasks.values() if b.kind == "data"}
        for value, on, _ in state.blocked:
            if not on and value.type is ty.COLOR and value.data not in reads and value.data not in bound:
                free = [q for q in range(7, -1, -1) if q not in reads.values()]
                reads[value.data] = free[0] if free else 7
        return reads

    def dsrs(self, order: list[Code]) -> int:
        """Return the number of registers per DSR file that the class needs."""
        highest = -1
        for code in order:
            for row, kind, payload in code.fixes:
                if kind == "dsr":
                    highest = max(highest, payload[O.L_ID])
                elif kind == "vector":
                    highest = max(
                        highest,
                        *(payload[k] % 64 if payload[k] >= 0 else -1 for k in range(O.V_DSR0, O.V_DSR3 + 1)),
                    )
                del row
            highest = max([highest, *(r[3] % 64 for r in code.rows if r[0] in (Op.DSR_BASE, Op.DSR_GET))])
        return highest + 1

    # ---- memory
    def place_variables(self, used: dict[int, Cell]) -> None:
        """Assign addresses to variables and constants; initial data may require further variables."""
        waiting = list(used.values())
        seen = set(used)
        while waiting:
            root = waiting.pop()
            if isinstance(root, FrameCell):
                continue
            if isinstance(root, Global):
                check_defined(root)
                self.evaluator.ensure(root)
            for inner in roots_of(root.data):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    used[id(inner)] = inner
                    waiting.append(inner)
        variables = sorted((r for r in used.values() if isinstance(r, Global)), key=lambda g: g.order)
        others = [r for r in used.values() if not isinstance(r, (Global, FrameCell))]
        for root in [*variables, *others]:
            align = root.type.align
            if isinstance(root, Global) and root.align:
                align = max(align, -(-root.align // 2))
            elif root.type.words > LARGE_WORDS:
                align = max(align, LARGE_WORDS)
            self.end = -(-self.end // align) * align
            self.data.addresses[id(root)] = self.end
            self.end += root.type.words
            self.constant_words += 0 if isinstance(root, Global) else root.type.words

    def place_frames(self, order: list[Code]) -> None:
        """Assign addresses to the frames of functions, callers first.

        Raises
        ------
        CslError
            If a function with a frame calls itself other than by a tail call.
        """
        base: dict[int, int] = {}
        chains: dict[int, tuple[tuple[str, int], ...]] = {}
        start = -(-self.end // 2) * 2
        for code in reversed(order):  # callers first
            at = base.get(id(code), start)
            for cell in code.frame:
                if id(cell) not in self.unit.used:
                    continue
                at = -(-at // cell.type.align) * cell.type.align
                self.data.addresses[id(cell)] = at
                at += cell.type.words
            at = -(-at // 2) * 2
            chain = chains.get(id(code), ())
            own = at - base.get(id(code), start)
            if own:
                chain += ((code.name, own),)
            if at > max(self.end, start):
                self.deepest, self.frame_words = chain, at - start
            self.end = max(self.end, at)
            if code.cyclic and any(id(c) in self.unit.used for c in code.frame) and self.levels(code):
                raise CslError(
                    code.places[0],
                    f"'{code.name}' calls itself and keeps arrays, structures or variables with an address; make them global",
                )
            for callee, _ in code.callees:
                if at > base.get(id(callee), start):
                    base[id(callee)], chains[id(callee)] = at, chain

    def levels(self, code: Code) -> bool:
        """Return whether a function calls itself other than by tail calls."""
        calls = {id(c) for c in self.order(c for _, kind, c in code.fixes if kind == "call")}
        return id(code) in calls

    def fill(self, used: dict[int, Cell]) -> None:
        """Collect the initial data as segments without those that are zero."""
        segments = []
        for key, root in used.items():
            if isinstance(root, FrameCell) or root.data is None:
                continue
            words = self.data.words(root.type, root.data)
            if not isinstance(root, Global) or root.decl.value is not None:
                self.initial.append((self.data.addresses[key], len(words)))
            if words.any():
                segments.append((self.data.addresses[key], words))
        self.memory = sorted(segments, key=lambda s: s[0])

    def symbol(
        self, name: str, s: ExportedSymbol, functions: dict[str, tuple[Code, list[ty.Type]]]
    ) -> Symbol:
        if name in functions:
            code, types = functions[name]
            assert isinstance(s.target, Function)
            kind = "task" if s.target.node.kind == "task" else "fn"
            return Symbol(
                name,
                "function",
                code.entry,
                type=f"{kind}({', '.join(map(str, types))})void",
                arguments=len(types),
            )
        ref = s.target
        assert isinstance(ref, Ref)
        kind = self.linker.type_name(ref.type)
        return Symbol(name, "var", self.data.address(ref.root) + ref.words(), ref.type.words, kind)

    def variables(self, used: dict[int, Cell], taken: set[str]) -> list[Symbol]:
        """Return the variables that are not exported symbols, for debuggers, in the order of their
        declaration; a name in use is qualified by its file."""
        found = []
        for root in sorted((r for r in used.values() if isinstance(r, Global)), key=lambda g: g.order):
            name = root.name
            if name in taken:
                instance = root.instance
                name = f"{Path(instance.path).stem}#{instance.serial}.{name}"
            if name not in taken:
                taken.add(name)
                t = root.type
                kind = self.linker.type_name(t)
                found.append(Symbol(name, "var", self.data.address(root), t.words, kind, exported=False))
        return found

    # ---- code
    def order(self, roots: Iterable[Code]) -> list[Code]:
        """Return every function once, callees before callers."""
        found: list[Code] = []
        seen: set[int] = set()

        def visit(code: Code) -> None:
            if id(code) in seen:
                return
            seen.add(id(code))
            for callee, _ in code.callees:
                visit(callee)
            found.append(code)

        for code in roots:
            visit(code)
        return found

    def total(self, code: Code) -> tuple[int, int]:
        """Return the number of registers and the depth of calls from a function on."""
        key = id(code)
        if key in self.visiting:  # recursion: room for some levels; the machine faults beyond them
            return RECURSION_REGISTERS, RECURSION_DEPTH
        if key not in self.totals:
            self.visiting.add(key)
            tails = {id(c) for _, kind, c in code.fixes if kind == "tail"}
            inner = [
                (shift + self.total(c)[0], 1 + self.total(c)[1])
                for c, shift in code.callees
                if id(c) not in tails
            ]
            self.visiting.discard(key)
            self.totals[key] = (max([code.window, *(n for n, _ in inner)]), max([0, *(d for _, d in inner)]))
        return self.totals[key]

    def emit(self, code: Code) -> None:
        """Fill in the pending rows of a function and store its code; equal code is stored once."""
        rows = code.rows
        pools = self.linker
        waiting: list[tuple[int, Code]] = []
        for i, kind, payload in code.fixes:
            row = rows[i]
            if kind == "address":
                row[3] += self.data.address(payload)
            elif kind == "dsd":
                row[3] = pools.constants.add(self.data.descriptor(payload))
            elif kind == "constant":
                row[3] = pools.constants.add(payload - (1 << 64) if payload >> 63 else payload)
            elif kind in ("call", "tail"):
                row[3] = 0 if payload.cyclic else payload.entry
                if payload.cyclic:
                    waiting.append((i, payload))
            elif kind == "vector":
                row[3] = pools.vectors.add(payload)
            elif kind == "dsr":
                row[3] = pools.dsr_loads.add(payload)
            elif kind == "print":
                row[3] = pools.prints.add(payload)
            elif kind == "assert":
                row[3] = pools.asserts.add(payload)
        keep_scalars(code)
        sources = [pools.position(at, code.name) for at in code.places]
        key = (tuple(map(tuple, rows)), tuple(code.costs), tuple(sources))
        entry = None if waiting or code.cyclic else pools.known.get(key)
        if entry is None:
            entry = pools.rows
            if not waiting and not code.cyclic:
                pools.known[key] = entry
            table = np.array(rows, np.int64).reshape(len(rows), 4)
            table[np.isin(table[:, 0], list(JUMPS)), 3] += entry
            stored = table.astype(np.int32)
            pools.code.append(stored)
            for i, callee in waiting:
                pools.tables[entry + i] = (stored, entry)
                self.late.append((entry + i, callee))
            pools.costs.append(np.array(code.costs, np.uint8))
            pools.sources.append(np.array(sources, np.int32))
            pools.rows += len(rows)
            self.keep_names(code, entry)
        code.entry = entry
        if entry not in self.counted:
            self.counted.add(entry)
            self.code_rows += len(rows)

    def keep_names(self, code: Code, first: int) -> None:
        """Record the local names of a function whose rows begin at `first`, for debuggers."""
        for seen in code.seen.values():
            at = -1
            if isinstance(seen.entry, FrameCell):
                at = self.data.addresses.get(id(seen.entry), -1)
                if at < 0:
                    continue
            reg = -1 if isinstance(seen.entry, FrameCell) else seen.entry.reg
            end = min(seen.end, len(code.rows))
            kind = self.linker.type_name(seen.entry.type)
            self.linker.local_names.append((seen.name, kind, reg, at, first + seen.first, first + end))
