"""Executions: one pass over an executor, with the queue of closures and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults, hooks, outcome, runtime, simulated
from wse_sim.cstorch.batches import infer_batch_size
from wse_sim.cstorch.kinds import StepSchedule, Watcher, Writer
from wse_sim.cstorch.program import StepProgram
from wse_sim.cstorch.rates import RateTracker
from wse_sim.cstorch.tensors import WaferTensor, owner_of, wrap

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from wse_sim.cstorch.compiled import Compiled


class Execution:
    """One pass over an executor: batches in, closures out, the clock."""

    def __init__(
        self,
        run: runtime.Run,
        executor: object,
        num_steps: int | None = None,
        checkpoint_steps: int | None = None,
        activation_steps: int | None = None,
        cs_config: object = None,
        writer: Writer | None = None,
        listeners: Iterable[Watcher] | None = None,
    ) -> None:
        if run.execution is not None:
            raise faults.program_error(
                "an executor is iterated inside the loop of another one; finish the first, since only one execution can run at a time"
            )
        for name, value in (
            ("num_steps", num_steps),
            ("checkpoint_steps", checkpoint_steps),
            ("activation_steps", activation_steps),
        ):
            if hasattr(value, "match"):
                continue  # a Schedule
            if value is not None and (not isinstance(value, int) or value < 0):
                raise faults.program_error(f"{name}={value!r} is invalid; give an integer of at least 0")
        self.run, self.executor, self.num_steps = run, executor, num_steps
        self.checkpoint_steps: int | StepSchedule = (
            run.settings.checkpoint_steps if checkpoint_steps is None else checkpoint_steps
        )
        self.activation_steps = activation_steps or 1
        self.writer, self.listeners = writer, listeners
        self.iteration = 0
        self.queue: list[tuple[Any, Callable[[Any], None]]] = []
        self.executed = False
        self.finished = False
        self.is_final = False
        self.batch_samples = 0
        self.last_batch: list[torch.Tensor] = []
        self.started_s = time.perf_counter()
        if cs_config is not None and run.backend is not None and run.backend.is_csx:
            runtime.apply_cluster(cs_config)
        self.profiler = Profiler()
        self.compiled: Compiled | None = None
        self.program: StepProgram | None = None
        self.wrote_state = False  # whether a step of it changed weights
        self.hooks = self._watch(listeners)
        self.free_fetch = False  # weights may be fetched at every step (older door)
        run.execution = self
        run.executions += 1
        run.state_name = "running"
        if runtime.use_cs() and not self.only_one and not run.options.no_port:
            from wse_sim.cstorch.monitor import server

            server.start(run, run.options.port)
        if run.boundary is not None:
            run.boundary()

    def _watch(self, listeners: Iterable[Watcher] | None) -> list[RemovableHandle]:
        """Attach listeners to the compiled modules."""
        hooks: list[RemovableHandle] = []
        for listener in listeners or ():
            if not hasattr(listener, "watch"):
                raise faults.program_error(
                    f"listeners: a {type(listener).__name__} has no watch(model); make one by experimental.listener.create_listener"
                )
            for model, _ in self.run.modules:
                hooks.extend(listener.watch(model))
        return hooks

    @property
    def may_fetch_after(self) -> bool:
        """Whether weights may be fetched when this execution is over."""
        return not self.wrote_state or self.free_fetch or self.is_checkpoint_step

    @property
    def only_one(self) -> bool:
        """True if nothing executes, so that exactly one batch is yielded."""
        return not self.run.executes

    @property
    def on_final_iteration(self) -> bool:
        return self.is_final or (self.num_steps is not None and self.iteration >= self.num_steps)

    @property
    def is_initial_step(self) -> bool:
        return self.iteration <= 1

    @property
    def global_step(self) -> int:
        return self.run.global_step

    @property
    def is_checkpoint_step(self) -> bool:
        """Every `checkpoint_steps` steps and the last one, if there are any."""
        steps = self.checkpoint_steps
        if not steps:
            return False
        # A schedule counts from 0, as the loop's index does.
        due = steps.match(self.iteration - 1) if hasattr(steps, "match") else self.iteration % steps == 0
        return bool(due) or self.on_final_iteration

    @property
    def is_activation_step(self) -> bool:
        """Every `activation_steps` steps and the last one: there outputs are fetched."""
        return self.iteration % self.activation_steps == 0 or self.on_final_iteration

    def feed(self, batch: object, wait_s: float = 0.0) -> object:
        """Move a batch to the device: tensors become device tensors, numbers stay constants."""
        run = self.run
        self.iteration += 1
        self.executed = False
        run.measured_input.append(wait_s)
        runtime.timed("InputWaitTime", wait_s)
        self.batch_samples = infer_batch_size(batch) or 1
        if not runtime.use_cs():
            device = run.backend.torch_device if run.backend is not None else torch.device("cpu")
            return pytree.tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, batch)
        leaves, spec = pytree.tree_flatten(batch)
        out = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, WaferTensor):
                value = leaf
                if self.only_one:
                    with torch._C.DisableTorchFunction():
                        value = run.backend.fake_mode.from_tensor(leaf, static_shapes=True)  # type: ignore[union-attr]
                out.append(wrap(value, "input"))
            else:
                if isinstance(leaf, int | float) and not isinstance(leaf, bool):
                    faults.warn_once(
                        "batch numbers",
                        "numbers in a batch are constants of the compiled step: later batches use those of the first",
                    )
                out.append(leaf)
        return pytree.tree_unflatten(out, spec)

    def execute(self, program: StepProgram, batch: list[WaferTensor]) -> object:
        """Replay a step, and queue the callbacks that it requested."""
        runtime.count("StepsEnqueued")
        self.compiled = program.compiled
        if self.only_one:
            return program.empty(batch)
        with runtime.span("replay", program.name, "ReplayTime"):
            out, callbacks = program.replay(batch)
        self.executed = True
        if program is not self.program:
            self.wrote_state |= any(t.requires_grad for t in program.written)
        self.program = program
        self.queue.extend(callbacks)
        runtime.count("ClosuresPending", len(callbacks))
        return out

    def stepped_eagerly(self, args: object, kwargs: object) -> None:
        """Run a step on another backend."""
        self.executed = True

    def enqueue(self, values: object, callback: Callable[[Any], None]) -> None:
        """Queue a callback for the end of this step."""
        if not self.only_one:
            self.queue.append((values, callback))
            runtime.count("ClosuresPending")

    def end_step(self, final: bool = False) -> None:
        """Advance the clock when the loop requests the next batch, then run the closures of the step."""
        run = self.run
        if run.stop_requested:
            self.num_steps = self.iteration
        self.is_final = final or self.on_final_iteration
        if self.executed:
            run.global_step += 1
            run.total_samples += self.batch_samples
            if runtime.use_cs() and self.compiled is not None:
                simulated.advance(run, self)
                loss = None if self.program is None else self.program.last_loss
                if run.options.report is not None and loss is not None:
                    run.losses.append((run.global_step, run.clock_s, float(loss)))
            self.profiler.add(self.batch_samples)
            runtime.count("StepsDone")
        self.executed = False
        if not self.is_activation_step:
            # Outputs of other steps stay on the wafer; what fetches weights goes by checkpoint steps.
            self.queue = [asked for asked in self.queue if getattr(asked[1], "fetches_state", False)]
        self.drain()
        if run.boundary is not None:
            run.boundary()

    def drain(self) -> None:
        """Run queued closures in order."""
        while self.queue:
            values, callback = self.queue.pop(0)
            self.run.in_closure += 1
            try:
                with runtime.span("closure", "", "ClosureTime"):
                    callback(pytree.tree_map(_fetched, values))
            finally:
                self.run.in_closure -= 1
            runtime.count("ClosuresRun")
            runtime.count("ClosuresPending", -1)

    def finish(self) -> None:
        """Finish after the last step, or after a break: drain, and write the run's results so far."""
        if self.finished:
            return
        self.finished = True
        run = self.run
        try:
            if self.executed or self.queue:
                self.end_step(final=True)
        finally:
            run.client_s += time.perf_counter() - self.started_s
            before = run.last_execution
            if not self.wrote_state and before is not None and not before.may_fetch_after:
                self.wrote_state = True  # what training left unfetchable stays so after an evaluation
            run.execution, run.last_execution = None, self
            for hook in self.hooks:
                hook.remove()
            run.state_name = "idle"
            if runtime.use_cs():
                outcome.write(run, self)


def _fetched(leaf: object) -> object:
    if not isinstance(leaf, WaferTensor):
        return leaf
    value = leaf._value
    if value is None:
        raise faults.program_error(
            "a closure received a tensor of the step that the step does not return; return it from the step"
        )
    fetched = value.detach().clone() if owner_of(leaf)._role in ("state", "metric") else value.detach()
    for function in list(hooks.received.values()):
        function(fetched, leaf._name)
    return fetched


def begin_execution(executor: object, **given: Any) -> Execution:
    """Start an execution: lock the cluster, prepare batches; see :class:`Execution`."""
    return Execution(runtime.run(), executor, **given)


class Profiler:
    """``executor.profiler``: the rates of an execution, in wafer time."""

    def __init__(self) -> None:
        self.rate_tracker = RateTracker(clock=runtime.clock)

    def add(self, samples: int) -> None:
        """Count the samples of a step."""
        self.rate_tracker.add(samples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["rate_tracker"], name)
