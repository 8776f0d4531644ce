"""Report of timing by programs: rows of measured parts, rows that keep their formula, fractions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

SHOWN = 12  # rows of each table in a text; JSON has all of them


@dataclass(frozen=True)
class TimingRow:
    """Equal parts of kernels in a plan; cycles are sums over all of them, per micro-batch or sample."""

    family: str
    phase: str
    part: str
    tile: str
    count: int
    model_cycles: float
    fabric_cycles: float
    ratio: float
    why: str

    @property
    def name(self) -> str:
        """Family, phase and part, with the tile."""
        what = " ".join(filter(None, (self.family, self.phase, self.part)))
        return f"{what} ({self.tile})" if self.tile else what

    @property
    def difference_cycles(self) -> float:
        """Fabric minus formula."""
        return self.fabric_cycles - self.model_cycles

    def joined(self, other: TimingRow) -> TimingRow:
        """The row of both."""
        return replace(
            self,
            count=self.count + other.count,
            model_cycles=self.model_cycles + other.model_cycles,
            fabric_cycles=self.fabric_cycles + other.fabric_cycles,
        )


@dataclass(frozen=True)
class TimingReport:
    """Factors for :func:`wse_sim.modes.simulation.simulate`, and the measurements behind them.

    `rows` were measured, `model_only` keep their formula; `probes` is the number of distinct probes, `cached`
    the number of those known from earlier runs.
    """

    factors: Mapping[str, float]
    rows: tuple[TimingRow, ...]
    model_only: tuple[TimingRow, ...]
    notes: tuple[str, ...]
    probes: int = 0
    cached: int = 0

    @property
    def total_cycles(self) -> float:
        """Cycles of the plan by formula."""
        return sum(row.model_cycles for row in (*self.rows, *self.model_only))

    @property
    def measured_fraction(self) -> float:
        """Fraction of the plan's cycles that were measured on the fabric."""
        total = self.total_cycles
        return sum(row.model_cycles for row in self.rows) / total if total else 0.0

    @property
    def summary(self) -> str:
        """One line: what was measured, and how many results came from the cache."""
        return (
            f"measured on the fabric: {100 * self.measured_fraction:.1f} % of the cycles of the formulas, by {self.probes} distinct "
            f"probes ({self.cached} from the cache)"
        )

    def as_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {
            "measured_fraction": self.measured_fraction,
            "probes": self.probes,
            "cached": self.cached,
            "rows": [asdict(row) for row in self.rows],
            "model_only": [asdict(row) for row in self.model_only],
            "notes": list(self.notes),
        }

    def text(self, shown: int = SHOWN) -> str:
        """Tables of the largest differences and of the parts that keep their formula, with reasons."""
        total = self.total_cycles or 1.0
        lines = _table(
            sorted(self.rows, key=lambda row: -abs(row.difference_cycles)),
            shown,
            total,
            "largest differences",
        )
        lines += _table(
            sorted(self.model_only, key=lambda row: -row.model_cycles),
            shown,
            total,
            "formula kept (model only)",
        )
        return "\n".join([*lines, self.summary, *self.notes])


def _table(rows: Sequence[TimingRow], shown: int, total: float, title: str) -> list[str]:
    if not rows:
        return []
    width = max(len(title), *(len(row.name) for row in rows[:shown]))
    lines = [f"{title:<{width}} {'count':>6} {'fraction':>8} {'fabric/model':>12}  why"]
    for row in rows[:shown]:
        fraction, ratio = row.model_cycles / total, row.fabric_cycles / row.model_cycles
        lines.append(f"{row.name:<{width}} {row.count:>6} {fraction:>8.1%} {ratio:>12.3f}  {row.why}")
    if rest := rows[shown:]:
        fraction = sum(row.model_cycles for row in rest) / total
        difference = sum(row.difference_cycles for row in rest) / total
        more = f"{len(rest)} more"
        lines.append(
            f"{more:<{width}} {'':>6} {fraction:>8.1%} {'':>12}  {100 * difference:+.2f} % of all cycles together"
        )
    return lines


class Rows:
    """Rows by key while a report is made: equal ones are joined, those without cycles are left out."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], TimingRow] = {}

    def add(self, row: TimingRow) -> None:
        """Count a row."""
        if row.model_cycles <= 0:
            return
        key = (row.family, row.phase, row.part, row.tile, f"{row.ratio:.12g}", row.why)
        before = self._rows.get(key)
        self._rows[key] = before.joined(row) if before else row

    def all(self) -> tuple[TimingRow, ...]:
        """The rows in the order of their first kernel."""
        return tuple(self._rows.values())
