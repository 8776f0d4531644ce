"""Capture of one step: state recorded before the user's Python code runs, and checked afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults, hooks, runtime
from wse_sim.cstorch.program import StepProgram, accumulate, make_program
from wse_sim.cstorch.record import Recorder, recording
from wse_sim.cstorch.tensors import WaferTensor, gradient_of, put_gradient
from wse_sim.cstorch.watched import Watched


class Capture:
    """A recording around the user's Python; :meth:`program` closes it."""

    def __init__(self, name: str, batch: list[WaferTensor], function: object = None) -> None:
        run = self.run = runtime.run()
        self.name, self.batch, self.function = name, batch, function
        fake = not run.executes and run.backend is not None
        mode = run.backend.fake_mode if fake else FakeTensorMode(allow_non_fake_inputs=True)  # type: ignore[union-attr]
        self.recorder = Recorder(mode, batch)
        self.recorder.keeps_lines = run.options.check_values
        _known_paths(run, self.recorder)
        self.parameters = _parameters(run)
        self.gradients = {id(p): gradient_of(p) for p in self.parameters}
        self.buffers = _buffers(run)
        self.watched = Watched(function) if function is not None else None
        self._recording: AbstractContextManager[None] | None = None

    def start(self) -> None:
        """Start to record operators."""
        self.run.state_name = "capturing"
        self._recording = recording(self.recorder)
        self._recording.__enter__()

    def stop(self) -> None:
        """Stop recording operators."""
        if self._recording is not None:
            self._recording.__exit__(None, None, None)
            self._recording = None

    def program(self, result: object) -> StepProgram:
        """Return the recorded program, with `result` as the return value of the step."""
        recorder, run = self.recorder, self.run
        _check_buffers(run, self.buffers)
        notes = _settle_gradients(run, recorder, self.parameters, self.gradients)
        program = make_program(self.name, recorder, self.batch, result, _kept_by_hooks())
        program.notes.extend(notes)
        if self.watched is not None:
            self.watched.optimizers = recorder.optimizers
            self.watched.compare()
            program.watched = self.watched
        return program


def capture(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch: list[WaferTensor],
) -> StepProgram:
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


def _kept_by_hooks() -> list[WaferTensor]:
    """Return tensors of the step that objects of the program keep in attributes and use later in the loop."""
    owners = {
        id(o): o for f in hooks.tensor_hooks.values() if (o := getattr(f, "__self__", None)) is not None
    }
    held = [value for owner in owners.values() for value in vars(owner).values()]
    return [t for t in held if isinstance(t, WaferTensor) and t._role == "trace"]


def _known_paths(run: runtime.Run, recorder: Recorder) -> None:
    several = len(run.modules) > 1
    for title, (model, _) in zip(run.titles(), run.modules, strict=True):
        for path, module in model.named_modules():
            whole = f"{title}.{path}" if path else title
            recorder.tape.paths.setdefault(id(module), whole if several else path)


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
    """Discard the step's gradients; gradients that survive the step without being cleared are accumulated
    explicitly."""
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
