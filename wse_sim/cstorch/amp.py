"""Half types, loss scaling, clipping.

Symbols of the dynamic scale s: after a step whose gradients are all finite the count of good steps grows, and s doubles
each ``steps_per_increase`` good steps in a row; a step with an inf or NaN is not applied, and s halves as soon as the
fraction of such steps since the last change of s reaches ``overflow_tolerance``; ``min_loss_scale <= s <= max_loss_scale``.
All of it is state and :func:`torch.where`: nothing is read while the step is captured.

Types, scaling and clipping share one file, because they act on one step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.kinds import T
from wse_sim.cstorch.stores import of_run

F = TypeVar("F", bound=Callable[..., Any])

# The range of normal numbers of IEEE half precision.
LEAST_SCALE, LARGEST_SCALE = 2.0**-14, 2.0**15
STEPS_PER_INCREASE = 2000

HALF_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "cbfloat16": torch.float16}
_mixed: dict[str, bool | None] = of_run({"enabled": None})


# -- half types ---------------------------------------------------------------------------------------


def set_half_dtype(value: str | torch.dtype) -> torch.dtype:
    """Choose the 16-bit format: "float16", "bfloat16", "cbfloat16" (1-6-9 bits), or a torch type; the torch type that stands for it."""
    name = str(value).removeprefix("torch.").lower()
    name = {"half": "float16", "bfloat": "bfloat16", "cbfloat": "cbfloat16"}.get(name, name)
    if name not in HALF_TYPES:
        raise faults.program_error(
            f"half type {value!r} is unknown; the choices are float16, bfloat16, cbfloat16"
        )
    runtime.settings().half_dtype = name
    return HALF_TYPES[name]


def get_half_dtype() -> torch.dtype:
    """Return the torch type of the 16-bit format; cbfloat16, which torch does not have, is represented by
    float16."""
    return HALF_TYPES[runtime.settings().half_dtype]


def get_half_dtype_str() -> str:
    return str(runtime.settings().half_dtype)


def is_cbfloat() -> bool:
    return bool(runtime.settings().half_dtype == "cbfloat16")


def is_cbfloat16_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is stored in cbfloat16: of the type that stands for it, while that is the half type."""
    return is_cbfloat() and tensor.dtype is torch.float16


def use_bfloat16(enable: bool = True) -> None:
    """Alias of :func:`use_bfloat`."""
    use_bfloat(enable)


def get_init_params() -> dict[str, Any]:
    """Return {}: older trainers ask whether the scaler clips, but here the optimizer's step does."""
    return {}


def use_bfloat(enable: bool = True) -> None:
    """Select bfloat16 instead of float16, as older releases do."""
    set_half_dtype("bfloat16" if enable else "float16")


def enable_mixed_precision(enable: bool = True, dtype: str | torch.dtype | None = None) -> None:
    """Set whether models compute in the half type."""
    runtime.settings().mixed_precision = _mixed["enabled"] = bool(enable)
    if dtype is not None:
        set_half_dtype(dtype)


def mixed_precision() -> bool:
    """Return whether models compute in the half type: as set, by default True on the wafer."""
    if runtime.use_cs():
        return runtime.settings().mixed_precision
    return bool(_mixed["enabled"])


def get_floating_point_dtype() -> torch.dtype:
    """Return the type of activations: the half type with mixed precision, else float32."""
    return get_half_dtype() if mixed_precision() else torch.float32


def get_floating_point_dtype_str() -> str:
    return get_half_dtype_str() if mixed_precision() else "float32"


@contextlib.contextmanager
def autocast(
    *_args: object, dtype: torch.dtype | None = None, enabled: bool = True, **_keywords: object
) -> Iterator[None]:
    """Context manager for mixed precision.

    On the wafer the compiler inserts casts, so the block is unchanged; elsewhere this is torch's autocast if mixed precision was
    requested.
    """
    if runtime.use_cs() or not (enabled and mixed_precision()):
        yield
        return
    backend = runtime.current_backend(required=False)
    device = "cuda" if backend is not None and getattr(backend, "is_gpu", False) else "cpu"
    # CPUs have bfloat16 only.
    half = torch.bfloat16 if device == "cpu" else get_half_dtype()
    with torch.autocast(device, dtype=dtype or half):
        yield


@contextlib.contextmanager
def disable_casts() -> Iterator[None]:
    """Context manager without casts."""
    with torch.autocast("cpu", enabled=False):
        yield


class pol:  # noqa: N801
    """Set the precision level of what a callable captures: ``pol(bwd_level=0)(layer)(x)``, a decorator, or a ``with``
    block.

    Args:
        level: 0 sums in float32 everywhere, 1 products mixed and attention float32, 2 the fastest.
        bwd_level: the level of the backward pass, if another one.
    """

    def __init__(self, level: int | None = None, bwd_level: int | None = None) -> None:
        for name, value in (("level", level), ("bwd_level", bwd_level)):
            if value is not None and value not in (0, 1, 2):
                raise faults.program_error(
                    f"pol: {name}={value!r} is not a precision level; the levels are 0, 1, 2"
                )
        self.level, self.bwd_level = level, bwd_level
        self._open: list[Any] = []

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: object, **keywords: object) -> object:
            with runtime.kernel_precision(self.level, self.bwd_level):
                return function(*args, **keywords)

        return wrapped  # type: ignore[return-value]

    def __enter__(self) -> pol:
        block = runtime.kernel_precision(self.level, self.bwd_level)
        block.__enter__()
        self._open.append(block)
        return self

    def __exit__(self, *fault: object) -> None:
        self._open.pop().__exit__(*fault)


def current_pol() -> int:
    """Return the current precision level."""
    return int(runtime.settings().precision_level)


# -- loss scaling -------------------------------------------------------------------------------------


class GradScaler:
    """Scales the loss so that half-precision gradients do not vanish.

    Args:
        loss_scale: a number (constant scale; 0 or None: no scaling) or "dynamic".
        init_scale: the first dynamic scale.
        steps_per_increase: finite steps in a row after which the dynamic scale doubles.
        min_loss_scale: least dynamic scale.
        max_loss_scale: largest dynamic scale.
        overflow_tolerance: fraction of steps with inf or NaN, since the last change, at which the dynamic scale halves.
        max_gradient_norm: kept for programs that give it; clipping is requested where the step is made.
        mixed_precision: in older programs, whether models compute in the half type.
    """

    def __init__(
        self,
        loss_scale: float | str | None = None,
        init_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        overflow_tolerance: float | None = 0.05,
        max_gradient_norm: float | None = None,
        mixed_precision: bool | None = None,
    ) -> None:
        if mixed_precision is not None:
            enable_mixed_precision(mixed_precision)
        if isinstance(loss_scale, str) and loss_scale != "dynamic":
            try:
                loss_scale = float(loss_scale)
            except ValueError:
                raise faults.program_error(
                    f"GradScaler: loss_scale={loss_scale!r} is neither a number nor 'dynamic'"
                ) from None
        self.dynamic = loss_scale == "dynamic"
        self.constant = 1.0 if self.dynamic or not loss_scale else float(loss_scale)
        if self.constant < 0:
            raise faults.program_error(
                f"GradScaler: loss_scale={loss_scale} must not be negative; give 0 for no scaling"
            )
        first = LARGEST_SCALE if init_scale is None else float(init_scale)
        self.min_scale = min(LEAST_SCALE, first) if min_loss_scale is None else float(min_loss_scale)
        self.max_scale = max(LARGEST_SCALE, first) if max_loss_scale is None else float(max_loss_scale)
        self.steps_per_increase = (
            STEPS_PER_INCREASE if steps_per_increase is None else int(steps_per_increase)
        )
        self.overflow_tolerance = 0.05 if overflow_tolerance is None else float(overflow_tolerance)
        self.max_gradient_norm = max_gradient_norm
        if self.dynamic:
            self._check(first)
        # Traced truth values per optimizer, between unscale_ and update of one step.
        self._finite: dict[int, torch.Tensor] = {}
        self._unscaled: set[int] = set()
        self._state: dict[str, torch.Tensor] = {}
        if self.dynamic:
            first = min(max(first, self.min_scale), self.max_scale)
            for name, value in {
                "scale": torch.tensor(first),
                "good_steps": torch.tensor(0),
                "steps_since_change": torch.tensor(0),
                "bad_since_change": torch.tensor(0),
                "taken": torch.tensor(1),
            }.items():
                self._state[name] = runtime.state_tensor(value, f"GradScaler.{name}")

    def _check(self, first: float) -> None:
        if not 0 < self.min_scale <= self.max_scale:
            raise faults.program_error(
                f"GradScaler: min_loss_scale={self.min_scale} must be positive and at most max_loss_scale={self.max_scale}"
            )
        if first <= 0:
            raise faults.program_error(f"GradScaler: init_scale={first} must be positive")
        if self.steps_per_increase < 1:
            raise faults.program_error(
                f"GradScaler: steps_per_increase={self.steps_per_increase} must be at least 1"
            )
        if not 0 <= self.overflow_tolerance <= 1:
            raise faults.program_error(
                f"GradScaler: overflow_tolerance={self.overflow_tolerance} must be a fraction between 0 and 1"
            )

    @property
    def loss_scale(self) -> torch.Tensor | float:
        return self._state["scale"] if self.dynamic else self.constant

    def is_enabled(self) -> bool:
        return self.dynamic or self.constant != 1.0

    def get_scale(self) -> torch.Tensor | float:
        """Return the scale: a number if constant, else a tensor that a step closure can read."""
        return self.loss_scale

    def get_non_clamped_scale(self) -> float | torch.Tensor:
        """Return the scale, which always stays between its limits."""
        return self.get_scale()

    def scale(self, outputs: T) -> T:
        """Return the loss (or every tensor of a structure) times the scale."""
        if not self.is_enabled():
            return outputs
        return pytree.tree_map_only(torch.Tensor, self._scaled, outputs)

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        scaled = loss * self.loss_scale
        runtime.mark_scaled(loss, scaled)
        return scaled

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, in place, and note whether they are finite."""
        if id(optimizer) in self._unscaled:
            raise faults.program_error(
                "GradScaler: unscale_() was called twice for one step; call update() at the end of the step"
            )
        self._unscaled.add(id(optimizer))
        if not self.is_enabled():
            return
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        inverse = 1.0 / self.loss_scale
        checks = []
        for grad in grads:
            grad.mul_(inverse)
            if self.dynamic:
                checks.append(torch.isfinite(grad).all())
        if self.dynamic and checks:
            self._finite[id(optimizer)] = torch.stack(checks).all()

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **keywords: Any) -> object:
        """Run the optimizer's step; with non-finite gradients nothing changes, including the schedule."""
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        finite = self._finite.get(id(optimizer))
        if finite is None:
            return optimizer.step(*args, **keywords)
        touched = _touched(optimizer)
        before = [t.clone() for t in touched]
        result = optimizer.step(*args, **keywords)
        for tensor, old in zip(touched, before, strict=True):
            tensor.copy_(torch.where(finite, tensor, old))
        optimizer._taken = self._state["taken"].copy_(torch.stack(list(self._finite.values())).all())  # type: ignore[attr-defined]
        return result

    @torch.no_grad()
    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Grow or shrink the dynamic scale; called once, at the end of the step."""
        finite = list(self._finite.values())
        self._finite.clear()
        self._unscaled.clear()
        if not self.dynamic:
            if new_scale is not None:
                self.constant = float(new_scale)
            return
        scale, good = self._state["scale"], self._state["good_steps"]
        since, bad = self._state["steps_since_change"], self._state["bad_since_change"]
        if new_scale is not None:
            scale.fill_(new_scale) if not isinstance(new_scale, torch.Tensor) else scale.copy_(new_scale)
            return
        if not finite:
            raise faults.program_error(
                "GradScaler: update() found no gradients of this step; call unscale_() or step() before it"
            )
        fine = torch.stack(finite).all()
        run, steps, overflows = torch.where(fine, good + 1, 0), since + 1, bad + torch.where(fine, 0, 1)
        shrink = ~fine & (overflows >= self.overflow_tolerance * steps)
        grow = fine & (run % self.steps_per_increase == 0)
        changed = shrink | grow
        factor = torch.where(grow, 2.0, torch.where(shrink, 0.5, 1.0))
        scale.copy_(torch.clamp(scale * factor, self.min_scale, self.max_scale))
        good.copy_(run)
        since.copy_(torch.where(changed, 0, steps))
        bad.copy_(torch.where(changed, 0, overflows))

    def state_tensors(self) -> list[torch.Tensor]:
        """Every tensor that a step changes."""
        return list(self._state.values())

    def state_dict(self) -> dict[str, Any]:
        if self.dynamic:
            return {name: t for name, t in self._state.items() if name != "taken"}
        return {"scale": self.constant}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved scale and its counters."""
        if "scale" not in state_dict:
            raise faults.program_error(
                f"GradScaler: the saved state has no 'scale'; it holds {sorted(state_dict)}"
            )
        if not self.dynamic:
            return
        with torch.no_grad():
            for name, held in self._state.items():
                if name in state_dict:
                    runtime.assign(held, torch.as_tensor(state_dict[name]))


def _touched(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters with a gradient and all state of an optimizer, each tensor once."""
    found: dict[int, torch.Tensor] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                found.setdefault(id(p), p)
    extra = getattr(optimizer, "extra_state_tensors", None)
    for tensor in extra() if extra is not None else ():
        found.setdefault(id(tensor), tensor)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                found.setdefault(id(value), value)
    return list(found.values())


def optimizer_step(
    loss: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    grad_scaler: GradScaler | None = None,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
    max_gradient_val: float | None = None,
) -> None:
    """Run a complete optimizer step: zero gradients, scale, backward, unscale, clip by norm or value, step,
    update.

    Raises:
        ProgramError: both limits are given.
    """
    limit = max_gradient_value if max_gradient_value is not None else max_gradient_val
    if max_gradient_norm is not None and limit is not None:
        raise faults.program_error(
            f"optimizer_step clips by norm (max_gradient_norm={max_gradient_norm}) or by value "
            f"(max_gradient_value={limit}), not both; leave one out"
        )
    optimizer.zero_grad()
    if grad_scaler is None:
        loss.backward()
    else:
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if max_gradient_norm:
        torch.nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
    elif limit:
        torch.nn.utils.clip_grad_value_(parameters, limit)
    if grad_scaler is None:
        optimizer.step()
    else:
        grad_scaler.step(optimizer)
        grad_scaler.update()
