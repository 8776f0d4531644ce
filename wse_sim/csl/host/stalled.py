"""Messages to the user about a run that makes no progress, or is still progressing."""

from __future__ import annotations

import sys
import time

from wse_sim.csl.host.asked import STILL_VARIABLE
from wse_sim.fabric.vm.proof import MOST_LINES
from wse_sim.fabric.vm.session import Session

MOST_NAMED = 4
"""Number of core classes that a message about missing progress names."""
BEAT_S = 10.0
"""Seconds between two progress lines."""
SPAN_CYCLES = 1_000_000
"""Minimum number of cycles over which words are counted."""


def would_wait(what: str, session: Session) -> str:
    """Return the message for a wait that cannot end: the cause, followed by lines with what waits for it."""
    return f"{what} would wait forever: {session.proof().text()}"


def stands_still(what: str, session: Session, still_cycles: int) -> str:
    """Return the message for cores that run without progress and for the cores that wait for them.

    If no core has made progress for `still_cycles` because of a deadlock, return the message of
    :func:`would_wait`.
    """
    proof = session.proof()
    if session.cycle - proof.since >= still_cycles:
        return would_wait(what, session)
    said = (
        f"{what} makes no progress: no word moved and no memory changed for {still_cycles:,} cycles (now {session.cycle}): "
        f"{'; '.join(session.doing()[:MOST_NAMED])}; {STILL_VARIABLE}=0 waits forever"
    )
    waits = [line for cause in proof.causes if not cause.is_rest for line in cause.lines(proof.waits)]
    return "\n".join([said, *([f"others wait, because {waits[0]}", *waits[1:MOST_LINES]] if waits else [])])


class Pulse:
    """Counter of words over time, which shows whether a long run progresses."""

    def __init__(self, what: str = "") -> None:
        self.what = what
        self._seen: list[tuple[int, int]] = []
        self._said_s = time.monotonic()

    def look(self, session: Session) -> None:
        """Record cycle and words; print a progress line to standard error every :data:`BEAT_S` seconds."""
        self._seen.append((session.cycle, int(session.machine.links.sum())))
        old = [k for k, (cycle, _) in enumerate(self._seen) if cycle <= session.cycle - SPAN_CYCLES]
        del self._seen[: old[-1] if old else 0]
        if time.monotonic() - self._said_s >= BEAT_S:
            self._said_s = time.monotonic()
            print(
                f"wse-sim: {self.what or 'the program'} at cycle {session.cycle:,}: {self.alive()}",
                file=sys.stderr,
                flush=True,
            )

    def alive(self) -> str:
        """Return ``not dead: N words more than M cycles ago``, or that no word moved or the time is too short
        to tell."""
        if len(self._seen) < 2:
            return "too short to tell whether it makes progress"
        (before, words), (now, more) = self._seen[0], self._seen[-1]
        if more == words:
            return f"no word moved in the last {now - before:,} cycles"
        return f"not dead: {more - words:,} word{'s' * (more - words != 1)} more than {now - before:,} cycles ago"
