"""Sensitivity of a number to each constant, with a mark for assumed constants.

Each constant is changed alone: by a tenth of its value (integers by one, scaled to a tenth), and to the
ends of its range. The plan does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wse_sim.hardware import Cluster, Wafer
from wse_sim.picture_text import plain_text
from wse_sim.uncertainty.draws import DrawnMachine, Ranged, changed, ranged
from wse_sim.uncertainty.spread import Figures

LEAST = 1e-4  # of the number: what moves it less is left out
BARS = 16  # of the tornado plot


@dataclass(frozen=True)
class Effect:
    """The effect of one constant on the number, as relative changes."""

    name: str
    value: float
    unit: str
    evidence: str
    per_tenth: float
    at_low: float
    at_high: float

    @property
    def reach(self) -> float:
        """The larger change within the range."""
        return max(abs(self.at_low), abs(self.at_high))

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {**self.__dict__}


def sensitivity(
    evaluate: Callable[[DrawnMachine], Figures], wafer: Wafer, cluster: Cluster, figure: str
) -> tuple[Effect, ...]:
    """Return the effects of all constants with a range on one figure, the largest first."""
    base = evaluate(DrawnMachine(wafer, cluster))[figure]

    def change(constant: Ranged, value: float) -> float:
        found = evaluate(changed(wafer, cluster, [(constant.owner, constant.name, value)]))
        return found[figure] / base - 1.0 if found else 0.0

    effects = []
    for constant in ranged(wafer, cluster):
        value = constant.stated.value
        low, high = constant.stated.range or (0.0, 0.0)
        if not isinstance(value, (int, float)):
            continue
        whole = isinstance(value, int)
        step = 1.0 if whole else 0.1 * value
        tenth = change(constant, value + int(step) if whole else value + step) if step else 0.0
        per_tenth = tenth * 0.1 * value if whole else tenth
        ends = [change(constant, round(end) if whole else end) for end in (low, high)]
        effects.append(
            Effect(constant.name, value, constant.stated.unit, constant.stated.evidence, per_tenth, *ends)
        )
    kept = (e for e in effects if max(e.reach, abs(e.per_tenth)) >= LEAST)
    return tuple(sorted(kept, key=lambda e: -e.reach))


def table(effects: Sequence[Effect], figure: str) -> str:
    """Return the effects as text."""
    head = f"{'constant':<32} {'value':>12} {'per +10 %':>10} {'low end':>9} {'high end':>9}  evidence"
    lines = [f"what moves {figure}:", head]
    for e in effects:
        lines.append(
            f"{e.name:<32} {e.value:>12.5g} {e.per_tenth:>+10.2%} {e.at_low:>+9.2%} {e.at_high:>+9.2%}  {e.evidence}"
        )
    return "\n".join(lines if effects else [*lines[:1], "no constant that has a range"])


@plain_text
def draw(effects: Sequence[Effect], figure: str, path: Path) -> None:
    """Draw the tornado plot: one bar per constant from the low end of its range to the high end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = list(effects[:BARS])[::-1]
    figure_, axes = plt.subplots(figsize=(9, 1.4 + 0.34 * max(1, len(shown))), layout="constrained")
    for place, effect in enumerate(shown):
        color = "tab:orange" if effect.evidence == "assumed" else "tab:blue"
        axes.barh(place, 100 * effect.at_low, color=color, alpha=0.45, height=0.7)
        axes.barh(place, 100 * effect.at_high, color=color, height=0.7)
    axes.set_yticks(range(len(shown)), [effect.name for effect in shown], fontsize=9)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(f"change of {figure} (%): pale at the low end of the range, full at the high end")
    axes.set_title("Orange constants are assumed, blue ones have evidence", fontsize=10)
    figure_.savefig(path, dpi=120)
    plt.close(figure_)
