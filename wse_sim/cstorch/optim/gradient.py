"""Optimizers without a second moment: SGD, averaged SGD, Rprop, Lion.

    SGD    b = mu b + (1 - dampening) g (b = g at the first step),  p -= lr b  (Nesterov: p -= lr (g + mu b))
    ASGD   p = (1 - lambd eta) p - eta g,  ax += mu (p - ax),  eta = lr / (1 + lambd lr t)^alpha,  mu = 1 / max(1, t - t0)
    Rprop  each weight has its own step, times eta+ where the gradient's sign stays, eta- where it turns
    Lion   p *= 1 - lr wd,  p -= lr sign(beta1 m + (1 - beta1) g),  m = beta2 m + (1 - beta2) g

Sources: Polyak and Juditsky 1992 (ASGD), Riedmiller and Braun 1993 (Rprop), Chen et al. 2023 (Lion).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.kinds import T
from wse_sim.cstorch.optim.optimizer import (
    Number,
    Optimizer,
    ParamsT,
    check_execution,
    check_range,
    decayed,
    descend,
    is_zero,
    shrink,
)

INFINITY = float("inf")


class PerParameter(Optimizer):
    """An optimizer whose step is one rule for each parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], T] | None = None) -> T | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    grad = -p.grad if group.get("maximize") else p.grad
                    self.update(p, grad, self.state[p], group)
        return loss

    def update(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        raise RuntimeError(f"{type(self).__name__} defines no update")


class SGD(PerParameter):
    """Stochastic gradient descent with momentum."""

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: Number = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        check_execution("SGD", execution)
        check_range(
            "SGD",
            lr=(lr, 0, INFINITY),
            momentum=(momentum, 0, INFINITY),
            weight_decay=(weight_decay, 0, INFINITY),
        )
        if nesterov and (momentum <= 0 or dampening != 0):
            raise program_error(
                f"SGD: nesterov needs momentum > 0 and dampening = 0 and got {momentum} and {dampening}; "
                "give a momentum or leave nesterov out"
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        # The first step differs from the later ones only where the gradient is dampened.
        super().__init__(params, defaults, enable_global_step=dampening != 0)

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if not is_zero(group["momentum"]):
                    self._keep(p, "momentum_buffer")

    def state_names_to_sparsify(self) -> list[str]:
        return ["momentum_buffer"]

    def update(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        grad = decayed(grad, p, group["weight_decay"])
        if not is_zero(group["momentum"]):
            buffer = state["momentum_buffer"]
            if self.enable_global_step:
                first = self.increment_global_step(p) == 1
                later = buffer.mul(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
                buffer.copy_(torch.where(first, grad, later))
            else:
                buffer.mul_(group["momentum"]).add_(grad)
            grad = grad.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
        descend(p, group["lr"], grad)


class ASGD(PerParameter):
    """Averaged stochastic gradient descent; ``state[p]["ax"]`` is the average."""

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: Number = 0.0,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        check_execution("ASGD", execution)
        check_range("ASGD", lr=(lr, 0, INFINITY), weight_decay=(weight_decay, 0, INFINITY))
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, enable_global_step=True)

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                self._keep(p, "ax")
                if "mu" not in state:
                    state["mu"] = torch.ones_like(state["step"])
                    state["eta"] = torch.ones_like(state["step"]) * group["lr"]

    def state_names_to_sparsify(self) -> list[str]:
        return ["ax"]

    def update(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        count, eta, lr, lambd = self.increment_global_step(p), state["eta"], group["lr"], group["lambd"]
        grad = decayed(grad, p, group["weight_decay"])
        p.mul_(1 - lambd * eta.double())
        p.sub_(eta * grad)
        state["ax"].add_(p.sub(state["ax"]).mul_(state["mu"]))
        t = count.double()
        eta.copy_(lr / (1 + lambd * lr * t) ** group["alpha"])
        state["mu"].copy_(1 / (t - group["t0"]).clamp(min=1.0))


class Rprop(PerParameter):
    """Resilient propagation: the sign of the gradient and a step per weight."""

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        maximize: bool = False,
        **execution: object,
    ) -> None:
        check_execution("Rprop", execution)
        check_range("Rprop", lr=(lr, 0, INFINITY))
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise program_error(f"Rprop: etas={tuple(etas)} must hold 0 < first < 1 < second")
        defaults = {"lr": lr, "etas": tuple(etas), "step_sizes": tuple(step_sizes), "maximize": maximize}
        super().__init__(params, defaults)

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self._keep(p, "prev")
                if "step_size" not in self.state[p]:
                    self._keep(p, "step_size", 1.0)
                    self.state[p]["step_size"].mul_(group["lr"])

    def state_names_to_sparsify(self) -> list[str]:
        return ["prev", "step_size"]

    def update(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        down, up = group["etas"]
        sign = grad.mul(state["prev"]).sign()
        factor = torch.where(sign > 0, up, torch.where(sign < 0, down, 1.0)).to(p.dtype)
        state["step_size"].mul_(factor).clamp_(*group["step_sizes"])
        grad = torch.where(sign < 0, torch.zeros_like(grad), grad)
        p.addcmul_(grad.sign(), state["step_size"], value=-1)
        state["prev"].copy_(grad)


class Lion(PerParameter):
    """Evolved sign momentum."""

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: Number = 0.0,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        check_execution("Lion", execution)
        check_range(
            "Lion",
            lr=(lr, 0, INFINITY),
            beta1=(betas[0], 0, 1),
            beta2=(betas[1], 0, 1),
            weight_decay=(weight_decay, 0, INFINITY),
        )
        defaults = {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self._keep(p, "exp_avg")

    def state_names_to_sparsify(self) -> list[str]:
        return ["exp_avg"]

    def update(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        shrink(p, group["lr"], group["weight_decay"])
        mean = state["exp_avg"]
        descend(p, group["lr"], (mean * beta1 + grad * (1 - beta1)).sign())
        mean.mul_(beta2).add_(grad, alpha=1 - beta2)
