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

from typing import Any

import torch

from wse_sim.cstorch.optim.gradient import PerParameter
from wse_sim.cstorch.optim.optimizer import (
    Number,
    ParamsT,
    check_execution,
    check_range,
    decayed,
    descend,
    descend_quotient,
    shrink,
)

INFINITY = float("inf")


class _Moments(PerParameter):
    """Common base of the family: checks, moments, and decay before the update of a parameter."""

    decoupled = False
    second_moment = "exp_avg_sq"

    def __init__(self, params: ParamsT, defaults: dict[str, Any], execution: dict[str, Any]) -> None:
        name = type(self).__name__
        check_execution(name, execution)
        betas = defaults["betas"]
        check_range(
            name,
            lr=(defaults["lr"], 0.0, INFINITY),
            eps=(defaults["eps"], 0.0, INFINITY),
            beta1=(betas[0], 0.0, 1.0),
            beta2=(betas[1], 0.0, 1.0),
            weight_decay=(defaults["weight_decay"], 0.0, INFINITY),
        )
        super().__init__(params, defaults, enable_global_step=True)

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self._keep(p, "exp_avg")
                self._keep(p, self.second_moment)
                if group.get("amsgrad"):
                    self._keep(p, "max_exp_avg_sq")

    def state_names_to_sparsify(self) -> list[str]:
        return ["exp_avg", self.second_moment]

    def update(
        self, p: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        count = self.increment_global_step(p)
        if group.get("decoupled_weight_decay", self.decoupled):
            shrink(p, group["lr"], group["weight_decay"])
        else:
            grad = decayed(grad, p, group["weight_decay"])
        self.move(p, grad, state, group, count)

    def move(
        self,
        p: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        count: torch.Tensor,
    ) -> None:
        raise RuntimeError(f"{type(self).__name__} defines no move")

    @staticmethod
    def advance(grad: torch.Tensor, state: dict[str, Any], betas: tuple[float, float]) -> None:
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
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "correct_bias": correct_bias,
            "maximize": maximize,
        }
        super().__init__(params, defaults, execution)

    def move(
        self,
        p: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        count: torch.Tensor,
    ) -> None:
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
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            correct_bias=correct_bias,
            maximize=maximize,
            **execution,
        )


class Adamax(_Moments):
    """Adamax, a variant of Adam with the decayed maximum of the gradient's magnitude instead of the second moment."""

    second_moment = "exp_inf"

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
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, execution)

    def move(
        self,
        p: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        count: torch.Tensor,
    ) -> None:
        state["exp_avg"].lerp_(grad, 1 - group["betas"][0])
        largest = state["exp_inf"]
        largest.copy_(torch.maximum(largest.mul(group["betas"][1]), grad.abs().add_(group["eps"])))
        descend_quotient(
            p, group["lr"] / (1 - self._power(group["betas"][0], count)), state["exp_avg"], largest
        )


class NAdam(_Moments):
    """NAdam, Adam with Nesterov momentum."""

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
        check_range("NAdam", momentum_decay=(momentum_decay, 0.0, INFINITY))
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, execution)

    def preinitialize(self) -> None:
        super().preinitialize()
        for group in self.param_groups:
            for p in group["params"]:
                if "mu_product" not in self.state[p]:
                    self.state[p]["mu_product"] = torch.ones_like(self.state[p]["step"])

    def move(
        self,
        p: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        count: torch.Tensor,
    ) -> None:
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
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        }
        super().__init__(params, defaults, execution)

    def move(
        self,
        p: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        count: torch.Tensor,
    ) -> None:
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
