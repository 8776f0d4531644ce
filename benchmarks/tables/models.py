"""Models: validation, fits, baselines, intervals, golden rates, constants, public models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from benchmarks import measurements, numbers
from benchmarks.fits import FITS
from benchmarks.tables.base import group, markdown, percent, quantity, table
from wse_sim.files import read_yaml
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.hardware.constants import Constant

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
    "special_element_cycles": ("softmax, GELU or random element of a compiled kernel", "W05 alone"),
    "pipeline_efficiency": (
        "fraction of a region's cores that compute in the price of a pipeline",
        "P01, P04",
    ),
    "triggered_start_cycles": ("gap between data-triggered multiply-accumulates", "W03, W06, W11"),
    "worker_samples_per_s": ("samples that one input worker prepares", "P07 alone"),
    "memoryx_bytes_per_s": (
        "what arrives of the line to MemoryX; SwarmX takes it over",
        "two runs of one batch",
    ),
    "map_element_cycles": ("a map, per instruction", "4 prefill rates / 50 runs"),
    "map_vector_cycles": ("a map over more than one element", "50 runs"),
    "loop_cycles": ("turn of a loop that loads three descriptors", "4 prefill rates / 50 runs"),
    "step_cycles": ("step of a shifting product", "4 prefill rates / 50 runs"),
    "vector_start_cycles": ("start of a vector instruction", "50 runs"),
    "die_crossing_cycles": ("edge of a die between two rows", "50 runs, tied by six"),
    "exp_cycles": ("exponential of one element in scalar code", "4 decode rates"),
    "tree_root_streams": ("streams that the root of a K-tree takes in turn", "4 decode rates"),
    "tree_handovers": ("dependent steps of a K-tree beyond its hops", "4 decode rates"),
    "stencil_neighbour_wait_cycles": (
        "wait of the 25-point stencil, per cell",
        "4 of the 6 runs that judge it",
    ),
    "stencil_first_block_wait_cycles": (
        "the same, per cell of the first block",
        "4 of the 6 runs that judge it",
    ),
    "scalar_move_cycles": ("move between registers", "11 programs in CSL"),
    "scalar_return_cycles": ("return from a function", "11 programs in CSL"),
    "scalar_dsd_change_cycles": ("change of a descriptor", "11 programs in CSL"),
    "scalar_map_start_cycles": ("start of a map in CSL", "3 programs in CSL"),
    "scalar_trace_cycles": ("time stamp of `<debug>` in CSL", "1 program in CSL"),
    "scalar_xdsr_load_cycles": ("load of an extended DSR in CSL on WSE-3", "2 programs in CSL"),
}
"""Every constant that was fitted: what it is, and the measurements that tie it (CS-2 / CS-3)."""


@table("validation.fitted")
def _fitted() -> str:
    """The constants as they ship, on a CS-2 and a CS-3, compared with their values where all training points are fitted at once."""
    wafers, cluster, refit = (
        (load_wafer("wse2"), load_wafer("wse3")),
        load_cluster(),
        measurements.read("fitted")["values"],
    )
    rows = []
    for name, (text, tied) in FITTED.items():
        sets = wafers if name in wafers[0].provenance else (cluster,)
        stated = [item.provenance[name] for item in sets if is_fitted(name, item.provenance[name])]
        if len(stated) == 2 and stated[0] == stated[1]:
            stated = stated[:1]
        values = " / ".join(_constant(name, float(one.value)) for one in stated)
        ranges = " / ".join(
            " to ".join(_constant(name, end).partition(" ")[0] for end in one.range or ()) for one in stated
        )
        again = _constant(name, refit[name]) if name in refit else ""
        rows.append((f"`{name}`", values, ranges, text, tied, again))
    return markdown(("number", "value", "range (90 %)", "what it is", "tied by", "refit to all points"), rows)


REFITTED = {name for fit in FITS for name in fit.constants}


def is_fitted(name: str, stated: Constant) -> bool:
    """Return whether a statement says so, or a fit of the benchmarks takes it on silicon."""
    return "fitted" in stated.source or (name in REFITTED and stated.evidence == "silicon")


def _constant(name: str, value: float) -> str:
    return (
        f"{1e3 * value:.3g} ms"
        if name == "launch_floor_s"
        else f"{value:,.3g}"
        if value < 1e3
        else f"{value / 1e9:,.4g} GB/s"
        if value >= 1e9
        else f"{value:,.0f}"
    )


@table("validation.baselines")
def _baselines() -> str:
    rows = []
    for row in measurements.read("baselines")["values"].values():
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
    found = measurements.read("intervals")["values"]
    own = read_yaml(OWN_ERROR)["half_width_90"]
    rows = [
        (f"`{name}`", str(row["points"]), str(row["inside"]), percent(row["median_half_width"], 1, False),
         percent(own[name], 1, False))
        for name, row in found.items()
    ]  # fmt: skip
    kernels = [row for name, row in found.items() if name.startswith("kernel.")]
    points, inside = (sum(row[key] for row in kernels) for key in ("points", "inside"))
    fraction = percent(inside / points, 0, False)
    rows.insert(len(kernels), ("**kernels**", f"**{points}**", f"**{inside} ({fraction})**", "", ""))
    head = ("subject", "points", "inside (90 %)", "median half-width", "own error that ships")
    return markdown(head, rows)


@table("models")
def _models() -> str:
    rows = []
    for key, run in group("models").items():
        model, phase, mode = key.split(", ")
        fraction = f"{100 * run['mfu']:.1f} %" if run["feasible"] else ""
        rate = quantity(run["samples_per_s"]) if run["feasible"] else "does not fit"
        rows.append((model, phase, mode.replace("-", " "), f"{run['batch']:,}", str(run["systems"]), rate, fraction,
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
            (key, f"{run['regions']} of {run['grid']} x {run['cols']}", f"{run['tokens_per_s_per_user']:,.0f}",
             f"{1e3 * run['time_to_first_token_s']:,.1f}", f"{run['max_context']:,}", run["binding"])
        )  # fmt: skip
    head = ("request", "regions", "tokens/s per user", "first token (ms)", "longest context", "bound by")
    return markdown(head, rows)


MOVES_AT_LEAST = 1e-4  # of a rate
PIPELINED = "pipelined"


@table("constants")
def _constants() -> str:
    """Return the effect of halving or doubling each constant, and the most that better hardware lost."""
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
        fractions = [_reach(fraction) for fraction in moved.values()]
        if name in data["unmeasured"]:
            fractions[data["modes"].index(PIPELINED)] = "not measured"
        kernels = "" if found["kernels"] is None else str(found["kernels"] or "")
        acts = (wafer if name in wafer.provenance else cluster).provenance[name].acts
        says = {"models": "", "programs": "programs on the fabric", "report": "what is shown"}[acts]
        rows.append(
            (f"`{name}`", *fractions, kernels, says, percent(lost, 1, False) if lost >= 0.001 else "")
        )
    head = ("constant", *data["modes"], "kernels", "marked: acts on", "lost by better hardware")
    return markdown(head, rows)


def _reach(fraction: float) -> str:
    if fraction == float("inf"):
        return "fits or not"
    return percent(fraction, 2 if fraction < 0.01 else 0, False) if fraction >= MOVES_AT_LEAST else ""


PROGRAM = "over the exported program"
_CAUSES = (
    (
        "depend on values",
        ("depends on values", "depends on the values", "is read into Python", "numpy array"),
    ),
    (
        "inputs that the benchmark does not know",
        ("NoneType", "must be specified", "expected input", "Expected"),
    ),
    ("operators without a kernel", ("has no kernel", "is not supported", "not supported")),
)
"""Causes of refusals, by what their sentences say."""


def _cause(row: Mapping[str, str]) -> str:
    """State why a model was not captured, in a few words."""
    if row["state"] != "refused":
        return row["state"]
    return next((name for name, marks in _CAUSES if any(m in row.get("why", "") for m in marks)), "other")


@table("zoo-drawn")
def _zoo_drawn() -> str:
    """Return zoos in an order that was drawn once: how many models are captured, with equal FLOPs; the others by cause."""
    data = json.loads((numbers.ROOT / "docs" / "zoo_drawn.json").read_text(encoding="utf-8"))
    rows, failed = [], []
    for zoo, part in data.items():
        for phase, found in part["rows"].items():
            built = {name: row for name, row in found.items() if row["state"] != "not built"}
            captured = [
                row for row in built.values() if row["state"] in ("runs", "FLOPs differ", "does not fit")
            ]
            compared = [row for row in captured if row.get("counter", PROGRAM) == PROGRAM]
            equal = sum(row["state"] != "FLOPs differ" for row in compared)
            causes = Counter(_cause(row) for row in built.values() if row not in captured)
            commits = ", ".join(sorted({row["commit"] for row in found.values()}))
            bare = sum("inputs" in row for row in captured)
            rows.append(
                (
                    *(f"{zoo} {part['versions'][zoo]}", phase, str(part["names"]), str(len(found))),
                    str(len(found) - len(built)),
                    f"{len(captured)} of {len(built)}"
                    + (f" ({bare} by required inputs only)" if bare else ""),
                    f"{equal} of {len(compared)}",
                    "; ".join(f"{cause}: {n}" for cause, n in sorted(causes.items())),
                    *(part["date"], commits),
                )
            )
            failed += [
                (
                    zoo,
                    f"`{name}`",
                    phase,
                    _cause(row),
                    row.get("why", "").replace("|", "/").replace("<", "(").replace(">", ")"),
                )
                for name, row in built.items()
                if row not in captured or row["state"] == "FLOPs differ"
            ]
    head = (
        "zoo",
        "phase",
        "names",
        "drawn",
        "no example",
        "captured",
        "FLOPs equal",
        "others",
        "date",
        "commit",
    )
    return f"{markdown(head, rows)}\n\n{markdown(('zoo', 'model', 'phase', 'cause', 'reason'), failed)}"


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
            unknown = sum("sources" not in row for row in run)
            code = f"{now} / {len(run) - now - unknown} / {unknown}"
            over = count["over the limit"]
            counts = (part["names"], tried, len(run), len(compared), over, code, count["not built"])
            rules = Counter(row.get("rule", "earlier samples") for row in found.values())
            chosen = "; ".join(f"{rule} ({n})" for rule, n in sorted(rules.items()))
            rows.append((version, phase, *map(str, counts), chosen, part["date"]))
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
        "over the limit",
        "code: last / other / not noted",
        "no example",
        "how chosen (names)",
        "date",
    )
    return f"{markdown(head, rows)}\n\n{markdown(('zoo', 'model', 'state', 'reason'), failed)}"


@table("validation.misaligned")
def _misaligned() -> str:
    found, rows = measurements.read("grids")["values"]["misaligned"], []
    for i, request in enumerate(found["requests"]):
        stated = request["published"]
        rates = (
            f"{quantity(rate)} ({percent(rate / stated - 1)})"
            for rate in (found["with"]["requests"][i], found["without"]["requests"][i])
        )
        rows.append(
            (f"{request['tokens_in']:,} tokens in, {request['tokens_out']:,} out", f"{stated:,}", *rates)
        )
    rows.append(
        ("map element (cycles), fitted to prefill", "",
         *(f"{found[how]['map_element_cycles']:.1f}" for how in ("with", "without")))
    )  # fmt: skip
    rows.append(
        ("prefill of 4,096 tokens on 720 x 720, even tiles", "",
         *(quantity(found[how]["even_tokens_per_s"], 3) for how in ("with", "without")))
    )  # fmt: skip
    return markdown(("request (tokens/s)", "published", "with the cost", "without"), rows)


@table("validation.die_edges")
def _die_edges() -> str:
    found = measurements.read("grids")["values"]["die_edges"]
    plain, edges = found["nothing"], found["edges"]
    rows = [
        (f"nothing; a relay of {plain['relay_cycles']:.1f} cycles (fitted)",
         percent(plain["rms"], 2, False), percent(plain["largest"], 1, False)),
        (f"**{edges['edge_cycles']:.1f} ± {edges['edge_sigma']:.1f} cycles at every 1172 / 7 = 167.4 rows; a relay of "
         f"{edges['relay_cycles']:.2f} ± {edges['relay_sigma']:.2f} (fitted)**",
         f"**{percent(edges['rms'], 2, False)}**", f"**{percent(edges['largest'], 1, False)}**"),
    ]  # fmt: skip
    table = markdown(("what a wavelet pays", "rms error", "largest"), rows)
    told = (
        f"One more constant lowers the sum of squares {found['squares_ratio']:.0f} times (F = {found['F']:.0f}, "
        f"p = {found['p']:.0e})."
    )
    return f"{table}\n\n{told}"


@table("whole.laid_over_plain")
def _laid_over_plain() -> str:
    rows = []
    for model, plan in group("plans").items():
        for name in plan:
            if name.endswith("_laid_over_plain"):
                family = name.removesuffix("_laid_over_plain")
                ratio = "no program is composed" if plan[name] is None else quantity(plan[name], 3)
                rows.append((model, f"`{family}`", percent(plan[f"{family}_fraction"], sign=False), ratio))
    return markdown(("model", "family", "of the time", "laid over plain"), rows)
