"""The program of a class of cores: every vector instruction as one operation on descriptors."""

from __future__ import annotations

import itertools

import numpy as np

from wse_sim.bench.emit.source import FIRST_INPUT, FIRST_OUTPUT, MAX_MAPS, TYPES, Loop, PeSource
from wse_sim.errors import KernelError
from wse_sim.fabric.format import program as P

_BINARY = {P.Op.ADD: "fadd", P.Op.SUB: "fsub", P.Op.MUL: "fmul", P.Op.MAX: "fmax"}
_COMMANDS = {0: "NOP", 1: "SWITCH_ADV", 2: "SWITCH_RST"}
_PLACES = (P.D, P.A, P.B, P.S)
_PRIORITIES = ("high", "medium", "low")
_IN_ORDER = ("high", "medium", "medium", "low")
FIRST_TASK = 8


def _buffer(program: P.Program, index: int) -> P.BufferInfo:
    return next(info for info in program.buffers.values() if info.index == index)


def _operand(source: PeSource, row: P.IntArray, place: int) -> str:
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
        if stride and (row[P.N] > 1 or row[P.N_PARAM] >= 0):
            raise KernelError(
                f"{source.name} sums products of two vectors, but an instruction of CSL multiplies a vector by a number; write the "
                "products to a vector, then add"
            )
        if not (step or outer):
            return f"{info.name}[{offset}]"
        index = source.running((f"{info.name}_at", offset, step, outer), str(offset), around, step, "")
        return f"{info.name}[{index}]"
    at = ("i" if stride == 1 else f"i * {stride}") + (f" + {offset}" if offset else "")
    access = f"|i|{{{source.count(row)}}} -> {info.name}[{at}]"
    name = source.descriptor(
        f"{info.name}_vector", source.count(row), f"@get_dsd(mem1d_dsd, .{{ .tensor_access = {access} }});"
    )
    if not (step or outer):
        return name
    return source.running((info.name, name, step, outer), name, around, step, TYPES[info.dtype])


def _vector(source: PeSource, row: P.IntArray) -> None:
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
            f"{source.name}: instruction {op.name} has a form (mixed precision, wide wavelets) that cannot be written in CSL"
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
        raise KernelError(f"{source.name}: instruction {op.name} cannot be written in CSL")
    if row[P.THREAD]:
        level = _PRIORITIES[int(row[P.PRIORITY])]
        if (
            level == "medium"
        ):  # one output ring of the kernel keeps the order of its sends; queues of their own would take turns
            level = _IN_ORDER[min(source.sends, len(_IN_ORDER) - 1)]
        text += f", .{{ .async = true, .activate = sent_{source.sends}, .priority = .{{ .{level} = true }} }}"
        source.sends += 1
    source.write(f"{text});")


def _map(source: PeSource, row: P.IntArray, suffix: str) -> None:
    """y += x_j a_j for every element x_j: a map around a multiply-accumulate."""
    if row[P.FN] or row[P.THREAD] or row[P.A + P.KIND] != P.Kind.MEMORY:
        raise KernelError(f"{source.name}: a map that is triggered by data cannot be written in CSL")
    target, column = (_buffer(source.program, int(row[place + P.BUF])) for place in (P.D, P.B))
    inner, number = int(row[P.M]), source.maps
    if row[P.D_OUTER] or int(row[P.B_OUTER]) != inner * int(row[P.B + P.STRIDE]) or number == MAX_MAPS:
        raise KernelError(f"{source.name}: a map whose columns are not contiguous cannot be written in CSL")
    source.maps += 1
    element, register = TYPES[column.dtype], number + 1
    into, columns = (
        source.descriptor(
            f"{info.name}_vector",
            str(inner),
            f"@get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{inner}}} -> {info.name}[i + {int(row[place + P.OFFSET])}] }});",
        )
        for info, place in ((target, P.D), (column, P.B))
    )
    source.globals += [
        f"const into_{number} = @get_dsr(dsr_dest, {register});",
        f"const from_{number} = @get_dsr(dsr_src0, {register});",
        f"const column_{number} = @get_dsr(dsr_src1, {register});  // after an operation it is at the next column",
        f"fn add_column_{number}(factor: {element}) void {{",
        f"  @fmac{suffix}(into_{number}, from_{number}, column_{number}, factor);",
        "}",
    ]
    factors = _operand(source, row, P.A)
    source.write(f"@load_to_dsr(into_{number}, {into}, .{{ .save_address = false }});")
    source.write(f"@load_to_dsr(from_{number}, {into}, .{{ .save_address = false }});")
    source.write(f"@load_to_dsr(column_{number}, {columns}, .{{ .save_address = true }});")
    source.write(f"@map(add_column_{number}, {factors});")


def _payload(source: PeSource, payload: int) -> str:
    commands = [payload >> (2 * i) & 3 for i in range(8)]
    while len(commands) > 1 and commands[-1] == 0:
        commands.pop()
    if payload >> 16 & 63 != P.NO_TASK:
        raise KernelError(f"{source.name}: a control wavelet that starts a task cannot be written in CSL")
    ignore = [str(bool(payload >> (24 + i) & 1)).lower() for i in range(len(commands))]
    names = ", ".join(f"control.opcode.{_COMMANDS[c]}" for c in commands)
    n = len(commands)
    text = f"comptime control.encode_payload({n}, [{n}]control.opcode{{ {names} }}, [{n}]bool{{ {', '.join(ignore)} }}, true, {{}});"
    return source.named("const", "command", text)


def source_of(program: P.Program, name: str, core_class: int) -> PeSource:
    """The program of a class of cores."""
    first, last = int(program.class_tasks[core_class]), int(program.class_tasks[core_class + 1])
    source = PeSource(program, f"kernel '{name}'")
    if last > first:
        raise KernelError(
            f"kernel '{name}' runs tasks that arriving data start; only single-threaded programs can be written in CSL"
        )
    entry = int(program.class_entry[core_class])
    for row in program.code[entry:]:
        op = P.Op(int(row[P.OP]))
        if op == P.Op.HALT:
            break
        if op == P.Op.LOOP:
            counter = f"turn_{len(source.loops) - 1}"
            head = f"for (@range(i16, {source.count(row)})) |{counter}| {{"
            source.loops.append(Loop(head, counter))
        elif op == P.Op.ENDLOOP:
            source.end_loop()
        elif op >= P.FIRST_VECTOR_OP:
            _vector(source, row)
        elif op == P.Op.BUSY:
            if len(source.loops) == 1:
                source.parts.append(len(source.loops[0].body))
        else:
            raise KernelError(
                f"kernel '{name}' waits for microthreads inside its program ({op.name}); choose another algorithm"
            )
        if source.sends and len(source.loops) > 1:
            raise KernelError(f"kernel '{name}' starts microthreads in a loop; choose another algorithm")
    return source


def pe_text(source: PeSource, about: str) -> str:
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
    body += _lengths(source)
    body += _run(source)
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
    body += ['  @export_symbol(stamps_pointer, "stamps");', '  @export_symbol(lengths_pointer, "lengths");']
    body += ["  @export_symbol(set_lengths);", "  @export_symbol(run);", "}", ""]
    return "\n".join(head + body)


def _lengths(source: PeSource) -> list[str]:
    """The lengths of the descriptors, which the host may change, and the function that sets them."""
    distinct = list(dict.fromkeys(source.lengths.values())) or ["0"]
    values = ", ".join(text if text.isdigit() else f"@as(u16, {text})" for text in distinct)
    return [
        "",
        f"var lengths = [{len(distinct)}]u16{{ {values} }};",
        "var lengths_pointer: [*]u16 = &lengths;",
        "fn set_lengths() void {",
        *(
            f"  {name} = @set_dsd_length({name}, lengths[{distinct.index(length)}]);"
            for name, length in source.lengths.items()
        ),
        "  sys.unblock_cmd_stream();",
        "}",
    ]


def _run(source: PeSource) -> list[str]:
    """The functions that the host calls; a kernel driven by a calling loop has one function per part."""
    lines, sends = source.loops[0].body, source.sends
    found = [""]
    if any(source.parts):
        ends = [*source.parts[1:], len(lines)]
        for i, (first, end) in enumerate(zip(source.parts, ends, strict=True)):
            found += [f"fn part_{i}() void {{", *(f"  {line}" for line in lines[first:end]), "}"]
        calls = [f"if (part == {i}) {{ part_{i}(); }}" for i in range(len(ends) - 1)]
        last = len(ends) - 1
        lines = [
            *lines[: source.parts[0]],
            f"for (@range(i16, {len(ends)})) |part| {{",
            "  " + " else ".join([*calls, f"{{ part_{last}(); }}"]),
            "}",
        ]
    found += ["fn run() void {", "  time.enable_tsc();", "  time.get_timestamp(started);"]
    found += [f"  {line}" for line in lines]
    if not sends:
        return [*found, "  finish();", "}"]
    # Tasks run when the function has ended: that of the last send finishes.
    found += ["}", "", f"var left: u16 = {sends};"]
    for i in range(sends):
        found += [
            f"task sent_{i}() void {{",
            "  left -= 1;",
            f"  if (left == 0) {{ left = {sends}; finish(); }}",
            "}",
        ]
    return found


def _buffers(program: P.Program) -> list[str]:
    """Buffers in the order of their addresses, with the gaps of the kernel: they decide which banks meet."""
    buffers = sorted(program.buffers.values(), key=lambda b: b.address)
    lines = []
    for info, after in itertools.zip_longest(buffers, buffers[1:]):
        gap = 0 if after is None else after.address - info.address - info.length * info.element_bytes
        more = -(-gap // info.element_bytes)
        size = f"{info.length} + {more}" if more > 0 else str(info.length)
        why = f"  // {more} more: the next buffer begins in another bank" if more > 0 else ""
        lines.append(f"var {info.name} = @zeros([{size}]{TYPES[info.dtype]});{why}")
    return lines + [f"var {info.name}_pointer: [*]{TYPES[info.dtype]} = &{info.name};" for info in buffers]
