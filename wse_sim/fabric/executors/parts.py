"""Wall time of the parts of a run."""

from __future__ import annotations

from wse_sim.compile_time import clock


class Parts:
    """Wall-clock seconds of the consecutive parts of a run, without compilation."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since, _ = clock()

    def done(self, part: str) -> None:
        """Add the time since the last call to `part`."""
        now, _ = clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now
