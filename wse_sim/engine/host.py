"""Input workers, which prepare samples, and a multiplexer, which sends them to the wafer's I/O in order.

Symbols: W workers, each of ``r`` samples/s and ``R`` bytes/s, ``b`` bytes per sample, ``B`` bytes/s of
wafer I/O, ``l`` seconds that one sample holds the busiest link of the fabric::

    worker interval  w = max(1 / r, b / R) (1 + jitter u),  u uniform in (-1, 1)
    gate interval    g = max(b, o) / B, with o bytes of results that go back per sample (both ways at once)
    input rate         = min(W / w, 1 / g, 1 / l)

Samples arrive no faster than their results leave, as in the steady state of a full wafer. Links of the fabric
delay samples on the wafer, not here. A worker is at most `prefetch` samples ahead of the wafer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import ceil, inf

import simpy

from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Cluster


@dataclass(frozen=True)
class InputPath:
    """Time per sample of each part of one system's input path, in seconds."""

    workers: int
    worker_s: float
    io_s: float
    link_s: float
    results_s: float = 0.0

    @property
    def gate_s(self) -> float:
        """Time per sample on the wafer's I/O; input and results overlap, so it is the larger of the two."""
        return max(self.io_s, self.results_s)

    @property
    def rates(self) -> Mapping[str, float]:
        """Return the samples per second that each part of the path can pass."""
        times = {
            "input_workers": self.worker_s / self.workers,
            "wafer_io": self.io_s,
            "results_io": self.results_s,
            "links": self.link_s,
        }
        return frozen({name: 1.0 / time if time > 0 else inf for name, time in times.items()})

    @property
    def slowest(self) -> str:
        """Return the part with the lowest rate."""
        return min(self.rates, key=lambda name: self.rates[name])

    @property
    def samples_per_s(self) -> float:
        """Samples per second of the whole path."""
        return min(self.rates.values())


def remedies(path: InputPath, wanted_per_s: float) -> tuple[str, ...]:
    """Return advice for the part of the input path that limits a wafer that computes `wanted_per_s`
    samples/s.

    It states the option and the value that removes the limit; the tuple is empty if nothing limits.
    """
    name, rate = path.slowest, path.samples_per_s
    if rate >= wanted_per_s * (1 - 1e-6) or name == "links":
        return ()
    says = {
        "input_workers": f"input workers bind: {path.workers} send {rate:,.0f} samples/s; "
        f"input_workers_per_system: {ceil(wanted_per_s * path.worker_s)} in a cluster file",
        "wafer_io": f"the wafer's I/O binds: it takes {rate:,.0f} samples/s; inputs of {rate / wanted_per_s:.2g} of the bytes "
        "(a narrower type), or io_bytes_per_s larger by the inverse in a wafer file,",
        "results_io": f"results bind: the wafer's I/O takes the results of {rate:,.0f} samples/s; "
        f"results of {rate / wanted_per_s:.2g} of the bytes (--send last, top:K or loss)",
    }
    return (f"{says[name]} would allow the {wanted_per_s:,.0f} samples/s that the wafer computes",)


def input_path(
    cluster: Cluster,
    *,
    sample_bytes: float,
    io_bytes_per_s: float,
    result_bytes: float = 0.0,
    link_s: float = 0.0,
    min_workers: int = 1,
) -> InputPath:
    """Return the input path of one system; every replica of a model needs a separate worker."""
    return InputPath(
        workers=max(cluster.input_workers_per_system, min_workers),
        worker_s=max(1.0 / cluster.worker_samples_per_s, sample_bytes / cluster.worker_bytes_per_s),
        io_s=sample_bytes / io_bytes_per_s,
        link_s=link_s,
        results_s=result_bytes / io_bytes_per_s,
    )


class Host:
    """The input workers of one system as SimPy processes.

    `wake(sample)` is called when a sample has arrived on the wafer.  `unit_s` is the length in seconds
    of one unit of the environment's time.
    """

    def __init__(
        self,
        env: simpy.Environment,
        path: InputPath,
        samples: int,
        wake: Callable[[int], None],
        *,
        unit_s: float,
        prefetch: int,
        jitter: float,
        seed: int,
    ) -> None:
        self.env = env
        self.samples = samples
        self.taken = 0
        self.sent = 0
        self.received = 0
        self._path = path
        self._wake = wake
        self._unit_s = unit_s
        self._prefetch = prefetch
        self._jitter = jitter
        self._gate = simpy.Resource(env, 1)
        self._arrived: set[int] = set()
        self._room: dict[int, simpy.Event] = {}
        for worker in range(path.workers):
            env.process(self._work(worker, random.Random(seed * 65_537 + worker)))

    def has(self, sample: int) -> bool:
        """Return whether a sample is in the wafer's input buffer."""
        return sample in self._arrived

    def take(self, sample: int) -> None:
        """Move a sample from the input buffer into the pipeline."""
        self._arrived.discard(sample)
        self.taken = max(self.taken, sample + 1)
        for waiting in [s for s in self._room if s < self.taken + self._prefetch]:
            self._room.pop(waiting).succeed()

    def drop(self, samples: int) -> None:
        """Reduce the number of samples to prepare: the steady state covers the rest."""
        self.samples -= samples

    def _work(self, worker: int, draw: random.Random) -> Generator[simpy.Event, object, None]:
        sample = worker
        while sample < self.samples:
            if sample >= self.taken + self._prefetch:
                self._room[sample] = self.env.event()
                yield self._room[sample]
                continue
            factor = 1.0 + self._jitter * draw.uniform(-1.0, 1.0) if self._jitter else 1.0
            yield self.env.timeout(self._path.worker_s * factor / self._unit_s)
            self.env.process(self._send(sample))
            sample += self._path.workers

    def _send(self, sample: int) -> Generator[simpy.Event, object, None]:
        """Send a sample over the wafer's I/O; its worker prepares the next one meanwhile."""
        with self._gate.request() as turn:
            yield turn
            self.sent += 1
            yield self.env.timeout(self._path.gate_s / self._unit_s)
        self._arrived.add(sample)
        self.received += 1
        self._wake(sample)
