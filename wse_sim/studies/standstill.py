"""Detects workers that make no progress, so that a study does not wait for them.

A stopped worker, or one that hangs in a system call, keeps its connection, so the engine would wait for it. Local workers are
processes of this machine: each uses some processor time while it runs, at least for heartbeats. For workers of a remote scheduler
only these heartbeats are known.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wse_sim import worker_processes
from wse_sim.errors import WseError

if TYPE_CHECKING:
    import distributed

LEAST_S = 0.02
"""Processor time, or time of a heartbeat, that is a sign of life; the system counts in hundredths of a second."""

ASK_LOOKS = 10  # checks between two requests to a remote scheduler
ANSWER_S = 5.0


class Stillness:
    """Tracks which of several things have shown no progress for a number of looks."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[float, int]] = {}  # last sign, checks since then

    def look(self, signs: Mapping[Any, float], looks: int) -> list[Any]:
        """Check the latest signs; return the keys whose sign has not changed for `looks` checks."""
        seen = {}
        for key, sign in signs.items():
            last, quiet = self._seen.get(key, (sign, -1))
            seen[key] = (sign, 0) if abs(sign - last) > LEAST_S else (last, quiet + 1)
        self._seen = dict(seen)
        return [key for key, (_, quiet) in seen.items() if quiet >= looks]


class Watch:
    """Monitors the workers of a client; `cluster` is that of this command, None for a scheduler elsewhere."""

    def __init__(self, client: distributed.Client, cluster: distributed.LocalCluster | None) -> None:
        self._client, self._cluster = client, cluster
        self._still, self._next_s, self._unheard = Stillness(), 0.0, 0

    def look(self) -> None:
        """At most once per :data:`copies.LOOK_S`, end a local worker that makes no progress; its tasks run
        again elsewhere.

        Raises
        ------
        WseError
            If no worker of a scheduler elsewhere has been heard of for as long.
        """
        if time.monotonic() < self._next_s:
            return
        every = 1 if self._cluster is not None else ASK_LOOKS
        self._next_s = time.monotonic() + every * worker_processes.LOOK_S
        looks = max(1, worker_processes.QUIET_LOOKS // every)
        if self._cluster is not None:
            for number in self._still.look(_worked_s(self._cluster), looks):
                with suppress(OSError):
                    os.kill(number, signal.SIGKILL)  # a stopped process receives no other signal
            return
        heard = self._heard()
        still = self._still.look(heard, looks)
        self._unheard = 0 if heard else self._unheard + 1
        if self._unheard > looks or (heard and len(still) == len(heard)):
            raise WseError(
                f"no worker of the scheduler has responded for {worker_processes.QUIET_LOOKS * worker_processes.LOOK_S:.0f} s; all rows written "
                "before are kept: check the workers and run the same command to continue"
            )

    def _heard(self) -> dict[str, float]:
        """Return the time of each worker's last heartbeat; empty if the scheduler has none or does not
        answer."""
        try:
            known = self._client.sync(self._client.scheduler.identity, callback_timeout=ANSWER_S)
            return {name: float(worker["last_seen"]) for name, worker in known["workers"].items()}
        except (OSError, TimeoutError, KeyError, TypeError):
            return {}


def _worked_s(cluster: distributed.LocalCluster) -> dict[int, float]:
    """Return the processor seconds of each worker process so far, where the system reports them."""
    found = {}
    for worker in cluster.workers.values():
        number = getattr(worker, "pid", None)
        with suppress(OSError, ValueError, IndexError):
            fields = (
                Path(f"/proc/{int(number or 0)}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            )
            found[int(number or 0)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
