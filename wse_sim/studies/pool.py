"""Where the tasks of a study run: in this process, or on the workers of a Dask scheduler.

A task is one captured graph on some settings.  The capture is its own task on which they depend: the engine
runs it once, moves the graph to the workers that need it, and captures again only if every worker that held
it has died. A task whose worker dies is divided in two, which run on other workers. A setting that alone ends
two workers becomes a row with that message.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from wse_sim.atomic_files import scratch
from wse_sim.errors import WseError
from wse_sim.frontend.parameters import model_names
from wse_sim.graph import KernelGraph
from wse_sim.studies.evaluate import DIED, StudyRow, capture, evaluate
from wse_sim.studies.private import temporary_keys
from wse_sim.studies.provenance import code_digest
from wse_sim.studies.request_differences import evaluated, pack
from wse_sim.studies.settings import Request
from wse_sim.studies.standstill import Watch

TRIES = 2  # of a setting alone, or of a capture, before it is given up
CONNECT_S = 20.0
ANSWER_S = 60.0  # a new worker imports the package before it answers
GRAPHS_KEPT = 4  # in this process: the next chunk of a study may come back to a graph
CAPTURE = "capture-"
LOST = "the worker ended by itself while it ran this setting, most likely out of memory; give workers more memory"


@dataclass(frozen=True)
class Portion:
    """Settings of one graph that run together."""

    requests: tuple[Request, ...]


class Pool(Protocol):
    """Interface of the executors that run tasks."""

    dashboard: str
    workers: int

    @property
    def pending(self) -> int:
        """Tasks that were taken and are not finished."""
        ...

    def submit(self, task: Portion) -> None:
        """Take a task."""
        ...

    def finished(self) -> Iterator[list[StudyRow]]:
        """Yield the rows of tasks as they end, until none is left; tasks may be submitted meanwhile."""
        ...

    def close(self) -> None:
        """Release the workers and other resources."""
        ...


class Inline:
    """Runs tasks in this process, one after the other."""

    dashboard = ""
    workers = 1

    def __init__(self) -> None:
        self._tasks: list[Portion] = []
        self._graphs: dict[str, KernelGraph | str] = {}

    @property
    def pending(self) -> int:
        """Number of tasks that wait."""
        return len(self._tasks)

    def submit(self, task: Portion) -> None:
        """Take a task."""
        self._tasks.append(task)

    def finished(self) -> Iterator[list[StudyRow]]:
        """Run the tasks in the order of submission; yields the rows of each."""
        while self._tasks:
            task = self._tasks.pop(0)
            first = task.requests[0]
            if first.graph_key not in self._graphs:
                while len(self._graphs) >= GRAPHS_KEPT:
                    self._graphs.pop(next(iter(self._graphs)))
                self._graphs[first.graph_key] = capture(first)
            yield evaluate(self._graphs[first.graph_key], task.requests)

    def close(self) -> None:
        """Do nothing: this pool starts no processes."""


def _bytes(memory: str | int) -> str | int:
    """Return a memory limit in the engine's form: "auto", bytes, or a number with a unit."""
    from dask.utils import parse_bytes

    if memory in ("auto", "0"):
        return memory
    try:
        found = int(parse_bytes(memory))
    except ValueError:
        found = 0
    if found <= 0:
        raise WseError(f"memory '{memory}' is not an amount of memory; give one such as 4GB, or auto")
    return found


class Dask:
    """Runs tasks on a Dask cluster: a local one, or that of a scheduler's address."""

    def __init__(
        self, workers: int = 2, scheduler: str | None = None, memory_limit: str | int = "auto"
    ) -> None:
        if importlib.util.find_spec("distributed") is None:
            raise WseError(
                "studies on several workers need distributed, which is not installed; pip install 'wse-sim[study]', "
                "or run with --workers 0"
            )
        import dask
        import distributed

        # Log messages of the engine (restarted worker, lost scheduler) would be mixed with our output.
        for name in (
            "distributed",
            *(n for n in logging.root.manager.loggerDict if n.startswith("distributed.")),
        ):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        dask.config.set({"distributed.scheduler.allowed-failures": 0})
        memory_limit = _bytes(memory_limit)
        self._cluster = None
        self._files = (
            contextlib.ExitStack()
        )  # what workers spill, in a folder that a killed study does not leave forever
        self.address = scheduler
        try:
            if scheduler is None:
                spill = self._files.enter_context(scratch("dask"))
                self._cluster = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    memory_limit=memory_limit,
                    dashboard_address="127.0.0.1:0",
                    security=temporary_keys(),
                    local_directory=str(spill),
                    silence_logs=logging.CRITICAL,
                )
            self._client = distributed.Client(self._cluster or scheduler, timeout=CONNECT_S)
        except (OSError, ValueError, TimeoutError) as fault:
            self.close()
            where = f"scheduler {scheduler}" if scheduler else "a local cluster"
            why = " ".join(str(fault).split())[:160]
            raise WseError(
                f"{where} cannot be reached or started ({why}); check the address, or leave --scheduler out"
            ) from None
        except RuntimeError as fault:
            self.close()
            if "bootstrapping phase" not in str(
                fault
            ):  # multiprocessing's own words to a script without the line below
                raise WseError(f"the workers could not be started ({' '.join(str(fault).split())[:160]}); "
                               "ask for fewer, raise limits on files and processes (ulimit -n, -u), or give --workers 0") from fault  # fmt: skip
            raise WseError(
                f"the workers could not be started ({fault}); call run_study under \"if __name__ == '__main__':\" "
                "in a script, or with workers=0"
            ) from None
        self.dashboard = self._client.dashboard_link if importlib.util.find_spec("bokeh") else ""
        self.workers = self._check_workers()
        self._captures: dict[str, Any] = {}
        self._bases: dict[str, tuple[Request, Any]] = {}
        self._tasks: dict[Any, Portion] = {}
        self._deaths: Counter[str] = Counter()
        self._suspects: list[Portion] = []  # settings that wait to run alone on a worker
        self._order = distributed.as_completed()
        self._watch = Watch(self._client, self._cluster)

    def _check_workers(self) -> int:
        """Check that all workers have the same sources of this package, because other sources give other
        numbers.

        Raises
        ------
        WseError
            If there is no worker, or a worker does not answer, or lacks the package or has another version.
        """
        assert self._client is not None
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            self.close()
            raise WseError(
                f"scheduler {self.address} has no workers; start some with 'dask worker {self.address}'"
            ) from None
        found = self._answers()
        for address, answer in found.items():
            if isinstance(answer, BaseException):
                self.close()
                raise WseError(f"worker {address} cannot use wse-sim ({answer}); install the package there")
            if answer != code_digest():
                self.close()
                raise WseError(
                    f"worker {address} has other sources of wse-sim ({answer[:8]}) than this command "
                    f"({code_digest()[:8]}); install the same version there"
                )
        return sum(self._client.nthreads().values())

    def _answers(self) -> dict[str, str | BaseException]:
        """Return the package's digest on each worker, or the error there. Raises like
        :meth:`_check_workers`."""
        assert self._client is not None
        asked = {
            name: self._client.submit(code_digest, workers=[name], pure=False, key=f"state-{name}")
            for name in self._client.scheduler_info()["workers"]
        }
        found: dict[str, str | BaseException] = {}
        for name, one in asked.items():
            try:
                found[name] = one.exception(ANSWER_S) or one.result(ANSWER_S)
            except TimeoutError:
                self.close()
                raise WseError(
                    f"worker {name} has not answered for {ANSWER_S:g} s; stop it, or let it continue, and run the same command again"
                ) from None
        return found

    def submit(self, task: Portion) -> None:
        """Submit a task; the first task of a graph captures it."""
        first = task.requests[0]
        graph = self._captures.get(first.graph_key)
        if graph is None:
            key = f"{CAPTURE}{first.graph_key}-{self._deaths[first.graph_key]}"
            if not isinstance(first.model, str) or first.model in model_names():
                graph = self._client.submit(capture, first, key=key)
            else:  # the user's code and files are only on this machine
                graph = self._client.submit(carried, capture(first), key=key)
            self._captures[first.graph_key] = graph
        # A separate key, because a divided and resubmitted task is another task.
        base, shared = self._base_of(first)
        packed = [pack(request, base) for request in task.requests]
        future = self._client.submit(evaluated, evaluate, graph, shared, packed, pure=False)
        self._tasks[future] = task
        self._order.add(future)

    def _base_of(self, first: Request) -> tuple[Request, Any]:
        """Return the base request of a graph's tasks: the object, and a task that keeps it on the workers."""
        found = self._bases.get(first.graph_key)
        if found is None:
            # A task, not data of a worker: the scheduler can make it again if that worker ends.
            found = first, self._client.submit(carried, first, key=f"base-{first.graph_key}")
            self._bases[first.graph_key] = found
        return found

    @property
    def pending(self) -> int:
        """Number of unfinished tasks."""
        return len(self._tasks) + len(self._suspects)

    def finished(self) -> Iterator[list[StudyRow]]:
        """Yield the rows of each task when it ends.

        Raises
        ------
        WseError
            If the scheduler goes away.
        """
        import distributed

        try:
            while self._tasks or self._suspects:
                if not self._tasks:
                    self.submit(self._suspects.pop(0))
                self._await_one()
                future = next(self._order)
                if (
                    future.status == "lost"
                ):  # its worker died with the result: the scheduler runs the task again
                    self._order.add(future)
                    continue
                task = self._tasks.pop(future)
                try:
                    rows = future.result()
                except distributed.KilledWorker as fault:
                    rows = self._again(task, str(fault.task))
                future.release()
                if rows:
                    yield rows
        except (CancelledError, OSError, TimeoutError, StopIteration) as fault:
            where = self.address or "of this command"
            raise WseError(
                f"the scheduler {where} can no longer be reached ({type(fault).__name__}); all rows written before are kept: "
                "run the same command to continue"
            ) from None

    def _await_one(self) -> None:
        """Wait until a task has ended. Raises like :meth:`Watch.look`."""
        while not (self._order.has_ready() or self._order.is_empty()):
            with self._order.thread_condition:
                self._order.thread_condition.wait(timeout=0.1)
            self._watch.look()

    def _again(self, task: Portion, ended: str) -> list[StudyRow]:
        """Divide a task that ended its worker; return rows for a single setting that did so twice, or whose capture did.

        All tasks of a dead worker are affected, so a single setting runs again alone on a worker.
        """
        first = task.requests[0]
        is_capture = ended.startswith(CAPTURE)
        guilty = first.graph_key if is_capture else first.key
        if is_capture or len(task.requests) == 1:
            self._deaths[guilty] += 1 if not is_capture or ended.endswith(f"-{self._deaths[guilty]}") else 0
            if self._deaths[guilty] >= TRIES:
                return [StudyRow(request.key, DIED, message=LOST) for request in task.requests]
            if is_capture:
                self._captures.pop(first.graph_key, None)
        half = len(task.requests) if is_capture else -(-len(task.requests) // 2)
        for part in (task.requests[:half], task.requests[half:]):
            if len(part) == 1:
                self._suspects.append(Portion(part))
            elif part:
                self.submit(Portion(part))
        return []

    def close(self) -> None:
        """Close the client, and the cluster if this object started it."""
        client, self._client = getattr(self, "_client", None), None  # type: ignore[assignment]
        for part in (client, self._cluster):
            if part is not None:
                quiet(functools.partial(part.close, timeout=10))
        self._files.close()


Carried = TypeVar("Carried")


def carried(made: Carried) -> Carried:
    """Identity task for a local object (a captured graph, a request): the scheduler stores it with the task,
    so it survives the death of a worker."""
    return made


def quiet(close: Callable[[], object]) -> None:
    """Close a part of the engine, and ignore its errors."""
    try:
        close()
    except (OSError, TimeoutError, RuntimeError, CancelledError):
        return


def cut(requests: Sequence[Request], workers: int, seconds: float, left: int = 0) -> list[Portion]:
    """Divide the settings of a graph into tasks of about two seconds, with at least four tasks per worker for
    `left` settings."""
    most = max(1, min(64, int(2.0 / max(seconds, 1e-3))))
    size = max(1, min(most, -(-max(left, len(requests)) // (4 * workers))))
    return [Portion(tuple(requests[start : start + size])) for start in range(0, len(requests), size)]
