"""The bench on which probes run: each distinct one once, and none that the store knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wse_sim.errors import WseError
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Probe
from wse_sim.timing.probes import Measured, measure, unmeasured
from wse_sim.timing.store import MeasurementStore, key_of

ROUNDING = 1e-9  # of a kernel's cycles: less than that is left over by rounding
Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Show no progress."""
    return


class Bench:
    """Runs probes, each distinct one once; results in the store are reused."""

    def __init__(self, wafer: Wafer, store: MeasurementStore, progress: Progress) -> None:
        self.wafer, self.store, self.progress = wafer, store, progress
        self._keys: dict[int, str] = {}
        self.probes = self.cached = 0

    def run(self, probes: Sequence[Probe]) -> None:
        """Measure all probes that the store lacks."""
        distinct: dict[str, Probe] = {}
        for probe in probes:
            if id(probe) not in self._keys:
                self._keys[id(probe)] = key_of(probe, self.wafer)
            distinct.setdefault(self._keys[id(probe)], probe)
        missing = {key: probe for key, probe in distinct.items() if self.store.get(key) is None}
        self.probes += len(distinct)
        self.cached += len(distinct) - len(missing)
        for number, (key, probe) in enumerate(missing.items(), 1):
            self.progress(f"fabric {number} of {len(missing)}: {probe.family} {probe.part}, {probe.tile}")
            self.store.put(key, self._measured(probe))

    def _measured(self, probe: Probe) -> Measured:
        try:
            return measure(probe, self.wafer)
        except WseError as fault:
            return unmeasured(str(fault))

    def found(self, probe: Probe) -> Measured:
        """The measurement of a probe that was run."""
        return self.store.get(self._keys[id(probe)]) or unmeasured("the probe did not run")

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers of the factors."""
        scaled = (
            "scaled down: probes of a few cores with the tile of the plan; the difference is the steady state"
        )
        return (scaled, self.store.fault) if self.store.fault else (scaled,)
