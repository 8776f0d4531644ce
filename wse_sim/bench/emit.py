"""A kernel of ours as a program in CSL: layout, programs of the PEs, a script of the host.

A fabric program is a list of vector instructions per class of cores, with routes per core.  Each instruction becomes one operation on data
structure descriptors; its colors become parameters of the file, so classes that differ in colors alone share one file.  Cycles of
scalar code (``BUSY``) are not written: the code that causes them stands in the program itself.

What can be written: loops, moves, sums, differences, products, maxima, multiply-accumulates and maps around them in f32 and f16, microthreads
that nobody waits for before the end, control wavelets, switches.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format import program as P
from wse_sim.files import claim_folder
from wse_sim.kernels.contract.family import Case

_SIDES = ((1, "NORTH"), (2, "EAST"), (4, "SOUTH"), (8, "WEST"), (16, "RAMP"))
_POP = {1: "always_pop", 2: "pop_on_advance"}
_TYPE = {"fp32": "f32", "fp16": "f16"}
_BINARY = {P.Op.ADD: "fadd", P.Op.SUB: "fsub", P.Op.MUL: "fmul", P.Op.MAX: "fmax"}
_COMMANDS = {0: "NOP", 1: "SWITCH_ADV", 2: "SWITCH_RST"}
_PLACES = (P.D, P.A, P.B, P.S)
FIRST_INPUT, FIRST_OUTPUT, QUEUES_IN, QUEUES_OUT = 2, 1, 6, 5  # free of the host's on both generations
FIRST_TASK = 8


@dataclass
class _Loop:
    """A loop that is being written: what stands before it, in it, and at the end of its turns (without indents)."""

    head: str = ""
    counter: str = ""
    before: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    running: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass
class _Source:
    """The text of one PE program while it is written; colors in the order of their first use."""

    program: P.Program
    name: str
    loops: list[_Loop] = field(default_factory=lambda: [_Loop()])
    globals: list[str] = field(default_factory=list)
    colors: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sends: int = 0
    maps: int = 0
    moving: int = 0

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
        for number in range(1, 100):
            candidate = name if number == 1 else f"{name}_{number}"
            line = f"const {candidate} = {text}"
            if line in self.globals:
                return candidate
            if not any(known.startswith(f"const {candidate} =") for known in self.globals):
                self.globals.append(line)
                return candidate
        raise KernelError(f"{self.name} uses one color in more than 99 lengths on one core; use fewer")

    def _extent(self, row: P.IntArray) -> str:
        return "1" if row[P.OP] == P.Op.CONTROL else self.count(row)


def _mask(mask: int) -> str:
    names = [name for bit, name in _SIDES if mask & bit]
    return f".{{ {', '.join(names)} }}"


def _buffer(program: P.Program, index: int) -> P.BufferInfo:
    return next(info for info in program.buffers.values() if info.index == index)


def _operand(source: _Source, row: P.IntArray, place: int) -> str:
    """Text of an operand; one that moves with the loops around it is a variable."""
    kind = P.Kind(int(row[place + P.KIND]))
    if kind == P.Kind.FABRIC:
        return source.fabric(int(row[place + P.BUF]), row, out=place == P.D)
    if kind == P.Kind.SCALAR:
        value = np.uint32(row[P.IMM]).view(np.float32)
        return f"@as({'f16' if row[P.DTYPE] == P.Dtype.FP16 else 'f32'}, {float(value)!r})"
    if kind != P.Kind.MEMORY:
        raise KernelError(f"{source.name} has an operand of kind {kind.name}; it cannot be written in CSL")
    info = _buffer(source.program, int(row[place + P.BUF]))
    offset, stride = int(row[place + P.OFFSET]), int(row[place + P.STRIDE])
    step = int(row[place + P.STEP]) if len(source.loops) > 1 else 0
    outer = int(row[place + P.OUTER_STEP]) if len(source.loops) > 2 else 0
    around = (source.loops[-2].counter if outer else "", outer)
    if place == P.S:
        if not (step or outer):
            return f"{info.name}[{offset}]"
        index = source.running((f"{info.name}_at", offset, step, outer), str(offset), around, step, "")
        return f"{info.name}[{index}]"
    at = ("i" if stride == 1 else f"i * {stride}") + (f" + {offset}" if offset else "")
    access = f"|i|{{{source.count(row)}}} -> {info.name}[{at}]"
    name = _named(source, f"{info.name}_vector", f"@get_dsd(mem1d_dsd, .{{ .tensor_access = {access} }});")
    if not (step or outer):
        return name
    return source.running((info.name, name, step, outer), name, around, step, _TYPE[info.dtype])


def _named(source: _Source, name: str, text: str) -> str:
    for number in range(1, 1000):
        candidate = name if number == 1 else f"{name}_{number}"
        line = f"const {candidate} = {text}"
        if line in source.globals:
            return candidate
        if not any(known.startswith(f"const {candidate} =") for known in source.globals):
            source.globals.append(line)
            return candidate
    raise KernelError(f"{source.name} has more than 999 vectors; use a smaller kernel")


def _vector(source: _Source, row: P.IntArray) -> None:
    """One vector instruction as one operation."""
    op, dtype = P.Op(int(row[P.OP])), int(row[P.DTYPE])
    if (
        dtype == P.Dtype.MIXED
        or row[P.WIRE] == P.Wire.FP16X4
        or row[P.PERIOD]
        or row[P.ON_CONTROL]
        or row[P.ADVANCE] == 2
    ):
        raise KernelError(
            f"{source.name}: instruction {op.name} has a form (mixed precision, wide wavelets) that is not written in CSL"
        )
    suffix = "h" if dtype == P.Dtype.FP16 else "s"
    if op == P.Op.FMACV:
        _map(source, row, suffix)
        return
    if op == P.Op.CONTROL:
        source.write(f"@mov32({_operand(source, row, P.D)}, {_payload(source, int(row[P.IMM]))});")
        return
    d, a, b, s = (_operand(source, row, place) if row[place + P.KIND] else "" for place in _PLACES)
    if op == P.Op.MOV:
        text = f"@fmov{suffix}({d}, {a}"
    elif op in _BINARY:
        text = f"@{_BINARY[op]}{suffix}({d}, {a}, {b}"
    elif op == P.Op.FMAC:
        text = f"@fmac{suffix}({d}, {a}, {b}, {s}"
    else:
        raise KernelError(f"{source.name}: instruction {op.name} is not written in CSL")
    if row[P.THREAD]:
        text += f", .{{ .async = true, .activate = sent_{source.sends} }}"
        source.sends += 1
    source.write(f"{text});")


def _map(source: _Source, row: P.IntArray, suffix: str) -> None:
    """y += x_j a_j for every element x_j: a map around a multiply-accumulate."""
    if row[P.FN] or row[P.THREAD] or row[P.A + P.KIND] != P.Kind.MEMORY:
        raise KernelError(f"{source.name}: a map that is triggered by data is not written in CSL")
    target, column = (_buffer(source.program, int(row[place + P.BUF])) for place in (P.D, P.B))
    inner, number = int(row[P.M]), source.maps
    if row[P.D_OUTER] or int(row[P.B_OUTER]) != inner * int(row[P.B + P.STRIDE]) or number == 8:
        raise KernelError(
            f"{source.name}: a map whose columns do not lie one behind the other is not written in CSL"
        )
    source.maps += 1
    element, register = _TYPE[column.dtype], number + 1
    into, columns = (
        _named(
            source,
            f"{info.name}_vector",
            f"@get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{inner}}} -> {info.name}[i + {int(row[place + P.OFFSET])}] }});",
        )
        for info, place in ((target, P.D), (column, P.B))
    )
    source.globals += [
        f"const into_{number} = @get_dsr(dsr_dest, {register});",
        f"const from_{number} = @get_dsr(dsr_src0, {register});",
        f"const column_{number} = @get_dsr(dsr_src1, {register});  // after an operation it stands at the next column",
        f"fn add_column_{number}(factor: {element}) void {{",
        f"  @fmac{suffix}(into_{number}, from_{number}, column_{number}, factor);",
        "}",
    ]
    factors = _operand(source, row, P.A)
    source.write(f"@load_to_dsr(into_{number}, {into}, .{{ .save_address = false }});")
    source.write(f"@load_to_dsr(from_{number}, {into}, .{{ .save_address = false }});")
    source.write(f"@load_to_dsr(column_{number}, {columns}, .{{ .save_address = true }});")
    source.write(f"@map(add_column_{number}, {factors});")


def _payload(source: _Source, payload: int) -> str:
    commands = [payload >> (2 * i) & 3 for i in range(8)]
    while len(commands) > 1 and commands[-1] == 0:
        commands.pop()
    if payload >> 16 & 63 != P.NO_TASK:
        raise KernelError(f"{source.name}: a control wavelet that starts a task is not written in CSL")
    ignore = [str(bool(payload >> (24 + i) & 1)).lower() for i in range(len(commands))]
    names = ", ".join(f"control.opcode.{_COMMANDS[c]}" for c in commands)
    n = len(commands)
    text = f"comptime control.encode_payload({n}, [{n}]control.opcode{{ {names} }}, [{n}]bool{{ {', '.join(ignore)} }}, true, {{}});"
    return _named(source, "command: u32", text).split(":")[0]


def _pe_text(program: P.Program, name: str, core_class: int) -> _Source:
    """The program of a class of cores."""
    first, last = int(program.class_tasks[core_class]), int(program.class_tasks[core_class + 1])
    source = _Source(program, f"kernel '{name}'")
    if last > first:
        raise KernelError(
            f"kernel '{name}' runs tasks that data start; only programs of one thread are written in CSL"
        )
    entry = int(program.class_entry[core_class])
    for row in program.code[entry:]:
        op = P.Op(int(row[P.OP]))
        if op == P.Op.HALT:
            break
        if op == P.Op.LOOP:
            counter = f"turn_{len(source.loops) - 1}"
            head = f"for (@range(i16, {source.count(row)})) |{counter}| {{"
            source.loops.append(_Loop(head, counter))
        elif op == P.Op.ENDLOOP:
            source.end_loop()
        elif op >= P.FIRST_VECTOR_OP:
            _vector(source, row)
        elif op != P.Op.BUSY:
            raise KernelError(
                f"kernel '{name}' waits for microthreads inside its program ({op.name}); choose another algorithm"
            )
        if source.sends and len(source.loops) > 1:
            raise KernelError(f"kernel '{name}' starts microthreads in a loop; choose another algorithm")
    return source


def _pe_file(source: _Source, about: str) -> str:
    program = source.program
    head = [f"// {about}", "param memcpy_params: comptime_struct;"]
    head += [f"param color_{i}: color;" for i in range(len(source.colors))]
    head += [f"param count_{i}: i16;" for i in sorted(source.counts)]
    head += ["", *_buffers(program), ""]
    head += [
        'const sys = @import_module("<memcpy/memcpy>", memcpy_params);',
        'const time = @import_module("<time>");',
    ]
    if any("control." in line for line in source.globals):
        head.append('const control = @import_module("<control>");')
    body = ["", *source.globals, "", "var stamps = @zeros([6]u16);", "var stamps_pointer: [*]u16 = &stamps;"]
    body += [
        "const started: *[3]u16 = @ptrcast(*[3]u16, &stamps[0]);",
        "const ended: *[3]u16 = @ptrcast(*[3]u16, &stamps[3]);",
    ]
    body += [
        "",
        "fn run() void {",
        "  time.enable_tsc();",
        "  time.get_timestamp(started);",
        *(f"  {line}" for line in source.loops[0].body),
    ]
    if source.sends:
        body += ["  done();", "}", "", f"var left: u16 = {source.sends + 1};"]
        body += [
            "fn done() void {",
            "  left -= 1;",
            "  if (left == 0) {",
            "    left = " + str(source.sends + 1) + ";",
            "    finish();",
            "  }",
            "}",
        ]
        body += [f"task sent_{i}() void {{ done(); }}" for i in range(source.sends)]
    else:
        body += ["  finish();", "}"]
    body += [
        "",
        "fn finish() void {",
        "  time.get_timestamp(ended);",
        "  sys.unblock_cmd_stream();",
        "}",
        "",
        "comptime {",
    ]
    body += [
        f"  @bind_local_task(sent_{i}, @get_local_task_id({FIRST_TASK + i}));" for i in range(source.sends)
    ]
    queues = [("input", FIRST_INPUT, source.inputs), ("output", FIRST_OUTPUT, source.outputs)]
    if source.inputs or source.outputs:
        body.append('  if (@is_arch("wse3")) {')
        for kind, first, used in queues:
            body += [
                f"    @initialize_queue(@get_{kind}_queue({first + i}), .{{ .color = {source.color(slot)} }});"
                for i, slot in enumerate(used)
            ]
        body.append("  }")
    body += [f'  @export_symbol({info.name}_pointer, "{info.name}");' for info in program.buffers.values()]
    body += ['  @export_symbol(stamps_pointer, "stamps");', "  @export_symbol(run);", "}", ""]
    return "\n".join(head + body)


def _buffers(program: P.Program) -> list[str]:
    """Buffers in the order of their addresses, with the gaps of the kernel: they decide which banks meet."""
    buffers = sorted(program.buffers.values(), key=lambda b: b.address)
    lines = []
    for info, after in itertools.zip_longest(buffers, buffers[1:]):
        gap = 0 if after is None else after.address - info.address - info.length * info.element_bytes
        more = -(-gap // info.element_bytes)
        size = f"{info.length} + {more}" if more > 0 else str(info.length)
        why = f"  // {more} more: the next buffer begins in another bank" if more > 0 else ""
        lines.append(f"var {info.name} = @zeros([{size}]{_TYPE[info.dtype]});{why}")
    return lines + [f"var {info.name}_pointer: [*]{_TYPE[info.dtype]} = &{info.name};" for info in buffers]


def _rectangles(mask: np.ndarray) -> Iterable[tuple[int, int, int, int]]:
    """Cut a (rows, cols) mask into rectangles (x0, x1, y0, y1), the ends excluded."""
    left = mask.copy()
    while left.any():
        y0, x0 = (int(v[0]) for v in np.nonzero(left))
        x1 = x0
        while x1 < left.shape[1] and left[y0, x1]:
            x1 += 1
        y1 = y0
        while y1 < left.shape[0] and left[y1, x0:x1].all():
            y1 += 1
        left[y0:y1, x0:x1] = False
        yield x0, x1, y0, y1


def _over(rectangle: tuple[int, int, int, int], statement: str) -> list[str]:
    x0, x1, y0, y1 = rectangle
    lines, depth = [], 1
    names = []
    for name, low, high in (("x", x0, x1), ("y", y0, y1)):
        if high - low > 1:
            lines.append("  " * depth + f"for (@range(i16, {low}, {high}, 1)) |{name}| {{")
            depth += 1
            names.append(name)
        else:
            names.append(str(low))
    lines.append("  " * depth + statement.replace("$x", names[0]).replace("$y", names[1]))
    return lines + ["  " * d + "}" for d in range(depth - 1, 0, -1)]


def _switches(program: P.Program, config: int) -> str:
    """Positions, each with what differs from the routes."""
    positions = int(program.cfg_positions[config])
    parts = []
    for i in range(1, positions):
        rx, tx = int(program.cfg_rx[config, i]), int(program.cfg_tx[config, i])
        before = (int(program.cfg_rx[config, i - 1]), int(program.cfg_tx[config, i - 1]))
        change = [f".rx = {_one(rx)}"] * (rx != before[0]) + [f".tx = {_one(tx)}"] * (tx != before[1])
        if not change:
            change = [f".rx = {_one(rx)}"]
        parts.append(f".pos{i} = .{{ {', '.join(change)} }}")
    if not parts:
        return ""
    if program.cfg_initial[config]:
        parts.append(f".current_switch_pos = {int(program.cfg_initial[config])}")
    if program.cfg_ring[config]:
        parts.append(".ring_mode = true")
    if int(program.cfg_pop[config]) in _POP:
        parts.append(f".pop_mode = .{{ .{_POP[int(program.cfg_pop[config])]} = true }}")
    return f", .switches = .{{ {', '.join(parts)} }}"


def _one(mask: int) -> str:
    return _mask(mask).strip(".{ }") if mask.bit_count() == 1 else _mask(mask)


def _layout(program: P.Program, about: str, files: Mapping[int, tuple[str, _Source]]) -> str:
    rows, cols = program.rows, program.cols
    lines = [
        f"// {about}",
        f'const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {cols}, .height = {rows} }});',
    ]
    used = sorted({index for _, source in files.values() for index in source.counts})
    for index in used:
        values = ", ".join(str(int(v)) for v in program.params[index])
        lines.append(f"const count_{index} = [{rows * cols}]i16{{ {values} }};  // per PE, row by row")
    lines += ["", "layout {", f"  @set_rectangle({cols}, {rows});"]
    grid = program.core_class.reshape(rows, cols)
    for core_class, (file, source) in files.items():
        params = [".memcpy_params = memcpy.get_params($x)"]
        params += [f".color_{i} = @get_color({slot})" for i, slot in enumerate(source.colors)]
        params += [f".count_{i} = count_{i}[$y * {cols} + $x]" for i in sorted(source.counts)]
        for rectangle in _rectangles(grid == core_class):
            lines += _over(rectangle, f'@set_tile_code($x, $y, "{file}", .{{ {", ".join(params)} }});')
    for slot in range(program.n_slots):
        configs = program.route[slot].reshape(rows, cols)
        for config in (int(c) for c in np.unique(configs)):
            if not (program.cfg_rx[config, 0] or program.cfg_tx[config, 0]):
                continue
            routes = f".routes = .{{ .rx = {_mask(int(program.cfg_rx[config, 0]))}, .tx = {_mask(int(program.cfg_tx[config, 0]))} }}"
            for rectangle in _rectangles(configs == config):
                lines += _over(
                    rectangle,
                    f"@set_color_config($x, $y, @get_color({slot}), .{{ {routes}{_switches(program, config)} }});",
                )
    lines.append("")
    lines += [
        f'  @export_name("{info.name}", [*]{_TYPE[info.dtype]}, true);' for info in program.buffers.values()
    ]
    lines += ['  @export_name("stamps", [*]u16, true);', '  @export_name("run", fn()void);', "}", ""]
    return "\n".join(lines)


_RUN = '''"""{about}: fills the buffers, runs, compares, prints the cycles from the first start to the last end."""

import argparse
import json

import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
from cerebras.sdk.sdk_utils import input_array_to_u32, memcpy_view

WIDTH, HEIGHT = {cols}, {rows}
TOLERANCE = {tolerance!r}  # of the largest value

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="out")
parser.add_argument("--cmaddr")
args = parser.parse_args()
runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
runner.load()
runner.run()
order = MemcpyOrder.ROW_MAJOR


def kind(dtype):
    return MemcpyDataType.MEMCPY_16BIT if np.dtype(dtype).itemsize == 2 else MemcpyDataType.MEMCPY_32BIT


def write(name, values):
    items = input_array_to_u32(values.ravel()) if values.dtype.itemsize == 2 else values.ravel()
    runner.memcpy_h2d(runner.get_id(name), items, 0, 0, WIDTH, HEIGHT, values.shape[2], streaming=False,
                      order=order, data_type=kind(values.dtype), nonblock=False)


def read(name, count, dtype):
    items = np.zeros(HEIGHT * WIDTH * count, np.uint32)
    runner.memcpy_d2h(items, runner.get_id(name), 0, 0, WIDTH, HEIGHT, count, streaming=False,
                      order=order, data_type=kind(dtype), nonblock=False)
    values = memcpy_view(items, np.dtype(dtype)) if np.dtype(dtype).itemsize == 2 else items.view(dtype)
    return np.array(values).reshape(HEIGHT, WIDTH, count)


data = np.load("data.npz")
for key in data.files:
    if key.startswith("input_"):
        write(key[len("input_"):], data[key])
runner.launch("run", nonblock=False)
for key in data.files:
    if key.startswith("expected_"):
        wanted = data[key]
        got = read(key[len("expected_"):], wanted.shape[2], wanted.dtype).astype(np.float32)
        where = ~np.isnan(wanted)  # only cores that hold a part of the result
        limit = TOLERANCE * max(1.0, float(np.abs(wanted[where]).max()))
        np.testing.assert_allclose(got[where], wanted[where].astype(np.float32), rtol=0, atol=limit)
stamps = read("stamps", 6, np.uint16).astype(np.int64)
runner.stop()
start, end = (stamps[..., i] + (stamps[..., i + 1] << 16) + (stamps[..., i + 2] << 32) for i in (0, 3))
print("cycles:", int(end.max() - start.min()))
print("SUCCESS!")
'''


def write_csl(name: str, given: Mapping[str, Any], case: Case, folder: Path) -> list[Path]:
    """Write a kernel's program in CSL into `folder`: layout, PE programs, script, data, command files; the files written.

    Raises
    ------
    KernelError
        If the program holds something that is not written in CSL.
    """
    program = case.program
    if program.west or program.east:
        raise KernelError(
            f"kernel '{name}' streams from host columns; only programs that begin and end in memory are written in CSL"
        )
    if program.rows * program.cols > 4096:
        raise KernelError(
            f"kernel '{name}' on {program.rows} x {program.cols} cores is too large to be written as readable CSL; use at most 4,096 cores"
        )
    about = (
        f"Kernel {name} of wse-sim, {', '.join(f'{k}={v}' for k, v in given.items()) or 'default parameters'}"
    )
    files: dict[int, tuple[str, _Source]] = {}
    texts: dict[str, str] = {}
    for core_class in sorted({int(c) for c in program.core_class} - {0}):
        source = _pe_text(program, name, core_class)
        text = _pe_file(source, about)
        file = texts.setdefault(text, f"pe_{len(texts)}.csl")
        files[core_class] = (file, source)
    if (program.core_class == 0).any():
        raise KernelError(f"kernel '{name}' leaves cores without a program; give it a full rectangle")
    claim_folder(folder)
    written = {"layout.csl": _layout(program, about, files), **{file: text for text, file in texts.items()}}
    written["run.py"] = _RUN.format(
        about=about, cols=program.cols, rows=program.rows, tolerance=float(case.tolerance)
    )
    for arch in ("wse2", "wse3"):
        written[f"commands_{arch}.sh"] = (
            f"#!/usr/bin/env bash\n\nset -e\n\ncslc --arch={arch} ./layout.csl --fabric-dims={program.cols + 7},{program.rows + 2} "
            "--fabric-offsets=4,1 -o out --memcpy --channels=1\ncs_python run.py --name out\n"
        )
    for file, text in written.items():
        (folder / file).write_text(text)
    buffer = io.BytesIO()
    np.savez(buffer, **_data(case))  # type: ignore[arg-type]
    (folder / "data.npz").write_bytes(buffer.getvalue())
    return [folder / file for file in (*written, "data.npz")]


def _data(case: Case) -> dict[str, np.ndarray]:
    """Inputs and expected values of all cores (rows, cols, length) in the type of their buffer."""
    found = {}
    for prefix, values in (("input", case.inputs), ("expected", case.expected)):
        for key, value in values.items():
            info = case.program.buffers[key]
            dtype = np.float16 if info.dtype == "fp16" else np.float32
            full = np.full(
                (case.program.rows, case.program.cols, info.length),
                np.nan if prefix == "expected" else 0.0,
                np.float32,
            )
            full[info.row : info.row + info.rows, info.col : info.col + info.cols] = value
            found[f"{prefix}_{key}"] = full.astype(dtype)
    return found
