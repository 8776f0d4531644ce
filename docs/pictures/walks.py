"""The three walks of docs/map.md as pictures: ``python docs/pictures/walks.py``.

A walk is a list of stops: a file, and what happens there.  A test checks that every file exists and that the pictures
are those of this list.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
COLORS = {
    "cli": "#78909c",
    "api": "#78909c",
    "frontend": "#5c8fc7",
    "graph": "#5c8fc7",
    "kernels": "#4f9a6d",
    "hardware": "#b08d3c",
    "configs": "#b08d3c",
    "compiler": "#8a6fb3",
    "modes": "#8a6fb3",
    "engine": "#b3606f",
    "timing": "#4f9a6d",
    "bench": "#4f9a6d",
    "fabric": "#c07a45",
    "report": "#5a9ea6",
}
WIDTH, LEFT, BOX, STEP, TOP = 940, 20, 330, 50, 54

TENSOR = (
    ("wse_sim/cli/run.py", "reads the command line into RunOptions"),
    ("wse_sim/api.py", "run(): read, compile, simulate; one screen"),
    ("wse_sim/frontend/capture.py", "torch.export traces the module on fake tensors"),
    ("wse_sim/frontend/rewrites.py", "patterns fuse operators: bias, activation, attention"),
    ("wse_sim/frontend/classify.py", "every operator becomes a kernel of a family"),
    ("wse_sim/frontend/training.py", "gradients and the optimizer, each by a rule of its family"),
    ("wse_sim/graph/kernel_graph.py", "KernelGraph: kernels, tensors, repeated blocks"),
    ("wse_sim/modes/pipelined/steps.py", "the order of the compiler's steps"),
    (
        "wse_sim/compiler/sizing.py",
        "cores per stage for one pace, within SRAM; asks the kernels for their cost",
    ),
    ("wse_sim/compiler/shelves.py", "places the rectangles on the wafer"),
    ("wse_sim/compiler/routing.py", "routes streams, counts link loads; coloring.py gives colors"),
    ("wse_sim/modes/pipelined/plan.py", "PipelinedPlan: frozen"),
    ("wse_sim/modes/pipelined/region.py", "a region as a SimPy process: the equations at its head"),
    ("wse_sim/modes/pipelined/result.py", "times become shares, rates and the bottleneck"),
    ("wse_sim/engine/result.py", "Result: frozen; saved and loaded equal"),
    ("wse_sim/report/heatmap.py", "the map of the wafer; html.py the page, trace.py the timeline"),
)
WAVELET = (
    ("wse_sim/cli/kernel.py", "wse-sim kernel NAME --timing both"),
    ("wse_sim/bench/command.py", "parameters become a call of a family"),
    ("kernels/families/gemv.py", "cost in closed form, and program(): what each core does"),
    ("kernels/blocks/lines.py", "a builder for the wafer, lines of cores, trees along them"),
    ("wse_sim/fabric/format/builder.py", "core classes, colors, buffers, vector instructions"),
    ("wse_sim/fabric/format/validate.py", "refuses what the hardware could not do"),
    ("wse_sim/fabric/format/program.py", "Program: arrays; the docstring is the machine in equations"),
    ("wse_sim/fabric/run.py", "the first executor of the list that can run it"),
    (
        "wse_sim/fabric/executors/wavelet",
        "64 routers per machine word: routers, links, cores, cycle by cycle",
    ),
    ("wse_sim/fabric/executors/oracle.py", "the same in plain scalar code: the definition of correct"),
    ("wse_sim/fabric/result.py", "cycles, busy and stalled cycles per core, wavelets per link, values"),
    ("wse_sim/fabric/deadlock.py", "if it stopped: who waits for whom"),
    ("wse_sim/report/heatmap.py", "maps of cores and links"),
)
CONSTANT = (
    ("configs/wafers/wse2.yaml", "value, unit, source, kind of evidence"),
    ("wse_sim/hardware/constants.py", "reads and checks every statement"),
    ("wse_sim/hardware/wafer.py", "Wafer: frozen; wafer.provenance keeps the statements"),
    ("kernels/contract/equations.py", "special functions, rates, starts: constants become cycles"),
    ("kernels/families/attention", "Cost: cycles by cause (compute, special, fabric, ramp, startup, idle)"),
    ("wse_sim/compiler/pricing.py", "one price per kernel shape and rectangle, kept"),
    ("wse_sim/compiler/sizing.py", "stages get cores by their prices"),
    ("wse_sim/engine/result.py", "KernelUse.parts: seconds by cause"),
    ("wse_sim/report/tables.py", "tables; the page lists every constant with its source"),
)
WALKS = {
    "walk_tensor": ("A model on its way: wse-sim run gpt2-small --mode pipelined", TENSOR),
    "walk_wavelet": ("A wavelet on its way: wse-sim kernel gemv", WAVELET),
    "walk_constant": ("A constant on its way: special_element_cycles", CONSTANT),
}


def picture(title: str, stops: tuple[tuple[str, str], ...]) -> str:
    """One walk as SVG: a column of files, an arrow from each to the next, what happens beside it."""
    height = TOP + STEP * len(stops) + 6
    style = (
        "text{font-family:system-ui,sans-serif;font-size:15px;fill:#263238}"
        ".file{font-family:ui-monospace,monospace;font-size:13px;fill:#fff}.title{font-size:17px;font-weight:600}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{style}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fafafa"/>',
        f'<text class="title" x="{LEFT}" y="32">{escape(title)}</text>',
    ]
    for number, (file, what) in enumerate(stops):
        y = TOP + STEP * number
        room = file.removeprefix("wse_sim/").partition("/")[0].removesuffix(".py")
        if number:
            x = LEFT + 24
            lines.append(
                f'<path d="M{x} {y - 16}v12m-4 -5l4 6l4 -6" fill="none" stroke="#607d8b" stroke-width="1.6"/>'
            )
        lines += [
            f'<rect x="{LEFT}" y="{y}" width="{BOX}" height="32" rx="5" fill="{COLORS[room]}"/>',
            f'<text class="file" x="{LEFT + 12}" y="{y + 21}">{escape(file)}</text>',
            f'<text x="{LEFT + BOX + 16}" y="{y + 21}">{escape(what)}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    """Write the pictures beside this file."""
    for name, (title, stops) in WALKS.items():
        (HERE / f"{name}.svg").write_text(picture(title, stops), encoding="utf-8")


if __name__ == "__main__":
    main()
