"""Makes every picture of the gallery: python docs/pictures/make.py [name ...]"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wse_sim import api
from wse_sim.engine.result import Result
from wse_sim.report import heatmap, html, views

HERE = Path(__file__).parent


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
        _screenshot(html.write_report(result, folder), HERE / "gpt2_report.png")


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
    shares = {"computing": found.busy, "waiting for input": found.stalled_in, "idle": found.idle}
    heatmap.draw_fabric_map(shares, HERE / "reduce_cores.png", title=title, label="cycles of each core")
    links = {name: found.link_wavelets[:, :, i] for i, name in enumerate(heatmap.DIRECTIONS)}
    heatmap.draw_fabric_map(links, HERE / "reduce_links.png", title=title, label="wavelets over each link")


def place() -> None:
    """GPT-2 small as two placers cut the wafer."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--placers", "shelves,peel", "--time-limit", "5", "--out", folder)
        subprocess.run([sys.executable, "-m", "wse_sim.cli", "place", "gpt2-small", *options], check=True)
        shutil.copy(Path(folder) / "placements.png", HERE / "placements.png")


def _screenshot(page: Path, path: Path) -> None:
    """The page as headless Chromium shows it; left alone where there is no Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print(f"no chromium: {path.name} is not made again", file=sys.stderr)
        return
    flags = (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
        "disable-background-networking", "disable-component-update", "hide-scrollbars",
        "virtual-time-budget=20000", "window-size=1360,1330",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as profile:
        command = [chromium, *(f"--{flag}" for flag in flags), f"--user-data-dir={profile}"]
        subprocess.run([*command, f"--screenshot={path}", f"file://{page}"], check=True, capture_output=True)


PICTURES = {"gpt2": gpt2, "llama": llama, "reduce": reduce, "place": place}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
