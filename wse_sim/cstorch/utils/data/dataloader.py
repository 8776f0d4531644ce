"""The loader of a program: every input worker calls a function, and its batches are sent to the client."""

from __future__ import annotations

import abc
import inspect
import itertools
import multiprocessing
import pickle
import queue
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from wse_sim.child_processes import end_with_command
from wse_sim.cstorch import counters, distributed, faults, runtime
from wse_sim.cstorch.batches import infer_batch_size
from wse_sim.cstorch.utils.data.data_executor import DataExecutor
from wse_sim.cstorch.utils.data.utils import check_counts, length_of

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

LIMITS = ("num_steps", "max_steps", "num_epochs", "steps_per_epoch", "initial_step")
# Batches that a worker process holds ready.
PREFETCH = 2


class RestartableDataLoader(abc.ABC):
    """A loader whose position can be saved; ``input_fn`` may return one to be resumed exactly."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position."""

    @abc.abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Move to a saved position."""


_ids = itertools.count()


class DataLoader:
    """Batches from ``input_fn(*args, **keywords)``, which each input worker calls for itself.

    Args:
        input_fn: gives a torch DataLoader, or any iterable of batches.
        num_steps: batches to give when this object itself is iterated; excludes ``num_epochs``.
        max_steps: an upper limit to either.
        num_epochs: passes over the data.
        steps_per_epoch: batches of a pass; default: the loader's length.
        initial_step: steps done before; counts against ``max_steps``.

    Everything else goes to ``input_fn``.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        *args: object,
        num_steps: int | None = None,
        max_steps: int | None = None,
        num_epochs: int | None = None,
        steps_per_epoch: int | None = None,
        initial_step: int | None = None,
        **keywords: object,
    ) -> None:
        if not callable(input_fn):
            raise faults.program_error(
                f"DataLoader takes a function that makes a loader, but got a {type(input_fn).__name__}; "
                "give the function itself and its arguments"
            )
        given = dict(
            zip(LIMITS, (num_steps, max_steps, num_epochs, steps_per_epoch, initial_step), strict=True)
        )
        own = {k: v for k, v in given.items() if v is not None and k in _parameters(input_fn)}
        check_counts("DataLoader", **{k: v for k, v in given.items() if k != "initial_step"})
        if num_steps is not None and num_epochs is not None:
            raise faults.program_error(
                f"DataLoader: num_steps={num_steps} and num_epochs={num_epochs} exclude each other; give one of them"
            )
        self.input_fn, self.args, self.keywords = input_fn, args, {**keywords, **own}
        self.num_steps, self.max_steps = num_steps, max_steps
        self._epochs, self.steps_per_epoch = num_epochs, steps_per_epoch
        self.initial_step = initial_step or 0
        self._made: Iterable[object] | None = None
        self.id = next(_ids)  # a copy keeps it: trainers name validations by it
        self._drawn = 0
        self._streamed = 0  # samples since a position was loaded
        self._saved: dict[str, Any] | None = None
        self._strict = True

    # -- the loader of worker 0 ------------------------------------------------------------------

    @property
    def dataloader(self) -> Iterable[object]:
        """The loader that ``input_fn`` returns for worker 0, created once."""
        if self._made is None:
            with distributed.as_worker(distributed.WorkerState(streamer=True, run_step=self._drawn)):
                self._made = _checked(self.input_fn(*self.args, **self.keywords))
            if self._saved is not None and self.is_restartable:
                self._go_to(self._saved, self._strict)
        return self._made

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        length = length_of(self.dataloader)
        if length is None:
            raise TypeError(f"the loader that {_name(self.input_fn)} gives has no length")
        return length

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch, as stated by the loader."""
        size = getattr(self.dataloader, "batch_size", None)
        if size is None:
            size = getattr(getattr(self.dataloader, "batch_sampler", None), "batch_size", None)
        if size is None:  # a loader without a size: that of its first batch
            size = infer_batch_size(next(iter(self.dataloader), None))
        return size if isinstance(size, int) else None

    @property
    def num_epochs(self) -> int:
        """Passes of a user's loop over this object: as requested, else one."""
        return self._epochs or 1

    # -- position --------------------------------------------------------------------------------

    @property
    def is_restartable(self) -> bool:
        """True if the loader can save its position and return to it."""
        made = self.dataloader
        return isinstance(made, RestartableDataLoader) or (
            callable(getattr(made, "state_dict", None)) and callable(getattr(made, "load_state_dict", None))
        )

    def state_dict(self) -> dict[str, Any]:
        if not self.is_restartable:
            raise faults.program_error(
                f"the loader that {_name(self.input_fn)} gives cannot save its position; "
                "give it state_dict() and load_state_dict(), or save the count of steps"
            )
        made = cast(RestartableDataLoader, self.dataloader)
        with distributed.as_worker(self._worker()):
            own = made.state_dict()
            together = getattr(
                made, "aggregate_state_dict", None
            )  # of all workers, of which the client plays the first
            return dict(own if together is None else together([own]))

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        self._saved, self._strict = state_dict, strict
        if self._made is not None and self.is_restartable:
            self._go_to(state_dict, strict)

    def _worker(self) -> distributed.WorkerState:
        return distributed.WorkerState(streamer=True, run_step=self._drawn, samples_streamed=self._streamed)

    def _go_to(self, state_dict: dict[str, Any], strict: bool) -> None:
        made = cast(RestartableDataLoader, self._made)
        self._streamed = 0
        with distributed.as_worker(self._worker()):
            apart = getattr(made, "deaggregate_state_dict", None)
            held = state_dict if apart is None else apart(state_dict)
            if strict:
                made.load_state_dict(held)
            else:
                made.load_state_dict(held, strict=False)

    # -- batches ---------------------------------------------------------------------------------

    def limit(self) -> int | None:
        """Return the batches that this object's own arguments allow, or None."""
        limits = [] if self.num_steps is None else [self.num_steps]
        if self._epochs is not None:
            per_epoch = (
                self.steps_per_epoch if self.steps_per_epoch is not None else length_of(self.dataloader)
            )
            if per_epoch is None:
                raise faults.program_error(
                    "DataLoader: num_epochs needs the length of the data; give steps_per_epoch"
                )
            limits.append(self._epochs * per_epoch)
        if self.max_steps is not None:
            limits.append(max(0, self.max_steps - self.initial_step))
        return min(limits) if limits else None

    def batches(self, endless: bool = True, workers: int = 1) -> Generator[Any, None, None]:
        """Yield batches in order, from this process or from `workers` worker processes in rotation."""
        if runtime.options().real_workers:
            yield from _from_processes(self, endless, workers)
            return
        state = distributed.WorkerState(streamer=True, run_step=self._drawn)
        with distributed.as_worker(state):
            iterator = _passes(self.dataloader, endless, _name(self.input_fn))
        while True:
            with distributed.as_worker(state):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            self._drawn += 1
            self._streamed += infer_batch_size(batch) or 0
            yield batch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over an executor for this loader, as the experimental interface does."""
        yield from DataExecutor(self, num_steps=self.limit())


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _checked(loader: object) -> Iterable[object]:
    if not hasattr(loader, "__iter__"):
        raise faults.program_error(
            f"input_fn gave a {type(loader).__name__}, which cannot be iterated; return a torch DataLoader"
        )
    return loader


def _passes(loader: Iterable[object], endless: bool, name: str) -> Iterator[Any]:
    """Yield pass after pass over a loader; each pass tells the samplers its number."""
    for epoch in itertools.count():
        for owner in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if count == 0:
            raise faults.program_error(
                f"the loader that {name} gives contains no batch; give more data, a smaller batch or drop_last=False",
                where="",
            )
        if not endless:
            return
        counters.count("LoaderRestarts")
        faults.warn_once(
            ("restart", name), f"the data of {name} ended after {count} batches and starts again"
        )


def _work(
    loader: DataLoader,
    rank: int,
    workers: int,
    systems: int,
    endless: bool,
    out: queue.Queue[tuple[str, Any]],
) -> None:
    """Run a worker process, which has its own loader and rank and puts batches into a bounded queue."""
    end_with_command()
    torch.set_num_threads(1)
    per_system = max(1, workers // systems)
    distributed.become_worker(
        distributed.WorkerState(
            rank, rank % per_system, workers, rank // per_system, streamer=True, run_step=loader._drawn
        )
    )
    try:
        made = _checked(loader.input_fn(*loader.args, **loader.keywords))
        for batch in _passes(made, endless, _name(loader.input_fn)):
            # By value: a shared handle would die with the worker.
            out.put(("batch", pickle.dumps(batch, protocol=5)))
        out.put(("end", None))
    except KeyboardInterrupt:
        return
    except BaseException as fault:
        # The client raises it again, with the line of the worker.
        where = traceback.extract_tb(fault.__traceback__)[-1]
        out.put(
            (
                "fault",
                f"input worker {rank}: {where.filename}:{where.lineno}: {type(fault).__name__}: {fault}",
            )
        )


def _from_processes(loader: DataLoader, endless: bool, workers: int) -> Iterator[Any]:
    context: Any = multiprocessing.get_context(
        "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    )
    if context.get_start_method() == "spawn":
        try:
            pickle.dumps((loader.input_fn, loader.args, loader.keywords))
        except (pickle.PicklingError, AttributeError, TypeError) as fault:
            raise faults.program_error(
                f"worker processes need an input_fn that can be pickled, and {_name(loader.input_fn)} cannot ({fault}); "
                "define it at the top of a module"
            ) from fault
    systems = runtime.options().systems or runtime.settings().num_csx
    queues = [context.Queue(PREFETCH) for _ in range(workers)]
    processes = [
        context.Process(target=_work, args=(loader, r, workers, systems, endless, q), daemon=True)
        for r, q in enumerate(queues)
    ]
    for process in processes:
        process.start()
    try:
        live = list(range(workers))
        while live:
            for rank in list(live):
                kind, value = _next(queues[rank], processes[rank], rank)
                if kind == "fault":
                    raise faults.program_error(str(value), where="")
                if kind == "end":
                    live.remove(rank)
                else:
                    loader._drawn += 1
                    yield pickle.loads(value)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(5)


def _next(source: queue.Queue[tuple[str, Any]], process: BaseProcess, rank: int) -> tuple[str, Any]:
    while True:
        try:
            return source.get(timeout=1.0)
        except queue.Empty:
            if not process.is_alive():
                raise faults.program_error(
                    f"input worker {rank} ended without a message (exit status {process.exitcode}); "
                    "run without --real-workers to see its fault",
                    where="",
                ) from None
