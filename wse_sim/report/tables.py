"""Tables for the terminal and the same numbers as JSON and as a data frame.

The first five lines carry the names that the compile reports of the real machine print.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import WseError
from wse_sim.report import bottleneck, views
from wse_sim.report.data import as_json, to_dataframe
from wse_sim.report.levers import Lever, levers_of
from wse_sim.report.text import kib, number, percent, percents, seconds, shorten, si

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = [
    "as_json",
    "comparison",
    "comparison_text",
    "kernel_table",
    "summary",
    "summary_text",
    "table",
    "to_dataframe",
]

WIDTH = 80


@dataclass(frozen=True)
class Printed:
    """Something that a rich console prints in its own width and that `str` gives in 80 plain columns."""

    body: RenderableType

    def __rich__(self) -> RenderableType:
        return self.body

    def __str__(self) -> str:
        return render(self.body).rstrip("\n")


SORT_KEYS: dict[str, Callable[[views.KernelGroup], Any]] = {
    "time": lambda row: -row.core_s,
    "busy": lambda row: -row.fraction(row.busy_s),
    "stalled": lambda row: -row.fraction(row.stalled_input_s + row.stalled_output_s),
    "idle": lambda row: -row.fraction(row.idle_s),
    "utilization": lambda row: -row.utilization,
    "cores": lambda row: -row.cores * row.members,
    "memory": lambda row: -row.memory_bytes,
    "name": lambda row: row.name,
}
"""Sort keys of :func:`kernel_table`; ``time`` is busy core-seconds."""

COUNT_MEANS = "Count is regions (pipelined) or runs per step (weight streaming)"
PHASES = {"forward": "fwd", "input_gradient": "dx", "weight_gradient": "dw", "update": "upd"}


def headline(result: Result) -> list[tuple[str, str]]:
    """Return the five lines every user of the real machine knows."""
    return [
        ("Samples/s", number(result.samples_per_s) + _bounds(result, "samples_per_s")),
        ("Compute Samples/s", number(result.compute_samples_per_s) + _links_bind(result)),
        ("Transmission Samples/s", number(result.transmission_samples_per_s)),
        ("Active PEs (%)", percents(result.active_pe_fraction)),
        ("Compute Utilization (%)", percents(result.compute_utilization)),
    ]


def _links_bind(result: Result) -> str:
    """Return whether the rate with free input is that of a link, and not of the kernels."""
    return " (links bind)" if result.compute_binding == "links" else ""


def _bounds(result: Result, name: str) -> str:
    """Format bounds as `` (1,050 to 1,340, 90 %)``; empty if no bounds were requested."""
    found = result.intervals.get(name)
    return "" if found is None else f" ({number(found.low)} to {number(found.high)}, {found.percent:g} %)"


def binding_lines(result: Result, levers: Sequence[Lever] = ()) -> list[str]:
    """Text lines with the binding resource of the step and its remedy, and the fractions of the first four resources."""
    ranked = sorted(result.bindings.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"bottleneck: {bottleneck.named(result, levers)}"]
    for name, alone_s in ranked[:4]:
        fraction = alone_s / result.step_s if result.step_s else 0.0
        lines.append(f"{name}: {seconds(alone_s)} alone, {percent(fraction)} of the step")
    return lines


def facts(result: Result) -> list[tuple[str, str]]:
    """Step time, MFU, memory and traffic in a few lines."""
    wafer = result.plan.wafer
    fullest = views.fullest_core(result)
    most, (row, col, direction), fraction = views.busiest_link(result)
    spent = views.energy(result)
    rows = [
        ("Step time", f"{seconds(result.step_s)} for {result.batch} samples on {_systems(result.systems)}"),
        ("MFU", f"{percent(result.mfu)} ({si(result.flops_per_step, 'FLOP')} per step)"),
        (
            "Memory per core",
            f"{kib(fullest.total_bytes)} of {kib(wafer.sram_usable_bytes)} usable (fullest core)",
        ),
    ]
    if most:
        rows.append(
            (
                "Busiest link",
                f"{number(most)} wavelets ({percent(fraction)}), core ({row}, {col}) {'NESW'[direction]}",
            )
        )
    token = f", {si(spent.token_joules, 'J')} per token" if spent.token_joules else ""
    rows.append(
        (
            "Energy",
            f"{si(spent.step_joules, 'J')} per step, {si(spent.sample_joules, 'J')} per sample{token}, "
            f"{si(spent.power_w, 'W')} a system ({percent(spent.busy_fraction)} of its cores at work; "
            f"{si(spent.idle_joules, 'J')} per step if idle, {si(spent.work_joules, 'J')} if all work)",
        )
    )
    return rows


def _systems(count: int) -> str:
    return f"{count} system" + ("s" if count > 1 else "")


def summary(result: Result | Infeasible, row_limit: int = 12) -> Printed:
    """Return the report of one run: for a rich console (colors only on a terminal) or, by `str`, 80 plain columns."""
    from rich.console import Group
    from rich.text import Text

    if isinstance(result, Infeasible):
        fault = Text(f"{result.model}, {result.mode}: does not fit", style="bold red")
        return Printed(Group(fault, Text(result.message)))
    title = f"{result.model}, {result.mode}, {result.phase}, batch {result.batch}, {result.plan.wafer.name}"
    binds = binding_lines(result, levers_of(result))
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        Text(),
        _pairs(headline(result), style="bold"),
        Text(),
        Text(binds[0], style="bold yellow"),
        *(Text(f"  {line}") for line in binds[1:]),
        Text(),
        _pairs(facts(result)),
        Text(),
        kernel_table(result, row_limit=row_limit),
    ]
    notes = views.notes(result)
    if notes:
        parts += [Text(), Text("Notes", style="bold"), *(Text(f"- {note}") for note in notes)]
    return Printed(Group(*parts))


def _pairs(rows: Sequence[tuple[str, str]], style: str = "") -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(style=style, overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def kernel_table(
    result: Result, sort_by: str = "time", row_limit: int = 20, *, folded: bool = True
) -> Printed:
    """Return the kernels in the manner of torch.profiler: fractions of time, most core time first.

    Raises
    ------
    WseError
        If `sort_by` is none of :data:`SORT_KEYS`.
    """
    from rich import box
    from rich.table import Table

    rows = sorted_groups(result, sort_by, folded=folded)
    total = sum(row.core_s for row in rows) or 1.0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.caption = (
        f"{COUNT_MEANS}. Fractions in %: Time of all busy core time; Busy, In and Out (stalled on input, on output), "
        "Idle of the kernel's own time; Util is arithmetic over time."
    )
    table.caption_justify = "left"
    table.add_column("Kernel", no_wrap=True)
    for name in ("Count", "Cores", "Time", "Busy", "In", "Out", "Idle", "Util"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Bound", no_wrap=True)
    for row in rows[:row_limit]:
        fractions = (row.busy_s, row.stalled_input_s, row.stalled_output_s, row.idle_s)
        phase = PHASES.get(row.phase, "")
        if row.name.endswith(f".{phase}"):
            phase = ""
        table.add_row(
            shorten(f"{row.name} {phase}".rstrip(), 24),
            f"x{row.runs}",
            str(row.cores),
            f"{100 * row.core_s / total:.1f}",
            *(f"{100 * row.fraction(part):.0f}" for part in fractions),
            f"{100 * row.utilization:.0f}",
            row.bound[:7],
        )
    if len(rows) > row_limit:
        rest = rows[row_limit:]
        fraction = 100 * sum(row.core_s for row in rest) / total
        table.add_row(f"({len(rest)} more)", f"x{sum(row.runs for row in rest)}", "", f"{fraction:.1f}")
    return Printed(table)


def sorted_groups(result: Result, sort_by: str = "time", *, folded: bool = True) -> list[views.KernelGroup]:
    """Folded kernels in the order of `sort_by`; equal ones by name.

    Raises
    ------
    WseError
        If `sort_by` is none of :data:`SORT_KEYS`.
    """
    if sort_by not in SORT_KEYS:
        raise WseError(f"a table cannot be sorted by '{sort_by}'; use one of {', '.join(SORT_KEYS)}")
    key = SORT_KEYS[sort_by]
    return sorted(views.fold(result.kernels, folded=folded), key=lambda row: (key(row), row.name, row.phase))


def render(renderable: RenderableType, width: int = WIDTH) -> str:
    """Return a rich renderable as plain text without colors."""
    import io

    from rich.console import Console

    console = Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False
    )
    with console.capture() as capture:
        console.print(renderable, highlight=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def summary_text(result: Result | Infeasible, row_limit: int = 12) -> str:
    """:func:`summary` as plain text of at most 80 columns."""
    return str(summary(result, row_limit))


def comparison_text(rows: Sequence[Result | Infeasible]) -> str:
    """:func:`comparison` as plain text of at most 80 columns."""
    return str(comparison(rows))


def table(result: Result, sort_by: str = "time", row_limit: int = 20, *, folded: bool = True) -> str:
    """:func:`kernel_table` as plain text of at most 80 columns."""
    return str(kernel_table(result, sort_by, row_limit, folded=folded))


def comparison(rows: Sequence[Result | Infeasible]) -> Printed:
    """Return modes in one table with a column for each; a model that does not fit has a column too."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(row.mode, justify="left", overflow="fold")
    cells = comparison_columns(rows)
    for name in dict.fromkeys(name for cell in cells for name in cell):
        table.add_row(name, *(cell.get(name, "-") for cell in cells))
    return Printed(table)


def comparison_columns(rows: Sequence[Result | Infeasible]) -> list[dict[str, str]]:
    """Return the cells of a comparison by name, one dictionary for each of `rows`."""
    cells = [_comparison_cells(row) for row in rows]
    rates = [row.samples_per_s for row in rows if isinstance(row, Result)]
    if len(rates) > 1:
        for row, cell in zip(rows, cells, strict=True):
            if isinstance(row, Result):
                cell["Relative rate"] = f"{row.samples_per_s / max(rates):.3g}"
    return cells


def _comparison_cells(row: Result | Infeasible) -> dict[str, str]:
    if isinstance(row, Infeasible):
        return {
            "Fits": "no",
            "Bottleneck": row.binding,
            "Need": si(row.need, "B" if row.unit == "bytes" else row.unit),
            "Limit": si(row.limit, "B" if row.unit == "bytes" else row.unit),
            "Remedy": row.remedy,
        }
    return {
        "Fits": "yes",
        **dict(headline(row)),
        "Step time": seconds(row.step_s),
        "MFU": percent(row.mfu),
        "Systems": str(row.systems),
        "Batch": str(row.batch),
        "Memory per core": kib(views.fullest_core(row).total_bytes),
        "Bottleneck": row.binding,
    }
