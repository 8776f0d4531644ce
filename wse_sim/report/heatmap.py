"""Maps of the wafer as pictures: fractions of time, SRAM and link traffic of every core.

matplotlib is imported when something is drawn.  A figure has about one thousand pixels on its longer
side; a whole wafer is drawn from all its cores, averaged down by matplotlib's antialiasing.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Region
from wse_sim.engine.result import LINK_QUANTITIES, QUANTITIES, Result
from wse_sim.errors import WseError
from wse_sim.hardware import Wafer
from wse_sim.picture_text import plain_text
from wse_sim.report import bottleneck, treemap, views
from wse_sim.report.text import percent, shorten, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.patches import Rectangle

LABELS = {
    "busy": "fraction of the step that cores compute",
    "stalled_input": "fraction of the step stalled on input",
    "stalled_output": "fraction of the step stalled on output",
    "idle": "fraction of the step idle",
    "sram": "SRAM per core (KiB)",
    "kernel": "kernel",
    "queue": "most samples that waited in a stream into the region",
    "link_n": "wavelets per step over the link north",
    "link_e": "wavelets per step over the link east",
    "link_s": "wavelets per step over the link south",
    "link_w": "wavelets per step over the link west",
}
DIRECTIONS = ("north", "east", "south", "west")
COLORS = "viridis"  # perceptual, readable without color vision
UNUSED = "#d4d4d8"  # cores that no kernel uses; outside the color map on purpose
LABELS_AT_MOST = 90
DPI = 120


@plain_text
def draw_map(
    result: Result,
    quantity: str = "busy",
    path: str | Path | None = None,
    ax: Axes | None = None,
    time: tuple[float, float] | None = None,
    *,
    dies: bool = False,
) -> Figure:
    """Draw one quantity of every core; regions are outlined, the largest labelled.

    Parameters
    ----------
    quantity
        One of :data:`wse_sim.engine.result.QUANTITIES`, or ``links`` for one panel per direction.
    path
        File to write (PNG, SVG or PDF by its suffix).
    ax
        Axes to draw into instead of a new figure.
    time
        Window (start_s, end_s) of simulated time; only for ``busy``, from the timeline.
    dies
        Draw the boundaries of the dies.

    Raises
    ------
    WseError
        If this run does not have the quantity, or not over time.
    """
    if quantity == "links":
        return draw_links(result, path)
    if quantity not in QUANTITIES:
        raise WseError(f"there is no map of '{quantity}'; use one of links, {', '.join(QUANTITIES)}")
    if quantity == "queue" and not result.queues:
        raise WseError(f"a run in mode {result.mode} has no queues between regions; use another quantity")
    if time is not None and quantity != "busy":
        raise WseError(
            f"a map of '{quantity}' over time does not exist; use quantity 'busy' or leave time out"
        )
    figure, axes = _axes(ax, result.plan.wafer.rows, result.plan.wafer.cols)
    values = map_values(result, quantity, time)
    label = LABELS[quantity]
    if time is not None:
        label = f"fraction of {time[0] * 1e3:.4g} to {time[1] * 1e3:.4g} ms that cores compute"
    is_fraction = quantity in ("busy", "stalled_input", "stalled_output", "idle")
    _panel(
        axes,
        values,
        label,
        is_fraction=is_fraction,
        colors="tab20" if quantity == "kernel" else COLORS,
    )
    _outline(axes, result)
    if dies:
        _die_boundaries(axes, result.plan.wafer)
    _head(axes, result)
    return _finish(figure, path, ax)


def draw_compute(result: Result, folder: Path) -> Path:
    """Draw where cores compute; where all cores share every kernel, draw the time of each kernel, because such a map has one color."""
    if bottleneck.slowest_area(result) is None and result.kernels:
        path = folder / "time_by_kernel.png"
        draw_time(result, path)
    else:
        path = folder / "heatmap_compute.png"
        draw_map(result, "busy", path=path)
    return path


@plain_text
def draw_time(result: Result, path: str | Path | None = None) -> Figure:
    """Draw the time of a step by kernel: a rectangle's area is the time, its color the fraction in which
    cores are busy."""
    from matplotlib import cm as mpl_cm
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    from wse_sim.report.picture import Picture

    found = treemap.cells(views.fold(result.kernels), result.step_s)
    width, height = 100.0, 52.0
    figure = Picture(figsize=(11.0, 5.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], xlabel="area: time of the step")
    for (x, y, across, down), cell in zip(
        treemap.squarified([cell.time_s for cell in found], width, height), found, strict=True
    ):
        axes.add_patch(Rectangle((x, y), across, down, facecolor=cell.color, edgecolor="white", linewidth=1))
        letters = int(across / 0.76)
        if letters >= 6 and down >= 2.4:
            text = shorten(cell.name, letters)
            if down >= 4.6:
                text += f"\n{percent(cell.fraction)}"
            axes.text(x + 0.5, y + 0.5, text, fontsize=7.5, color=cell.ink, va="top")
    bar = figure.colorbar(
        mpl_cm.ScalarMappable(cmap=ListedColormap(treemap.COLORS)), ax=axes, fraction=0.03, pad=0.01
    )
    bar.set_label("fraction of its time in which cores compute", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    _head(axes, result)
    return _finish(figure, path, None)


@plain_text
def draw_links(result: Result, path: str | Path | None = None) -> Figure:
    """Wavelets per link and step, one panel per direction on one color scale."""
    wafer = result.plan.wafer
    columns = 4 if wafer.rows >= wafer.cols else 2
    subtitle = textwrap.fill(_subtitle(result), 40 * columns)
    arrays = {
        f"{DIRECTIONS[i]} ({si(total, 'wavelets')})": result.core_map(LINK_QUANTITIES[i])
        for i, total in enumerate(views.link_totals(result).values())
    }
    return draw_fabric_map(
        arrays,
        path,
        title=f"{_title(result)}\n{subtitle}",
        label="wavelets per step over each link",
        regions=[area.region for area in result.areas],
        columns=columns,
    )


@plain_text
def draw_fabric_map(
    arrays: Mapping[str, NDArray[Any]],
    path: str | Path | None = None,
    *,
    title: str = "",
    label: str = "",
    regions: Sequence[Region] = (),
    columns: int | None = None,
) -> Figure:
    """Draw several (rows, cols) arrays of one unit side by side on one color scale.

    Raises
    ------
    WseError
        If there is no array or their shapes differ.
    """
    shapes = {np.shape(values) for values in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise WseError(
            f"maps of shapes {sorted(shapes)} cannot share a picture; give (rows, cols) arrays of one shape"
        )
    rows, cols = next(iter(shapes))
    across = min(columns or (len(arrays) if rows >= cols else 2), len(arrays))
    down = -(-len(arrays) // across)
    height = float(np.clip(2.75 * rows / cols + 0.6, 1.4, 4.7))
    from wse_sim.report.picture import Picture

    inches = height * down + 0.5 + 0.25 * title.count("\n")
    figure = Picture(figsize=(3.0 * across + 1.4, inches), dpi=DPI, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    top = max(float(np.nanmax(values)) if values.size else 0.0 for values in arrays.values()) or 1.0
    for spot, (name, values) in zip(grid.flat, arrays.items(), strict=False):
        image = _image(spot, np.asarray(values, float), 0.0, top, COLORS)
        spot.set_title(name, fontsize=9, loc="left")
        _ticks(spot, rows, cols)
        spot.label_outer()
        for area in regions:
            spot.add_patch(_rectangle(area, 0.35, "white", alpha=0.45))
    for spot in list(grid.flat)[len(arrays) :]:
        spot.set_axis_off()
    bar = figure.colorbar(image, ax=grid, shrink=0.85, pad=0.012, aspect=30)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    _engineering(bar, top)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return _finish(figure, path, None)


def map_values(result: Result, quantity: str, time: tuple[float, float] | None = None) -> NDArray[np.float64]:
    """Return the values that :func:`draw_map` draws, (rows, cols), with NaN for cores without a kernel
    (except for links).

    SRAM is in KiB, everything else in the unit of :meth:`Result.core_map`.

    Raises
    ------
    WseError
        If the timeline has nothing in the window.
    """
    if quantity in LINK_QUANTITIES:
        return result.core_map(quantity).astype(float)
    used = used_cores(result)
    if time is None:
        values = result.core_map(quantity).astype(float)
    else:
        bins = views.time_bins(result, 1, time)
        if bins is None:
            raise WseError(
                f"the timeline has no slices of kernels between {time[0]} and {time[1]} s; "
                f"it covers {views.time_extent(result)} s"
            )
        values = np.zeros(used.shape)
        for area, fraction in zip(bins.areas, bins.fractions[:, 0], strict=True):
            values[area.row : area.row + area.rows, area.col : area.col + area.cols] = fraction
    if quantity == "sram":
        values /= 1024
    values[~used] = np.nan
    return values


def used_cores(result: Result) -> NDArray[np.bool_]:
    """Return a mask (rows, cols) of the cores of all regions, without dead cores."""
    wafer = result.plan.wafer
    mask = np.zeros((wafer.rows, wafer.cols), bool)
    for area in result.areas:
        place = area.region
        mask[place.row : place.row + place.rows, place.col : place.col + place.cols] = True
    return mask & ~views.dead_cores(wafer)


def _title(result: Result) -> str:
    return f"{result.model}, {result.mode}, {result.phase}, batch {result.batch}, {result.plan.wafer.name}"


def _subtitle(result: Result) -> str:
    return f"Bottleneck: {bottleneck.named(result)}"


def _head(axes: Axes, result: Result) -> None:
    """Write the title and below it the bottleneck, which explains a map with few colors."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = figure.get_size_inches()[0] * axes.get_position().width
    lines = textwrap.wrap(_subtitle(result), max(30, int(inches * 20)))
    axes.annotate(
        "\n".join(lines), (0, 1), xytext=(0, 4), xycoords="axes fraction", textcoords="offset points",
        fontsize=8, color="#52525b", va="bottom", annotation_clip=False,
    )  # fmt: skip
    axes.set_title(_title(result), loc="left", fontsize=10, pad=8 + 10.5 * len(lines))


def _axes(ax: Axes | None, rows: int, cols: int) -> tuple[Figure, Axes]:
    if ax is not None:
        return ax.figure, ax  # type: ignore[return-value]
    from wse_sim.report.picture import Picture  # no pyplot: no window, no global state

    scale = 8.2 / max(rows, cols)
    figure = Picture(
        figsize=(max(3.6, cols * scale) + 1.7, max(2.4, rows * scale) + 0.7), dpi=DPI, layout="constrained"
    )
    return figure, figure.subplots()


def scale_end(values: NDArray[np.float64], *, is_fraction: bool) -> float:
    """Return the value of the brightest color; the scale begins at 0.

    Fractions have the scale 0 to 1, so that two maps can be compared, unless all are below 0.2: then all cores
    would have the darkest color.  A uniform map does not end at its own value, which would be the brightest color.

    Examples
    --------
    >>> [scale_end(np.array(found), is_fraction=True) for found in ([0.1, 0.8], [0.01, 0.055], [0.0, 0.0])]
    [1.0, 0.06, 1.0]
    >>> [scale_end(np.array(found), is_fraction=False) for found in ([7.0, 31.0], [31.0, 31.0])]
    [31.0, 40.0]
    """
    finite = values[np.isfinite(values)]
    highest = float(finite.max()) if finite.size else 0.0
    if highest <= 0 or (is_fraction and highest >= 0.2):
        return 1.0
    if not is_fraction and finite.min() < highest:
        return highest
    power = 10.0 ** math.floor(math.log10(highest))
    return float(
        f"{next(step * power for step in (1, 1.5, 2, 3, 4, 6, 8, 10) if step * power > highest):.3g}"
    )


def _panel(axes: Axes, values: NDArray[np.float64], label: str, *, is_fraction: bool, colors: str) -> None:
    finite = values[np.isfinite(values)]
    highest = scale_end(values, is_fraction=is_fraction)
    if is_fraction and highest < 1:
        label += f" (the scale ends at {highest:g})"
    image = _image(axes, values, 0.0, highest, colors)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    _engineering(bar, highest)
    _ticks(axes, *values.shape)
    if finite.size < values.size:
        from matplotlib.patches import Patch

        axes.legend(
            handles=[Patch(color=UNUSED, label="unused cores")],
            loc="upper left", bbox_to_anchor=(0.0, -0.05), frameon=False, fontsize=8,
        )  # fmt: skip


def _image(axes: Axes, values: NDArray[np.float64], low: float, high: float, colors: str) -> AxesImage:
    import matplotlib as mpl

    palette = mpl.colormaps[colors].with_extremes(bad=UNUSED)
    # Sharp cells when a core is larger than a pixel; otherwise averages, so that thin streams do not vanish.
    mode = "nearest" if max(values.shape) <= 400 else "auto"
    return axes.imshow(
        values, cmap=palette, vmin=low, vmax=high, interpolation=mode, interpolation_stage="data"
    )


def _engineering(bar: Colorbar, top: float) -> None:
    """Format ticks like ``20 k``, instead of a factor in a corner that readers overlook."""
    from matplotlib.ticker import EngFormatter

    if top >= 1000:
        bar.formatter = EngFormatter()
        bar.update_ticks()


def _ticks(axes: Axes, rows: int, cols: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(-0.5, cols - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=8, length=2)
    axes.set_xlabel("column of cores (west to east)", fontsize=8)
    axes.set_ylabel("row of cores (north to south)", fontsize=8)


def _rectangle(area: Region, width: float, color: str, alpha: float = 1.0) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (area.col - 0.5, area.row - 0.5), area.cols, area.rows,
        fill=False, linewidth=width, edgecolor=color, alpha=alpha,
    )  # fmt: skip


def _outline(axes: Axes, result: Result) -> None:
    wafer = result.plan.wafer
    for area in result.areas:
        axes.add_patch(_rectangle(area.region, 0.9, "black"))
        axes.add_patch(_rectangle(area.region, 0.4, "white"))
    # One area for all kernels needs no label.
    placed = sorted((area for area in result.areas if area.kernel >= 0), key=lambda area: -area.region.cores)
    box = axes.get_window_extent()
    # Labels are laid out in points of the drawn picture: a region gets one if the text fits into it.
    points_per_core = min(box.width / wafer.cols, box.height / wafer.rows) * 72 / DPI
    for area in placed[:LABELS_AT_MOST]:
        _label(axes, area.name, area.region, points_per_core)


def _label(axes: Axes, name: str, area: Region, points_per_core: float) -> None:
    from matplotlib import patheffects

    width, height = area.cols * points_per_core, area.rows * points_per_core
    is_upright = height > 1.6 * width
    along, across = (height, width) if is_upright else (width, height)
    for lines in (_lines(name, 1), _lines(name, 2), _lines(name, 3)):
        longest = max(len(line) for line in lines)
        size = min(8.0, along / (0.62 * longest), across / (1.35 * len(lines)))
        if size >= 4.2:
            axes.text(
                area.center[1], area.center[0], "\n".join(lines),
                ha="center", va="center", fontsize=size, color="white", linespacing=1.05,
                rotation=90 if is_upright else 0, clip_on=True,
                path_effects=[patheffects.withStroke(linewidth=1.6, foreground="#18181b")],
            )  # fmt: skip
            return


def _lines(name: str, count: int) -> list[str]:
    """Return the last parts of a module path on `count` lines: block number and name."""
    parts = name.split(".")[-3:]
    if count == 1 or len(parts) < count:
        return [".".join(parts)]
    return [".".join(parts[: len(parts) - count + 1]), *parts[len(parts) - count + 1 :]]


def _die_boundaries(axes: Axes, wafer: Wafer) -> None:
    for row in np.arange(wafer.rows_per_die, wafer.rows, wafer.rows_per_die):
        axes.axhline(row - 0.5, color="#ef4444", linewidth=0.6, linestyle=":")
    for col in np.arange(wafer.cols_per_die, wafer.cols, wafer.cols_per_die):
        axes.axvline(col - 0.5, color="#ef4444", linewidth=0.6, linestyle=":")


def _finish(figure: Figure, path: str | Path | None, ax: Axes | None) -> Figure:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        # No date in the file: equal results give equal pictures.
        figure.savefig(path, metadata={"Software": None} if str(path).endswith(".png") else None)
    return figure
