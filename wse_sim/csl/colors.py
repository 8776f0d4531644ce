"""Routes, switches and filters of one color at one core, from the structure that a program gives.

Ports are mask bits: N 1, E 2, S 4, W 8, RAMP 16. A switch position overrides one side (or both) of the
position before it; the other side stays (programs change tx in pos1 and rx in pos2, and mean both). (0, 0) is
an invalid position.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.values import Operand, Value, show

PORTS = {"NORTH": 1, "EAST": 2, "SOUTH": 4, "WEST": 8, "RAMP": 16}
POP = {"no_pop": 0, "always_pop": 1, "pop_on_advance": 2, "pop_on_advance_nop": 3}
FILTERS = {"range": 0, "counter": 1, "sparse_counter": 2}
SWITCHED_WSE3 = (*range(10), 12, 13, 16, 17, 20, 21)  # colors with switches on WSE-3
FILTER_COLUMNS = (
    "kind",
    "min_idx",
    "max_idx",
    "limit1",
    "limit2",
    "max_counter",
    "init_counter",
    "count_data",
    "count_control",
    "filter_control",
)


@dataclass(frozen=True)
class ColorRoute:
    """Configuration of one color at one core; `filter` is a row in the order of FILTER_COLUMNS."""

    positions: tuple[tuple[int, int], ...]
    position: int = 0
    ring: bool = False
    pop: int = 0
    teardown: bool = False
    swap: int = 0
    filter: tuple[int, ...] | None = None


def fields_of(value: Operand, what: str, at: int) -> dict[str | int, Value]:
    """Return the fields of a structure as values by name.

    Raises
    ------
    CslError
        If it is not a structure.
    """
    if value.type is ty.COMPTIME_STRUCT and isinstance(value.data, dict):
        return value.data
    if isinstance(value.type, ty.StructType) and type(value) is Value:
        return {n: Value(t, x) for (n, t), x in zip(value.type.fields, value.data, strict=True)}
    raise CslError(at, f"{what} takes a structure such as .{{ .rx = .{{ WEST }} }}, found {show(value)}")


def ports(value: Operand, what: str, at: int) -> int:
    """Return the port mask of one direction, or of a tuple or array of directions."""
    if value.type is ty.DIRECTION:
        return PORTS[value.data]
    mask = 0
    if isinstance(value.type, ty.ArrayType) and value.type.element is ty.DIRECTION:
        for d in value.data:
            mask |= PORTS[d]
        return mask
    if value.type is ty.COMPTIME_STRUCT and isinstance(value.data, dict):
        for item in value.data.values():
            mask |= ports(item, what, at)
        return mask
    raise CslError(
        at,
        f"{what} takes NORTH, SOUTH, EAST, WEST or RAMP, or several as .{{ RAMP, EAST }}; found {show(value)}",
    )


def number(value: Operand, what: str, at: int) -> int:
    if not ty.is_int(value.type):
        raise CslError(at, f"{what} takes an integer, found {show(value)}")
    return int(value.data)


def truth(value: Operand, what: str, at: int) -> bool:
    if value.type is not ty.BOOL:
        raise CslError(at, f"{what} takes true or false, found {show(value)}")
    return bool(value.data)


def chosen(value: Operand, names: dict[str, int], what: str, at: int) -> int:
    fields = fields_of(value, what, at)
    on = [n for n, v in fields.items() if truth(v, what, at)]
    if len(on) != 1 or on[0] not in names:
        wanted = ", ".join(f".{{ .{n} = true }}" for n in names)
        raise CslError(at, f"{what} takes one of {wanted}; found {show(value)}")
    return names[on[0]]


def read_route(value: Operand, color: int, arch: str, at: int, *, strict: bool = False) -> ColorRoute:
    """Return the color configuration that a structure describes; `strict` also applies the rules of the
    language guide.

    Raises
    ------
    CslError
        If a field is unknown, a value is not a direction, or a position is out of range.
    """
    fields = fields_of(value, "a color configuration", at)
    for name in fields:
        if name not in ("routes", "switches", "filter", "teardown"):
            raise CslError(
                at,
                f"a color configuration has no field '{name}'; its fields are routes, switches, filter, teardown",
            )
    rx = tx = swap = 0
    if strict:
        check_fields(fields, at)
    start, ring, pop = 0, False, 0
    if "routes" in fields:
        rx, tx, swap = read_routes(fields["routes"], arch, at)
        old = fields["routes"].data
        pop = (
            chosen(old["pop_mode"], POP, "pop_mode", at) if isinstance(old, dict) and "pop_mode" in old else 0
        )
    positions = [(rx, tx), (0, 0), (0, 0), (0, 0)]
    if strict and bool(rx) != bool(tx) and "switches" not in fields:
        given, other = ("tx", "rx") if tx else ("rx", "tx")
        raise CslError(
            at,
            f"a route with {given} has no {other}, so no word can take it; give a direction, or leave both empty",
        )
    if "switches" in fields:
        if arch == "wse3" and color not in SWITCHED_WSE3:
            raise CslError(
                at, f"color {color} has no switch on wse3; colors 0 to 9, 12, 13, 16, 17, 20 and 21 have one"
            )
        start, ring, pop = read_switches(fields["switches"], positions, pop, at)
    filtered = (
        read_filter(fields["filter"], at)
        if "filter" in fields and fields["filter"].type is not ty.VOID
        else None
    )
    teardown = truth(fields["teardown"], "teardown", at) if "teardown" in fields else False
    return ColorRoute(tuple(positions), start, ring, pop, teardown, swap, filtered)


def check_fields(fields: dict[str | int, Value], at: int) -> None:
    """Check the language guide's rules that do not affect simulation: routes are given, and a switch position
    changes one side.

    Raises
    ------
    CslError
        If a rule is broken.
    """
    if "routes" not in fields:
        raise CslError(
            at,
            "a color configuration without a routes field is not allowed; write .routes = .{} if it has none",
        )
    if ty.is_int(fields["routes"].type):
        return
    routes = fields_of(fields["routes"], "routes", at)
    if "pop_mode" in routes:
        raise CslError(at, "routes have no field 'pop_mode' since release 1.1; give it in switches")
    for name in ("rx", "tx"):
        given = routes.get(name)
        several = list(given.data.values()) if given is not None and isinstance(given.data, dict) else []
        if len({str(d.data) for d in several}) < len(several):
            raise CslError(at, f"{name} names a direction twice; the directions must be unique")
    if "filter" in fields and fields["filter"].type is not ty.VOID:
        check_filter(fields["filter"], at)
    switches = fields_of(fields["switches"], "switches", at) if "switches" in fields else {}
    for name in ("pos1", "pos2", "pos3"):
        if name not in switches:
            continue
        position = fields_of(switches[name], name, at)
        if len(position) != 1:
            raise CslError(
                at, f"{name} has {len(position)} fields; a switch position has one of rx, tx and invalid"
            )
        if "rx" in position and isinstance(position["rx"].data, dict) and len(position["rx"].data) != 1:
            raise CslError(at, f"the rx of {name} must be a single direction")
        if "invalid" in position and not truth(position["invalid"], "invalid", at):
            raise CslError(
                at, f"the invalid of {name} must be true; leave it out for a position with rx or tx"
            )


COUNTER_FIELDS = frozenset({"count_data", "count_control", "init_counter", "limit1", "max_counter"})
FIELDS_OF_FILTER = {
    "counter": COUNTER_FIELDS | {"filter_control"},
    "sparse_counter": COUNTER_FIELDS | {"limit2"},
    "range": frozenset({"min_idx", "max_idx"}),
}
"""Fields of each filter kind in the language guide."""


def check_filter(value: Operand, at: int) -> None:
    """Check that a filter has only fields of its kind.

    Raises
    ------
    CslError
        If it has another one.
    """
    fields = fields_of(value, "filter", at)
    kind = next(iter(fields_of(fields["kind"], "kind", at)), "") if "kind" in fields else ""
    legal = FIELDS_OF_FILTER.get(str(kind), frozenset(FILTER_COLUMNS))
    for name in fields:
        if name != "kind" and name in FILTER_COLUMNS and name not in legal:
            raise CslError(
                at, f"a filter of kind {kind} has no field '{name}'; it has {', '.join(sorted(legal))}"
            )


def from_bits(value: Operand, what: str, at: int) -> tuple[int, int]:
    """Return the masks of rx and tx from a number made of `<directions>`; the bits of rx are eight positions
    higher."""
    word = number(value, what, at)
    if word & ~0x1F1F:
        raise CslError(
            at, f"{what} is {word:#x}; it must be made of the bits of <directions>, RX_WEST to TX_RAMP"
        )
    return word >> 8, word & 255


def read_routes(value: Operand, arch: str, at: int) -> tuple[int, int, int]:
    """Return the masks of rx and tx, and the color swap, of a route."""
    if ty.is_int(value.type):
        return (*from_bits(value, "routes", at), 0)
    fields = fields_of(value, "routes", at)
    rx = tx = swap = 0
    for name, v in fields.items():
        if name == "rx":
            rx = ports(v, "rx", at)
        elif name == "tx":
            tx = ports(v, "tx", at)
        elif name in ("color_swap_x", "color_swap_y"):
            if truth(v, name, at):
                if arch == "wse3":
                    raise CslError(at, f"{name} exists only on wse2")
                swap |= 1 if name == "color_swap_x" else 2
        elif name != "pop_mode":  # until release 1.0 it was a field of the routes
            raise CslError(
                at, f"routes have no field '{name}'; their fields are rx, tx, color_swap_x, color_swap_y"
            )
    return rx, tx, swap


def read_switches(
    value: Operand, positions: list[tuple[int, int]], pop: int, at: int
) -> tuple[int, bool, int]:
    """Fill in the switch positions; return the first position, the ring mode and the pop mode."""
    fields = fields_of(value, "switches", at)
    start, ring = 0, False
    before = positions[0]
    for k in (1, 2, 3):
        if f"pos{k}" in fields:
            positions[k] = read_position(fields[f"pos{k}"], before, f"pos{k}", at)
            before = before if positions[k] == (0, 0) else positions[k]
    for name, v in fields.items():
        if name in ("pos1", "pos2", "pos3"):
            continue
        if name == "current_switch_pos":
            start = number(v, name, at)
            if not 0 <= start <= 3:
                raise CslError(at, f"current_switch_pos is {start}; it must be 0 to 3")
        elif name == "ring_mode":
            ring = truth(v, name, at)
        elif name == "pop_mode":
            pop = chosen(v, POP, name, at)
        else:
            raise CslError(
                at,
                f"switches have no field '{name}'; their fields are pos1, pos2, pos3, current_switch_pos, ring_mode, pop_mode",
            )
    if start and positions[start] == (0, 0):
        raise CslError(at, f"current_switch_pos is {start}, and pos{start} is not given")
    return start, ring, pop


def read_position(value: Operand, base: tuple[int, int], what: str, at: int) -> tuple[int, int]:
    """Return the masks of rx and tx of a switch position whose missing side is that of `base`; (0, 0) if it
    is invalid."""
    if ty.is_int(value.type):
        rx, tx = from_bits(value, what, at)
        return (rx or base[0], tx or base[1]) if rx or tx else (0, 0)
    fields = fields_of(value, what, at)
    rx, tx = base
    for name, v in fields.items():
        if name == "rx":
            rx = ports(v, f"{what}.rx", at)
        elif name == "tx":
            tx = ports(v, f"{what}.tx", at)
        elif name == "invalid":
            if truth(v, name, at):
                return (0, 0)
        else:
            raise CslError(at, f"{what} has no field '{name}'; its fields are rx, tx, invalid")
    return rx, tx


def read_filter(value: Operand, at: int) -> tuple[int, ...]:
    """Return a filter as a row in the order of FILTER_COLUMNS; other fields, such as fast_mode, have no
    effect."""
    fields = fields_of(value, "filter", at)
    if "kind" not in fields:
        raise CslError(
            at,
            "a filter needs .kind = .{ .range = true }, .{ .counter = true } or .{ .sparse_counter = true }",
        )
    row = {"kind": chosen(fields["kind"], FILTERS, "kind", at), "count_data": 1}
    for name, v in fields.items():
        if name != "kind" and name in FILTER_COLUMNS:
            row[name] = int(v.data) if isinstance(v.data, bool) else number(v, name, at)
    return tuple(row.get(n, 0) for n in FILTER_COLUMNS)
