"""Checks around every ``optimizer.step``: the owner of the optimizer, and that its state stays separate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wse_sim.cstorch import faults, runtime, tensors
from wse_sim.cstorch.tensors import WaferTensor


def before_optimizer(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """Refuse optimizers of torch; remember the state that exists (called before every ``optimizer.step``)."""
    if not runtime.use_cs():
        return
    owned = any(isinstance(p, WaferTensor) for g in optimizer.param_groups for p in g["params"])
    kind = type(optimizer)
    if owned and kind.__module__.startswith("torch.optim"):
        raise faults.program_error(
            f"torch.optim.{kind.__name__} is written for eager execution; use cstorch.optim.{kind.__name__}, same arguments"
        )
    recorder = tensors.recorder
    if recorder is not None and owned:
        recorder.tape.paused += 1
        recorder.optimizers.setdefault(id(optimizer), (optimizer, numbers_of(optimizer)))
        optimizer.__dict__["_wse_state"] = _state_of(optimizer)


def after_optimizer(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """Refuse state that was made in the step."""
    before = optimizer.__dict__.pop("_wse_state", None)
    if before is None or tensors.recorder is None:
        return
    tensors.recorder.tape.paused -= 1
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


def numbers_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], object]:
    """Return the plain numbers of the groups of an optimizer; they are constants of the step that calls it."""
    return {
        (i, key): value
        for i, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if isinstance(value, (int, float, bool))
    }


def _state_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], torch.Tensor]:
    out = {}
    for p, state in optimizer.state.items():
        if isinstance(state, dict):
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    out[id(p), str(name)] = value
    return out


_checks = False


def install() -> None:
    """Watch every ``step`` of torch optimizers and schedulers from now on."""
    global _checks
    if _checks:
        return
    _checks = True
    register_optimizer_step_pre_hook(before_optimizer)
    register_optimizer_step_post_hook(after_optimizer)
    schedulers = torch.optim.lr_scheduler
    for name in dir(schedulers):
        kind = getattr(schedulers, name)
        if isinstance(kind, type) and "step" in vars(kind) and kind.__module__ == schedulers.__name__:
            setattr(kind, "step", _checked_scheduler(vars(kind)["step"]))  # noqa: B010


def _checked_scheduler(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def checked(self: object, *args: object, **kwargs: object) -> object:
        optimizer = getattr(self, "optimizer", None)
        if runtime.use_cs() and optimizer is not None and not getattr(self, "_wse_sim", False):
            owned = any(isinstance(p, WaferTensor) for g in optimizer.param_groups for p in g["params"])
            if owned:
                name = type(self).__name__
                module = type(self).__module__
                if module.startswith("torch."):
                    raise faults.program_error(
                        f"torch.optim.lr_scheduler.{name} computes a number in Python, once; "
                        f"use cstorch.optim.lr_scheduler.{name}, which computes it in the step"
                    )
                raise faults.program_error(
                    f"{name} computes its learning rate as a number in Python, once; derive it from "
                    "cstorch.optim.lr_scheduler.LRScheduler and give _get_closed_form_lr()"
                )
        return plain(self, *args, **kwargs)

    return checked
