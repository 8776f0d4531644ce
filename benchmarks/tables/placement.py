"""Placement: models, instances of the contest; whole models on the fabric."""

from __future__ import annotations

import statistics

from benchmarks import measurements
from benchmarks.measurements import Row
from benchmarks.tables.base import markdown, percent, table


@table("placement.placers")
def _placed() -> str:
    rows = [
        (row["placer"], f"{row['samples_per_s']:.1f}", f"{row['slowest_cycles']:,.0f}", f"{row['ratio']:.3f}",
         f"{row['wire_l1_cores']:,.0f}", percent(row["region_fraction"], 0, False))
        for row in measurements.read("placers")["values"]["rows"]
    ]  # fmt: skip
    head = (
        "placer",
        "samples/s",
        "slowest (cycles)",
        "/ area bound",
        "wire L1 (cores)",
        "fraction in regions",
    )
    return markdown(head, rows)


@table("placement.contest")
def _contest() -> str:
    entry = measurements.read("contest")
    rows = [
        (
            case,
            ", ".join(f"{cost:g}" for cost in costs),
            f"{statistics.median(costs):g}",
            f"{entry['published'][case]:g}",
        )
        for case, costs in entry["values"].items()
    ]
    return markdown(("case", "seeds 0 to 4", "median", "published best"), rows)


@table("placement.dead_cores")
def _dead_cores() -> str:
    kinds = measurements.read("dead_cores")["values"]
    counts = list(next(iter(kinds.values())))
    rows = [(f"`{kind}`", *(_loss(found[count]) for count in counts)) for kind, found in kinds.items()]
    return markdown(("dead cores", *counts), rows)


def _loss(fraction: float) -> str:
    return percent(fraction, 1 if fraction < 0.1 else 0) if fraction else "0"


@table("placement.links")
def _links() -> str:
    rows = [
        (model, *_crowd(found["dense"], found["colors"]), *_crowd(found["placed"], found["colors"]))
        for model, found in measurements.read("links")["values"].items()
    ]
    return markdown(("model", "link, densest stacks", "colors", "link, as placed", "colors"), rows)


def _crowd(row: Row, limit: int) -> tuple[str, str]:
    link = f"{row['link']:.2f}" if "link" in row else "infeasible"
    return link, "" if row["colors"] is None else f"{row['colors']:.0f} of {limit}"


@table("placement.published")
def _published() -> str:
    rows = [
        (
            f"`{row['placement']}`",
            row["graph"],
            f"{row['max_time']:.0f}",
            f"{row['wire_l1']:g}",
            f"{row['cost']:.10g}",
        )
        for row in measurements.read("contest_published")["values"]["rows"]
    ]
    return markdown(("placement", "graph", "time", "L1", "cost"), rows)


@table("placement.weighted")
def _weighted() -> str:
    rows = [
        (row["instance"], f"{row['limit_s']:g}", f"{row['wall_s']:.0f}", f"{row['max_time'] / row['lower_bound']:.4g}",
         f"{row['wire_l1']:g}", f"{row['cost']:.10g}")
        for row in measurements.read("contest_weighted")["values"]["rows"]
    ]  # fmt: skip
    return markdown(("instance", "limit (s)", "wall (s)", "time / area bound", "L1", "cost"), rows)


VARIANTS = {"hop_cycles": "links as on WSE-3", "wavelet_cycles": "two cycles a word"}


def _layers(row: Row) -> str:
    """Return the sizes of the layers and the special features of the plan."""
    return "-".join(map(str, row["sizes"])) + _variant(row)


def _variant(row: Row) -> str:
    """Return the special features of a plan."""
    named = [text for key, text in VARIANTS.items() if key in row][:1]
    named += [f"placer {row['placer']}"] if "placer" in row else []
    named += [f"batches of {row['batch']}"] if "batch" in row else []
    named += ["WSE-3"] if row.get("base") == "wse3" else []
    named += ["1F1B"] if row.get("schedule") == "1f1b" else []
    return "".join(f", {each}" for each in named)


def _busiest(row: Row) -> str:
    errors = [region["busiest"] / region["engine"] - 1 for region in row["regions"]]
    return ", ".join(percent(error).removesuffix(" %") for error in errors) + " %"


@table("whole.inference")
def _whole() -> str:
    rows = [
        (_layers(row), f"{row['side']} x {row['side']}", f"{row['engine_period_cycles']:.1f}",
         f"{row['fabric_period_cycles']:.1f}", percent(row["difference"]), _busiest(row))
        for row in measurements.read("whole_fabric")["values"]["inference"]
    ]  # fmt: skip
    head = ("layers", "cores", "plan, event engine", "fabric", "difference", "busiest cores, by region")
    return markdown(head, rows)


@table("whole.training")
def _whole_training() -> str:
    kept = sorted(
        measurements.read("whole_fabric")["values"]["training"], key=lambda row: abs(row["difference"])
    )
    rows = [
        (_layers(row), f"{row['side']} x {row['side']}", f"{row['engine_step']:,.0f}", f"{row['fabric_step']:,.0f}",
         percent(row["difference"]), _busiest(row))
        for row in kept
    ]  # fmt: skip
    return markdown(
        ("layers", "cores", "event engine", "fabric", "difference", "busiest cores, by region"), rows
    )


@table("whole.streamed")
def _whole_streamed() -> str:
    kept = measurements.read("whole_fabric")["values"]
    rows = [
        (part, "-".join(map(str, row["sizes"])) + (", slow links" if "links" in row else "") + (", WSE-3" if "base" in row else ""), f"{row['rows']} x {row['cols']}",
         str(row["lanes"]), str(row["tokens"]), f"{row['engine_step']:,.0f}", f"{row['fabric_step']:,.0f}",
         percent(row["difference"]))
        for part, key in (("inference", "streamed"), ("training", "streamed_training"))
        for row in kept[key]
    ]  # fmt: skip
    head = ("phase", "layers", "cores", "lanes", "samples", "event engine", "fabric", "difference")
    return markdown(head, rows)


@table("whole.convolutions")
def _whole_convolutions() -> str:
    rows = [
        (row["model"], " x ".join(map(str, row["image"])), f"{row['side']} x {row['side']}", f"{row['engine_period_cycles']:,.0f}",
         f"{row['fabric_period_cycles']:,.0f}", percent(row["difference"]), _busiest(row))
        for row in measurements.read("whole_fabric")["values"]["convolutions"]
    ]  # fmt: skip
    head = (
        "convolutions",
        "image",
        "cores",
        "plan, event engine",
        "fabric",
        "difference",
        "busiest cores, by region",
    )
    return markdown(head, rows)


@table("whole.states")
def _whole_states() -> str:
    def split(fractions: list[float]) -> str:
        return " / ".join(f"{100 * each:.0f}" for each in fractions)

    rows, before = [], None
    for row in measurements.read("whole_fabric")["values"]["states"]:
        name = row.get("model") or "-".join(map(str, row["sizes"]))
        plan = (row["phase"], f"{name}, {row['side']} rows")
        links = " / ".join(f"{words:,.0f}" for words in row["links"])
        head = (*plan, links, "equal" if row["same_order"] else "not") if plan != before else ("", "", "", "")
        rows.append((*head[:2], row["region"], split(row["plan"]), split(row["fabric"]), *head[2:]))
        before = plan
    return markdown(
        (
            "phase",
            "plan",
            "region",
            "event engine (%)",
            "fabric (%)",
            "busiest link between regions, plan / fabric, and of moving cores",
            "order of starts",
        ),
        rows,
    )


@table("whole.transformers")
def _whole_transformers() -> str:
    rows = [
        (row["model"] + _variant(row), f"{row['tokens']} x {row['features']}", f"{row['side']} x {row.get('cols', row['side'])}",
         f"{row['engine_period_cycles']:.0f}", f"{row['fabric_period_cycles']:.0f}", percent(row["difference"]))
        for row in measurements.read("whole_fabric")["values"]["transformers"]
    ]  # fmt: skip
    return markdown(("model", "tokens x features", "cores", "event engine", "fabric", "difference"), rows)


@table("whole.networks")
def _whole_networks() -> str:
    return _trained("networks")


@table("whole.trained_convolutions")
def _whole_trained_convolutions() -> str:
    return _trained("trained_convolutions")


@table("whole.values")
def _whole_values() -> str:
    kinds = ("outputs", "gradient", "update")
    rows = [
        (row["model"], " x ".join(map(str, row["shape"])), f"{row['side']} x {row['side']}",
         *(" / ".join(f"{100 * error:.2f}" for error in row["errors"][kind]) + " %" for kind in kinds),
         f"{row['turned']} / {row['turned_on_fabric']} of {row['selected']:,}" if row["selected"] else "-")
        for row in measurements.read("whole_fabric")["values"]["values"]
    ]  # fmt: skip
    head = ("model", "a sample", "cores", "outputs", "gradients", "updates", "turned")
    return markdown(head, rows)


def _trained(part: str) -> str:
    """Return the networks of regions that train: a batch of both simulators."""
    rows = [
        (row["model"] + _variant(row), " x ".join(map(str, row["shape"])), f"{row['side']} x {row['side']}",
         f"{row['engine_step']:,.0f}", f"{row['fabric_step']:,.0f}", percent(row["difference"]), _range(row))
        for row in measurements.read("whole_fabric")["values"][part]
    ]  # fmt: skip
    head = (
        "model",
        "a sample",
        "cores",
        "event engine",
        "fabric",
        "difference",
        "busiest cores, all regions",
    )
    return markdown(head, rows)


def _range(row: Row) -> str:
    """Return the least and the greatest difference of a region's busiest core."""
    errors = [region["busiest"] / region["engine"] - 1 for region in row["regions"]]
    return f"{percent(min(errors))} to {percent(max(errors))}"
