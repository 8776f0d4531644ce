"""Steps and closures: they determine when the user's Python runs, and with which values.

A function under :func:`trace` is recorded at its first call and replayed at every call.  Closures are
queued and run at the next step boundary, on the client's thread, with plain CPU tensors.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults, hooks, numerics, runtime
from wse_sim.cstorch.capture import capture
from wse_sim.cstorch.program import StepProgram
from wse_sim.cstorch.roles import ExecutionRole
from wse_sim.cstorch.tensors import WaferTensor

MAX_GRAPHS = 8
"""Different graphs that a step may have under retrace_every_iteration."""


Key = tuple[object, bool, torch.dtype | str, int, str, tuple[tuple[tuple[int, ...], torch.dtype], ...]]


class Traced:
    """A step, which is recorded once per mode of its modules and replayed at every call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.programs: dict[Any, StepProgram] = {}
        self.graphs = Graphs(self._name)

    def __get__(self, owner: object, kind: type | None = None) -> Traced:
        if owner is None:
            return self
        bound = owner.__dict__.setdefault("_wse_traced", {}) if hasattr(owner, "__dict__") else {}
        if self.function not in bound:
            bound[self.function] = Traced(functools.partial(self.function, owner))
            bound[self.function].__dict__["__name__"] = self._name
        return bound[self.function]

    def __call__(self, *args: object, **kwargs: object) -> object:
        run = runtime.run()
        if runtime.is_tracing() or not runtime.use_cs():
            return self._eager(run, args, kwargs)
        if run.execution is None:
            raise faults.program_error(
                f"{self._name} is called outside an executor's loop; iterate a cstorch.utils.data.DataExecutor "
                "and call it there"
            )
        hooks.called(hooks.before_step)
        out = self._stepped(run, run.execution, args, kwargs)
        hooks.called(hooks.after_step)
        return out

    def _stepped(
        self,
        run: runtime.Run,
        execution: ExecutionRole,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        batch = list({id(v): v for v in leaves if isinstance(v, WaferTensor)}.values())
        batch = [t for t in batch if t._role in ("input", "output", "plain")]
        key = self._key(run, leaves, spec, batch)
        program = self.programs.get(key)
        if program is None or run.settings.retrace_every_iteration:
            self._check_shapes(run, key, batch)
            program = self._captured(run, key, args, kwargs, batch)
        elif program.watched is not None:
            program.watched.look_again()
        return execution.execute(program, batch)

    @property
    def _name(self) -> str:
        return getattr(self, "__name__", "step")

    def _eager(self, run: runtime.Run, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        out = self.function(*args, **kwargs)
        if run.execution is not None and not runtime.is_tracing():
            run.execution.stepped_eagerly(args, kwargs)
        return out

    def _key(
        self, run: runtime.Run, leaves: Sequence[Any], spec: pytree.TreeSpec, batch: Sequence[WaferTensor]
    ) -> Key:
        settings = run.settings
        listeners = run.execution.listeners if run.execution is not None else ()
        modes = (
            tuple(module.training for module, _ in run.modules),
            (*(id(listener) for listener in listeners or ()), *hooks.key()),
        )
        shapes = tuple((tuple(t.shape), t.dtype) for t in batch)
        return (
            modes,
            torch.is_grad_enabled(),
            settings.half_dtype,
            settings.precision_level,
            str(spec),
            shapes,
        )

    def _check_shapes(self, run: runtime.Run, key: Key, batch: Sequence[WaferTensor]) -> None:
        step = run.execution.iteration if run.execution is not None else 0
        if run.settings.retrace_every_iteration:
            return
        for known in self.programs:
            if known[:4] != key[:4]:
                continue
            if known[4] != key[4]:
                raise faults.program_error(
                    f"step {step}: {self._name} is called with a different structure of arguments than when it "
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
        self,
        run: runtime.Run,
        key: Key,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        batch: list[WaferTensor],
    ) -> StepProgram:
        with runtime.span("trace", self._name, "TraceTime"):
            start = time.perf_counter()
            program = capture(self._name, self.function, args, kwargs, batch)
            seconds = time.perf_counter() - start
        self.graphs.settle(run, program, seconds)
        self.programs[key] = program
        return program


class Graphs:
    """The different graphs of one step; a known graph reuses its compile and its replay."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: dict[str, StepProgram] = {}
        self.replays: dict[str, Any] = {}

    def settle(self, run: runtime.Run, program: StepProgram, trace_s: float) -> None:
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
                self.replays[outputs] = numerics.runnable(program, run)
            program.run_graph = self.replays[outputs]


def _difference(old: StepProgram, new: StepProgram, name: str) -> str:
    pairs = zip(old.graph.nodes, new.graph.nodes, strict=False)
    first = next(((a, b) for a, b in pairs if (a.target, a.args) != (b.target, b.args)), None)
    what = f"{first[0].target} became {first[1].target}" if first else "its length changes"
    return (
        f"{name} has a different graph at every call ({MAX_GRAPHS} so far; first difference: {what}); "
        "keep Python values that change out of the step"
    )


def prepare(run: runtime.Run, program: StepProgram, trace_s: float) -> None:
    """Lower, compile and simulate a captured step, and report it."""
    from wse_sim.cstorch import simulated

    runtime.count("UncachedCompile")
    runtime.lock_cluster()
    with runtime.random_kept():  # a capture draws numbers, and the script's own must stay as they are
        program.compiled = simulated.compile_program(run, program, trace_s)


# -- decorators ---------------------------------------------------------------------------------------
def trace(function: Callable[..., Any] | None = None) -> Any:
    """Return the step of a training or evaluation loop: captured whole at its first call, replayed later."""
    if function is None:
        return trace
    return function if isinstance(function, Traced) else Traced(function)


def step_closure(
    function: Callable[..., Any] | None = None, *, background: bool = False, **other: object
) -> Callable[..., Any]:
    """Decorate a function whose tensors are fetched: it runs at the next step boundary, with CPU tensors.

    Called in a step it runs at every step, called in the loop at that step.
    """
    if function is None:
        return functools.partial(step_closure, background=background)

    @functools.wraps(function)
    def queued(*args: object, **kwargs: object) -> None:
        if runtime.run().in_closure or not runtime.use_cs():
            if runtime.executes():
                function(*args, **kwargs)
            return
        runtime.step_output((args, kwargs), lambda given: function(*given[0], **given[1]))

    return queued


def checkpoint_closure(function: Callable[..., object]) -> Callable[..., None]:
    """Decorate a step closure that runs only on checkpoint steps and on the last one."""

    @functools.wraps(function)
    def queued(*args: object, **kwargs: object) -> None:
        run = runtime.run()

        def called(given: tuple[tuple[object, ...], dict[str, object]]) -> None:
            execution = run.execution or run.last_execution
            if execution is None or execution.is_checkpoint_step:
                with runtime.span("checkpoint", function.__name__, "CheckpointTime"):
                    function(*given[0], **given[1])

        called.fetches_state = True  # type: ignore[attr-defined]
        if run.in_closure:
            called((args, kwargs))
        elif runtime.use_cs() or run.execution is not None:
            runtime.step_output((args, kwargs), called)
        elif runtime.executes():
            function(*args, **kwargs)

    return queued
