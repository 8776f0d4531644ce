"""Comparison of two results: different settings, and the resources, links and kernels that cause the difference.

Times are per sample of all systems, so that runs with different batches and numbers of systems can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias, overload

from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import WseError
from wse_sim.hardware.cluster import Cluster
from wse_sim.hardware.scalar_costs import ScalarCosts
from wse_sim.hardware.wafer import Wafer
from wse_sim.report import views
from wse_sim.report.tables import PHASES, WIDTH, render
from wse_sim.report.text import number, seconds, shorten, si
from wse_sim.view_registry import Displayed

if TYPE_CHECKING:
    from rich.table import Table

Machine: TypeAlias = Wafer | Cluster
SHOWN_SETTINGS = 12
MOST_TEXT = 30  # characters of a setting


@dataclass(frozen=True)
class Change:
    """A quantity of both results; None if one of them does not have it.

    Example
    -------
    >>> Change("links", 2e-8, 1e-8).ratio == "x 0.5"
    True
    """

    name: str
    before: float | None
    after: float | None

    @property
    def size(self) -> float:
        """`after` minus `before`; a missing value counts as 0."""
        return (self.after or 0.0) - (self.before or 0.0)

    @property
    def ratio(self) -> str:
        """Return `after` divided by `before`, as text."""
        return f"x {self.after / self.before:.3g}" if self.before and self.after is not None else "-"


@dataclass(frozen=True, repr=False)
class Difference(Displayed):
    """The differences between two results.

    `settings` are (name, first, second) of options that differ; `resources` the seconds per sample that each
    resource alone would take; `links` the wavelets per sample by direction; `kernels` the busy core-seconds
    per sample, largest change first.

    Example
    -------
    >>> import wse_sim
    >>> slow, fast = (wse_sim.run("fc-mnist", mode="weight-streaming", batch=batch) for batch in (8, 64))
    >>> found = wse_sim.diff(slow, fast)
    >>> [(name, first, second) for name, first, second in found.settings]
    [('batch', '8', '64')]
    """

    before: Result
    after: Result
    settings: tuple[tuple[str, str, str], ...]
    resources: tuple[Change, ...]
    links: tuple[Change, ...]
    kernels: tuple[Change, ...]

    @property
    def brief(self) -> str:
        """Return the two rates, and the bottleneck of each."""
        one, two = self.before, self.after
        ratio = two.samples_per_s / one.samples_per_s
        fraction = "the same rate" if f"{ratio:.3g}" == "1" else f"{ratio:.3g} times the rate"
        binding = (
            f"both bound by {one.binding}"
            if one.binding == two.binding
            else f"bound by {one.binding}, then by {two.binding}"
        )
        return f"{fraction}: {number(one.samples_per_s)} -> {number(two.samples_per_s)} samples/s, {binding}"

    def text(self, row_limit: int = 12) -> str:
        """Return the difference as text of 80 columns."""
        names = f"first:  {self.before.brief}\nsecond: {self.after.brief}\n"
        return "\n".join([names, self.brief, "", *(render(table) for table in self._tables(row_limit))])

    def _repr_html_(self) -> str:
        body = escape(self.text())
        return f"<pre style='line-height:1.25'>{body}</pre>"

    def _tables(self, row_limit: int) -> list[Table]:
        tables = []
        if self.settings:
            rows = [(name, one, two) for name, one, two in self.settings[:SHOWN_SETTINGS]]
            if len(self.settings) > SHOWN_SETTINGS:
                rows.append((f"({len(self.settings) - SHOWN_SETTINGS} more)", "", ""))
            tables.append(_table(("Asked", "first", "second"), rows))
        for title, changes, unit in (
            ("Resource alone, per sample", self.resources, seconds),
            ("Wavelets per sample", self.links, _count),
            ("Busy core-seconds per sample", self.kernels, seconds),
        ):
            if any(change.size for change in changes):
                tables.append(_of_changes(title, changes, row_limit, unit))
        return tables


@dataclass(frozen=True, repr=False)
class ConstantsDifference(Displayed):
    """The constants of two wafers, or of two clusters, that differ: (name, first, second, unit).

    Example
    -------
    >>> import wse_sim
    >>> wafer = wse_sim.load_wafer("wse2")
    >>> wse_sim.diff(wafer, wafer.derive(sram_bytes=65536)).rows
    (('sram_bytes', '49,152', '65,536', 'bytes'),)
    """

    before: Machine
    after: Machine
    rows: tuple[tuple[str, str, str, str], ...]

    @property
    def brief(self) -> str:
        """Return both names, and the number of constants that differ."""
        return f"{self.before.name} -> {self.after.name}: {len(self.rows)} constants differ"

    def text(self) -> str:
        """Return all differing constants as a table of 80 columns."""
        rows = [(shorten(name, 38), one, two, unit) for name, one, two, unit in self.rows]
        return (
            f"{self.brief}\n\n{render(_table(('Constant', self.before.name, self.after.name, 'unit'), rows))}"
        )

    def _repr_html_(self) -> str:
        return f"<pre style='line-height:1.25'>{escape(self.text())}</pre>"


def _constants(before: Machine, after: Machine) -> ConstantsDifference:
    one, two = (machine.model_dump(include=set(machine.provenance)) for machine in (before, after))
    names = dict.fromkeys((*one, *two))
    return ConstantsDifference(
        before,
        after,
        tuple(
            (name, _constant(one.get(name)), _constant(two.get(name)), after.provenance[name].unit)
            for name in names
            if one.get(name) != two.get(name)
        ),
    )


def _constant(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_constant, value))
    return (
        f"{value:,.6g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


@overload
def diff(before: Machine, after: Machine) -> ConstantsDifference: ...
@overload
def diff(before: Result | Infeasible, after: Result | Infeasible) -> Difference: ...
def diff(
    before: Result | Infeasible | Machine, after: Result | Infeasible | Machine
) -> Difference | ConstantsDifference:
    """Return the differences of `after` from `before`: two results, two wafers or two clusters.

    Raises
    ------
    WseError
        If one of them does not fit, so that it has no rate, or they are of different kinds.

    Examples
    --------
    >>> import wse_sim
    >>> one, two = (wse_sim.run("fc-mnist", mode="pipelined", batch=n) for n in (64, 256))
    >>> [name for name, *_ in wse_sim.diff(one, two).settings]
    ['batch']
    """
    for machine in (Wafer, Cluster):
        if isinstance(before, machine) and isinstance(after, machine):
            return _constants(before, after)
    for result in (before, after):
        if isinstance(result, Infeasible):
            raise WseError(f"only results that fit are compared; {result.message}")
    if not (isinstance(before, Result) and isinstance(after, Result)):
        kinds = f"{type(before).__name__} and {type(after).__name__}"
        raise WseError(
            f"{kinds} cannot be compared; give two results of wse_sim.run, two wafers or two clusters"
        )
    return Difference(
        before,
        after,
        tuple(_settings(before, after)),
        _changes(*({n: v / r.batch for n, v in r.bindings.items()} for r in (before, after))),
        _changes(
            *({n: v * r.systems / r.batch for n, v in views.link_totals(r).items()} for r in (before, after))
        ),
        _changes(*(_kernels(r, by_family=before.mode != after.mode) for r in (before, after))),
    )


def _changes(before: dict[str, float], after: dict[str, float]) -> tuple[Change, ...]:
    names = dict.fromkeys((*before, *after))
    changes = [Change(name, before.get(name), after.get(name)) for name in names]
    return tuple(sorted(changes, key=lambda change: -abs(change.size)))


def _kernels(result: Result, *, by_family: bool) -> dict[str, float]:
    """Return the busy core-seconds per sample by kernel, or by family if modes divide the work into different
    kernels."""
    found: dict[str, float] = {}
    for row in views.fold(result.kernels):
        phase = PHASES.get(row.phase, "")
        name = row.family if by_family else row.name if row.name.endswith(phase) else f"{row.name} {phase}"
        found[name] = found.get(name, 0.0) + row.core_s * result.systems / result.batch
    return found


def _settings(before: Result, after: Result) -> list[tuple[str, str, str]]:
    one, two = (_asked(result) for result in (before, after))
    names = dict.fromkeys((*one, *two))
    rows = [(name, one.get(name, "-")[:MOST_TEXT], two.get(name, "-")[:MOST_TEXT]) for name in names]
    return [row for row in rows if row[1] != row[2]]


def _asked(result: Result) -> dict[str, str]:
    found = {
        "model": result.model,
        "mode": result.mode,
        "phase": result.phase,
        "batch": f"{result.batch:,}",
        "systems": f"{result.systems:,}",
    }
    found |= {f"model {name}": str(value) for name, value in sorted(result.plan.graph.facts.items())}
    for what, machine in (("wafer", result.plan.wafer), ("cluster", result.plan.cluster)):
        values = machine.model_dump(
            exclude={"provenance", "correlations", *ScalarCosts.model_fields}
        )  # scalar costs act on CSL alone, correlations on intervals
        found |= {f"{what}.{name}": _shown(value) for name, value in values.items()}
    return found


def _count(value: float) -> str:
    return si(value, "").rstrip()


def _shown(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _of_changes(title: str, changes: Sequence[Change], row_limit: int, unit: Callable[[float], str]) -> Table:
    rows = [
        (
            shorten(change.name, 30),
            *("-" if value is None else unit(value) for value in (change.before, change.after)),
            f"{'+' if change.size >= 0 else '-'}{unit(abs(change.size))}",
            change.ratio,
        )
        for change in changes[:row_limit]
        if change.size
    ]
    return _table((title, "first", "second", "change", "ratio"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), width=WIDTH)
    for column, name in enumerate(head):
        table.add_column(name, justify="right" if column else "left", ratio=2 if column == 0 else 1)
    for row in rows:
        table.add_row(*row)
    return table
