"""Programs on the fabric and this program's own speed: fabric, kernels, CSL, training scripts, studies."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from benchmarks import csl_unseen, fabric_table, measurements, numbers
from benchmarks.fabric_table import scaled
from benchmarks.tables.base import group, markdown, percent, quantity, table

FABRIC_KEYS = {
    "dense_256": ("router-cycles/s, four moves each, fp32 payload", ""),
    "dense_wafer": ("757 x 996", ""),
    "dense_256_wse3": ("the same load on links of two cycles that carry eight words in nine", ""),
    "sparse_1pct": ("one router in a hundred at work", ""),
    "sparse_0p1pct": ("one in a thousand", ""),
    "oracle_dense_64": ("the oracle: 64 x 64, four moves each", ""),
    "neighbours_32": ("every core of 32 x 32 sends and receives 0.4 words a cycle", ""),
    "threads2_dense_wafer": ("`dense_wafer` on two threads over one, by the clock", ""),
    "threads2_sparse_1pct": ("`sparse_1pct` on two threads over one", ""),
    "threads2_csl_stencil_100": ("a stencil in CSL on 100 x 100 cores, two threads over one", ""),
    "memory_gb_per_s": ("one core reads and writes 64 MiB in turn", " GB/s"),
    "memory2_gb_per_s": ("two cores, half of it each", " GB/s"),
    "wafer_peak_gb": ("four crossing streams on the whole wafer, values included, stepped", " GB"),
    "maxplus_ns_per_word": ("max-plus equations", " ns"),
    "maxplus_speedup_summa": ("against the wavelet executor; 16 of 20 rounds are proved to repeat", ""),
    "gemv_wafer_s": ("one GEMV on the whole wafer, certificate included; 986 of 996 rows are copies", " s"),
    "periodic_wafer_s": ("a million cycles on the whole wafer; rows, columns and rounds repeat", " s"),
    "gemv_x20_wafer_s": (
        "twenty GEMVs fed from the edge, contention on every ramp; 986 rows are copies, the others time-ordered",
        " s",
    ),
    "gemv_x20_values_wafer_s": ("the same with values in every core", " s"),
    "gemv_x20_clean_wafer_s": ("the same, without values, spaced so that no two words meet", " s"),
    "compile_cold_s": ("stepped executors; WSE-3 compiles its own loop at first use, 8 s", " s"),
    "compile_cached_s": ("the same, loaded from the cache", " s"),
}


def _range(bounds: Sequence[float] | None, unit: str) -> str:
    if not bounds:
        return ""
    low, high = (scaled(bound, unit) for bound in bounds)
    return low if low == high else f"{low} to {high}"


@table("fabric.speed")
def _fabric_speed() -> str:
    entry = measurements.read("fabric")
    loaded = entry["under_load"]
    rows = [
        (f"`{key}`", text, scaled(entry["values"][key], unit), _range(loaded.get(key), unit))
        for key, (text, unit) in FABRIC_KEYS.items()
    ]
    return markdown(("key", "what", "alone", "under load"), rows)


@table("fabric.executors")
def _fabric_executors() -> str:
    rows = fabric_table.executors(
        measurements.read("fabric")["values"], measurements.read("fabric_memory")["values"]
    )
    return markdown(fabric_table.HEAD, rows)


@table("fabric.peer")
def _fabric_peer() -> str:
    found = measurements.read("fabric_peer")["values"]
    ours, theirs = found["router_cycles_per_s"], found["booksim_router_cycles_per_s"]
    rows = [
        ("wavelet executor", "`python -m benchmarks.fabric_peer`", f"{found['cycles']:,.0f}", f"{found['cpu_s']:.2f} s", scaled(ours)),
        ("BookSim 2", "`python -m benchmarks.fabric_peer --booksim > peer; time booksim peer`", f"{found['booksim_cycles']:,.0f}",
         f"{found['booksim_cpu_s']:.2f} s", f"{theirs / 1e6:.3f} M"),
        ("ratio", "", "", "", f"{ours / theirs:.0f}"),
    ]  # fmt: skip
    return markdown(("simulator", "command", "cycles", "CPU time", "router-cycles/s"), rows)


GROUPS = (
    ("reduce, 512 cores (vendor simulator)", "published", "reduce "),
    ("vector operations (vendor simulator, CS-3)", "published", "vector_op "),
    ("point to point on WSE-3 (CS-3)", "published", "point_to_point "),
    ("25-point stencil, on a small rectangle (silicon)", "published", "stencil25 "),
    ("GEMV, grids of a CS-3 that are stepped (silicon)", "published", "gemv w3"),
    ("GEMM, grids of a CS-3 that are stepped (silicon)", "published", "gemm w3"),
    ("shift on a CS-3 (silicon)", "published", "shift "),
    ("GEMV on 512 x 512 cores (silicon)", "published", "gemv gemv"),
    ("closed forms of chain, star, broadcast, broadcast 2-D", "forms", ("chain", "star", "broadcast")),
    ("closed form of tree", "forms", "tree"),
)
"""Label, section and first words of the names of rows that are in one line of the page."""


@table("fabric.fidelity")
def _fidelity() -> str:
    kept, rows = measurements.read("fidelity")["values"].values(), []
    for label, section, begins in GROUPS:
        found = [
            row
            for row in kept
            if row["section"] == section and row["name"].startswith(begins) and row["error"] is not None
        ]
        if not found:
            continue
        limits = {row["limit"] for row in found}
        worst = max(found, key=lambda row: abs(row["error"]))
        allowed = " or ".join(
            "not judged"
            if limit is None
            else "exact"
            if limit == 0
            else percent(limit, 1, False).replace(".0", "")
            for limit in sorted(limits, key=lambda limit: -1 if limit is None else limit)
        )
        rows.append((label, str(len(found)), allowed, percent(worst["error"], 2) if worst["error"] else "0"))
    return markdown(("rows", "number", "allowed", "largest deviation"), rows)


@table("gpu.speed")
def _gpu_speed() -> str:
    entry = measurements.read("gpu")
    found = entry["values"]
    rows = [
        (label, *(f"{quantity(found[f'{load}_{key}'], 3)}" for load in ("dense", "sparse")))
        for label, key in (
            ("GPU", "gpu"),
            ("wavelet executor, one core", "1_core"),
            (f"wavelet executor, {found['cores']} cores", "all_cores"),
        )
    ]
    head = ("wafer cycles per second", "dense", "sparse")
    where = f"Measured on {entry['when']}: {entry['where']}. "
    agreed = f"{found['programs']:,} random programs: {found['differ']} differ from the oracle; {found['kernels']} kernels: {len(found['kernels_differ'])}."
    return markdown(head, rows) + f"\n\n{where}{agreed}"


@table("gpu.traffic")
def _gpu_traffic() -> str:
    found = measurements.read("fabric_gpu")["values"]
    rate = found["wafer_cycles_per_s_at_most"]
    rows = [
        ("a word of 64 routers", f"{found['bytes_per_word']:,.0f} bytes a cycle"),
        ("a core that sends or receives", f"{found['bytes_per_core_at_work']:,.0f} bytes a cycle"),
        ("a router and cycle of the whole wafer, its busy cores included", f"{found['bytes_per_router_cycle_wafer']:.0f} bytes"),
        ("at 4.8 TB/s (memory of one H200)",
         f"at most {quantity(rate, 3)} wafer cycles/s, {scaled(rate * 996 * 757)} router-cycles/s"),
    ]  # fmt: skip
    return markdown(("what", "value"), rows)


@table("studies.speed")
def _studies() -> str:
    found = measurements.read("studies")["values"]
    steady, whole = found["steady_runs_per_s"], found["wall_s"]
    few, store = found["runs"], found["store"]
    rows = [
        (f"{found['many']['runs']:,} settings on 2 workers, start of the workers, capture and store included",
         f"{found['many']['wall_s']:.0f} s of wall, {found['many']['cpu_s']:.0f} s of CPU"),
        ("rate of runs once all workers run: 1 worker, 2 workers",
         f"{steady[0]:.1f} per s, {steady[1]:.1f} per s: efficiency {steady[1] / steady[0] / 2:.2f} ({few} settings)"),
        ("the same with the start: 1 worker, 2 workers",
         f"{whole[0]:.1f} s, {whole[1]:.1f} s: efficiency {whole[0] / whole[1] / 2:.2f} ({few} settings)"),
        ("a run", f"{1e3 * found['run_s']['8']:.0f} ms of CPU with 8 draws, {1e3 * found['run_s']['0']:.0f} ms without"),
        ("empty tasks through the scheduler",
         f"{found['tasks_per_s']:.0f} per s, {1e3 / found['tasks_per_s']:.0f} ms each"),
        (f"{store['rows']:,} rows: inserting 50 at a time, looking up all keys, counting, data frame",
         ", ".join(f"{store[key]:.1f}" for key in ("insert_s", "find_s", "count_s", "frame_s"))
         + f" s of CPU; {store['bytes'] / 1e6:.0f} MB"),
    ]  # fmt: skip
    return markdown(("what", "measured"), rows)


@table("studies.examples")
def _study_examples() -> str:
    rows = []
    for name, lines in measurements.read("study_examples")["values"].items():
        for line in lines:
            if "why" in line:
                rows.append((f"`{name}`", line["at"], "-", f"no result: {line['why']}", "-"))
                continue
            bounds = f" ({quantity(line['low'])} to {quantity(line['high'])})"
            rows.append(
                (
                    f"`{name}`",
                    line["at"],
                    line["setting"],
                    f"{quantity(line['value'])}{bounds} {line['unit']}",
                    line["binds"],
                )
            )
    return markdown(("study", "at", "best of the other parameters", "result, 90 %", "bottleneck"), rows)


def _drawn() -> dict[str, list[float]]:
    """Return the differences of cost against program by kernel, over the points drawn for the golden numbers."""
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
    fraction = [sizes[int(q * (len(sizes) - 1))] for q in (0.5, 0.95, 1.0)]
    row = (
        str(len(sizes)),
        percent(fraction[0], 2, False),
        *(percent(value, 1, False) for value in fraction[1:]),
    )
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
    for label, run in measurements.read("probes")["values"].items():
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


CSL = numbers.ROOT / "docs" / "csl.json"


@table("csl.speed")
def _csl_speed() -> str:
    found = measurements.read("csl_speed")["values"]

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


@table("csl.debugger")
def _csl_debugger() -> str:
    found = measurements.read("csl_debugger")["values"]
    rows = [
        ("without the debugger", 1.0),
        ("attached, no points", found["attached_times"]),
        ("one breakpoint that is not reached", found["break_point_times"]),
        ("one watchpoint that nothing writes", found["watch_point_times"]),
        ("one breakpoint, reached in every step of one core; its condition fails", found["reached_times"]),
        ("one watchpoint, written in every step of one core; its condition fails", found["written_times"]),
    ]
    head = "times the CPU time"
    return markdown(
        ("five-point stencil on 16 x 16 cores", head), [(name, f"{times:.2g}") for name, times in rows]
    )


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
    found = measurements.read("cstorch")["values"]
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


@table("csl.scripts")
def _csl_scripts() -> str:
    rows = [
        (
            row["program"],
            f"{row['cores']:,}",
            f"{row['cycles']:,}",
            f"{row['cpu_s']:g} s",
            f"{row['gbytes']} GB",
        )
        for row in measurements.read("csl_scripts")["values"]["rows"]
    ]
    return markdown(("program", "cores", "cycles", "CPU", "memory"), rows)


@table("csl.decoder")
def _csl_decoder() -> str:
    found, rows = measurements.read("csl_decoder")["values"], []
    for arch, run in found.items():
        generation = arch.upper().replace("WSE", "WSE-")
        for row in run["phases"]:
            rest = row["cycles"] - row["products"] - row["sums"]
            numbers_of = (row["cycles"], row["products"], row["sums"], rest)
            rows.append((generation, row["phase"], *(f"{value:,}" for value in numbers_of)))
        all_of = [sum(row[key] for row in run["phases"]) for key in ("products", "sums")]
        rest = run["cycles"] - sum(all_of)
        rows.append((generation, "**all**", *(f"{value:,}" for value in (run["cycles"], *all_of, rest))))
    return markdown(("generation", "phase", "cycles", "products", "sums", "rest"), rows)


@table("csl.decoder_speed")
def _csl_decoder_speed() -> str:
    rows = [
        (
            arch.upper().replace("WSE", "WSE-"),
            f"{run['cycles_per_s']:,}",
            f"{run['cpu_s']:.0f} s",
            f"{run['difference']:.1e}",
        )
        for arch, run in measurements.read("csl_decoder")["values"].items()
    ]
    head = (
        "generation",
        "cycles per CPU second",
        "CPU of the command file, five tokens",
        "difference to PyTorch",
    )
    return markdown(head, rows)


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


@table("csl.examples")
def _csl_examples() -> str:
    kept = json.loads(CSL.read_text(encoding="utf-8"))
    rows = [
        (sdk, arch.upper().replace("WSE", "WSE-"), str(row["cases"]), str(row["passed"]), f"{row['median_s']:.0f} s",
         f"{row['longest_s']:.0f} s (`{row['longest'].rpartition('/')[2]}`)", f"{row['total_s'] / 60:.0f} min", f"{row['when']}, {row['where']}")
        for sdk, key in (("1.4", "examples"), ("2.10", "examples_2_10"))
        for arch, row in kept.get(key, {}).items()
    ]  # fmt: skip
    return markdown(
        ("SDK", "generation", "command files", "pass", "median", "longest", "all", "when and where"), rows
    )


@table("csl.published")
def _csl_published() -> str:
    rows = [
        (f"`{row['id'].removeprefix('csl-')}`", row["system"].upper().replace("WSE", "WSE-"), row["evidence"],
         quantity(row["measured"], 5), quantity(row["predicted"], 5), percent(row["error"]))
        for row in json.loads(CSL.read_text(encoding="utf-8"))["published"]
    ]  # fmt: skip
    return markdown(("program", "generation", "evidence", "published", "predicted", "error"), rows)


@table("csl.size")
def _csl_size() -> str:
    rows = []
    for row in json.loads(CSL.read_text(encoding="utf-8"))["size"]:
        cores = row["cols"] * row["rows"]
        rows.append(
            (row["program"], f"{row['cols']} x {row['rows']}", str(row["classes"]), f"{row['cycles']:,}",
             *(f"{row[phase + '_s']:.1f}" for phase in ("compile", "load", "in", "execute", "out")),
             f"{row['execute_s'] * 1e9 / (row['cycles'] * cores):.0f} ns", f"{row['peak_gb']:.2f} GB")
        )  # fmt: skip
    head = ("program", "cores", "classes", "cycles", "compile s", "load s", "in s", "run s", "out s")
    return markdown((*head, "run, per core and cycle", "memory"), rows)


@table("csl.static")
def _csl_static() -> str:
    rows = []
    for row in json.loads(CSL.read_text(encoding="utf-8"))["static"]:
        lowered = f"{row['lowered']} of {row['launches']}" if row["launches"] else "none launched"
        by_data = any(word in row["decides"] for word in ("data of the host", "a word that arrived"))
        static = "no" if by_data else "not proved" if row["decides"] else "yes"
        binds = _as_text(row["decides"] or row["refused"])
        rows.append((row["case"].split("/")[-1], static, lowered, binds))
    return markdown(("case", "static", "launches lowered", "why not more"), rows)


def _as_text(reason: str) -> str:
    """Return a reason in a cell of a table: angle brackets are no tags."""
    return reason.replace("<", "&lt;").replace(">", "&gt;").replace("|", "/")


@table("csl.static_speed")
def _csl_static_speed() -> str:
    kept, rows = json.loads(CSL.read_text(encoding="utf-8")), []
    sizes = {(r["key"], r["cols"], r["rows"]): r["execute_s"] for r in kept["size"]}
    for row in kept["static_speed"]:
        machine = row.get("machine_s", sizes.get((row["key"], row["cols"], row["rows"])))
        static = row["static_s"] if row["cycles"] is not None else None
        ratio = f"{machine / static:,.0f}" if machine and static else ""
        rows.append(
            (row["program"], f"{row['cols']} x {row['rows']}", f"{row['cycles']:,}" if row["cycles"] else "",
             "" if machine is None else f"{machine:,.1f}", "" if static is None else f"{static:,.1f}", ratio, row["how"] or row["reason"])
        )  # fmt: skip
    head = ("program", "cores", "cycles", "machine, CPU s", "without values, CPU s", "ratio", "how")
    return markdown(head, rows)


@table("csl.costs")
def _csl_costs() -> str:
    rows = [
        (row["row"], f"{row['cycles']:,.1f}", f"{row['published']:,.1f}", percent(row["error"]))
        for row in json.loads(CSL.read_text(encoding="utf-8"))["costs"]
    ]
    return markdown(("row", "cycles", "published", "error"), rows)


@table("csl.unseen")
def _csl_unseen() -> str:
    kept = json.loads(CSL.read_text(encoding="utf-8"))["unseen"]
    rows = []
    for row in kept:
        errors = {arch: row["cycles"][arch] / row["published"][arch] - 1 for arch in csl_unseen.ARCHES}
        rows.append(
            (row["row"], "held back" if row["held"] else "seen",
             *(text for arch in csl_unseen.ARCHES
               for text in (f"{row['published'][arch]:,}", f"{row['cycles'][arch]:,.0f}", percent(errors[arch], 0))))
        )  # fmt: skip
    head = (
        "stencil, tile, radius",
        "",
        "WSE-2, published",
        "here",
        "error",
        "WSE-3, published",
        "here",
        "error",
    )
    found = []
    for label, held in (("the six that were seen", False), ("the four held back", True)):
        of = csl_unseen.summary(kept, held=held)
        found.append((label, str(of["rows"]), percent(of["median"], 0, False), percent(of["largest"], 0, False), str(of["beyond"])))  # fmt: skip
    small = markdown(("rows", "number", "median error", "largest", "beyond 35 %"), found)
    order = f"The faster generation is right in {csl_unseen.ordered(kept)} of {len(kept)}."
    return small + "\n\n" + order + "\n\n" + markdown(head, rows)


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
