"""The text of one PE program while it is written: loops, descriptors, colors, counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from wse_sim.errors import KernelError
from wse_sim.fabric.format import program as P

FIRST_INPUT, FIRST_OUTPUT, QUEUES_IN, QUEUES_OUT = 2, 1, 6, 5  # free of the host's on both generations
MAX_MAPS = 8
"""Registers of descriptors that maps use: 1 to 8."""
MOST_OF_A_NAME = 1000
TYPES = {"fp32": "f32", "fp16": "f16"}


@dataclass
class Loop:
    """A loop that is being written: lines before it, in its body, and at the end of each round (without indents)."""

    head: str = ""
    counter: str = ""
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    running: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass
class PeSource:
    """The text of one PE program while it is written; colors in the order of their first use."""

    program: P.Program
    name: str
    loops: list[Loop] = field(default_factory=lambda: [Loop()])
    globals: list[str] = field(default_factory=list)
    colors: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    lengths: dict[str, str] = field(default_factory=dict)
    """Descriptors with their lengths, as text, that the program sets when it runs."""
    sends: int = 0
    maps: int = 0
    moving: int = 0
    parts: list[int] = field(default_factory=list)
    """Lines of the outermost body at which a calling loop takes its next turn."""

    def write(self, line: str) -> None:
        self.loops[-1].body.append(line)

    def end_loop(self) -> None:
        loop = self.loops.pop()
        inside = ["  " + line for line in (*loop.body, *loop.after)]
        self.loops[-1].body += [*loop.before, loop.head, *inside, "}"]

    def running(
        self, key: tuple[object, ...], start: str, outer: tuple[str, int], step: int, element: str
    ) -> str:
        """A variable that moves by `step` with every turn of the innermost loop; `outer` moves where the loop begins.

        `element` "" counts an index, else a descriptor over elements of that type moves.
        """
        loop = self.loops[-1]
        if key in loop.running:
            return loop.running[key]
        name = f"{key[0]}_{self.moving}"
        self.moving += 1
        counter, outer_step = outer
        distance = f"{counter} * {outer_step}" if outer_step != 1 else counter
        first = start
        if outer_step and element:
            first = f"@increment_dsd_offset({start}, {distance}, {element})"
        elif outer_step:
            first = f"{start} + {distance}" if start != "0" else distance
        kind = "" if element else ": i16"
        loop.before.append(f"{'var' if step else 'const'} {name}{kind} = {first};")
        if step and element:
            loop.after.append(f"{name} = @increment_dsd_offset({name}, {step}, {element});")
        elif step:
            loop.after.append(f"{name} += {step};")
        loop.running[key] = name
        return name

    def descriptor(self, name: str, length: str, text: str) -> str:
        """Return the name of a descriptor; it is written once per text."""
        found = self.named("var", name, text)
        self.lengths[found] = length
        return found

    def named(self, kind: str, name: str, text: str) -> str:
        """Return the name of a global (`kind` is ``var`` or ``const``), numbered where several texts share a name."""
        for number in range(1, MOST_OF_A_NAME):
            candidate = name if number == 1 else f"{name}_{number}"
            line = f"{kind} {candidate} = {text}"
            if line in self.globals:
                return candidate
            if not any(known.startswith(f"{kind} {candidate} =") for known in self.globals):
                self.globals.append(line)
                return candidate
        raise KernelError(
            f"{self.name} has more than {MOST_OF_A_NAME - 1} vectors of one name; use a smaller kernel"
        )

    def color(self, slot: int) -> str:
        if slot not in self.colors:
            self.colors.append(slot)
        return f"color_{self.colors.index(slot)}"

    def count(self, row: P.IntArray) -> str:
        if row[P.N_PARAM] < 0:
            return str(int(row[P.N]))
        index = int(row[P.N_PARAM])
        if index not in self.counts:
            self.counts.append(index)
        return f"count_{index}"

    def fabric(self, slot: int, row: P.IntArray, *, out: bool) -> str:
        """Name of the descriptor of a color; written once per color, direction and form."""
        color = self.color(slot)
        used, first, most = (
            (self.outputs, FIRST_OUTPUT, QUEUES_OUT) if out else (self.inputs, FIRST_INPUT, QUEUES_IN)
        )
        if slot not in used:
            used.append(slot)
            if len(used) > most:
                raise KernelError(
                    f"{self.name} {'sends' if out else 'receives'} on {len(used)} colors on one core; a program in CSL has "
                    f"{most} free queues: choose another algorithm or fewer rows and columns"
                )
        pairs = row[P.WIRE] == P.Wire.FP16X2 and row[P.OP] != P.Op.CONTROL
        advance = out and row[P.ADVANCE] == 1
        control = row[P.OP] == P.Op.CONTROL
        name = (
            ("to_" if out else "from_") + color + ("_control" if control else "_advance" if advance else "")
        )
        queue = f"@get_{'output' if out else 'input'}_queue({first + used.index(slot)})"
        options = [
            f".extent = {self._extent(row)}",
            f".fabric_color = {color}",
            f".{'output' if out else 'input'}_queue = {queue}",
        ]
        options += [".simd_mode = .{ .simd_32 = true }"] * bool(pairs) + [".advance_switch = true"] * bool(
            advance
        )
        options += [".control = true"] * bool(control)
        text = f"@get_dsd({'fabout' if out else 'fabin'}_dsd, .{{ {', '.join(options)} }});"
        return self.named("const", name, text) if control else self.descriptor(name, self._extent(row), text)

    def _extent(self, row: P.IntArray) -> str:
        return "1" if row[P.OP] == P.Op.CONTROL else self.count(row)
