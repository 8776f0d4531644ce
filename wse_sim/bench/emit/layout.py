"""The layout: which program a PE runs, its parameters, the routes and switches of colors, in rectangles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from wse_sim.bench.emit.source import TYPES, PeSource
from wse_sim.fabric.format import program as P

_SIDES = ((1, "NORTH"), (2, "EAST"), (4, "SOUTH"), (8, "WEST"), (16, "RAMP"))
_POP = {1: "always_pop", 2: "pop_on_advance"}


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
    """Switch positions, each with the fields that differ from the position before."""
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


def layout_text(program: P.Program, about: str, files: Mapping[int, tuple[str, PeSource]]) -> str:
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
        f'  @export_name("{info.name}", [*]{TYPES[info.dtype]}, true);' for info in program.buffers.values()
    ]
    lines += [f'  @export_name("{name}", [*]u16, true);' for name in ("stamps", "lengths")]
    lines += [f'  @export_name("{name}", fn()void);' for name in ("set_lengths", "run")]
    lines += ["}", ""]
    return "\n".join(lines)


def _mask(mask: int) -> str:
    names = [name for bit, name in _SIDES if mask & bit]
    return f".{{ {', '.join(names)} }}"
