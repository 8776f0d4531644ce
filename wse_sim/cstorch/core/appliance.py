"""The older trainers' loop: they trace the first batch themselves, then fetch the results of each step.

The first batch is recorded from the moment the loader yields it until the trainer calls
:meth:`ApplianceMode.compile`. Every :meth:`ApplianceMode.receive_activations` replays one step with the
current batch; a step whose results are not fetched is replayed when the loop takes the next batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from torch.utils import _pytree as pytree

from wse_sim.cstorch import checkpoint, faults, runtime
from wse_sim.cstorch.capture import Capture
from wse_sim.cstorch.execution import begin_execution
from wse_sim.cstorch.legacy import Tracker, state
from wse_sim.cstorch.saver.pt_h5_saver import PyTorchH5Saver
from wse_sim.cstorch.step import Graphs
from wse_sim.cstorch.tensors import WaferTensor

if TYPE_CHECKING:
    import torch

    from wse_sim.cstorch.execution import Execution
    from wse_sim.cstorch.program import StepProgram

__all__ = ["ApplianceMode"]


class ApplianceMode:
    """The machine as older trainers drive it; made once, before the loop."""

    def __init__(
        self,
        service_workdir: object = None,
        compile_dir: object = None,
        cs_config: object = None,
        precision_opt_level: int | None = None,
        use_cs_grad_accum: bool = False,
        **other: object,
    ) -> None:
        self.cs_config = self._cs_config = cs_config
        self.tracker_execute = Tracker()
        self.graphs = Graphs("step")
        self.execution: Execution | None = None
        self.program: StepProgram | None = None
        self.taking: Capture | None = None
        self.batch: list[WaferTensor] = []
        self.watched: list[WaferTensor] = []
        self.replayed = False
        self.trace_start_s = 0.0
        if cs_config is not None:
            runtime.apply_cluster(cs_config)
        if precision_opt_level is not None:
            runtime.settings().precision_level = precision_opt_level
        runtime.settings().without_effect.update(other)
        state().appliance = self

    # -- the loop ----------------------------------------------------------------------------------
    def batches(self, loader: Iterable[object]) -> Iterator[Any]:
        """Device batches of the loop; the first one is recorded while the trainer works on it."""
        state().run_pending()  # here the trainer writes its initial state
        if self.execution is None:
            self.execution = begin_execution(self, num_steps=None, checkpoint_steps=0)
        execution, iterator = self.execution, iter(loader)
        try:
            while True:
                start = time.perf_counter()
                try:
                    raw = next(iterator)
                except StopIteration:
                    break
                batch = execution.feed(raw, wait_s=time.perf_counter() - start)
                self.batch = [t for t in pytree.tree_leaves(batch) if isinstance(t, WaferTensor)]
                self.replayed = False
                if self.program is None:
                    self.trace_start_s = time.perf_counter()
                    self.taking = Capture(self.graphs.name, self.batch)
                    self.taking.start()
                yield batch
                self._end_step()
        finally:
            self._abandon()
            self._end_step()
            execution.finish()
            self.execution = None

    def _abandon(self) -> None:
        taking, self.taking = self.taking, None
        if taking is not None:
            taking.stop()

    def _end_step(self) -> None:
        if self.program is None or self.execution is None or self.execution.finished:
            return
        if not self.replayed and self.batch:
            self._replay()
        self.batch = []
        if self.execution.executed:
            self.execution.end_step()

    # -- what trainers call ------------------------------------------------------------------------
    @contextmanager
    def build_worker_image(self, *_: object, **__: object) -> Iterator[None]:
        """Do nothing: input workers have no image here."""
        yield

    def compile(self, outputs: object, batch_size: object = None, validate_only: bool = False) -> None:
        """End the recording of the first step; lower, compile and simulate it.

        Raises
        ------
        ProgramError
            If no step was recorded.
        """
        taking, self.taking = self.taking, None
        if taking is None:
            raise faults.program_error(
                "compile() is called without a traced step; call it in the loop over the dataloader"
            )
        tape, start = taking.recorder.tape, self.trace_start_s
        self.watched = [t for t in state().traced() if t._role == "trace"]
        if not tape.ended:
            tape.end(self.watched or tape.last())
        taking.stop()
        self.watched.extend(r for r in tape.roots if isinstance(r, WaferTensor) and r._role == "trace")
        scaled = taking.recorder.scaled
        self.watched.extend(loss for loss in scaled.values() if isinstance(loss, WaferTensor))
        self.graphs.name = "train_step" if taking.recorder.has_backward else "eval_step"
        taking.name = self.graphs.name
        self.program = taking.program(self.watched)
        self.graphs.settle(taking.run, self.program, time.perf_counter() - start)

    def execute(
        self,
        input_fn: object = None,
        input_fn_params: object = None,
        batch_size: object = None,
        total_steps: int | None = None,
        checkpoint_steps: int = 0,
        mode: str | None = None,
        initial_checkpoint_file: str | os.PathLike[str] | None = None,
        **other: object,
    ) -> None:
        """Load the weights of a file and set the length of the loop; batches come from the loop's own loader."""
        execution = self._at_work()
        execution.num_steps = total_steps
        execution.checkpoint_steps = checkpoint_steps
        if initial_checkpoint_file is None:
            return
        saver, path = PyTorchH5Saver(), os.fspath(initial_checkpoint_file)
        saved = set(saver.tensor_names(path))
        with runtime.internal():
            for name, held in state().named.items():
                if name in saved:
                    runtime.assign(held, saver.load_tensor(path, name))

    def receive_activations(self, iteration: int = 0) -> None:
        """Replay the step of the current batch; its results are in ``state()``."""
        if not self.replayed:
            self._replay()

    def _at_work(self) -> Execution:
        if self.execution is None:
            raise faults.program_error(
                "no loop of the appliance is running; call this in the loop over the dataloader"
            )
        return self.execution

    def _replay(self) -> None:
        self.replayed = True
        execution = self._at_work()
        assert self.program is not None
        out = cast(list[WaferTensor], execution.execute(self.program, self.batch))
        held = state()
        if execution.only_one:
            return
        held.values = {
            id(traced): cast("torch.Tensor", given._value).detach().clone()
            for traced, given in zip(self.watched, out, strict=True)
        }
        execution.run.in_closure += 1
        try:
            for callback in held.callbacks:
                callback()
        finally:
            execution.run.in_closure -= 1

    def save_weights(
        self,
        state_dict: object,
        file_name: str | os.PathLike[str],
        iteration: int = 0,
        duplicates: object = None,
        **other: object,
    ) -> None:
        """Add the tensors of a state to a file, whose structure the trainer has written."""
        flat = checkpoint._Flat()
        flat.walk(state_dict, ())
        PyTorchH5Saver().save_tensors(file_name, flat.tensors)
