"""A copy of the state of a session, which can be restored."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from wse_sim.fabric.vm.session import Session

_FIXED = frozenset(
    (
        *("sets", "die_edges", "code", "late_price", "issues", "loads", "shapes", "rings", "constants", "fifos", "task_table", "task_ids"),
        *("teardown", "empties", "owner", "vop", "prices", "slot_of", "color_of", "host_slot", "in_depth", "out_depth", "host_words"),
        *("log", "drained", "profile", "found", "found_count", "stops"),
    )
)  # fmt: skip
"""Arrays of the machine that a run does not change, or that are empty between two parts of a run."""
LISTS = frozenset(
    ("router_list", "ready", "listed", "rings_list", "wheel", "chain", "wake_at", "router_listed", "ring_listed", "size")
)  # fmt: skip
"""Arrays of the loop: which cores and routers to visit next.  Their order depends on where a run was cut, results do not."""
_OF_SESSION = ("_sent", "_received", "_printed", "_picks", "warnings", "fault")


@dataclasses.dataclass
class Snapshot:
    """State of a session within action `action` of its host at `cycle`."""

    action: int
    cycle: int
    arrays: dict[str, npt.NDArray[np.generic]]
    session: dict[str, object]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def restore(self, session: Session) -> None:
        """Set a session back to it."""
        for name, array in self.arrays.items():
            getattr(session.machine, name)[...] = array
        for name, value in self.session.items():
            setattr(session, name, copy.deepcopy(value))

    def differing(self, other: Snapshot) -> list[str]:
        """Return the names of arrays of the machine that differ, without those of :data:`LISTS`."""
        names = [name for name in self.arrays if name not in LISTS]
        return [name for name in names if not np.array_equal(self.arrays[name], other.arrays[name])]


def take_snapshot(session: Session, action: int) -> Snapshot:
    """Copy the state of a session between two parts of a run."""
    machine = session.machine
    arrays = {name: getattr(machine, name).copy() for name in machine._fields if name not in _FIXED}
    kept = {name: copy.deepcopy(getattr(session, name)) for name in _OF_SESSION}
    return Snapshot(action, session.cycle, arrays, kept)
