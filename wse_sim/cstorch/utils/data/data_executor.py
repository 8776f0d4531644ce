"""The executor: gives a loop its batches, one step each, and ends every step at the next request."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wse_sim.cstorch import checkpoint, faults, runtime
from wse_sim.cstorch.distributed import CSConfig
from wse_sim.cstorch.execution import begin_execution
from wse_sim.cstorch.kinds import Watcher, Writer
from wse_sim.cstorch.metrics import metric
from wse_sim.cstorch.utils.data.utils import BatchSource, Schedule, check_counts, length_of

if TYPE_CHECKING:
    from wse_sim.cstorch.execution import Execution, Profiler

# "auto", "explore", "disable", a number of samples, or {"explore": {"min": .., "max": ..}}.
MbsSetting = str | int | dict[str, Any] | None


class MicroBatchSize:
    """Allowed values of ``micro_batch_size``."""

    WORDS = ("auto", "explore", "disable")

    @classmethod
    def check(cls, value: MbsSetting, batch: int | None = None) -> MbsSetting:
        """Return the setting itself, if it makes sense.

        Raises:
            ProgramError: an unknown word, a number below 1 or one that does not divide the batch.
        """
        if value is None or value in cls.WORDS:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            if batch is not None and batch % value:
                raise faults.program_error(
                    f"micro_batch_size={value} does not divide the batch of {batch} samples"
                )
            return value
        if isinstance(value, dict) and set(value) == {"explore"} and set(value["explore"]) <= {"min", "max"}:
            return value
        raise faults.program_error(
            f"micro_batch_size={value!r} is neither one of {', '.join(cls.WORDS)} nor a number of samples nor "
            "{'explore': {'min': .., 'max': ..}}"
        )


class DataExecutor:
    """Runs a loop over batches.

    Args:
        dataloader: a :class:`DataLoader`.
        num_steps: steps to run; default: the loader's own limits, else one pass over it.
        checkpoint_steps: weights can be fetched every that many steps and on the last one; 0 or None: never.
        activation_steps: outputs are fetched every that many steps (default: every step).
        cs_config: settings of the cluster, locked by the first compile.
        writer: takes what the step summarises.
        listeners: receive tensors of the captured step.
        micro_batch_size: overrides the backend's.
        profiler_activities: kept for programs that give it; the run is always observed.
    """

    def __init__(
        self,
        dataloader: BatchSource,
        num_steps: int | None = None,
        checkpoint_steps: int | Schedule | None = None,
        activation_steps: int | None = None,
        cs_config: CSConfig | None = None,
        writer: Writer | None = None,
        listeners: Iterable[Watcher] | None = None,
        micro_batch_size: MbsSetting = None,
        profiler_activities: object = None,
        **_other: object,
    ) -> None:
        if not isinstance(dataloader, BatchSource):
            raise faults.program_error(
                f"DataExecutor takes a cstorch.utils.data.DataLoader but got a {type(dataloader).__name__}; "
                "wrap the function that makes your loader: cstorch.utils.data.DataLoader(input_fn)"
            )
        check_counts("DataExecutor", num_steps=num_steps, activation_steps=activation_steps)
        if isinstance(checkpoint_steps, int) and checkpoint_steps < 0:
            raise faults.program_error(
                f"DataExecutor: checkpoint_steps={checkpoint_steps} must not be negative; 0 means never"
            )
        self.dataloader, self.num_steps = dataloader, num_steps
        self.checkpoint_steps = checkpoint_steps
        self.activation_steps, self._cs_config = activation_steps, cs_config
        self.writer, self.listeners = writer, list(listeners or ())
        self.micro_batch_size = MicroBatchSize.check(micro_batch_size)
        self._execution: Execution | None = None
        self._folder: Path | None = None

    # -- what a loop asks ------------------------------------------------------------------------

    @property
    def execution(self) -> Execution:
        """The current run of this executor, or the last one."""
        if self._execution is None:
            raise faults.program_error("the executor has not started; iterate over it first")
        return self._execution

    @property
    def cs_config(self) -> CSConfig:
        if self._cs_config is not None:
            return self._cs_config
        held = runtime.settings()
        return CSConfig(
            num_csx=held.num_csx,
            max_wgt_servers=held.max_wgt_servers,
            max_act_per_csx=held.max_act_per_csx,
            num_workers_per_csx=held.num_workers_per_csx,
            transfer_processes=held.transfer_processes,
            precision_opt_level=held.precision_level,
        )

    @property
    def on_final_iteration(self) -> bool:
        """True in the last step and its closures."""
        return bool(self._execution is not None and self._execution.on_final_iteration)

    @property
    def iteration(self) -> int:
        """Index of the current step, from 0; trainers compare it with 0 to detect the first step."""
        return max(0, self.user_iteration - 1)

    @property
    def user_iteration(self) -> int:
        """Steps of this executor so far (1 in the first step)."""
        return 0 if self._execution is None else int(self._execution.iteration)

    @property
    def is_initial_step(self) -> bool:
        return self.user_iteration <= 1

    @property
    def profiler(self) -> Profiler | None:
        """Rates of this run; ``.rate_tracker``."""
        return None if self._execution is None else self._execution.profiler

    @property
    def artifact_dir(self) -> Path:
        """A folder of this executor below that of the run; created on first access."""
        if self._folder is None:
            run = runtime.run()
            taken = itertools.count(max(run.executions, 1))
            self._folder = next(f for n in taken if not (f := run.folder / f"executor_{n:03d}").exists())
            self._folder.mkdir(parents=True)
        return self._folder

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        if self._execution is not None and self._execution.only_one:
            return 1
        steps = self._steps()
        if steps is None:
            raise TypeError("the executor runs until its data ends, and the length of the data is unknown")
        return steps

    def _steps(self) -> int | None:
        if self.num_steps is not None:
            return self.num_steps
        own = self.dataloader.limit()
        return own if own is not None else length_of(self.dataloader.dataloader)

    # -- the loop --------------------------------------------------------------------------------

    def __enter__(self) -> DataExecutor:
        return self

    def __exit__(self, *_fault: object) -> None:
        if self._execution is not None:
            self._execution.finish()

    def __iter__(self) -> Iterator[Any]:
        only_one = not runtime.executes()
        steps = 1 if only_one else self._steps()
        execution = self._execution = begin_execution(
            self,
            num_steps=steps,
            checkpoint_steps=self.checkpoint_steps,
            activation_steps=self.activation_steps,
            cs_config=self._cs_config,
            writer=self.writer,
            listeners=self.listeners,
        )
        metric.reset_all()
        try:
            yield from self._loop(execution, steps)
        finally:
            execution.finish()

    def _loop(self, execution: Execution, steps: int | None) -> Iterator[Any]:
        held = runtime.settings()
        workers = held.num_workers_per_csx * (runtime.options().systems or held.num_csx)
        source = self.dataloader.batches(endless=steps is not None, workers=workers)
        done = 0
        try:
            batch, wait_s = _draw(source)
            # The loader has drawn what it draws at its start; from here on the numbers are those of the saved run.
            checkpoint.apply_random_state()
            while batch is not _END and (steps is None or done < steps):
                yield execution.feed(batch, wait_s=wait_s)
                done += 1
                if steps is None:
                    # Whether this step is the last one is known by asking for the next batch.
                    batch, wait_s = _draw(source)
                    if batch is _END:
                        execution.num_steps = done
                    execution.end_step()
                else:
                    execution.end_step()
                    if runtime.run().stop_requested:
                        return
                    if done < steps:
                        batch, wait_s = _draw(source)
        finally:
            source.close()


_END = object()


def _draw(source: Iterator[Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    with runtime.span("input", "next batch"):
        batch = next(source, _END)
    return batch, time.perf_counter() - start
