"""Certificate of a run: how its times were found, if not every cycle was stepped."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Flag:
    """Two colors that met on an output port of core (row, col) in the uncontended times."""

    row: int
    col: int
    port: str
    colors: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Component:
    """A closed set of cores, and the method that gave its times.

    ``kind``: "clean" (max-plus times, exact by certificate), "time-ordered" (flagged routers processed in
    time order) or "wavelet" (the stepped executor); ``reason`` says why it was not clean; ``cores`` counts those with
    a program.
    """

    kind: str
    cores: int
    reason: str


@dataclasses.dataclass(frozen=True)
class PremiseCheck:
    """One premise of the equations: ``holds`` states it, and ``broken`` is the number of cores or routers
    that violate it.

    Those are in components that were solved by another method, which ``otherwise`` names.
    """

    name: str
    holds: str
    otherwise: str
    broken: int


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How the times were found. Every method is exact; ``clean``: all times come from the equations alone.

    ``premises``: assumptions of the equations, each checked in this run. ``runs`` arithmetic runs were
    checked; ``folded_rows`` rows and ``folded_cols`` columns are copies of others with a constant delay;
    ``extrapolated_rounds`` rounds of the outer loop, each of ``period_cycles``, were added after a steady
    state was proved.
    """

    clean: bool
    flagged: tuple[Flag, ...]
    components: tuple[Component, ...]
    passes: int = 1
    runs: int = 0
    folded_rows: int = 0
    folded_cols: int = 0
    extrapolated_rounds: int = 0
    period_cycles: int = 0
    premises: tuple[PremiseCheck, ...] = ()

    def sentence(self) -> str:
        """Return one sentence on how the times of all cores with a program were found, by kind and reason."""
        if self.clean:
            return "clean: exact by the equations"
        found: dict[tuple[str, str], int] = {}
        for part in self.components:
            found[part.kind, part.reason] = found.get((part.kind, part.reason), 0) + part.cores
        told = {"clean": "by the equations", "time-ordered": "in time order", "wavelet": "stepped"}
        return "exact: " + ", ".join(
            f"{cores:,} cores {told[kind]}{f' ({reason})' if reason else ''}"
            for (kind, reason), cores in found.items()
        )

    def to_dict(self) -> dict[str, object]:
        """Return the certificate as plain values for JSON."""
        return dataclasses.asdict(self)
