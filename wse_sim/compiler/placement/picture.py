"""Pictures of placed rectangles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wse_sim.picture_text import plain_text


@plain_text
def draw_rectangles(
    path: str | Path,
    fabric: tuple[int, int],
    rects: np.ndarray,
    names: Sequence[str],
    edges: Sequence[tuple[int, int]],
    title: str,
    blocked: Sequence[tuple[int, int, int, int]] = (),
) -> None:
    """Write a picture of `rects` (n, 4) of x, y, w, h on a `fabric` of (width, height) cores to `path`.

    Rectangles are shaded by their depth in the dataflow; `edges` are lines between centres and `blocked`
    rectangles are black.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(8, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    patches = PatchCollection(
        [Rectangle((x, y), w, h) for x, y, w, h in rects.tolist()], edgecolor="black", linewidths=0.6
    )
    patches.set_array(dataflow_depth(len(rects), edges))
    patches.set_cmap("viridis")
    patches.set_alpha(0.6)
    axes.add_collection(patches)
    for x, y, w, h in blocked:
        axes.add_patch(Rectangle((x, y), w, h, color="black"))
    centres = rects[:, :2] + rects[:, 2:] / 2.0
    lines = [[tuple(centres[a]), tuple(centres[b])] for a, b in edges]
    axes.add_collection(LineCollection(lines, colors="crimson", linewidths=0.9))
    for name, (x, y), (w, h) in zip(names, centres.tolist(), rects[:, 2:].tolist(), strict=True):
        size = min(8.0, 0.75 * min(w, h) / max(fabric) * 500)
        if size >= 3.0:  # smaller names cannot be read and hide the rectangles
            axes.text(x, y, name, ha="center", va="center", fontsize=size, rotation=0 if w >= h else 90)
    axes.set_xlim(0, fabric[0])
    axes.set_ylim(0, fabric[1])
    axes.set_aspect("equal")
    axes.set_xlabel("column (tiles)")
    axes.set_ylabel("row (tiles)")
    axes.set_title(title, fontsize=10)
    figure.colorbar(patches, ax=axes, label="depth in the dataflow (edges)", shrink=0.7)
    figure.savefig(path, dpi=110)


def dataflow_depth(n: int, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the longest distance (n,) of each node from a source, in edges; in cycles it grows to at
    most n.
    """
    depth = np.zeros(n)
    for _ in range(n):
        before = depth.copy()
        for a, b in edges:
            depth[b] = max(depth[b], min(depth[a] + 1, n))
        if np.array_equal(before, depth):
            break
    return depth
