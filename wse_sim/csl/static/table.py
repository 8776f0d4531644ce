"""Text output of the static analysis."""

from __future__ import annotations

from collections.abc import Iterable

from wse_sim.csl.static.launches import Launch
from wse_sim.csl.static.proof import Verdict

HEAD = f"{'launch':<28} {'lowered':<7} {'cycles':>10} {'machine':>10} {'proof s':>8} {'run s':>8} {'machine s':>9}  how the times were found"

ALL_AT_ONCE = "all rows begin at once"
"""Description of a launch that was counted with some rows left out."""


def table(launches: Iterable[Launch]) -> str:
    """Format launches as one line each, followed by the classes that are not static, with the reason."""
    lines = [HEAD]
    for launch in launches:
        cycles = "" if launch.cycles is None else f"{launch.cycles:,}"
        machine = "" if launch.machine_cycles is None else f"{launch.machine_cycles:,}"
        seconds = "" if launch.machine_s is None else f"{launch.machine_s:.2f}"
        lines.append(
            f"{launch.name:<28} {'no' if launch.cycles is None else 'yes':<7} {cycles:>10} {machine:>10} "
            f"{launch.proof_s:8.2f} {launch.run_s:8.2f} {seconds:>9}  {launch.how}"
        )
        lines += [f"    {line}" for line in _reasons(launch)]
        if launch.cycles is not None and launch.bounds[0] < launch.bounds[1]:
            why = (
                "rows begin one after another"
                if ALL_AT_ONCE in launch.how
                else "tasks continue during short operations"
            )
            lines.append(f"    between {launch.bounds[0]:,} and {launch.bounds[1]:,}: {why}")
        if not launch.is_exact and launch.cycles is not None:
            lines.append(
                "    a core sends through queues of several depths, or a color is read through several: the smallest depth is used for all"
            )
    return "\n".join(lines)


def _reasons(launch: Launch) -> list[str]:
    """Return why a launch is not static: the classes by reason."""
    if launch.cycles is not None:
        return []
    found = _by_reason(launch.verdicts)
    stated = [verdict.reason for verdict in launch.verdicts if verdict.reason]
    if not stated:
        return [launch.reason]
    rest = launch.reason.removeprefix(stated[0]).removeprefix("; ")
    return [*found, rest] if rest else found


def course_text(verdicts: Iterable[Verdict]) -> str:
    """Describe what decides the course of a run."""
    found = _by_reason(verdicts)
    if not found:
        return "the control flow of this run depends on no data: every run takes the same cycles"
    return "\n".join(["what may change the control flow of this run:", *(f"    {line}" for line in found)])


def _by_reason(verdicts: Iterable[Verdict]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.reason:
            by_reason.setdefault(verdict.reason, []).append(verdict.name)
    return [f"{_named(names)}: {reason}" for reason, names in by_reason.items()]


def _named(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more classes"
