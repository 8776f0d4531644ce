"""Adam and its relatives: moments m, v of the gradient g with bias corrections c1 = 1 - beta1^t, c2 = 1 - beta2^t.

    m = lerp(m, g, 1 - beta1),  v = beta2 v + (1 - beta2) g^2
    Adam     p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps)
    AdamW    p *= 1 - lr wd, then Adam
    Adamax   u = max(beta2 u, |g| + eps),  p -= lr / c1 * m / u
    NAdam    mu_t = beta1 (1 - 0.96^(t psi) / 2);  p -= lr ((1 - mu_t) g / (1 - prod mu_t) + mu_{t+1} m / (1 - prod mu_{t+1})) / d
    RAdam    rho_t = rho_inf - 2 t beta2^t / c2;  p -= lr m / c1 * (r_t sqrt(c2) / (sqrt(v) + eps) if rho_t > 5 else 1)

Sources: Kingma and Ba 2014 (Adam, Adamax), Loshchilov and Hutter 2017 (AdamW), Dozat 2016 (NAdam), Liu et al. 2019
(RAdam).  Corrections are computed in float64 as torch does, so results equal torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wse_sim.cstorch.optim.optimizer import (
    MOMENTS,
    Number,
    Options,
    ParamsT,
    PerParameter,
    decayed,
    descend,
    descend_quotient,
    shrink,
)


class _Moments(PerParameter):
    """Common base of the family: checks, moments, and decay before the update of a parameter."""

    decoupled = False
    at_least_zero: tuple[str, ...] = ("lr", "eps", "weight_decay")
    tensors: tuple[str, ...] = MOMENTS

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        count = self.increment_global_step(p)
        if group.get("decoupled_weight_decay", self.decoupled):
            shrink(p, group["lr"], group["weight_decay"])
        else:
            grad = decayed(grad, p, group["weight_decay"])
        self.move(p, grad, state, group, count)

    def move(self, p: Tensor, grad: Tensor, state: Options, group: Options, count: Tensor) -> None:
        raise RuntimeError(f"{type(self).__name__} defines no move")

    @staticmethod
    def advance(grad: Tensor, state: Options, betas: tuple[float, float]) -> None:
        state["exp_avg"].lerp_(grad, 1 - betas[0])
        state["exp_avg_sq"].mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])


class AdamBase(_Moments):
    """Adam with L2 decay or decoupled decay, with or without amsgrad."""

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Number = 0.0,
        amsgrad: bool = False,
        *,
        correct_bias: bool = True,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals(), enable_global_step=True)

    def kept(self, group: Options) -> tuple[str, ...]:
        return (*self.tensors, "max_exp_avg_sq") if group["amsgrad"] else self.tensors

    def move(self, p: Tensor, grad: Tensor, state: Options, group: Options, count: Tensor) -> None:
        self.advance(grad, state, group["betas"])
        second = state["exp_avg_sq"]
        if group["amsgrad"]:
            second = state["max_exp_avg_sq"].copy_(torch.maximum(state["max_exp_avg_sq"], second))
        if not group["correct_bias"]:
            descend_quotient(p, group["lr"], state["exp_avg"], second.sqrt().add_(group["eps"]))
            return
        correction1 = 1 - self._power(group["betas"][0], count)
        correction2 = 1 - self._power(group["betas"][1], count)
        denominator = (second.sqrt() / correction2.sqrt()).add_(group["eps"])
        descend_quotient(p, group["lr"] / correction1, state["exp_avg"], denominator)


class Adam(AdamBase):
    """Adam; ``weight_decay`` is added to the gradient."""


class AdamW(AdamBase):
    """Adam with decoupled weight decay."""

    decoupled = True

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Number = 1e-2,
        amsgrad: bool = False,
        *,
        correct_bias: bool = True,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        PerParameter.__init__(self, locals(), enable_global_step=True)


class Adamax(_Moments):
    """Adamax, a variant of Adam with the decayed maximum of the gradient's magnitude instead of the second moment."""

    tensors = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Number = 0.0,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals(), enable_global_step=True)

    def move(self, p: Tensor, grad: Tensor, state: Options, group: Options, count: Tensor) -> None:
        state["exp_avg"].lerp_(grad, 1 - group["betas"][0])
        largest = state["exp_inf"]
        largest.copy_(torch.maximum(largest.mul(group["betas"][1]), grad.abs().add_(group["eps"])))
        descend_quotient(
            p, group["lr"] / (1 - self._power(group["betas"][0], count)), state["exp_avg"], largest
        )


class NAdam(_Moments):
    """NAdam, Adam with Nesterov momentum."""

    at_least_zero = (*_Moments.at_least_zero, "momentum_decay")

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Number = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals(), enable_global_step=True)

    def preinitialize(self) -> None:
        super().preinitialize()
        for p, _group in self.places():
            state = self.state[p]
            if "mu_product" not in state:
                state["mu_product"] = torch.ones_like(state["step"])

    def move(self, p: Tensor, grad: Tensor, state: Options, group: Options, count: Tensor) -> None:
        lr, beta1, t = group["lr"], group["betas"][0], count.double()
        mu = beta1 * (1.0 - 0.5 * 0.96 ** (t * group["momentum_decay"]))
        mu_next = beta1 * (1.0 - 0.5 * 0.96 ** ((t + 1) * group["momentum_decay"]))
        product = state["mu_product"].mul_(mu)
        self.advance(grad, state, group["betas"])
        correction2 = 1 - self._power(group["betas"][1], count)
        denominator = state["exp_avg_sq"].div(correction2).sqrt().add_(group["eps"])
        descend_quotient(p, lr * (1.0 - mu) / (1.0 - product.double()), grad, denominator)
        descend_quotient(p, lr * mu_next / (1.0 - product.double() * mu_next), state["exp_avg"], denominator)


class RAdam(_Moments):
    """RAdam, a variant of Adam whose adaptive rate starts when the variance of the gradient is known well enough."""

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Number = 0.0,
        decoupled_weight_decay: bool = False,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals(), enable_global_step=True)

    def move(self, p: Tensor, grad: Tensor, state: Options, group: Options, count: Tensor) -> None:
        self.advance(grad, state, group["betas"])
        beta1, beta2 = group["betas"]
        power2 = self._power(beta2, count)
        correction1, correction2 = 1 - self._power(beta1, count), 1 - power2
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * count.double() * power2 / correction2
        # Below 5 the root is of a negative number; the other branch is taken there.
        known = rho > 5.0
        safe = torch.where(known, rho, torch.full_like(rho, 6.0))
        rectified = ((safe - 4) * (safe - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * safe)).sqrt()
        mean = state["exp_avg"] / correction1 * group["lr"]
        adaptive = mean * (correction2.sqrt() / state["exp_avg_sq"].sqrt().add_(group["eps"])) * rectified
        descend(p, 1.0, torch.where(known, adaptive, mean))
