"""Builtins for DSDs, DSRs and FIFOs that are known at compile time.

A tensor access `|i, j|{n, m} -> a[f(i, j)]` is affine. Its coefficients are found by evaluating the flat
index at the origin and at one step in every direction; the far corner is a check. The jump of dimension k
(innermost 0) is coefficient k minus the distance that the inner dimensions have moved, the sum of c_j (n_j -
1) over j < k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluation import Evaluation, count
from wse_sim.csl.modules import Scope
from wse_sim.csl.values import Dsd, Dsr, Fifo, Operand, Ref, Value, show

PRIORITIES = {"high": 1, "medium": 2, "low": 3}
SIMD = {"simd_32": 1, "simd_64": 2, "simd_32_or_64": 3}
MEMORY_FIELDS = ("tensor_access", "base_address", "extent", "stride", "offset", "wavelet_index_offset")
FABRIC_IN_FIELDS = ("extent", "fabric_color", "input_queue", "priority", "control_transform", "simd_mode")
FABRIC_OUT_FIELDS = (
    *("extent", "fabric_color", "output_queue", "control", "wavelet_index_offset", "simd_mode", "zero"),
    *("advance_switch", "control_transform", "priority"),
)
FIFO_REGISTERS = {
    "dest": ("dsr_dest", "dsr_fifo_dest"),
    "src": ("dsr_src1", "dsr_fifo_src1"),
    "xdsr": ("xdsr",),
}
DSD_FIELDS = {
    "mem1d_dsd": MEMORY_FIELDS,
    "mem4d_dsd": MEMORY_FIELDS,
    "circbuf_dsd": ("base_address", "extent", "wraparound"),
    "fabin_dsd": FABRIC_IN_FIELDS,
    "fabout_dsd": FABRIC_OUT_FIELDS,
}


def b_get_dsd(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    t = ev.type_of(node.args[0], scope)
    if not isinstance(t, ty.DsdType):
        raise CslError(
            node.args[0].at,
            f"@get_dsd takes mem1d_dsd, mem4d_dsd, fabin_dsd, fabout_dsd or circbuf_dsd, found '{t}'",
        )
    given = ev.eval(node.args[1], scope)
    fields = given.data
    if given.type is not ty.COMPTIME_STRUCT or not isinstance(fields, dict):
        raise CslError(
            node.args[1].at,
            f"@get_dsd takes a structure such as .{{ .extent = n }}, found '{given.type}'",
        )
    for name in fields:
        if name not in DSD_FIELDS[t.name]:
            raise CslError(
                node.args[1].at,
                f"a {t} has no field '{name}'; its fields are {', '.join(DSD_FIELDS[t.name])}",
            )
    if t in (ty.FABIN, ty.FABOUT):
        return fabric_dsd(ev, t, fields, node.at)
    found = memory_dsd(ev, t, fields, node.at)
    element = found.data.element if type(found) is Value else None
    if element in ty.HALVES and element.name != ev.options.fp16:
        raise CslError(
            node.at,
            f"elements of type '{element}' in a program of '{ev.options.fp16}': compile it with --fp16-format={element}",
        )
    is_loose = isinstance(element, (ty.IntType, ty.StructType)) and getattr(element, "bits", 0) not in (
        16,
        32,
    )
    if is_loose and ev.options.strict and not scope.instance.library:
        raise CslError(node.at, f"the elements of a {t} have 16 or 32 bits, found '{element}'")
    return found


# ---- memory
def memory_dsd(ev: Evaluation, t: ty.DsdType, fields: Mapping[str, Operand], at: int) -> Operand:
    flags = dsd_flags(ev, fields, at)
    if "tensor_access" in fields:
        return tensor_dsd(ev, t, fields["tensor_access"], flags, at)
    for name in ("base_address", "extent"):
        if name not in fields:
            raise CslError(
                at, f"a {t} needs .tensor_access, or .base_address and .extent; '{name}' is missing"
            )
    base = fields["base_address"]
    if not isinstance(base.type, ty.PointerType):
        raise CslError(at, f"base_address must be a pointer, found '{base.type}'")
    element = element_of(base.type)
    if t is ty.MEM4D:
        shape = stated_shape(ev, fields, at)
        if type(base) is Value:
            return Value(t, Dsd(t.name, base.data, 0, 0, 1, shape, fields=flags, element=element))
        return ev.run_dsd(Dsd(t.name, shape=shape, fields=flags, element=element), {"base": base}, at)
    if t is ty.CIRCBUF:
        return ring_dsd(ev, fields, base, element, at)
    parts = {
        n: ev.coerce(fields[n], w, at)
        for n, w in (("extent", ty.U16), ("stride", ty.I16), ("offset", ty.I16))
        if n in fields
    }
    if type(base) is Value and all(type(p) is Value for p in parts.values()):
        offset = parts["offset"].data * element.words if "offset" in parts else 0
        stride = parts["stride"].data if "stride" in parts else 1
        if not -128 <= stride <= 127:
            raise CslError(at, f"the stride is {stride}; it must be -128 to 127")
        return Value(
            t, Dsd(t.name, base.data, offset, parts["extent"].data, stride, fields=flags, element=element)
        )
    return ev.run_dsd(Dsd(t.name, fields=flags, element=element), {"base": base, **parts}, at)


def ring_dsd(
    ev: Evaluation, fields: Mapping[str, Operand], base: Operand, element: ty.Type, at: int
) -> Value:
    """Return the descriptor of a circular buffer of `wraparound` elements, by default all elements of the
    array at the base address.

    Raises
    ------
    CslError
        If a field is not known at compile time, or the wraparound is missing or out of range.
    """
    assert isinstance(base.type, ty.PointerType)
    given = {n: ev.coerce(fields[n], ty.U16, at) for n in ("extent", "wraparound") if n in fields}
    if type(base) is not Value or any(type(g) is not Value for g in given.values()):
        raise CslError(at, "the fields of a circbuf_dsd must be known at compile time")
    whole = base.type.target.count if isinstance(base.type.target, ty.ArrayType) else None
    around = int(given["wraparound"].data) if "wraparound" in given else whole
    if around is None:
        raise CslError(
            at, "a circbuf_dsd needs .wraparound where its base_address is not the address of an array"
        )
    if not 1 <= around <= (whole or around):
        raise CslError(
            at,
            f"the wraparound is {around}; it must be 1 to {whole or 65535}, the elements of the buffer",
        )
    ring = Dsd("circbuf_dsd", base.data, 0, given["extent"].data, shape=((around, 1),), element=element)
    return Value(ty.CIRCBUF, ring)


def stated_shape(ev: Evaluation, fields: Mapping[str, Operand], at: int) -> tuple[tuple[int, int], ...]:
    """Return the (extent, jump) pairs of a mem4d_dsd, innermost dimension first.

    The program lists extents outermost first, and jumps (the change of address when an index advances)
    innermost first.
    """
    extents = stated_numbers(ev, fields, "extent", ty.U16, at)
    jumps = stated_numbers(ev, fields, "stride", ty.I16, at) if "stride" in fields else []
    if not 1 <= len(extents) <= 4 or len(jumps) > len(extents):
        raise CslError(
            at,
            f"a mem4d_dsd has 1 to 4 extents and as many strides, found {len(extents)} and {len(jumps)}",
        )
    jumps += [1] * (len(extents) - len(jumps))
    return tuple(zip(reversed(extents), jumps, strict=True))


def stated_numbers(
    ev: Evaluation, fields: Mapping[str, Operand], name: str, t: ty.Type, at: int
) -> list[int]:
    given = fields[name]
    data = given.data if given.type is ty.COMPTIME_STRUCT else {"": given}
    found = [ev.coerce(item, t, at) for item in data.values()]
    if any(type(item) is not Value for item in found):
        raise CslError(at, f"the {name} of a mem4d_dsd must be known at compile time")
    return [int(item.data) for item in found]


def dsd_flags(ev: Evaluation, fields: Mapping[str, Operand], at: int) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for name, flag in (
        ("control", "control"),
        ("wavelet_index_offset", "wavelet_index"),
        ("advance_switch", "advance"),
    ):
        if name in fields and ev.coerce(fields[name], ty.BOOL, at).data:
            found[flag] = 1
    if "control_transform" in fields and fields["control_transform"].data is True:
        found["control_transform"] = 1
    if "priority" in fields:
        found["priority"] = choice(fields["priority"], PRIORITIES, "priority", at)
    if "simd_mode" in fields:
        found["simd"] = choice(fields["simd_mode"], SIMD, "simd_mode", at)
    if "zero" in fields:
        for name, flag in (("first_source", "zero0"), ("second_source", "zero1")):
            chosen = fields["zero"].data.get(name)
            if chosen is not None and chosen.data:
                found[flag] = 1
    return tuple(sorted(found.items()))


def choice(value: Operand, names: dict[str, int], what: str, at: int) -> int:
    """Return the number of the one name that is true in `.{ .name = true }`; 0 if none is true."""
    fields = value.data if isinstance(value.data, dict) else {}
    chosen = [n for n, v in fields.items() if v.data]
    if not chosen and fields:
        return 0
    if len(chosen) != 1 or chosen[0] not in names:
        wanted = ", ".join(f".{{ .{n} = true }}" for n in names)
        raise CslError(at, f"{what} takes one of {wanted}; found {show(value)}")
    return names[chosen[0]]


def tensor_dsd(
    ev: Evaluation, t: ty.DsdType, tensor: Operand, flags: tuple[tuple[str, int], ...], at: int
) -> Value:
    inner = tensor.data.get("tensor") if isinstance(tensor.data, dict) else None
    if inner is None:
        raise CslError(at, "tensor_access takes an access such as |i|{n} -> a[i]")
    node, scope = inner.data
    assert isinstance(node, tree.Tensor)
    if len(node.extents) != len(node.names):
        raise CslError(
            node.at,
            f"the access has {len(node.names)} names and {len(node.extents)} extents; the numbers must be equal",
        )
    extents = [ev.data(e, scope, ty.U16) for e in node.extents]
    limit = 4 if t is ty.MEM4D else 1
    if len(extents) > limit:
        raise CslError(
            node.at,
            f"a {t} takes at most {limit} variable{'s' if limit > 1 else ''}, but the access has {len(extents)}",
        )
    ref, base, steps = probe(ev, node, scope, extents)
    element = ref.type.element if isinstance(ref.type, ty.ArrayType) else ref.type
    offset = base * element.words
    if len(extents) == 1:
        if not -128 <= steps[0] <= 127 and extents[0] > 1:
            raise CslError(node.at, f"the stride of the access is {steps[0]}; it must be -128 to 127")
        if t is ty.MEM1D:
            return Value(t, Dsd(t.name, ref, offset, extents[0], steps[0], fields=flags, element=element))
    shape, moved = [], 0
    for n, c in zip(reversed(extents), reversed(steps), strict=True):
        shape.append((n, c - moved))
        moved += c * max(n - 1, 0)
    return Value(t, Dsd(t.name, ref, offset, 0, 1, tuple(shape), fields=flags, element=element))


def probe(ev: Evaluation, node: tree.Tensor, scope: Scope, extents: list[int]) -> tuple[Ref, int, list[int]]:
    """Return the array of a tensor access, the flat index at the origin, and the coefficient of every
    variable.

    Raises
    ------
    CslError
        If the index is not affine or the array is not known at compile time.
    """
    assert isinstance(node.body, tree.Index)
    body = node.body
    base = ev.access(body.base, scope)
    if isinstance(base.type, ty.PointerType):
        base = ev.load(base, node.at)
    if type(base) is Value and isinstance(base.type, ty.ArrayType):
        base = ev.constant_place(node.body.base, base, scope)
    pointer = base.type if type(base) is Value and isinstance(base.type, ty.PointerType) else None
    if type(base) is not Ref and pointer is None:
        raise CslError(
            node.body.at, "the access must name an array (or a pointer) that is known at compile time"
        )

    def flat(point: list[int]) -> int:
        inner = type(scope)(scope.instance, scope)
        for name, k in zip(node.names, point, strict=True):
            inner.names[name] = Value(ty.COMPTIME_INT, k)
        indices = [ev.known(i, inner) for i in body.indices]
        if pointer is not None and pointer.many:
            return int(indices[0].data)
        t = base.type if pointer is None else pointer.target
        if not isinstance(t, ty.ArrayType):
            raise CslError(node.body.at, f"the access must name an array, found '{t}'")
        return int(ev.flat_index(t, indices, node.body.at))

    was, ev.unit.probing = ev.unit.probing, True
    try:
        zero = [0] * len(extents)
        origin = flat(zero)
        steps = [flat([int(k == j) for k in range(len(extents))]) - origin for j in range(len(extents))]
        corner = [max(n - 1, 0) for n in extents]
        far = flat(corner)
    finally:
        ev.unit.probing = was
    if far != origin + sum(c * k for c, k in zip(steps, corner, strict=True)):
        raise CslError(
            node.body.at,
            "the index of a tensor_access must be affine: a sum of variables times constants",
        )
    if type(base) is Ref:
        return base, origin, steps
    assert pointer is not None
    ref: Ref = base.data
    if pointer.many and ref.type is pointer.target:
        return Ref(ref.root, ref.path, ref.type), origin, steps
    return ref, origin, steps


# ---- fabric
def fabric_dsd(ev: Evaluation, t: ty.DsdType, fields: Mapping[str, Operand], at: int) -> Operand:
    flags = dsd_flags(ev, fields, at)
    queue_field, queue_type = (
        ("input_queue", ty.INPUT_QUEUE) if t is ty.FABIN else ("output_queue", ty.OUTPUT_QUEUE)
    )
    if "extent" not in fields:
        raise CslError(at, f"a {t} needs .extent, its number of elements")
    wanted = {"extent": ty.U16, "fabric_color": ty.COLOR, queue_field: queue_type}
    parts = {n: handle_field(ev, fields[n], w, at) for n, w in wanted.items() if n in fields}
    if not ev.options.wse3 and "fabric_color" not in parts:
        check_colorless(ev, t, queue_field in parts, at)
    if ev.options.wse3 and queue_field not in parts:
        raise CslError(at, f"a {t} needs .{queue_field} on wse3")
    if all(type(p) is Value for p in parts.values()):
        color = parts["fabric_color"].data if "fabric_color" in parts else None
        queue = parts[queue_field].data if queue_field in parts else None
        if t is ty.FABIN and color is not None and queue is None and not ev.options.wse3:
            queue = ev.unit.free_queue(color)
        if color is not None and queue is not None and t is ty.FABIN:
            ev.unit.note_read(color, queue)
        if queue is not None:
            ev.unit.queue_uses.append((queue_type.name, queue, at))
            if color is None and t is ty.FABIN:
                ev.unit.colorless.append((queue, at))
            elif color is not None and t is ty.FABOUT:
                ev.unit.sends.append((color, queue, at))
        return Value(t, Dsd(t.name, None, 0, parts["extent"].data, color=color, queue=queue, fields=flags))
    names = {"extent": "extent", "fabric_color": "color", queue_field: "queue"}
    return ev.run_dsd(Dsd(t.name, fields=flags), {names[n]: p for n, p in parts.items()}, at)


def check_colorless(ev: Evaluation, t: ty.DsdType, has_queue: bool, at: int) -> None:
    """Check a fabric DSD without a color on WSE-2: since SDK 2.10 an input DSD takes the color of its
    queue.

    Raises
    ------
    CslError
        If the DSD needs a color.
    """
    if t is ty.FABOUT:
        raise CslError(at, f"a {t} needs .fabric_color on wse2")
    if ev.options.sdk == "1.4" or (ev.options.strict and ev.unit.compiler.sdk == "1.4"):
        raise CslError(
            at, f"a {t} needs .fabric_color on wse2; the color of its queue counts with --sdk 2.10"
        )
    if not has_queue:
        raise CslError(at, f"a {t} needs .input_queue, whose color it has, or .fabric_color on wse2")


def handle_field(ev: Evaluation, value: Operand, t: ty.Type, at: int) -> Operand:
    """Convert a field of a fabric DSD; older programs give queues and colors as plain numbers."""
    if isinstance(t, ty.HandleType) and value.type is ty.COMPTIME_INT and 0 <= value.data < 32:
        return Value(t, value.data)
    return ev.coerce(value, t, at)


# ---- bounds
def check_reach(value: Operand, at: int) -> None:
    """Check that a known memory descriptor of an operation stays inside its array.

    Raises
    ------
    CslError
        If it leaves the array.
    """
    if type(value) is Value and isinstance(value.data, Dsd):
        said = beyond(value.data)
        if said:
            raise CslError(at, said)


def check_element(value: Operand, wanted: ty.FloatType, name: str, at: int) -> None:
    """Check that a known descriptor's floats have the width with which the operation computes.

    Moves accept any descriptor, as in public examples, because they copy bits.

    Raises
    ------
    CslError
        If the widths differ.
    """
    if type(value) is Value and isinstance(value.data, Dsd):
        element = value.data.element
        if isinstance(element, ty.FloatType) and element.words != wanted.words:
            raise CslError(
                at, f"{name} computes with {wanted} here, and this descriptor has elements of {element}"
            )


# ---- changes
def dsd_argument(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    value = ev.eval(node.args[0], scope)
    if not isinstance(value.type, ty.DsdType):
        raise CslError(node.args[0].at, f"{node.name} takes a DSD first, found '{value.type}'")
    return value


def address_argument(ev: Evaluation, arg: tree.Node, scope: Scope) -> Operand:
    """Evaluate an argument that is a pointer; an array is converted to a pointer to it."""
    place = ev.access(arg, scope)
    if isinstance(place.type, ty.ArrayType):
        return ev.address_of(arg, scope, arg.at)
    value = ev.load(place, arg.at)
    if not isinstance(value.type, ty.PointerType):
        raise CslError(arg.at, f"expected a pointer or an array, found '{value.type}'")
    return value


def b_set_dsd_base_addr(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    dsd, pointer = dsd_argument(ev, node, scope), address_argument(ev, node.args[1], scope)
    if type(dsd) is Value and type(pointer) is Value:
        assert isinstance(pointer.type, ty.PointerType)
        element = element_of(pointer.type)
        return Value(dsd.type, replace(dsd.data, ref=pointer.data, offset=0, element=element))
    return ev.change_dsd("DSD_BASE", dsd, pointer, node.at)


def b_increment_dsd_offset(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 3)
    dsd, t = dsd_argument(ev, node, scope), ev.type_of(node.args[2], scope)
    amount = ev.eval(node.args[1], scope)
    if not ty.is_int(amount.type):
        raise CslError(node.args[1].at, f"the offset must be an integer, found '{amount.type}'")
    if type(dsd) is Value and type(amount) is Value:
        return Value(dsd.type, replace(dsd.data, offset=dsd.data.offset + amount.data * t.words))
    return ev.change_dsd("DSD_ADD", dsd, ev.scaled(amount, t.words, node.at), node.at)


def b_set_dsd_length(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    dsd, n = (
        dsd_argument(ev, node, scope),
        ev.coerce(ev.eval(node.args[1], scope), ty.U16, node.args[1].at),
    )
    if dsd.type is ty.MEM4D:
        raise CslError(node.at, "@set_dsd_length does not take a mem4d_dsd; make a new one with @get_dsd")
    if type(dsd) is Value and type(n) is Value:
        return Value(dsd.type, replace(dsd.data, length=n.data))
    return ev.change_dsd("DSD_LEN", dsd, n, node.at)


def b_set_dsd_stride(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    dsd, n = dsd_argument(ev, node, scope), ev.eval(node.args[1], scope)
    if not ty.is_int(n.type):
        raise CslError(node.args[1].at, f"the stride must be an integer, found '{n.type}'")
    if dsd.type is not ty.MEM1D:
        raise CslError(node.at, f"@set_dsd_stride takes a mem1d_dsd, found '{dsd.type}'")
    if type(dsd) is Value and type(n) is Value:
        if not -128 <= n.data <= 127:
            raise CslError(node.args[1].at, f"the stride is {n.data}; it must be -128 to 127")
        return Value(dsd.type, replace(dsd.data, stride=n.data))
    return ev.change_dsd("DSD_STRIDE", dsd, n, node.at)


# ---- DSRs and FIFOs
def b_get_dsr(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    t = ev.type_of(node.args[0], scope)
    if not isinstance(t, ty.DsrType):
        raise CslError(node.args[0].at, f"@get_dsr takes dsr_dest, dsr_src0 or dsr_src1, found '{t}'")
    file = t.name.replace("fifo_", "")
    given = ev.known(node.args[1], scope)
    if isinstance(given.data, Dsr):  # the register with this number, which contains a FIFO
        if t.name == file or given.data.file != file:
            raise CslError(node.args[1].at, f"a {t} is made of a number or of a {file}, found '{given.type}'")
        return Value(t, given.data)
    number = ev.coerce(given, ty.COMPTIME_INT, node.args[1].at).data
    if not 0 <= number < 64:
        raise CslError(node.args[1].at, f"DSR {number}: the numbers are 0 to 63")
    return Value(t, Dsr(file, number))


def b_get_xdsr(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return Value(ty.DSRS["xdsr"], Dsr("xdsr", ev.data(node.args[-1], scope, ty.COMPTIME_INT)))


def b_get_sr(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return Value(
        ty.DSRS["sr"],
        Dsr("sr", ev.data(node.args[-1], scope, ty.COMPTIME_INT)),
    )


def b_allocate_fifo(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1, 2)
    place = ev.access(node.args[0], scope)
    if type(place) is not Ref or not isinstance(place.type, ty.ArrayType):
        raise CslError(node.args[0].at, "@allocate_fifo takes an array variable")
    options: dict[str, Value] = {}
    if len(node.args) > 1:
        options = dict(ev.known(node.args[1], scope).data)
        allowed = (
            *("activate_push", "activate_pop", "priority", "empty_action", "full_action"),
            *FIFO_REGISTERS,
        )
        for name in options:
            if name not in allowed:
                raise CslError(
                    node.args[1].at,
                    f"a FIFO has no option '{name}'; its options are {', '.join(allowed)}",
                )
    fifo = Fifo(place, options, node.at, place.root.name)
    ev.unit.fifos.append(fifo)
    load_fifo(ev, fifo, scope)
    return Value(ty.FIFO, fifo)


def load_fifo(ev: Evaluation, fifo: Fifo, scope: Scope) -> None:
    """Load a FIFO with registers of the program's choice into these registers at the start of the
    program.

    Raises
    ------
    CslError
        If the registers are incomplete or do not belong together.
    """
    given = {n: fifo.options[n] for n in FIFO_REGISTERS if n in fifo.options}
    if not given:
        return
    for name, wanted in FIFO_REGISTERS.items():
        if name not in given or given[name].type not in [ty.DSRS[w] for w in wanted]:
            raise CslError(
                fifo.at,
                "a FIFO takes .dest (a dsr_dest), .src (a dsr_src1) and .xdsr together, or none of them",
            )
    if given["dest"].data.id != given["src"].data.id:
        raise CslError(fifo.at, "the registers .dest and .src of a FIFO must have the same number")
    if ev.unit.program is None:
        return
    inner = Scope(scope.instance, scope)
    inner.names.update(given, fifo=Value(ty.FIFO, fifo))
    for name in ("dest", "src"):
        load = tree.Builtin(fifo.at, "@load_to_dsr", [tree.Name(fifo.at, name), tree.Name(fifo.at, "fifo")])
        ev.unit.program.startup.append((load, inner))


def element_of(t: ty.PointerType) -> ty.Type:
    """Return the type of the elements to which a pointer points, or of the elements of the array to which it
    points."""
    return t.target.element if isinstance(t.target, ty.ArrayType) else t.target


def beyond(d: Dsd) -> str:
    """Return the error message for a memory descriptor that leaves its array, or '' if it does not.

    Descriptors with a run-time index are not checked.
    """
    if d.ref is None or d.element is None or d.kind == "circbuf_dsd" or ("wavelet_index", 1) in d.fields:
        return ""
    arrays = [(t, at) for t, at in d.ref.nested() if isinstance(t, ty.ArrayType)]
    if not arrays or not arrays[-1][0].words:
        return ""
    array, start = arrays[-1]  # the innermost
    width = d.element.words
    low = high = d.ref.words() + d.offset
    moved = 0
    for n, jump in d.shape if d.shape else ((d.length, d.stride),):
        if n == 0:
            return ""
        reach = (jump + moved) * (n - 1)
        moved += reach
        low, high = low + min(0, reach * width), high + max(0, reach * width)
    if start <= low and high + width <= start + array.words:
        return ""
    each = array.element.words
    worst = (low if low < start else high + width - 1) - start
    return (
        f"the descriptor reaches element {worst // each} of '{d.ref.root.name}', an array of {array.count} (0 to {array.count - 1}); "
        "make it shorter or the array longer"
    )
