"""The bench on which corners run: each distinct one once, and none that the store knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wse_sim.errors import WseError
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Corner
from wse_sim.timing.corners import Measured, measure, unmeasured
from wse_sim.timing.store import Store, key_of

ROUNDING = 1e-9  # of a kernel's cycles: less than that is left over by rounding
Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Show no progress."""
    return


class Bench:
    """Runs corners, each distinct one once; what the store knows is not run."""

    def __init__(self, wafer: Wafer, store: Store, progress: Progress) -> None:
        self.wafer, self.store, self.progress = wafer, store, progress
        self._keys: dict[int, str] = {}
        self.corners = self.cached = 0

    def run(self, corners: Sequence[Corner]) -> None:
        """Measure all of them."""
        distinct: dict[str, Corner] = {}
        for corner in corners:
            if id(corner) not in self._keys:
                self._keys[id(corner)] = key_of(corner, self.wafer)
            distinct.setdefault(self._keys[id(corner)], corner)
        missing = {key: corner for key, corner in distinct.items() if self.store.get(key) is None}
        self.corners += len(distinct)
        self.cached += len(distinct) - len(missing)
        for number, (key, corner) in enumerate(missing.items(), 1):
            self.progress(f"fabric {number} of {len(missing)}: {corner.family} {corner.part}, {corner.tile}")
            self.store.put(key, self._measured(corner))

    def _measured(self, corner: Corner) -> Measured:
        try:
            return measure(corner, self.wafer)
        except WseError as fault:
            return unmeasured(str(fault))

    def found(self, corner: Corner) -> Measured:
        """The measurement of a corner that was run."""
        return self.store.get(self._keys[id(corner)]) or unmeasured("the corner did not run")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the factors should know."""
        scaled = "scaled down: corners of a few cores with the tile of the plan; the difference is the steady state"
        return (scaled, self.store.fault) if self.store.fault else (scaled,)
