"""Optimizers without a second moment: SGD, averaged SGD, Rprop, Lion.

    SGD    b = mu b + (1 - dampening) g (b = g at the first step),  p -= lr b  (Nesterov: p -= lr (g + mu b))
    ASGD   p = (1 - lambd eta) p - eta g,  ax += mu (p - ax),  eta = lr / (1 + lambd lr t)^alpha,  mu = 1 / max(1, t - t0)
    Rprop  each weight has its own step, times eta+ where the gradient's sign stays, eta- where it turns
    Lion   p *= 1 - lr wd,  p -= lr sign(beta1 m + (1 - beta1) g),  m = beta2 m + (1 - beta2) g

Sources: Polyak and Juditsky 1992 (ASGD), Riedmiller and Braun 1993 (Rprop), Chen et al. 2023 (Lion).
"""

from __future__ import annotations

import torch
from torch import Tensor

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.optim.optimizer import (
    Number,
    Options,
    ParamsT,
    PerParameter,
    decayed,
    descend,
    is_zero,
    shrink,
)


class SGD(PerParameter):
    """Stochastic gradient descent with momentum."""

    at_least_zero = ("lr", "momentum", "weight_decay")
    tensors = ("momentum_buffer",)

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
        if nesterov and (momentum <= 0 or dampening != 0):
            raise program_error(
                f"SGD: nesterov needs momentum > 0 and dampening = 0 and got {momentum} and {dampening}; "
                "give a momentum or leave nesterov out"
            )
        # The first step differs from the later ones only where the gradient is dampened.
        super().__init__(locals(), enable_global_step=dampening != 0)

    def kept(self, group: Options) -> tuple[str, ...]:
        return () if is_zero(group["momentum"]) else self.tensors

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
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

    tensors = ("ax",)

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
        super().__init__(locals(), enable_global_step=True)

    def preinitialize(self) -> None:
        super().preinitialize()
        for p, group in self.places():
            state = self.state[p]
            if "mu" not in state:
                state["mu"] = torch.ones_like(state["step"])
                state["eta"] = torch.ones_like(state["step"]) * group["lr"]

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
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

    at_least_zero = ("lr",)
    tensors = ("prev", "step_size")

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        maximize: bool = False,
        **execution: object,
    ) -> None:
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise program_error(f"Rprop: etas={tuple(etas)} must hold 0 < first < 1 < second")
        super().__init__(locals())

    def preinitialize(self) -> None:
        for p, group in self.places():
            state = self.state[p]
            if "step_size" not in state:
                self._keep(p, "prev")
                self._keep(p, "step_size", 1.0)
                state["step_size"].mul_(group["lr"])

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        down, up = group["etas"]
        sign = grad.mul(state["prev"]).sign()
        factor = torch.where(sign > 0, up, torch.where(sign < 0, down, 1.0)).to(p.dtype)
        state["step_size"].mul_(factor).clamp_(*group["step_sizes"])
        grad = torch.where(sign < 0, torch.zeros_like(grad), grad)
        p.addcmul_(grad.sign(), state["step_size"], value=-1)
        state["prev"].copy_(grad)


class Lion(PerParameter):
    """Evolved sign momentum."""

    tensors = ("exp_avg",)

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: Number = 0.0,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals())

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        beta1, beta2 = group["betas"]
        shrink(p, group["lr"], group["weight_decay"])
        mean = state["exp_avg"]
        descend(p, group["lr"], (mean * beta1 + grad * (1 - beta1)).sign())
        mean.mul_(beta2).add_(grad, alpha=1 - beta2)
