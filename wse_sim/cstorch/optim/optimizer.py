"""Optimizers for a traced step: all state exists before the step, and the step reads no values.

A subclass makes its state in :meth:`Optimizer.preinitialize` and updates it in place in ``step``.
The learning rate of a group is a number until a scheduler takes the group; then it is a tensor, so a
``step`` multiplies by it (``p.sub_(lr * u)``) and never passes it where torch wants a number.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from wse_sim.cstorch import runtime
from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.kinds import T

Number = float | torch.Tensor
Options = dict[str, Any]
ParamsT = Iterable[torch.Tensor] | Iterable[dict[str, Any]]

# How torch executes its own optimizers; here every step is recorded, so they change nothing.
EXECUTION_ARGUMENTS = frozenset({"foreach", "capturable", "differentiable", "fused"})

INFINITY = float("inf")
NO_OPTIONS = frozenset({"self", "params", "execution", "__class__"})  # of a constructor's local names
MOMENTS = ("exp_avg", "exp_avg_sq")


class _Prepared(ABCMeta):
    """Calls ``preinitialize`` after the complete constructor, because a subclass may set attributes after ``super()``."""

    def __call__(cls, *args: object, **kwargs: object) -> Optimizer:
        optimizer = super().__call__(*args, **kwargs)
        optimizer._prepare()
        return optimizer


class Optimizer(torch.optim.Optimizer, metaclass=_Prepared):
    """Base of all optimizers here; a subclass of torch's.

    Args:
        params: tensors or groups (dicts with ``params``), as in torch.
        defaults: options of a group that does not give them.
        enable_global_step: keep a count of steps as state ``step`` (float32, shape ``()``).
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any], enable_global_step: bool = False) -> None:
        self.enable_global_step = enable_global_step
        self._prepared = False
        self._counted: set[int] = set()
        self._memo: dict[tuple[int, float], torch.Tensor] = {}
        self._shared_state: dict[str, torch.Tensor] = {}
        super().__init__(params, defaults)
        self.register_step_pre_hook(_forget)
        for group in self.param_groups:
            group.setdefault("tags", set())

    # -- state -----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self._prepared:
            return
        self._prepared = True
        with torch.no_grad():
            if self.enable_global_step:
                for group in self.param_groups:
                    for p in group["params"]:
                        self._share(p, "step", 0.0)
            self.preinitialize()

    @abstractmethod
    def preinitialize(self) -> None:
        """Make every state tensor (``self.state[p][name]``)."""

    def state_names_to_sparsify(self) -> list[str]:
        """Return the names of the state that takes the mask of a sparse parameter."""
        return []

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if getattr(self, "_prepared", False):
            self._prepared = False
            self._prepare()

    def _keep(self, p: torch.Tensor, name: str, value: float = 0.0) -> None:
        """State of the shape of ``p``, filled with ``value``, unless it exists."""
        if name not in self.state[p]:
            self.state[p][name] = torch.full_like(p, value, requires_grad=False)

    def _share(self, p: torch.Tensor, name: str, value: float) -> None:
        """Scalar state that is the same for every parameter: one float32 tensor for the whole optimizer."""
        if name in self.state[p]:
            return
        if name not in self._shared_state:
            self._shared_state[name] = runtime.state_tensor(
                torch.tensor(value), f"{type(self).__name__}.{name}"
            )
        self.state[p][name] = self._shared_state[name]

    def increment_global_step(self, p: torch.Tensor) -> torch.Tensor:
        """Count this step for ``p``; the count (float32, shape ``()``) after it."""
        if not self.enable_global_step:
            raise program_error(
                f"{type(self).__name__}: increment_global_step needs the count of steps; "
                "give enable_global_step=True to super().__init__"
            )
        count = self.state[p]["step"]
        if id(count) not in self._counted:
            self._counted.add(id(count))
            count.add_(1.0)
        return count

    def _power(self, beta: float, count: torch.Tensor) -> torch.Tensor:
        """``beta ** count`` in float64, computed once for all parameters of a step."""
        key = (id(count), beta)
        if key not in self._memo:
            self._memo[key] = beta ** count.double()
        return self._memo[key]

    def visit_state(self, function: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Apply ``function`` to every state tensor; its result, unless None, replaces the tensor."""
        done: dict[int, torch.Tensor | None] = {}
        for state in self.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    if id(value) not in done:
                        done[id(value)] = function(value)
                    new = done[id(value)]
                    if new is not None:
                        state[name] = new

    def apply(self, function: Callable[[Any], Any]) -> Optimizer:
        """Pass this optimizer to a function (an algorithm of sparsity) and return it."""
        function(self)
        return self

    # -- torch's interface -----------------------------------------------------------------------

    @abstractmethod
    def step(self, closure: Callable[[], T] | None = None) -> T | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state like torch; scalars that all parameters share become one tensor each, as in
        torch's optimizers."""
        state = super().state_dict()
        seen: set[int] = set()
        with torch.no_grad():
            state["state"] = {key: dict(values) for key, values in state["state"].items()}
            for values in state["state"].values():
                for name in self._shared_state:
                    if name in values and id(values[name]) in seen:
                        values[name] = values[name].clone()
                    elif name in values:
                        seen.add(id(values[name]))
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy saved values into the present tensors, which keep their identity.

        Raises:
            ProgramError: the saved groups do not match the present ones.
        """
        groups, saved = self.param_groups, state_dict["param_groups"]
        sizes, wanted = [len(g["params"]) for g in groups], [len(g["params"]) for g in saved]
        if sizes != wanted:
            raise program_error(
                f"{type(self).__name__}: the saved state has groups of {wanted} parameters and the optimizer "
                f"groups of {sizes}; build the optimizer from the same parameters in the same order"
            )
        places = {
            key: p
            for g, s in zip(groups, saved, strict=True)
            for key, p in zip(s["params"], g["params"], strict=True)
        }
        with torch.no_grad():
            for key, values in state_dict["state"].items():
                p = places.get(key, places.get(int(key)))
                if p is not None:
                    _copy_values(self.state[p], values)
            for group, old in zip(groups, saved, strict=True):
                _copy_values(group, {k: v for k, v in old.items() if k != "params"})


def _forget(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    optimizer._counted.clear()
    optimizer._memo.clear()


def _copy_values(present: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        held = present.get(name)
        if isinstance(held, torch.Tensor):
            if isinstance(value, torch.Tensor):
                held.copy_(value)
            elif value is not None:
                held.fill_(value)
        else:
            present[name] = value


def check_execution(name: str, given: dict[str, Any]) -> None:
    """Refuse arguments that neither torch nor this class has."""
    for key in given:
        if key not in EXECUTION_ARGUMENTS:
            raise program_error(
                f"{name}: unknown argument '{key}'; torch's execution arguments are {sorted(EXECUTION_ARGUMENTS)}"
            )


def check_range(name: str, **bounds: tuple[Number | None, float, float]) -> None:
    """Refuse numbers outside ``[low, high)``; tensors are not read."""
    for key, (value, low, high) in bounds.items():
        if isinstance(value, int | float) and not low <= value < high:
            limit = f"at least {low}" if high == float("inf") else f"in [{low}, {high})"
            raise program_error(f"{name}: {key}={value} must be {limit}")


# -- arithmetic that takes numbers and tensors alike --------------------------------------------------


def is_zero(value: Number) -> bool:
    return not isinstance(value, torch.Tensor) and value == 0


def descend(p: torch.Tensor, lr: Number, update: torch.Tensor) -> None:
    """``p -= lr * update``; with a number exactly as torch does it (one rounding)."""
    if isinstance(lr, torch.Tensor):
        p.sub_(lr * update)
    else:
        p.add_(update, alpha=-lr)


def descend_quotient(p: torch.Tensor, lr: Number, numerator: torch.Tensor, denominator: torch.Tensor) -> None:
    """``p -= lr * numerator / denominator``, in the order of torch's addcdiv."""
    if isinstance(lr, torch.Tensor):
        p.add_(numerator * -lr / denominator)
    else:
        p.addcdiv_(numerator, denominator, value=-lr)


def decayed(grad: torch.Tensor, p: torch.Tensor, weight_decay: Number) -> torch.Tensor:
    """Return the gradient with L2 decay: ``grad + weight_decay * p``."""
    if is_zero(weight_decay):
        return grad
    if isinstance(weight_decay, torch.Tensor):
        return grad + weight_decay * p
    return grad.add(p, alpha=weight_decay)


def shrink(p: torch.Tensor, lr: Number, weight_decay: Number) -> None:
    """Decoupled decay: ``p *= 1 - lr * weight_decay``."""
    if not is_zero(weight_decay):
        p.mul_(1 - lr * weight_decay)


# -- one rule for each parameter ----------------------------------------------------------------------


class PerParameter(Optimizer):
    """An optimizer whose step is one rule for each parameter.

    A subclass declares its hyperparameters in the signature of its constructor, and passes its ``locals()``:
    they are checked, and are the options of groups. ``betas`` must be in ``[0, 1)``.

    Attributes:
        at_least_zero: hyperparameters that may not be negative.
        tensors: names of the states of the shape of the parameter, zero at first, which take its mask.
    """

    at_least_zero: tuple[str, ...] = ("lr", "weight_decay")
    tensors: tuple[str, ...] = ()

    def __init__(self, arguments: dict[str, Any], enable_global_step: bool = False) -> None:
        name = type(self).__name__
        check_execution(name, arguments["execution"])
        options: Options = {
            k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items() if k not in NO_OPTIONS
        }
        bounds = [(key, options[key], INFINITY) for key in self.at_least_zero]
        bounds += [(f"beta{i}", beta, 1.0) for i, beta in enumerate(options.get("betas", ()), start=1)]
        check_range(name, **{key: (value, 0, high) for key, value, high in bounds})
        super().__init__(arguments["params"], options, enable_global_step)

    def places(self) -> Iterator[tuple[torch.Tensor, Options]]:
        """Return every parameter with its group."""
        for group in self.param_groups:
            for p in group["params"]:
                yield p, group

    def kept(self, group: Options) -> tuple[str, ...]:
        """Return the names of the states that parameters of a group need."""
        return self.tensors

    def preinitialize(self) -> None:
        for p, group in self.places():
            for name in self.kept(group):
                self._keep(p, name)

    def state_names_to_sparsify(self) -> list[str]:
        return list(self.tensors)

    @torch.no_grad()
    def step(self, closure: Callable[[], T] | None = None) -> T | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p, group in self.places():
            if p.grad is not None:
                grad = -p.grad if group.get("maximize") else p.grad
                self.update(p, grad, self.state[p], group)
        return loss

    def update(self, p: torch.Tensor, grad: torch.Tensor, state: Options, group: Options) -> None:
        """Update a parameter and its state in place."""
        raise RuntimeError(f"{type(self).__name__} defines no update")
