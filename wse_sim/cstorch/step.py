"""Steps, closures, executions: when the user's Python runs, and with which values.

A function under :func:`trace` is recorded at its first call and replayed at every call.  Closures are
queued and run at the next step boundary, on the client's thread, with plain CPU tensors.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.program import Program, accumulate, compiled_graph, make_program
from wse_sim.cstorch.record import Recorder, recording
from wse_sim.cstorch.tensors import WaferTensor, gradient_of, owner_of, put_gradient, wrap

MAX_GRAPHS = 8
"""Different graphs that a step may have under retrace_every_iteration."""


class Traced:
    """A step: recorded once per mode of its modules, replayed at every call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.programs: dict[Any, Program] = {}
        self.graphs = Graphs(self._name)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            return self
        bound = owner.__dict__.setdefault("_wse_traced", {}) if hasattr(owner, "__dict__") else {}
        if self.function not in bound:
            bound[self.function] = Traced(functools.partial(self.function, owner))
            bound[self.function].__dict__["__name__"] = self._name
        return bound[self.function]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = runtime.run()
        if runtime.is_tracing() or not runtime.use_cs():
            return self._eager(run, args, kwargs)
        if run.execution is None:
            raise faults.program_error(
                f"{self._name} is called outside of an executor's loop; iterate a cstorch.utils.data.DataExecutor "
                "and call it there"
            )
        leaves, spec = pytree.tree_flatten((args, kwargs))
        batch = list({id(v): v for v in leaves if isinstance(v, WaferTensor)}.values())
        batch = [t for t in batch if t._role in ("input", "output", "plain")]
        key = self._key(run, leaves, spec, batch)
        program = self.programs.get(key)
        if program is None or run.settings.retrace_every_iteration:
            self._check_shapes(run, key, batch)
            program = self._captured(run, key, args, kwargs, batch)
        return run.execution.execute(program, batch)

    @property
    def _name(self) -> str:
        return getattr(self, "__name__", "step")

    def _eager(self, run: runtime.Run, args: Any, kwargs: Any) -> Any:
        out = self.function(*args, **kwargs)
        if run.execution is not None and not runtime.is_tracing():
            run.execution.stepped_eagerly(args, kwargs)
        return out

    def _key(self, run: runtime.Run, leaves: Sequence[Any], spec: Any, batch: Sequence[WaferTensor]) -> Any:
        settings = run.settings
        modes = tuple(module.training for module, _ in run.modules)
        shapes = tuple((tuple(t.shape), t.dtype) for t in batch)
        return (
            modes,
            torch.is_grad_enabled(),
            settings.half_dtype,
            settings.precision_level,
            str(spec),
            shapes,
        )

    def _check_shapes(self, run: runtime.Run, key: Any, batch: Sequence[WaferTensor]) -> None:
        step = run.execution.iteration if run.execution is not None else 0
        if run.settings.retrace_every_iteration:
            return
        for known in self.programs:
            if known[:4] != key[:4]:
                continue
            if known[4] != key[4]:
                raise faults.program_error(
                    f"step {step}: {self._name} is called with another structure of arguments than when it "
                    "was compiled; give every batch the same structure (or retrace_every_iteration for debugging)",
                    where="",
                )
            for (old, old_type), (new, new_type) in zip(known[5], key[5], strict=False):
                if old != new:
                    raise faults.program_error(
                        f"step {step}: batch {new} differs from the compiled {old}; "
                        "use drop_last=True in the DataLoader (or retrace_every_iteration for debugging)",
                        where="",
                    )
                if old_type != new_type:
                    raise faults.program_error(
                        f"step {step}: a batch of {new_type} differs from the compiled {old_type}; "
                        "give every batch the same types",
                        where="",
                    )

    def _captured(
        self, run: runtime.Run, key: Any, args: Any, kwargs: Any, batch: list[WaferTensor]
    ) -> Program:
        with runtime.span("trace", self._name, "TraceTime"):
            start = time.perf_counter()
            program = capture(self._name, self.function, args, kwargs, batch)
            seconds = time.perf_counter() - start
        self.graphs.settle(run, program, seconds)
        self.programs[key] = program
        return program


class Graphs:
    """The different graphs of one step: a known one reuses its compile and its replay."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: dict[str, Program] = {}
        self.replays: dict[str, Any] = {}

    def settle(self, run: runtime.Run, program: Program, trace_s: float) -> None:
        """Compile a program, or take over what an equal one has.

        Raises
        ------
        ProgramError
            If the step has too many graphs.
        """
        mark = program.fingerprint()
        known = self.known.get(mark)
        if known is not None:
            runtime.count("CachedCompile")
            program.compiled = known.compiled
        else:
            if len(self.known) >= MAX_GRAPHS:
                raise faults.program_error(
                    _difference(list(self.known.values())[-1], program, self.name), where=""
                )
            prepare(run, program, trace_s)
            self.known[mark] = program
        if run.executes:
            outputs = f"{mark} {program.outputs}"
            if outputs not in self.replays:
                self.replays[outputs] = compiled_graph(program.graph)
            program.run_graph = self.replays[outputs]


def _difference(old: Program, new: Program, name: str) -> str:
    pairs = zip(old.graph.nodes, new.graph.nodes, strict=False)
    first = next(((a, b) for a, b in pairs if (a.target, a.args) != (b.target, b.args)), None)
    what = f"{first[0].target} became {first[1].target}" if first else "its length changes"
    return (
        f"{name} has a different graph at every call ({MAX_GRAPHS} so far; first difference: {what}); "
        "take Python values that change out of the step"
    )


def prepare(run: runtime.Run, program: Program, trace_s: float) -> None:
    """Lower, compile and simulate a captured step, and say so."""
    from wse_sim.cstorch import simulated

    runtime.count("UncachedCompile")
    runtime.lock_cluster()
    program.compiled = simulated.compile_program(run, program, trace_s)


class Capture:
    """A recording around the user's Python; :meth:`program` closes it."""

    def __init__(self, name: str, batch: list[WaferTensor], function: Any = None) -> None:
        run = self.run = runtime.run()
        self.name, self.batch, self.function = name, batch, function
        fake = not run.executes and run.backend is not None
        mode = run.backend.fake_mode if fake else FakeTensorMode(allow_non_fake_inputs=True)  # type: ignore[union-attr]
        self.recorder = Recorder(mode, batch)
        _known_paths(run, self.recorder)
        self.parameters = _parameters(run)
        self.gradients = {id(p): gradient_of(p) for p in self.parameters}
        self.buffers = _buffers(run)
        self.numbers = _python_numbers(function) if function is not None else {}
        self._recording: Any = None

    def start(self) -> None:
        """From here on operators are recorded."""
        self.run.state_name = "capturing"
        self._recording = recording(self.recorder)
        self._recording.__enter__()

    def stop(self) -> None:
        """Operators are not recorded any more."""
        if self._recording is not None:
            self._recording.__exit__(None, None, None)
            self._recording = None

    def program(self, result: Any) -> Program:
        """What was recorded, with `result` as what the step returns."""
        recorder, run = self.recorder, self.run
        _check_buffers(run, self.buffers)
        if self.function is not None:
            _warn_of_numbers(self.function, self.numbers)
        notes = _settle_gradients(run, recorder, self.parameters, self.gradients)
        program = make_program(self.name, recorder, self.batch, result)
        program.notes.extend(notes)
        return program


def capture(
    name: str, function: Callable[..., Any], args: Any, kwargs: Any, batch: list[WaferTensor]
) -> Program:
    """Run the user's step once and record it."""
    taking = Capture(name, batch, function)
    taking.start()
    try:
        result = function(*args, **kwargs)
        tape = taking.recorder.tape
        if not tape.ended:
            tape.end(
                [t for t in pytree.tree_leaves(result) if isinstance(t, WaferTensor) and t._role == "trace"]
            )
    finally:
        taking.stop()
    return taking.program(result)


def _known_paths(run: runtime.Run, recorder: Recorder) -> None:
    for model, _ in run.modules:
        for path, module in model.named_modules():
            recorder.tape.paths.setdefault(id(module), path)


def _parameters(run: runtime.Run) -> list[torch.Tensor]:
    seen: dict[int, torch.Tensor] = {}
    for model, _ in run.modules:
        for p in model.parameters():
            seen[id(p)] = p
    return list(seen.values())


def _buffers(run: runtime.Run) -> dict[tuple[int, str], tuple[Any, str]]:
    out = {}
    for model, _ in run.modules:
        for path, module in model.named_modules():
            for key, value in module._buffers.items():
                out[id(module), key] = (value, f"{path}.{key}" if path else key)
    return out


def _check_buffers(run: runtime.Run, before: dict[tuple[int, str], tuple[Any, str]]) -> None:
    for model, _ in run.modules:
        for module in model.modules():
            for key, value in module._buffers.items():
                old = before.get((id(module), key))
                if (
                    old is not None
                    and old[0] is not value
                    and isinstance(value, WaferTensor)
                    and value._role == "trace"
                ):
                    raise faults.program_error(
                        f"buffer '{old[1]}' was replaced by a new tensor inside the step, which later steps do not see; "
                        "write into it with copy_()",
                        where="",
                    )


def _settle_gradients(
    run: runtime.Run, recorder: Recorder, parameters: list[torch.Tensor], before: dict[int, Any]
) -> list[str]:
    """Gradients live in the step; those that survive without having been cleared are accumulated by hand."""
    names = run.names()
    accumulated = 0
    for p in parameters:
        gradient = gradient_of(p)
        if not isinstance(gradient, WaferTensor) or gradient._role != "trace":
            continue
        if before[id(p)] is None and id(p) not in recorder.cleared_grads:
            total = accumulate(recorder, gradient, names.get(id(p), "parameter"))
            put_gradient(p, total)
            accumulated += 1
        else:
            put_gradient(p, before[id(p)] if id(p) not in recorder.cleared_grads else None)
    if accumulated:
        return [
            f"{accumulated} gradients survive the step without zero_grad(): they are state, summed from step to step"
        ]
    return []


# -- Python numbers that change in a step -------------------------------------------------------------
_PLAIN = (int, float, bool, str, complex)


def _unwrapped(function: Any) -> tuple[Any, Any]:
    owner = None
    while True:
        if isinstance(function, functools.partial):
            owner = function.args[0] if function.args else owner
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            owner, function = function.__self__, function.__func__
        else:
            return function, owner


def _python_numbers(function: Any) -> dict[str, Any]:
    """Plain values that the step can rebind: globals it names, cells of its closure, attributes of its owner."""
    plain, owner = _unwrapped(function)
    out: dict[str, Any] = {}
    code = getattr(plain, "__code__", None)
    if code is not None:
        space = plain.__globals__
        out |= {n: space[n] for n in code.co_names if isinstance(space.get(n), _PLAIN)}
        for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=False):
            try:
                if isinstance(cell.cell_contents, _PLAIN):
                    out[name] = cell.cell_contents
            except ValueError:
                continue
    for model, _ in runtime.run().modules:
        for path, module in model.named_modules():
            out |= {
                f"{path}.{k}" if path else k: v
                for k, v in vars(module).items()
                if type(v) in (int, float) and k != "training"
            }
    if owner is not None and hasattr(owner, "__dict__"):
        out |= {f"self.{k}": v for k, v in vars(owner).items() if isinstance(v, _PLAIN)}
    return out


def _warn_of_numbers(function: Any, before: dict[str, Any]) -> None:
    after = _python_numbers(function)
    for name, old in before.items():
        if name in after and after[name] != old:
            faults.warn_once(
                ("number", name),
                f"'{name}' changed inside the step: the step is captured once, later steps see its first value",
            )


# -- optimizers ---------------------------------------------------------------------------------------
def before_optimizer(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Refuse optimizers of torch; remember the state that exists (called before every ``optimizer.step``)."""
    if not runtime.use_cs():
        return
    owned = any(isinstance(p, WaferTensor) for g in optimizer.param_groups for p in g["params"])
    kind = type(optimizer)
    if owned and kind.__module__.startswith("torch.optim"):
        raise faults.program_error(
            f"torch.optim.{kind.__name__} is written for eager execution; use cstorch.optim.{kind.__name__}, same arguments"
        )
    if runtime.is_tracing() and owned:
        optimizer.__dict__["_wse_state"] = _state_of(optimizer)


def after_optimizer(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Refuse state that was made in the step."""
    before = optimizer.__dict__.pop("_wse_state", None)
    if before is None or not runtime.is_tracing():
        return
    kind = type(optimizer).__name__
    for key, tensor in _state_of(optimizer).items():
        name = key[1]
        if key not in before:
            raise faults.program_error(
                f"optimizer {kind}: state '{name}' was made inside the step and would be zero at every step; "
                "make it in preinitialize()",
                where="",
            )
        if before[key] is not tensor and isinstance(tensor, WaferTensor) and tensor._role == "trace":
            raise faults.program_error(
                f"optimizer {kind}: state '{name}' was replaced by a new tensor inside the step, which later steps do not "
                "see; write into it with copy_()",
                where="",
            )


def _state_of(optimizer: Any) -> dict[tuple[int, str], torch.Tensor]:
    out = {}
    for p, state in optimizer.state.items():
        if isinstance(state, dict):
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    out[id(p), str(name)] = value
    return out


# -- decorators ---------------------------------------------------------------------------------------
def trace(function: Callable[..., Any] | None = None) -> Any:
    """The step of a training or evaluation loop: captured whole at its first call, replayed later."""
    if function is None:
        return trace
    return function if isinstance(function, Traced) else Traced(function)


def step_closure(
    function: Callable[..., Any] | None = None, *, background: bool = False, **other: Any
) -> Any:
    """A function whose tensors are fetched: it runs at the next step boundary, with CPU tensors.

    Called in a step it runs at every step, called in the loop at that step.
    """
    if function is None:
        return functools.partial(step_closure, background=background)

    @functools.wraps(function)
    def queued(*args: Any, **kwargs: Any) -> None:
        if runtime.run().in_closure or not runtime.use_cs():
            if runtime.executes():
                function(*args, **kwargs)
            return
        runtime.step_output((args, kwargs), lambda given: function(*given[0], **given[1]))

    return queued


def checkpoint_closure(function: Callable[..., Any]) -> Any:
    """A step closure that runs on checkpoint steps and on the last one only."""

    @functools.wraps(function)
    def queued(*args: Any, **kwargs: Any) -> None:
        run = runtime.run()

        def called(given: Any) -> None:
            execution = run.execution or run.last_execution
            if execution is None or execution.is_checkpoint_step:
                with runtime.span("checkpoint", function.__name__, "CheckpointTime"):
                    function(*given[0], **given[1])

        if run.in_closure:
            called((args, kwargs))
        elif runtime.use_cs() or run.execution is not None:
            runtime.step_output((args, kwargs), called)
        elif runtime.executes():
            function(*args, **kwargs)

    return queued


# -- executions ---------------------------------------------------------------------------------------
class Execution:
    """One pass over an executor: batches in, closures out, the clock."""

    def __init__(
        self,
        run: runtime.Run,
        executor: Any,
        num_steps: int | None = None,
        checkpoint_steps: int | None = None,
        activation_steps: int | None = None,
        cs_config: Any = None,
        writer: Any = None,
        listeners: Any = None,
    ) -> None:
        if run.execution is not None:
            raise faults.program_error(
                "an executor is iterated inside of another one's loop; finish the first, one execution runs at a time"
            )
        for name, value in (
            ("num_steps", num_steps),
            ("checkpoint_steps", checkpoint_steps),
            ("activation_steps", activation_steps),
        ):
            if hasattr(value, "match"):
                continue  # a Schedule
            if value is not None and (not isinstance(value, int) or value < 0):
                raise faults.program_error(f"{name}={value!r} is impossible; give an integer of at least 0")
        self.run, self.executor, self.num_steps = run, executor, num_steps
        self.checkpoint_steps: Any = (
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
        self.compiled: Any = None
        self.program: Any = None
        self.free_fetch = False  # weights may be fetched at every step (elder door)
        run.execution = self
        run.executions += 1
        run.state_name = "running"
        if runtime.use_cs() and not self.only_one and not run.options.no_port:
            from wse_sim.cstorch.monitor import server

            server.start(run, run.options.port)
        if run.boundary is not None:
            run.boundary()

    @property
    def only_one(self) -> bool:
        """Whether nothing executes: exactly one batch is given."""
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
        due = steps.match(self.iteration) if hasattr(steps, "match") else self.iteration % steps == 0
        return bool(due) or self.on_final_iteration

    def feed(self, batch: Any, wait_s: float = 0.0) -> Any:
        """Bring a batch to the device: tensors become device tensors, numbers stay constants."""
        run = self.run
        self.iteration += 1
        self.executed = False
        run.measured_input.append(wait_s)
        runtime.timed("InputWaitTime", wait_s)
        self.batch_samples = _samples(batch)
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
                        "numbers in a batch are constants of the compiled step: later batches see the first",
                    )
                out.append(leaf)
        return pytree.tree_unflatten(out, spec)

    def execute(self, program: Program, batch: list[WaferTensor]) -> Any:
        """Replay a step, and queue the callbacks that it asked for."""
        runtime.count("StepsEnqueued")
        self.compiled = program.compiled
        if self.only_one:
            return program.empty(batch)
        with runtime.span("replay", program.name, "ReplayTime"):
            out, callbacks = program.replay(batch)
        self.executed = True
        self.program = program
        self.queue.extend(callbacks)
        runtime.count("ClosuresPending", len(callbacks))
        return out

    def stepped_eagerly(self, args: Any, kwargs: Any) -> None:
        """A step on another backend."""
        self.executed = True

    def enqueue(self, values: Any, callback: Callable[[Any], None]) -> None:
        """Queue a callback for the end of this step."""
        if not self.only_one:
            self.queue.append((values, callback))
            runtime.count("ClosuresPending")

    def end_step(self, final: bool = False) -> None:
        """The loop asks for the next batch: advance the clock, then run the closures of the step."""
        run = self.run
        if run.stop_requested:
            self.num_steps = self.iteration
        self.is_final = final or self.on_final_iteration
        if self.executed:
            run.global_step += 1
            run.total_samples += self.batch_samples
            if runtime.use_cs() and self.compiled is not None:
                from wse_sim.cstorch import simulated

                simulated.advance(run, self)
                loss = self.program.last_loss
                if run.options.report is not None and loss is not None:
                    run.losses.append((run.global_step, run.clock_s, float(loss)))
            self.profiler.add(self.batch_samples)
            runtime.count("StepsDone")
        self.executed = False
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
        """After the last step, or after a break: drain, and write what the run has so far."""
        if self.finished:
            return
        self.finished = True
        run = self.run
        try:
            if self.executed or self.queue:
                self.end_step(final=True)
        finally:
            run.client_s += time.perf_counter() - self.started_s
            run.execution, run.last_execution = None, self
            run.state_name = "idle"
            if runtime.use_cs():
                from wse_sim.cstorch import outcome

                outcome.write(run, self)


def _fetched(leaf: Any) -> Any:
    if not isinstance(leaf, WaferTensor):
        return leaf
    value = leaf._value
    if value is None:
        raise faults.program_error(
            "a closure was given a tensor of the step that the step neither returns nor hands out; return it from the step"
        )
    return value.detach().clone() if owner_of(leaf)._role in ("state", "metric") else value.detach()


def _samples(batch: Any) -> int:
    from wse_sim.cstorch.utils.data import infer_batch_size

    return infer_batch_size(batch) or 1


class Profiler:
    """``executor.profiler``: the rates of an execution, in wafer time."""

    def __init__(self) -> None:
        from wse_sim.cstorch.utils.tracker import RateTracker

        self.rate_tracker = RateTracker(clock=runtime.clock)

    def add(self, samples: int) -> None:
        """Count the samples of a step."""
        self.rate_tracker.add(samples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["rate_tracker"], name)
