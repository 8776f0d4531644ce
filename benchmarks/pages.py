"""Tables of the pages, written from ``docs/numbers.json`` and from the declarations in the code.

    python -m benchmarks.pages            write every table anew                       (part of make numbers)
    python -m benchmarks.pages --check    say which pages are stale

A page marks a table by two comments; what stands between them is replaced::

    <!-- table: validation.training -->
    ...
    <!-- end of table -->

So no number of a table is typed by hand, and a test fails where a page and the file disagree.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measured, numbers
from wse_sim.compiler.objectives import OBJECTIVES
from wse_sim.compiler.placers import placers
from wse_sim.compiler.placers.options import PlaceOptions
from wse_sim.files import read_yaml
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.kernels import family, load_families
from wse_sim.modes import MODES
from wse_sim.options import Declared, GenerationOptions, KernelOptions, RunOptions

if TYPE_CHECKING:
    from click import Command, Parameter

PAGES = (numbers.ROOT / "README.md", *sorted((numbers.ROOT / "docs").glob("*.md")))
MARK = re.compile(r"(<!-- table: (?P<name>[\w.-]+) -->\n)(?P<body>.*?)(<!-- end of table -->)", re.DOTALL)
Rows = Iterable[Sequence[str]]
TABLES: dict[str, Callable[[], str]] = {}


def table(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register the function that writes a table."""

    def keep(make: Callable[[], str]) -> Callable[[], str]:
        TABLES[name] = make
        return make

    return keep


def markdown(head: Sequence[str], rows: Rows) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def group(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The numbers of one group of the file."""
    found: Mapping[str, Mapping[str, Any]] = numbers.read()["groups"][name]["numbers"]
    return found


def percent(share: float, digits: int = 1, sign: bool = True) -> str:
    """A fraction as text, with its sign unless asked otherwise."""
    return f"{share:+.{digits}%}".replace("%", " %") if sign else f"{share:.{digits}%}".replace("%", " %")


def quantity(value: float, digits: int = 4) -> str:
    """A number with `digits` digits that count, with commas between thousands, never with an exponent."""
    whole = float(f"{value:.{digits}g}")
    return f"{whole:,.0f}" if whole >= 10 ** (digits - 1) else f"{whole:.{digits}g}"


SUBJECTS = (
    ("`model.training`", ("model.training",)),
    ("`model.evaluation`", ("model.evaluation",)),
    ("`model.prefill`", ("model.prefill",)),
    ("`model.decode`", ("model.decode",)),
    (
        "`kernel.reduce`, `vector_op`, `point_to_point`",
        ("kernel.reduce", "kernel.vector_op", "kernel.point_to_point"),
    ),
    ("`kernel.stencil25`", ("kernel.stencil25",)),
    ("`kernel.gemm`, `kernel.gemv`", ("kernel.gemm", "kernel.gemv")),
    ("`kernel.shift`", ("kernel.shift",)),
)


@table("validation.subjects")
def _subjects() -> str:
    rows = []
    for label, subjects in SUBJECTS:
        errors = {
            key: abs(point["error"])
            for key, point in group("validation").items()
            if point["subject"] in subjects and point["counted"] and point["error"] is not None
        }
        if not errors:
            continue  # a subject of later suites: the numbers do not hold it yet
        worst = max(errors, key=lambda key: errors[key])
        small = sum(errors.values()) / len(errors) < 5e-4
        rows.append(
            (label, str(len(errors)), percent(sum(errors.values()) / len(errors), 2 if small else 1, False),
             f"{percent(errors[worst], 1, False)} (`{worst}`)")
        )  # fmt: skip
    return markdown(("subject", "points", "mean absolute error", "largest"), rows)


@table("validation.training")
def _training() -> str:
    left, rows = group("left_out"), []
    for key, point in group("validation").items():
        if point["subject"] == "model.training":
            without = left.get(key, {}).get("error_left_out")
            rows.append(
                (f"`{key}`", point["mode"], quantity(point["measured"]), quantity(point["predicted"]),
                 percent(point["error"]), "not counted" if without is None else percent(without),
                 point["binding"].replace("_", " "))
            )  # fmt: skip
    counted = [row for row in left.values() if row["error_left_out"] is not None]
    means = [
        percent(sum(abs(row[name]) for row in counted) / len(counted), 1, False)
        for name in ("error", "error_left_out")
    ]
    rows.append(("**mean of those left out**", "", "", "", f"**{means[0]}**", f"**{means[1]}**", ""))
    head = ("point", "mode", "measured (samples/s)", "predicted", "error", "left out", "bound by")
    return markdown(head, rows)


FITTED = {
    "launch_floor_s": ("least time of a matmul phase in weight streaming", "W21, W01"),
    "special_element_cycles": ("softmax, GELU or random element of a compiled kernel", "W05"),
    "transmission_core_share": ("fraction of a region's cores that move data", "P01, P04"),
    "triggered_start_cycles": ("gap between data-triggered multiply-accumulates", "W03, W06, W11"),
    "worker_samples_per_s": ("samples that one input worker prepares", "P07"),
}


@table("validation.fitted")
def _fitted() -> str:
    """The constants as they ship, beside their values where all points are fitted at once."""
    wafer, cluster, refit = load_wafer("wse2"), load_cluster(), measured.read("fitted")["values"]
    rows = []
    for name, (text, tied) in FITTED.items():
        ships = getattr(wafer if hasattr(wafer, name) else cluster, name)
        again = _constant(name, refit[name]) if name in refit else ""
        rows.append((f"`{name}`", _constant(name, ships), text, tied, again))
    return markdown(("number", "value", "what it is", "tied by", "refit to all points"), rows)


def _constant(name: str, value: float) -> str:
    return (
        f"{1e3 * value:.3g} ms"
        if name == "launch_floor_s"
        else f"{value:,.3g}"
        if value < 1e3
        else f"{value:,.0f}"
    )


@table("validation.baselines")
def _baselines() -> str:
    rows = []
    for row in measured.read("baselines")["values"].values():
        each = row["devices_per_system"]
        match = f"{row['systems']}" + (
            f" ({each:.0f} {row['label'].rpartition(' ')[2]} each)" if each else ""
        )
        rows.append(
            (row["label"], f"{row['tokens_per_s']:,}", percent(row["mfu"], 0, False), match,
             f"{row['system_tokens_per_s']:,}", percent(row["system_mfu"], 0, False))
        )  # fmt: skip
    return markdown(("published run", "tokens/s", "MFU", "CS-2 that match", "tokens/s", "MFU"), rows)


OWN_ERROR = numbers.ROOT / "benchmarks" / "validation" / "own_error.yaml"


@table("validation.intervals")
def _intervals() -> str:
    """Points inside their intervals, each judged without its group, and the own error that ships."""
    found = measured.read("intervals")["values"]
    own = read_yaml(OWN_ERROR)["half_width_90"]
    rows = [
        (f"`{name}`", str(row["points"]), str(row["inside"]), percent(row["median_half_width"], 1, False),
         percent(own[name], 1, False))
        for name, row in found.items()
    ]  # fmt: skip
    kernels = [row for name, row in found.items() if name.startswith("kernel.")]
    points, inside = (sum(row[key] for row in kernels) for key in ("points", "inside"))
    share = percent(inside / points, 0, False)
    rows.insert(len(kernels), ("**kernels**", f"**{points}**", f"**{inside} ({share})**", "", ""))
    head = ("subject", "points", "inside (90 %)", "median half-width", "own error that ships")
    return markdown(head, rows)


@table("models")
def _models() -> str:
    rows = []
    for key, run in group("models").items():
        model, phase, mode = key.split(", ")
        share = f"{run['mfu']:.1%}".replace("%", " %") if run["feasible"] else ""
        rate = quantity(run["samples_per_s"]) if run["feasible"] else "does not fit"
        rows.append((model, phase, mode.replace("-", " "), f"{run['batch']:,}", str(run["systems"]), rate, share,
                     run["binding"].replace("_", " ")))  # fmt: skip
    head = ("model", "phase", "mode", "batch", "systems", "samples/s", "MFU", "bound by")
    return markdown(head, rows)


@table("generation")
def _generation() -> str:
    rows = []
    for key, run in group("generation").items():
        if not run.get("feasible", True):
            rows.append((key, "", "does not fit", "", "", run["binding"]))
            continue
        rows.append(
            (key, f"{run['regions']} of {run['grid']} x {run['grid']}", f"{run['tokens_per_s_per_user']:,.0f}",
             f"{1e3 * run['time_to_first_token_s']:,.1f}", f"{run['max_context']:,}", run["binding"])
        )  # fmt: skip
    head = ("request", "regions", "tokens/s per user", "first token (ms)", "longest context", "bound by")
    return markdown(head, rows)


def _options(kind: type[Declared]) -> str:
    rows = []
    for option in kind.options():
        default = "" if option.default is None else f"`{option.default}`"
        flags = ", ".join(f"`{flag}`" for flag in option.flag.split())
        limits = option.range if not option.choices else ", ".join(f"`{choice}`" for choice in option.choices)
        rows.append(
            (flags, f"`{option.name}`", default, limits, option.unit, option.help.replace("|", "\\|"))
        )
    return markdown(("command line", "field", "default", "allowed", "unit", "meaning"), rows)


FABRIC_KEYS = {
    "dense_256": ("router-cycles/s, four moves each, fp32 payload", ""),
    "dense_wafer": ("757 x 996", ""),
    "dense_256_wse3": ("the same load on links of two cycles that carry eight words in nine", ""),
    "sparse_1pct": ("one router in a hundred at work", ""),
    "sparse_0p1pct": ("one in a thousand", ""),
    "wafer_peak_gb": ("four crossing streams on the whole wafer, values included, stepped", " GB"),
    "maxplus_ns_per_word": ("max-plus equations", " ns"),
    "maxplus_speedup_summa": ("against the wavelet executor; 16 of 20 rounds are proved to repeat", ""),
    "gemv_wafer_s": ("one GEMV on the whole wafer, certificate included; 986 of 996 rows are copies", " s"),
    "periodic_wafer_s": ("a million cycles on the whole wafer; rows, columns and rounds repeat", " s"),
    "gemv_x20_wafer_s": (
        "twenty GEMVs fed from the edge, contention on every ramp; 986 rows are copies, the others time-ordered",
        " s",
    ),
    "gemv_x20_clean_wafer_s": ("the same, spaced so that no two words meet", " s"),
    "compile_cold_s": ("stepped executors; WSE-3 compiles its own loop at first use, 8 s", " s"),
    "compile_cached_s": ("the same, loaded from the cache", " s"),
}


def _scaled(value: float, unit: str) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}{unit}"


def _range(bounds: Sequence[float] | None, unit: str) -> str:
    if not bounds:
        return ""
    low, high = (_scaled(bound, unit) for bound in bounds)
    return low if low == high else f"{low} to {high}"


@table("fabric.speed")
def _fabric_speed() -> str:
    entry = measured.read("fabric")
    loaded = entry["under_load"]
    rows = [
        (f"`{key}`", text, _scaled(entry["values"][key], unit), _range(loaded.get(key), unit))
        for key, (text, unit) in FABRIC_KEYS.items()
    ]
    return markdown(("key", "what", "alone", "under load"), rows)


def _drawn() -> dict[str, list[float]]:
    """Differences of cost against program by kernel, over the points drawn for the golden numbers."""
    found: dict[str, list[float]] = {}
    for key, point in group("fabric").items():
        number, _, kernel = key.partition(" ")
        if number.isdigit():
            found.setdefault(kernel, []).append(point["difference"])
    return found


EXACT = 5e-5
"""Below, a difference is no more than a fraction of a cycle."""


@table("kernels.agreement")
def _agreement() -> str:
    sizes = sorted(abs(value) for values in _drawn().values() for value in values)
    share = [sizes[int(q * (len(sizes) - 1))] for q in (0.5, 0.95, 1.0)]
    row = (str(len(sizes)), percent(share[0], 2, False), *(percent(value, 1, False) for value in share[1:]))
    return markdown(("points", "median", "95th percentile", "worst"), [row])


@table("kernels.agreement.kernels")
def _agreement_of_kernels() -> str:
    worst = {kernel: max(values, key=abs) for kernel, values in _drawn().items()}
    order = sorted(worst, key=lambda kernel: -abs(worst[kernel]))
    drawn = _drawn()
    rows = [
        (kernel, str(len(drawn[kernel])), percent(statistics.median(map(abs, drawn[kernel])), 2, False),
         percent(worst[kernel], 2))
        for kernel in order
        if abs(worst[kernel]) > EXACT
    ]  # fmt: skip
    exact = ", ".join(sorted(kernel for kernel in order if abs(worst[kernel]) <= EXACT))
    table = markdown(("kernel", "points", "median", "worst"), rows)
    return f"{table}\n\nExact: {exact}. Negative: the cost is below the program."


@table("kernels.probes")
def _probes() -> str:
    rows = []
    for label, run in measured.read("probes")["values"].items():
        model = label.removesuffix(", streamed")
        mode, batch = run["mode"].replace("-", " "), f"{run['batch']:,}"
        if "measured" not in run:
            rows.append((model, mode, batch, "does not fit", "", "", "", "", run["binding"]))
            continue
        rows.append(
            (model, mode, batch, percent(run["measured"], 1, False), str(run["probes"]), f"{run['cpu_s']:.1f} s",
             percent(run["cycles"]), percent(run["rate"]), run["binding"].replace("_", " "))
        )  # fmt: skip
    head = ("model", "mode", "batch", "measured", "probes", "CPU", "cycles", "rate", "bound by")
    return markdown(head, rows)


@table("placement.placers")
def _placed() -> str:
    rows = [
        (row["placer"], f"{row['samples_per_s']:.1f}", f"{row['slowest_cycles']:,}", f"{row['ratio']:.3f}",
         f"{row['wire_l1_cores']:,}", percent(row["region_share"], 0, False))
        for row in measured.read("placers")["values"]
    ]  # fmt: skip
    head = ("placer", "samples/s", "slowest (cycles)", "/ area bound", "wire L1 (cores)", "share in regions")
    return markdown(head, rows)


@table("placement.contest")
def _contest() -> str:
    entry = measured.read("contest")
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
    kinds = measured.read("dead_cores")["values"]
    counts = list(next(iter(kinds.values())))
    rows = [(f"`{kind}`", *(_loss(found[count]) for count in counts)) for kind, found in kinds.items()]
    return markdown(("dead cores", *counts), rows)


def _loss(share: float) -> str:
    return percent(share, 1 if share < 0.1 else 0) if share else "0"


@table("placers")
def _placers() -> str:
    takes = {True: "models and contest", False: "models"}
    return markdown(
        ("name", "takes", "what it does"), [(f"`{p.name}`", takes[p.contest], p.about) for p in placers()]
    )


@table("objectives")
def _objectives() -> str:
    return markdown(
        ("objective", "what is made small"), [(f"`{name}`", text) for name, text in OBJECTIVES.items()]
    )


MOVES_AT_LEAST = 1e-4  # of a rate
PIPELINED = "pipelined"


@table("constants")
def _constants() -> str:
    """What each constant moves if it is halved or doubled, and the most that better hardware lost."""
    data = json.loads((numbers.ROOT / "docs" / "constants.json").read_text(encoding="utf-8"))
    wafer, cluster = load_wafer("wse2"), load_cluster()
    rows = []
    for name, found in data["changes"].items():
        moved = dict.fromkeys(data["modes"], 0.0)
        lost = 0.0
        for one in found["models"]:
            ratios = [r for r in (one["ratio"], one["compute_ratio"]) if r is not None]
            reach = max((abs(r - 1) for r in ratios), default=float("inf"))
            moved[one["mode"]] = max(moved[one["mode"]], reach)
            lost = max(lost, one["lost"])
        shares = [_reach(share) for share in moved.values()]
        if name in data["unmeasured"]:
            shares[data["modes"].index(PIPELINED)] = "not measured"
        kernels = "" if found["kernels"] is None else str(found["kernels"] or "")
        acts = (wafer if name in wafer.provenance else cluster).provenance[name].acts
        says = {"models": "", "programs": "programs on the fabric", "report": "what is shown"}[acts]
        rows.append((f"`{name}`", *shares, kernels, says, percent(lost, 1, False) if lost >= 0.001 else ""))
    head = ("constant", *data["modes"], "kernels", "marked: acts on", "lost by better hardware")
    return markdown(head, rows)


def _reach(share: float) -> str:
    if share == float("inf"):
        return "fits or not"
    return percent(share, 2 if share < 0.01 else 0, False) if share >= MOVES_AT_LEAST else ""


PROGRAM = "over the exported program"


@table("zoo")
def _zoo() -> str:
    """Public models: how many were tried, lowered and run; the names that were not, with the reason."""
    data = json.loads((numbers.ROOT / "docs" / "zoo.json").read_text(encoding="utf-8"))
    rows, failed = [], []
    for zoo, part in data.items():
        for phase, found in part["rows"].items():
            count = Counter(row["state"] for row in found.values())
            tried = len(found) - count["not built"]
            version = f"{zoo} {part['versions'][zoo]}, torch {part['versions']['torch']}"
            run = [row for row in found.values() if row["state"] == "runs"]
            compared = [row for row in run if row.get("counter", PROGRAM) == PROGRAM]
            now = sum(row.get("sources") == part.get("sources") for row in run)
            counts = (part["names"], tried, len(run), len(compared), now, count["not built"])
            shares = [str(n) for n in counts]
            rows.append((version, phase, *shares, part["date"]))
            failed += [
                (
                    zoo,
                    f"`{name}`",
                    row["state"],
                    row.get("why", "").replace("|", "/").replace("<", "(").replace(">", ")"),
                )
                for name, row in found.items()
                if row["state"] not in ("runs", "not built")
            ]
    head = (
        "zoo",
        "phase",
        "names",
        "tried",
        "run",
        "of those FLOPs equal",
        "of those at last",
        "no example",
        "date",
    )
    return f"{markdown(head, rows)}\n\n{markdown(('zoo', 'model', 'state', 'reason'), failed)}"


DECLARATIONS = {
    "run": RunOptions,
    "generate": GenerationOptions,
    "place": PlaceOptions,
    "kernel": KernelOptions,
}
for command, declaration in DECLARATIONS.items():
    table(f"options.{command}")(partial(_options, declaration))


@table("options.modes")
def _modes() -> str:
    """Options that only a mode has; those of a run stand in its table."""
    rows = [
        (
            mode.name,
            f"`{each.name}`",
            "" if each.default is None else f"`{each.default}`",
            each.range,
            each.unit,
            each.help,
        )
        for mode in MODES
        if issubclass(mode.options, Declared)
        for each in mode.options.options()
        if each.name not in RunOptions.of_modes and each.name != "batch"
    ]
    return markdown(("mode", "field", "default", "allowed", "unit", "meaning"), rows)


DECLARED_IN = {
    "run": ("run", "#a-run"),
    "compare": ("run", "#a-run"),
    "sensitivity": ("run", "#a-run"),
    "generate": ("generate", "#generation"),
    "place": ("place", "#a-placement"),
    "kernel": ("kernel", "#a-kernel"),
}
"""Commands whose options stand in a table of their own: its declaration and its place on the page."""


def _commands(group: Command, path: tuple[str, ...] = ()) -> Iterable[tuple[str, Command]]:
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from _commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


@table("options.commands")
def _every_command() -> str:
    """Arguments and options of every command, as the command line itself knows them."""
    from typer.main import get_command

    from wse_sim.cli import app

    parts = []
    for name, found in sorted(_commands(get_command(app))):
        about = (found.help or "").split("\n\n")[0].replace("\n", " ").strip()
        lines = [f"### wse-sim {name}", "", about]
        known: set[str] = set()
        if name in DECLARED_IN:
            declared, place = DECLARED_IN[name]
            known = {option.flag.split()[0] for option in DECLARATIONS[declared].options()}
            lines += ["", f"Options of [the table above]({place}), and:"]
        rows = [_parameter(each) for each in found.params if each.opts[0] not in known]
        if rows:
            lines += ["", markdown(("command line", "default", "meaning"), rows)]
        elif not known:
            lines += ["", "Its arguments are those of the program that it stands for; see [CSL](csl.md)."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _parameter(found: Parameter) -> tuple[str, str, str]:
    """Flags, default and help (with the range, where there is one) of one parameter of a command."""
    is_argument = found.param_type_name == "argument"
    flags = f"`{found.name.upper()}`" if is_argument else ", ".join(f"`{flag}`" for flag in found.opts)
    default = found.default
    is_silent = default is None or default is False or callable(default) or is_argument
    text = (found.help or "").replace("\n", " ").replace("|", "\\|")
    bounds = [getattr(found, end, getattr(getattr(found, "type", None), end, None)) for end in ("min", "max")]
    if any(bound is not None for bound in bounds):
        low, high = (f"{bound:,.12g}" if bound is not None else "" for bound in bounds)
        between = f"{low} to {high}" if low and high else f"{low} or more" if low else f"{high} or less"
        text += f" ({between})"
    return flags, "" if is_silent else f"`{default}`", text


def _lines(names: Iterable[str]) -> str:
    found = (family(name) for name in names)
    head = ("family", "mapping over the cores", "program", "band of cost against program")
    return markdown(head, ((f.name, f.lies, f.programs, f.bands or percent(f.band, 0, False)) for f in found))


def _own_families() -> list[str]:
    """Names of the families of this library; one that was registered beside them is not of the pages."""
    return [
        name
        for name in sorted(load_families())
        if type(family(name)).__module__.startswith("wse_sim.kernels.")
    ]


@table("kernels.families")
def _families() -> str:
    return _lines(name for name in _own_families() if _is_tabled(name, collective=False))


@table("kernels.collectives")
def _collectives() -> str:
    return _lines(name for name in _own_families() if _is_tabled(name, collective=True))


def _is_tabled(name: str, *, collective: bool) -> bool:
    found = family(name)
    return bool(found.lies) and collective == (".collectives." in type(found).__module__)


@table("kernels.stated")
def _stated() -> str:
    """Sizes and attributes of every family, from its declarations."""
    rows = []
    for name in _own_families():
        found = family(name)
        sizes = ", ".join(f"`{size.name}` {size.help}".strip() for size in found.sizes())
        own = (item for item in found.parameters().values() if not item.is_pin)
        says = "; ".join(f"`{item.name}` ({item.default!r}; {item.range}) {item.help}" for item in own)
        rows.append((name, sizes, says or "none"))
    return markdown(("family", "sizes", "attributes (default; values)"), rows)


CSL = numbers.ROOT / "docs" / "csl.json"


@table("csl.speed")
def _csl_speed() -> str:
    found = measured.read("csl_speed")["values"]

    def rates(name: str) -> str:
        sizes = [key for key in found if key.startswith(f"{name}_") and key.rpartition("_")[2].isdigit()]
        return ", ".join(_rate(found[key]["cycles_per_s"]) for key in sizes) + " cycles/s"

    wafer, start = found["gemv_wafer"], found["start"]
    rows = [
        ("scalar code on one core", f"{_rate(found['scalar']['opcodes_per_s'])} opcodes/s"),
        ("GEMV (tiles of 8 x 8) on 4 x 4, 32 x 32, 100 x 100 cores", rates("gemv")),
        ("five-point stencil, columns of 16, 20 steps, the same grids", rates("stencil")),
        ("GEMV (tiles of 4 x 4) on 750 x 994 cores, values checked",
         f"{wafer['seconds']:.1f} s for {wafer['cycles']:,} cycles; "
         f"{wafer['resident_bytes_per_core'] / 1e3:.1f} kB resident per core, {wafer['peak_gib']:.1f} GiB in all"),
        ("machine code, compiled at first use / from the cache",
         f"{start['cold_s']:.0f} s / {start['cached_s']:.1f} s"),
    ]  # fmt: skip
    return markdown(("what", "value"), rows)


def _rate(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


CSTORCH_ASKED = {"replay of 10 ms": "under 25 %", "replay of 100 ms": "under 5 %"}
CSTORCH_PLANS = {
    "gpt2-small": ("GPT-2 small", "30 s, 2 GB"),
    "gpt-13b": ("a GPT of 13 B parameters", "3 min, 3 GB"),
}


@table("cstorch.measures")
def _cstorch() -> str:
    found = measured.read("cstorch")["values"]
    replays = {key: found[key] for key in CSTORCH_ASKED}
    rows = [
        (
            f"replay over PyTorch alone, {row['plain_ms']:.0f} ms steps",
            percent(row["overhead"]),
            CSTORCH_ASKED[key],
        )
        for key, row in replays.items()
    ]
    recording = sorted(row["recording_s_per_1000_operators"] for row in replays.values())
    rows.append(
        ("recording, per 1,000 operators", f"{recording[0]:.1f} to {recording[-1]:.1f} s", "under 2 s")
    )
    for name, (model, asked) in CSTORCH_PLANS.items():
        row = found[f"compile_only {name}"]
        rows.append(
            (
                f"`compile_only` of {model}",
                f"{row['cpu_s']:.0f} CPU seconds, {row['peak_gbytes']:.2f} GB",
                asked,
            )
        )
    return markdown(("what", "found", "asked"), rows)


@table("csl.two_ways")
def _csl_two_ways() -> str:
    rows = [
        (
            row["kernel"],
            row["arch"].upper().replace("WSE", "WSE-"),
            f"{row['program']:,}",
            f"{row['csl']:,}",
            percent(row["error"]),
        )
        for row in json.loads(CSL.read_text(encoding="utf-8"))["two_ways"]
    ]
    return markdown(("kernel", "generation", "fabric program", "CSL", "error"), rows)


@table("csl.published")
def _csl_published() -> str:
    rows = [
        (f"`{row['id'].removeprefix('csl-')}`", row["system"].upper().replace("WSE", "WSE-"), row["evidence"],
         quantity(row["measured"], 5), quantity(row["predicted"], 5), percent(row["error"]))
        for row in json.loads(CSL.read_text(encoding="utf-8"))["published"]
    ]  # fmt: skip
    return markdown(("program", "generation", "evidence", "published", "predicted", "error"), rows)


@table("csl.costs")
def _csl_costs() -> str:
    rows = [
        (row["row"], f"{row['cycles']:,.1f}", f"{row['published']:,.1f}", percent(row["error"]))
        for row in json.loads(CSL.read_text(encoding="utf-8"))["costs"]
    ]
    return markdown(("row", "cycles", "published", "error"), rows)


@table("csl.agreement")
def _csl_agreement() -> str:
    kept, rows = json.loads(CSL.read_text(encoding="utf-8")), []
    groups = {
        "published, silicon (WSE-3)": [r["error"] for r in kept["published"] if r["evidence"] == "silicon"],
        "published, vendor's simulator, WSE-2": [
            r["error"] for r in kept["published"] if r["evidence"] != "silicon" and r["system"] == "wse2"
        ],
        "published, vendor's simulator, WSE-3": [
            r["error"] for r in kept["published"] if r["evidence"] != "silicon" and r["system"] == "wse3"
        ],
        "all published": [r["error"] for r in kept["published"]],
        "our kernels two ways": [r["error"] for r in kept["two_ways"]],
    }
    for label, errors in groups.items():
        sizes = sorted(abs(error) for error in errors)
        within = sum(size <= 0.2 for size in sizes) / len(sizes)
        rows.append(
            (
                label,
                str(len(sizes)),
                percent(statistics.median(sizes), 1, False),
                percent(within, 0, False),
                percent(sizes[-1], 0, False),
            )
        )
    return markdown(("rows", "number", "median error", "within 20 %", "largest"), rows)


def rendered(text: str) -> str:
    """The text of a page with every marked table written anew.

    Raises
    ------
    KeyError
        If a page names a table that nobody writes.
    """
    return MARK.sub(lambda found: f"{found[1]}\n{TABLES[found['name']]()}\n\n{found[4]}", text)


def stale() -> list[Path]:
    """Pages whose tables are not those of the file."""
    return [page for page in PAGES if rendered(text := page.read_text(encoding="utf-8")) != text]


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    options = parser.parse_args(arguments)
    pages = stale()
    for page in pages:
        if not options.check:
            page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{'stale' if options.check else 'wrote'} {page.relative_to(numbers.ROOT)}")
    return int(options.check and bool(pages))


if __name__ == "__main__":
    sys.exit(main())
