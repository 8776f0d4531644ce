"""Makes every picture of the gallery: python docs/pictures/make.py [name ...]"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from wse_sim import api
from wse_sim.engine.result import Result
from wse_sim.report import heatmap, html, views

HERE = Path(__file__).parent
NUMBERED = """
<script>
["headline", "bottleneck", "layers", "wafer", "inspector"].forEach((id, place) => {
  const at = document.getElementById(id).getBoundingClientRect(), mark = document.createElement("b");
  mark.textContent = place + 1;
  const corner = id === "wafer" ? [at.right - 90, at.top + 60] : [Math.max(2, at.left - 34), at.top - 4];
  mark.style.cssText = "position:absolute;z-index:9;width:32px;height:32px;border-radius:16px;background:#c2185b;color:#fff;"
    + `font:bold 20px/32px sans-serif;text-align:center;left:${corner[0] + scrollX}px;top:${corner[1] + scrollY}px`;
  document.body.append(mark);
});
</script>
"""
"""Draws the numbers 1 to 5 on a report: headline, bottleneck, layers, map, region under the pointer."""


def _run(model: str, mode: str, batch: int) -> Result:
    result = api.run(model, mode=mode, batch=batch)
    if not isinstance(result, Result):
        raise SystemExit(result.message)
    return result


def gpt2() -> None:
    """GPT-2 small, pipelined: where cores compute, where wavelets flow, a moment of the pipeline's filling."""
    result = _run("gpt2-small", "pipelined", 112)
    heatmap.draw_map(result, "busy", HERE / "gpt2_compute.png")
    heatmap.draw_map(result, "links", HERE / "gpt2_links.png")
    bins = views.time_bins(result, 50)
    if bins is not None:
        window = (bins.start_s + bins.bin_s, bins.start_s + 2 * bins.bin_s)
        heatmap.draw_map(result, "busy", HERE / "gpt2_filling.png", time=window)
    with tempfile.TemporaryDirectory() as folder:
        page = html.write_report(result, folder)
        _screenshot(page, HERE / "gpt2_report.png")
        page.write_text(page.read_text(encoding="utf-8") + NUMBERED, encoding="utf-8")
        _screenshot(page, HERE / "report_read.png")


def llama() -> None:
    """LLaMA-2 7B, weight streaming: weights enter at the edges and sums run along the lanes."""
    heatmap.draw_map(_run("llama2-7b", "weight-streaming", 16), "links", HERE / "llama_links.png")


def reduce() -> None:
    """A two-phase reduce of 256 words over 32 x 32 cores, wavelet by wavelet."""
    from wse_sim.fabric.run import run_program
    from wse_sim.hardware import load_wafer
    from wse_sim.kernels.contract.family import Tiling
    from wse_sim.kernels.families.collectives.reduce2d import FAMILY

    tiling = Tiling(rows=32, cols=32, mapping="grid", options={"line": "two_phase", "group": 8})
    case = FAMILY.program({"words": 256}, tiling, load_wafer("wse2"))
    found = run_program(case.program, case.config, inputs=case.inputs)
    title = f"two-phase reduce of 256 words over 32 x 32 cores in groups of 8: {found.cycles:,} cycles"
    fractions = {"computing": found.busy, "waiting for input": found.stalled_in, "idle": found.idle}
    heatmap.draw_fabric_map(fractions, HERE / "reduce_cores.png", title=title, label="cycles of each core")
    links = {name: found.link_wavelets[:, :, i] for i, name in enumerate(heatmap.DIRECTIONS)}
    heatmap.draw_fabric_map(links, HERE / "reduce_links.png", title=title, label="wavelets over each link")


def decoder() -> None:
    """A token through the decoder layer in CSL, of the size of Qwen2.5-0.5B: what each PE does, words over its links."""
    import os

    from wse_sim.csl.host.commands import cs_python, cslc
    from wse_sim.csl.host.record import kept

    example, here = HERE.parents[1] / "examples" / "csl_decoder", Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(shutil.copytree(example, Path(folder) / "decoder"))
        sizes = "columns:38,heads:14,groups:2,head_size:64,hidden:896,inner:4864,slots:4"
        cslc(["--arch=wse2", "layout.csl", f"--params={sizes}", "-o", "out", "--memcpy", "--channels=1"])
        if cs_python(["run.py", "--name", "out", "--filled", "64", "--tokens", "1"]):
            raise SystemExit("the values are wrong")
        record = kept("out")
        os.chdir(here)
    if record is None:
        raise SystemExit("the run was not kept")
    counters = record.session.counters()
    waiting = counters["stalled_in"] + counters["stalled_out"]
    title = "one token through a decoder layer of the size of Qwen2.5-0.5B, 36 x 38 PEs"
    found = {"computing": counters["busy"], "waiting for words": waiting}
    heatmap.draw_fabric_map(found, HERE / "decoder_cores.png", title=title, label="cycles of each PE")
    links = {name: counters["links"][:, :, i] for i, name in enumerate(heatmap.DIRECTIONS)}
    heatmap.draw_fabric_map(links, HERE / "decoder_links.png", title=title, label="words over each link")


def film() -> None:
    """A batch of training of a chain of dense layers on 32 x 32 cores, stepped: how busy every core is, 60 cycles a frame."""
    import matplotlib as mpl
    import numpy as np
    import torch
    from PIL import Image, ImageDraw

    from wse_sim.fabric.executors.base import BusyBins
    from wse_sim.hardware import load_wafer
    from wse_sim.modes.base import expect
    from wse_sim.modes.pipelined.plan import PipelinedPlan
    from wse_sim.whole import inputs_over_rows
    from wse_sim.whole.run import stepped
    from wse_sim.whole.trained import trained_network

    side, samples, cycles, pixels = 32, 20, 60, 10
    wafer = load_wafer("wse2").derive(
        rows=side, cols=side, program_rows=side, program_cols=side, io_channels_per_edge=side // 4
    )
    layers = [torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 32))
    graph = api.lower(model, (torch.zeros(1, 128),), training=True, optimizer="sgd")
    plan = api.compile(inputs_over_rows(graph), mode="pipelined", wafer=wafer, batch=samples, replicas=1)
    made = trained_network(expect(plan, PipelinedPlan), samples, loss="squared error")
    result = stepped(made.program, made.config, None, BusyBins(1000, cycles))
    colors = mpl.colormaps["viridis"]
    frames = []
    for number in range(result.cycles // cycles + 1):
        fraction = np.clip(result.busy_bins[number] / cycles, 0, 1)
        cells = (colors(fraction)[:, :, :3] * 255).astype(np.uint8)
        picture = Image.new("RGB", (side * pixels, side * pixels + 18), "white")
        picture.paste(
            Image.fromarray(cells).resize((side * pixels, side * pixels), Image.Resampling.NEAREST), (0, 18)
        )
        pen = ImageDraw.Draw(picture)
        pen.text((4, 3), f"cycle {number * cycles:,}", fill="black")
        for stage in made.plan.stages:
            left, top = stage.region.col * pixels, stage.region.row * pixels + 18
            box = (left, top, left + stage.region.cols * pixels - 1, top + stage.region.rows * pixels - 1)
            pen.rectangle(box, outline="white")
        frames.append(picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=16))
    frames[0].save(
        HERE / "whole_training.gif",
        save_all=True,
        append_images=frames[1:],
        duration=60,
        loop=0,
        optimize=True,
    )


def place() -> None:
    """GPT-2 small as two placers cut the wafer."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--placers", "shelves,peel", "--time-limit", "5", "--out", folder)
        subprocess.run([sys.executable, "-m", "wse_sim.cli", "place", "gpt2-small", *options], check=True)
        shutil.copy(Path(folder) / "placements.png", HERE / "placements.png")


def random_models() -> None:
    """How far the event engine is off on random models: what fraction of them is within a size of the difference."""
    import matplotlib.pyplot as plt
    import numpy as np

    from benchmarks import measurements

    rows = measurements.read("random_models")["values"]["rows"]
    figure, axes = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
    lines = (
        ("priced as stepped, inference", "composed", "inference", "#1f77b4", "-"),
        ("priced as stepped, training", "composed", "training", "#d62728", "-"),
        ("run without an option, inference", "run", "inference", "#1f77b4", "--"),
        ("run without an option, training", "run", "training", "#d62728", "--"),
        ("plain plan, inference", "plain", "inference", "#1f77b4", ":"),
        ("plain plan, training", "plain", "training", "#d62728", ":"),
    )
    for label, plan, phase, color, style in lines:
        sizes = np.sort([abs(row[plan]) for row in rows if row["phase"] == phase and plan in row])
        shown = np.maximum(sizes, 1e-3)
        axes.step(
            shown,
            np.arange(1, len(sizes) + 1) / len(sizes),
            style,
            where="post",
            color=color,
            label=f"{label} ({len(sizes)})",
        )
    axes.set_xscale("log")
    axes.set_xlim(1e-3, 10)
    axes.set_ylim(0, 1.02)
    ticks = (0.001, 0.01, 0.05, 0.1, 0.3, 1, 3, 10)
    axes.set_xticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("fabric against event engine: size of the difference (0.1 % and less at the left edge)")
    axes.set_ylabel("fraction of the models")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    figure.savefig(HERE / "random_models.png", dpi=130)


def serving() -> None:
    """A service of LLaMA-3 8B on one wafer: the page of its run."""
    _command(
        "serve",
        "llama3-8b",
        "--rate",
        "20",
        "--requests",
        "20000",
        "--goodput",
        "ttft:50 tpot:1",
        "--out",
        "{out}",
    )(lambda folder: _screenshot(folder / "report.html", HERE / "serving_report.png", height=2960))


def wafers() -> None:
    """Wafers against users for three models: the study that is shipped, and its front for each of them."""

    def drawn(folder: Path) -> None:
        shutil.copy(folder / "pareto.png", HERE / "wafers_for_users.png")

    study = HERE.parents[1] / "examples" / "studies" / "wafers_for_users.yaml"
    plot = ("study", "plot", "{out}", "--objectives", "users:max,wafers:min", "--by", "model")
    _command("study", str(study), "--workers", "0", "--out", "{out}", then=plot)(drawn)


def _command(*words: str, then: tuple[str, ...] = ()) -> Callable[[Callable[[Path], object]], None]:
    """Run one or two commands into a folder, and hand it on."""

    def run(take: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for line in filter(None, (words, then)):
                filled = [word.replace("{out}", folder) for word in line]
                subprocess.run([sys.executable, "-m", "wse_sim.cli", *filled], check=True)
            take(Path(folder))

    return run


def _screenshot(page: Path, path: Path, height: int = 1330) -> None:
    """The page as headless Chromium shows it; left alone where there is no Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print(f"no chromium: {path.name} is not made again", file=sys.stderr)
        return
    flags = (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
        "disable-background-networking", "disable-component-update", "hide-scrollbars",
        "virtual-time-budget=20000", f"window-size=1360,{height}",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, *(f"--{flag}" for flag in flags), f"--user-data-dir={profile}"]
        subprocess.run([*command, f"--screenshot={path}", f"file://{page}"], check=True, capture_output=True)


PICTURES = {
    "gpt2": gpt2,
    "llama": llama,
    "reduce": reduce,
    "decoder": decoder,
    "film": film,
    "place": place,
    "random_models": random_models,
    "serving": serving,
    "wafers": wafers,
}

if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))
    from benchmarks import stale

    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        stale.made(
            picture
            for picture, sources in stale.SOURCES.items()
            if f"docs/pictures/make.py:{name}" in sources
        )
