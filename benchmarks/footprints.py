"""Lists the bytes of SRAM that every family needs: odd sizes, every mapping and phase, every attribute varied once.

Cycles are compared with fabric programs and published points; a footprint only with the program of its own kernel, which
uses no more.  So the group ``footprints`` of the golden numbers holds each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.kernels import Family, Tiling, family, load_families

Values = dict[str, object]

# Sizes that nothing divides, so that a part that is rounded the wrong way shows.
DIMS = {
    **{"b": 2, "m": 130, "k": 97, "n": 61, "groups": 3, "heads": 4, "kv_heads": 2, "q": 33, "kv": 33, "d": 16},
    **{"h": 15, "w": 15, "c": 6, "r": 3, "s": 3, "stride": 1, "out_h": 15, "out_w": 15, "rows": 70, "cols": 81},
    **{"elements": 5001, "vocab": 501, "steps": 9, "width": 32, "batch": 4},
}  # fmt: skip
OTHER = 41  # every other size
GRIDS = {"grid": (7, 7)}
REGION = (7, 5)
LANES = {"streamed": (1, 2)}


def ways(found: Family) -> Iterator[tuple[str, Values]]:
    """Yield the attributes as they are, then with each switch, choice or count varied alone."""
    stated = {item.name: item.default for item in found.parameters().values()}
    yield "", stated
    for item in found.parameters().values():
        values: tuple[object, ...] = item.choices
        if isinstance(item.default, bool):
            values = (not item.default,)
        elif isinstance(item.default, int) and not item.name.startswith("pin_"):
            values = (2 * item.default + 3,)
        for value in values:
            if value != item.default:
                yield f", {item.name}={value}", {**stated, item.name: value}


def footprints(name: str, mapping: str, wafer: str = "wse2") -> dict[str, int]:
    """Return the bytes of the fullest core by phase, lanes and turned attribute; ways that the family refuses are left
    out.

    A turned attribute that moves nothing in a phase is left out as well.
    """
    found, machine = family(name), load_wafer(wafer)
    dims = {size: DIMS.get(size, OTHER) for size in found.dims}
    answer: dict[str, int] = {}
    for phase in Phase:
        for lanes in LANES.get(mapping, (1,)):
            plain = f"{phase.value}, {lanes} lanes" if lanes > 1 else phase.value
            for turned, attrs in ways(found):
                need = _bytes(
                    found,
                    dims,
                    Tiling(*GRIDS.get(mapping, REGION), mapping, lanes=lanes),
                    machine,
                    phase,
                    attrs,
                )
                if need is not None and (not turned or need != answer.get(plain)):
                    answer[plain + turned] = need
    return answer


def _bytes(
    found: Family, dims: dict[str, int], tiling: Tiling, wafer: Wafer, phase: Phase, attrs: Values
) -> int | None:
    try:
        need = found.footprint(dims, tiling, wafer, phase=phase, dtype="fp16", attrs=attrs)
    except KernelError:
        return None
    return int(need.total_bytes)


def every_mapping() -> Iterator[tuple[str, str]]:
    """All families with all of their mappings."""
    for name in sorted(load_families()):
        for mapping in family(name).mappings:
            yield name, mapping
