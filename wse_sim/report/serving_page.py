"""One self-contained page of a serving run: latencies, the bottleneck, the run over time, load curves, the
wafers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wse_sim.files import Values
from wse_sim.modes.generation.plan import GenerationPlan
from wse_sim.report.chart import Chart, ChartLine, ChartMark
from wse_sim.report.pages import parts_of, templates
from wse_sim.report.text import number, percent, seconds
from wse_sim.serving.curve import CurvePoint
from wse_sim.serving.metrics import request_times
from wse_sim.serving.run import Serving
from wse_sim.serving.series import columns_of

MAP_WIDTH = 300
MOST_WAFERS = 24
MOST_TIMES = 200  # of a chart over time
FEW_WAFERS = 3  # up to which each region is a row next to the map
TITLES = (("ttft", "First token"), ("tpot", "Time per token"), ("e2el", "Whole answer"))
PERCENTILES = (50, 90, 99)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ServingPage:
    """Content of the serving page: `data` are the keys of result.json."""

    title: str
    subtitle: str
    serving: Serving
    data: Values
    plan: GenerationPlan | None = None
    goals: Mapping[str, float] | None = None
    curve: Sequence[CurvePoint] = ()
    curve_label: str = "requests per second that come"


def write_serving_page(page: ServingPage, path: Path) -> Path:
    """Write the page.

    Raises
    ------
    WseError
        If jinja2 is not installed.
    """
    path.write_text(render_serving(page), encoding="utf-8")
    return path


def render_serving(page: ServingPage) -> str:
    """Return the page as text. Raises like :func:`write_serving_page`."""
    environment = templates("wse_sim.report", "the page of a run")
    import markupsafe

    def drawn(charts: Sequence[Chart]) -> list[tuple[Chart, str]]:
        return [(chart, markupsafe.Markup(chart.svg())) for chart in charts]

    return environment.get_template("serving.html.j2").render(
        page=page,
        data=page.data,
        own=page.data["wse_sim"],
        tiles=_tiles(page),
        bounds=_bounds(page),
        late=drawn(_distributions(page)),
        over_time=drawn(_over_time(page)),
        curves=drawn(_curves(page)),
        wafers=[markupsafe.Markup(text) for text in _wafer_maps(page)],
        regions=_regions(page),
        more_wafers=max(0, (page.plan.systems if page.plan else 0) - MOST_WAFERS),
        times=[(key, title) for key, title in (*TITLES[:2], ("itl", "Gaps between tokens"), TITLES[2])],
        rules=_rules(page),
        style=parts_of("wse_sim.report", "report.css", "serving.css"),
        script=parts_of("wse_sim.report", "serving.js"),
    )


def _tiles(page: ServingPage) -> list[tuple[str, str]]:
    data, own = page.data, page.data["wse_sim"]
    tpot = data["median_tpot_ms"]
    found = [
        ("first token, 99th percentile", f"{number(data['p99_ttft_ms'])} ms"),
        ("tokens/s of one user (median)", number(1e3 / tpot) if tpot else "n/a"),
        ("tokens/s of all users", number(data["output_throughput"])),
    ]
    if page.goals:
        whole = data["request_throughput"] or 1.0
        good = (data["request_goodput"] or 0.0) / whole * data["completed"] / max(1, data["num_prompts"])
        found.append((f"within {' '.join(f'{k}:{v:g}' for k, v in page.goals.items())}", percent(good)))
    else:
        found.append(("requests/s", number(data["request_throughput"])))
    wafers = f"{own['wafers']} wafer{'s' * (own['wafers'] != 1)}"
    energy = own["energy"]
    if energy is None:
        found.append(("replicas of a table of turns", str(own["replicas"])))
    else:
        money = energy.get("dollars_per_million_output_tokens")
        price = "" if money is None else f", {number(money)} dollars/M tokens"
        found.append(
            (f"J per token of an answer{price}, {wafers}", number(energy["joules_per_output_token"]))
        )
    return found


def _bounds(page: ServingPage) -> list[tuple[str, str, str, float]]:
    """Measured values and their bounds over all schedules: name, both as text, and the fraction of the bound
    that was reached."""
    data, bound = page.data, page.data["wse_sim"]["bounds"]
    tpot, first = data["mean_tpot_ms"] / 1e3, data["mean_ttft_ms"] / 1e3
    user = 1 / tpot if tpot else 0.0
    rows = [
        ("tokens/s of all users", data["output_throughput"], bound["tokens_per_s"], False),
        ("requests/s", data["request_throughput"], bound["requests_per_s"], False),
        ("tokens/s of one user (mean)", user, bound["user_tokens_per_s"], False),
        ("first token (mean)", first, bound["first_token_s"], True),
    ]
    return [
        (
            name,
            seconds(got) if is_time else number(got),
            seconds(limit) if is_time else number(limit),
            min(1.0, (limit / got if is_time else got / limit) if got and limit else 0.0),
        )
        for name, got, limit, is_time in rows
    ]


def _distributions(page: ServingPage) -> list[Chart]:
    found = []
    times = request_times(page.serving.load, page.serving.served)
    for key, title in TITLES:
        values = np.sort(times[key][~np.isnan(times[key])])
        if not len(values):
            continue
        marks = [
            ChartMark(
                f"p{q} {number(float(np.percentile(values, q)))} ms", float(np.percentile(values, q)), q / 100
            )
            for q in PERCENTILES
        ]
        if page.goals and key in page.goals:
            marks.append(ChartMark(f"goal {page.goals[key]:g} ms", x=page.goals[key], is_goal=True))
        at = np.unique(np.linspace(0, len(values) - 1, 400).astype(int))
        line = ChartLine("fraction of requests", values[at], (at + 1) / len(values), is_area=True)
        found.append(
            Chart(title, f"{title.lower()} (ms)", "fraction of requests", [line], marks, log_x=None, top=1.05, percent_y=True)
        )  # fmt: skip
    return found


def _over_time(page: ServingPage) -> list[Chart]:
    serving = page.serving
    sampled, rules = serving.sampled, serving.replica.rules
    if len(sampled.at_ticks) < 3:
        return []
    step = max(
        1, len(sampled.at_ticks) // MOST_TIMES
    )  # rates over longer intervals, so that the line is readable
    kept = np.unique([*range(0, len(sampled.at_ticks), step), len(sampled.at_ticks) - 1])
    sampled = dataclasses.replace(sampled, at_ticks=sampled.at_ticks[kept], total=sampled.total[kept])
    columns = columns_of(
        sampled, sampled.total, blocks=rules.blocks * serving.replicas, draw=serving.replica.power
    )
    at = columns["time_s"]
    busy = np.array([np.minimum(values, 1) for name, values in columns.items() if name.startswith("busy_")])
    slowest = int(busy.mean(axis=1).argmax())
    charts = [
        Chart("Requests", "time (s)", "requests", [
            ChartLine("running", at, columns["running"], 0, is_area=True), ChartLine("waiting", at, columns["waiting"], 1),
        ], hint=f"a replica runs at most {rules.most_running}"),
        Chart("Cache", "time (s)", "blocks in use", [ChartLine("blocks in use", at, columns["kv_usage"], 2, is_area=True)],
              percent_y=True, top=1.05, hint=f"of {rules.blocks * serving.replicas:,} blocks of {rules.block_tokens} tokens"),
        Chart("Tokens", "time (s)", "tokens/s", [
            ChartLine("computed", at, columns["computed_tokens_per_s"], 3), ChartLine("of answers", at, columns["output_tokens_per_s"], 0),
        ]),
        Chart("Busy regions", "time (s)", "busy fraction", [
            ChartLine(f"region {slowest}, the busiest", at, busy[slowest], 4), ChartLine("mean of all", at, busy.mean(axis=0), 0),
        ], percent_y=True, top=1.05),
    ]  # fmt: skip
    if "power_w" in columns:
        charts.append(
            Chart("Power of all wafers", "time (s)", "kW", [ChartLine("power", at, columns["power_w"] / 1e3, 1)],
                  hint="idle power, and the rest by busy regions")
        )  # fmt: skip
    return charts


def _curves(page: ServingPage) -> list[Chart]:
    points = [point for point in page.curve if point.tokens_per_s]
    if len(points) < 2:
        return []
    x, label = [point.load for point in points], page.curve_label
    names = [f"{number(point.load)} {label.split(' that')[0]}" for point in points]
    growing = [point.load for point in points if not point.is_steady]
    marks = [ChartMark("a queue grows", x=growing[0], is_goal=True)] if growing else []
    limit = (page.goals or {}).get("ttft")
    goal = [] if limit is None else [ChartMark(f"goal {limit:g} ms", y=limit, is_goal=True)]
    found = [
        Chart("First token against load", label, "first token (ms)", [
            ChartLine("99th percentile", x, [p.p99_ttft_ms for p in points], 1, has_dots=True),
            ChartLine("median", x, [p.median_ttft_ms for p in points], 0, has_dots=True),
        ], [*goal, *marks], log_y=None),
    ]  # fmt: skip
    if all(point.goodput is not None for point in points):
        found.append(Chart("Goodput against load", label, "requests/s", [
            ChartLine("within the goals", x, [p.goodput or 0.0 for p in points], 2, has_dots=True),
            ChartLine("answered", x, [p.requests_per_s for p in points], 0, has_dots=True),
        ], marks))  # fmt: skip
    found.append(Chart("Throughput against interactivity", "tokens/s of one user (median)", "tokens/s of all users", [
        ChartLine("a load each", [p.tokens_per_s_per_user for p in points], [p.tokens_per_s for p in points], 4, has_dots=True),
    ], names=names, hint="up and to the right is better"))  # fmt: skip
    return found


def _busy(page: ServingPage) -> list[float]:
    """Return the fraction of the run in which each region was busy, averaged over the replicas."""
    served = page.serving.served
    done = served.completed
    span = int(served.last_ticks[done].max() - served.arrival_ticks[done].min()) if done.any() else 1
    found: list[float] = (served.busy_ticks / (max(1, span) * page.serving.replicas)).tolist()
    return found


def _regions(page: ServingPage) -> list[tuple[str, int, str, float]]:
    """Return name, layers, other content and busy fraction of each region; empty for many wafers."""
    if page.plan is None or page.plan.systems > FEW_WAFERS:
        return []
    rows = zip(page.plan.regions, _busy(page), strict=True)
    return [(item.name, item.layers, "embedding, head" if item.has_ends else "", busy) for item, busy in rows]


def _wafer_maps(page: ServingPage) -> list[str]:
    """Return a map of each wafer of a replica, with regions colored by their busy fraction, averaged over
    replicas."""
    if page.plan is None:
        return []
    wafer, busy = page.plan.wafer, _busy(page)
    scale = MAP_WIDTH / wafer.cols
    out = []
    for number_ in range(min(page.plan.systems, MOST_WAFERS)):
        height = round(wafer.rows * scale, 1)
        parts = [f'<rect class="unused" width="{MAP_WIDTH}" height="{height}" rx="4"/>']
        for item, fraction in zip(page.plan.regions, busy, strict=True):
            if item.wafer != number_:
                continue
            area = item.region
            x, y, w, h = (round(v * scale, 1) for v in (area.col, area.row, area.cols, area.rows))
            layers = f"{item.layers} layer{'s' * (item.layers != 1)}{', embedding and head' if item.has_ends else ''}"
            about = escape(f"{item.name}: {layers}, busy {100 * fraction:.1f} %", quote=True)
            parts.append(
                f'<rect class="region" x="{x}" y="{y}" width="{w}" height="{h}" style="fill:{_shade(fraction)}"><title>{about}</title></rect>'
            )
            if w > 34 and h > 16:
                parts.append(
                    f'<text class="region{" dark" if fraction > 0.6 else ""}" x="{x + w / 2:g}" y="{y + h / 2 + 4:g}" text-anchor="middle">{100 * fraction:.0f} %</text>'
                )
        out.append(
            f'<figure><svg viewBox="0 0 {MAP_WIDTH} {height}" role="img" aria-label="wafer {number_}">{"".join(parts)}</svg><figcaption>wafer {number_}</figcaption></figure>'
        )
    return out


STOPS = ((68, 1, 84), (59, 81, 139), (33, 144, 141), (92, 200, 99), (253, 231, 37))


def _shade(fraction: float) -> str:
    """Return a color of the report's color scale."""
    at = min(0.9999, max(0.0, fraction)) * (len(STOPS) - 1)
    low, part = STOPS[int(at)], at - int(at)
    high = STOPS[int(at) + 1]
    return "rgb({},{},{})".format(*(round(a + (b - a) * part) for a, b in zip(low, high, strict=True)))


def _rules(page: ServingPage) -> list[tuple[str, str]]:
    rules, own = page.serving.replica.rules, page.data["wse_sim"]
    return [
        ("wafers", f"{own['wafers']}: {own['replicas']} replica{'s' * (own['replicas'] != 1)} of {own['systems']}"),
        ("regions of a replica", f"{own['regions']}"),
        ("turns", f"up to {rules.turn_tokens} tokens, {rules.joined} of them of decodes; {own['turns']:,} ran"),
        ("cache of a replica", f"{rules.blocks:,} blocks of {rules.block_tokens} tokens; {own['kv_blocks_most']:,} in use at most"),
        ("running", f"at most {rules.most_running} a replica; {own['running_most']} at most at a time"),
        ("admission", "blocks for the whole answer" if rules.reserve else "blocks for the present length"),
        ("preemptions", f"{own['preemptions']:,}; {own['recomputed_tokens']:,} tokens computed again"),
        ("seed", str(own["seed"])),
    ]  # fmt: skip
