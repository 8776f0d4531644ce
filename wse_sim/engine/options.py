"""Options of a simulation that every mode supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wse_sim.errors import ConfigError

Progress = Callable[[int, int], None]
"""Called with (done, total) from time to time."""


@dataclass(frozen=True)
class Options:
    """Options of a run; the last of the `steps` is measured."""

    steps: int
    extrapolate: bool = True
    jitter: float = 0.0
    seed: int = 0
    progress: Progress | None = None
    skew: float = 0.0

    def check(self) -> None:
        """Check that the options are in range.

        Raises
        ------
        ConfigError
            One sentence: value, limit, remedy.
        """
        if self.steps < 1:
            raise ConfigError(f"steps {self.steps} is not positive; run at least one step")
        if not 0 <= self.jitter < 1:
            raise ConfigError(f"jitter {self.jitter} is outside 0 to 1; give the relative spread of a worker")
        if not 0 <= self.skew < 1:
            raise ConfigError(f"skew {self.skew} is outside 0 to 1; give the relative spread of a system")
