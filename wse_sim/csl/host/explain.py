"""Description of a compiled program, as text and as a drawing of its routes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.atomic_files import whole
from wse_sim.csl.compiler import CompiledProgram
from wse_sim.errors import WseError
from wse_sim.fabric.vm import opcodes
from wse_sim.picture_text import plain_text

PORTS = ("N", "E", "S", "W", "R")
_STEP = {"N": (0, -0.5), "E": (0.5, 0), "S": (0, 0.5), "W": (-0.5, 0), "R": (0.18, 0.18)}


def explained(folder: Path) -> dict[str, Any]:
    """Return a description of a compiled program as JSON data.

    It contains the rectangle, the code classes with their memory, tasks and queues, the number of cores per
    color, and the exported names.

    Raises
    ------
    WseError
        If the folder contains no compiled program.
    """
    program = CompiledProgram.read(folder)
    image = program.image
    held = Counter(int(k) for k in image.core_class)
    classes = [
        {
            "name": cls.name,
            "cores": held[k],
            "code_bytes": 2 * cls.code_words,
            "data_bytes": 2 * cls.data_words,
            "limit_bytes": 2 * opcodes.WORDS,
            "tasks": [{"id": t.id, "kind": t.kind, "name": t.name} for t in cls.tasks],
            "input_queues": [list(pair) for pair in cls.input_colors] or [[q, c] for c, q in cls.reads],
            "output_queues": [list(pair) for pair in cls.output_colors],
            "symbols": [
                {"name": s.name, "kind": s.kind, "type": s.type, "word_address": s.address, "words": s.words}
                for s in cls.symbols
            ],
        }
        for k, cls in enumerate(image.classes)
    ]
    colors = {
        color: int(np.count_nonzero(image.config[color]))
        for color in range(image.config.shape[0])
        if image.config.shape[1] and image.config[color].any()
    }
    return {
        "arch": image.arch,
        "rectangle": {"cols": image.cols, "rows": image.rows},
        "fabric": {"cols": program.options.fabric[0], "rows": program.options.fabric[1]},
        "offsets": {"col": program.options.offsets[0], "row": program.options.offsets[1]},
        "cores": image.n_cores,
        "code_rows": len(image.code),
        "classes": classes,
        "colors": {str(color): cores for color, cores in colors.items()},
        "host_colors": list(image.host_colors),
        "exports": [{"id": e.id, "name": e.name, "kind": e.kind, "type": e.type} for e in program.exports],
    }


def explanation_text(about: dict[str, Any]) -> str:
    """Format the description of :func:`explained` as lines for a terminal."""
    rect, fabric, at = about["rectangle"], about["fabric"], about["offsets"]
    lines = [
        f"{about['arch']}: {rect['cols']} x {rect['rows']} cores at ({at['col']}, {at['row']}) of a fabric of "
        f"{fabric['cols']} x {fabric['rows']}; {len(about['classes'])} code classes, {about['code_rows']:,} rows of code",
        "",
        f"{'class':<34} {'cores':>7} {'code':>8} {'data':>8}   of {48} KiB per core",
    ]
    for cls in about["classes"]:
        used = (cls["code_bytes"] + cls["data_bytes"]) / cls["limit_bytes"]
        lines.append(
            f"{cls['name'][:34]:<34} {cls['cores']:>7,} {cls['code_bytes']:>7,}B {cls['data_bytes']:>7,}B   {100 * used:.1f} %"
        )
        for task in cls["tasks"]:
            lines.append(f"    {task['kind']} task {task['id']:>2}  {task['name']}")
        if cls["input_queues"]:
            lines.append(f"    input queues   {', '.join(f'{q}: color {c}' for q, c in cls['input_queues'])}")
        if cls["output_queues"]:
            lines.append(
                f"    output queues  {', '.join(f'{q}: color {c}' for q, c in cls['output_queues'])}"
            )
    lines.append("")
    for color, cores in about["colors"].items():
        lines.append(f"color {color:>2}: configured at {cores:,} cores")
    if about["host_colors"]:
        lines.append(f"streams of the host: colors {', '.join(map(str, about['host_colors']))}")
    for export in about["exports"]:
        lines.append(f"export {export['id']:>2}  {export['kind']:<4} {export['name']}: {export['type']}")
    return "\n".join(lines)


@plain_text
def draw_routes(folder: Path, color: int, out: Path, most: int = 40) -> Path:
    """Draw the routes of a color over the north-west `most` x `most` cores, write the drawing to the folder
    `out` and return its path.

    Inputs are black and outputs blue; other switch positions are dotted.

    Raises
    ------
    WseError
        If the program does not use the color.
    """
    import matplotlib.pyplot as plt

    image = CompiledProgram.read(folder).image
    configs = (
        image.config[color].reshape(image.rows, image.cols)
        if image.config.shape[1]
        else np.zeros((0, 0), int)
    )
    if not configs.any():
        raise WseError(
            f"color {color} is configured at no core; 'wse-sim csl explain {folder}' lists the colors"
        )
    rows, cols = min(most, image.rows), min(most, image.cols)
    figure, axes = plt.subplots(figsize=(1.5 + 0.45 * cols, 1.5 + 0.45 * rows))
    for y in range(rows):
        for x in range(cols):
            axes.add_patch(plt.Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, fill=False, lw=0.6, ec="0.7"))
            if not configs[y, x]:
                continue
            config = image.configs[int(configs[y, x]) - 1]
            for position, (rx, tx) in enumerate(config.positions):
                style = "-" if position == config.position else ":"
                for bit, port in enumerate(PORTS):
                    dx, dy = _STEP[port]
                    if rx >> bit & 1:
                        axes.plot([x + dx, x], [y + dy, y], style, color="black", lw=1.6)
                    if tx >> bit & 1:
                        axes.plot([x, x + dx], [y, y + dy], style, color="tab:blue", lw=1.6)
                        if position == config.position and port != "R":
                            axes.annotate(
                                "",
                                (x + dx, y + dy),
                                (x, y),
                                arrowprops={"arrowstyle": "->", "color": "tab:blue"},
                            )
    axes.set(xlim=(-0.7, cols - 0.3), ylim=(rows - 0.3, -0.7), aspect="equal", xlabel="column", ylabel="row")
    axes.set_xticks(range(0, cols, max(1, cols // 8)))
    axes.set_yticks(range(0, rows, max(1, rows // 8)))
    axes.set_title(
        f"routes of color {color}"
        + (f" (north-west {cols} x {rows})" if image.cols > most or image.rows > most else ""),
        fontsize=10,
    )
    path = out / f"routes_{color}.png"
    with whole(path) as part:
        figure.savefig(part, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path
