"""Optimizers that scale each weight by its own history (without a first moment) or each layer by its norm.

    Adagrad    s += g^2,  p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(s) + eps)
    Adadelta   s = rho s + (1 - rho) g^2,  d = sqrt(a + eps) / sqrt(s + eps) g,  a = rho a + (1 - rho) d^2,  p -= lr d
    RMSprop    s = alpha s + (1 - alpha) g^2 (centered: minus the square of the mean),  p -= lr g / (sqrt(s) + eps)
    Adafactor  s is kept as row and column means; the update is clipped by its root mean square
    Lamb       u = m / (sqrt(v) + eps) + wd p,  p -= lr |p| / |u| u

Sources: Duchi et al. 2011, Zeiler 2012, Tieleman and Hinton 2012, Shazeer and Stern 2018, You et al. 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.optim.optimizer import (
    MOMENTS,
    Number,
    Options,
    ParamsT,
    PerParameter,
    check_range,
    decayed,
    descend,
    descend_quotient,
    is_zero,
)


class Adagrad(PerParameter):
    """Adagrad: the rate of each weight falls with the sum of its squared gradients."""

    at_least_zero = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    tensors = ("sum",)

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: Number = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals(), enable_global_step=True)

    def preinitialize(self) -> None:
        for p, group in self.places():
            self._keep(p, "sum", group["initial_accumulator_value"])

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        count = self.increment_global_step(p)
        grad = decayed(grad, p, group["weight_decay"])
        lr = group["lr"]
        if not is_zero(group["lr_decay"]):
            lr = lr / (1 + (count.double() - 1) * group["lr_decay"])
        state["sum"].addcmul_(grad, grad, value=1)
        descend_quotient(p, lr, grad, state["sum"].sqrt().add_(group["eps"]))


class Adadelta(PerParameter):
    """Adadelta: the step is the gradient times the running size of updates over that of gradients."""

    at_least_zero = ("lr", "eps")
    tensors = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: Number = 0.0,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        check_range("Adadelta", rho=(rho, 0, 1 + 1e-12))
        super().__init__(locals())

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        rho, eps = group["rho"], group["eps"]
        grad = decayed(grad, p, group["weight_decay"])
        state["square_avg"].mul_(rho).addcmul_(grad, grad, value=1 - rho)
        std = state["square_avg"].add(eps).sqrt_()
        delta = state["acc_delta"].add(eps).sqrt_().div_(std).mul_(grad)
        state["acc_delta"].mul_(rho).addcmul_(delta, delta, value=1 - rho)
        descend(p, group["lr"], delta)


class RMSprop(PerParameter):
    """RMSprop: divides gradients by the root of their running mean square."""

    at_least_zero = ("lr", "eps", "momentum", "alpha")
    tensors = ("square_avg", "momentum_buffer", "grad_avg")

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: Number = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals())

    def kept(self, group: Options) -> tuple[str, ...]:
        needed = (True, not is_zero(group["momentum"]), group["centered"])
        return tuple(name for name, wanted in zip(self.tensors, needed, strict=True) if wanted)

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        alpha = group["alpha"]
        grad = decayed(grad, p, group["weight_decay"])
        square = state["square_avg"].mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
        if group["centered"]:
            mean = state["grad_avg"].lerp_(grad, 1 - alpha)
            root = square.addcmul(mean, mean, value=-1).sqrt_()
        else:
            root = square.sqrt()
        root = root.add_(group["eps"])
        if is_zero(group["momentum"]):
            descend_quotient(p, group["lr"], grad, root)
        else:
            buffer = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(grad, root)
            descend(p, group["lr"], buffer)


class Adafactor(PerParameter):
    """Adafactor: stores second moments as means of rows and columns, so the state of a matrix has the size of its
    edges.

    With ``relative_step`` the rate is ``min(1e-2, 1 / sqrt(t))`` (``warmup_init``: ``min(1e-6 t, ...)``), with
    ``scale_parameter`` times the root mean square of the weights.
    """

    at_least_zero = ()
    tensors = ("exp_avg",)

    def __init__(
        self,
        params: ParamsT,
        lr: Number | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: Number = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
        **execution: object,
    ) -> None:
        if lr is not None and relative_step:
            raise program_error(
                f"Adafactor: lr={lr} and relative_step=True exclude each other; give one of them"
            )
        if lr is None and not relative_step:
            raise program_error("Adafactor: relative_step=False needs a learning rate; give lr")
        if warmup_init and not relative_step:
            raise program_error(
                "Adafactor: warmup_init=True acts on the relative step; give relative_step=True"
            )
        super().__init__(locals(), enable_global_step=True)

    def preinitialize(self) -> None:
        for p, group in self.places():
            state = self.state[p]
            if p.ndim < 2:
                self._keep(p, "exp_avg_sq")
            elif "exp_avg_sq_row" not in state:
                zeros = torch.zeros_like(p, requires_grad=False)
                state["exp_avg_sq_row"], state["exp_avg_sq_col"] = zeros.mean(dim=-1), zeros.mean(dim=-2)
            if group["beta1"] is not None:
                self._keep(p, "exp_avg")

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        count = self.increment_global_step(p)
        lr = self._rate(p, group, count)
        beta2 = (1.0 - count.double() ** group["decay_rate"]).to(p.dtype)
        square = grad**2 + group["eps"][0]
        if p.ndim >= 2:
            rows = state["exp_avg_sq_row"].mul_(beta2).add_(square.mean(dim=-1) * (1.0 - beta2))
            columns = state["exp_avg_sq_col"].mul_(beta2).add_(square.mean(dim=-2) * (1.0 - beta2))
            row_factor = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
            update = row_factor * columns.unsqueeze(-2).rsqrt() * grad
        else:
            update = state["exp_avg_sq"].mul_(beta2).add_(square * (1.0 - beta2)).rsqrt() * grad
        update = update / (_rms(update) / group["clip_threshold"]).clamp(min=1.0) * lr
        if group["beta1"] is not None:
            update = state["exp_avg"].mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        if not is_zero(group["weight_decay"]):
            p.sub_(p * (group["weight_decay"] * lr))
        p.sub_(update)

    @staticmethod
    def _rate(p: Tensor, group: Options, count: Tensor) -> Number:
        lr: Number = group["lr"]
        # A scheduler that took the group decides, whatever the constructor said.
        if group["relative_step"] and lr is None:
            least = 1e-6 * count if group["warmup_init"] else torch.full_like(count, 1e-2)
            lr = torch.minimum(least, count.rsqrt())
        if group["scale_parameter"]:
            lr = lr * _rms(p).clamp(min=group["eps"][1])
        return lr


def _rms(t: Tensor) -> Tensor:
    return t.norm(2) / t.numel() ** 0.5


class Lamb(PerParameter):
    """Adam's direction, scaled layer by layer to the norm of the weights."""

    at_least_zero = ("lr", "eps", "weight_decay")
    tensors = MOMENTS

    def __init__(
        self,
        params: ParamsT,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: Number = 0.0,
        adam: bool = False,
        maximize: bool = False,
        **execution: object,
    ) -> None:
        super().__init__(locals())

    def update(self, p: Tensor, grad: Tensor, state: Options, group: Options) -> None:
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        update = mean / square.sqrt().add_(group["eps"])
        if not is_zero(group["weight_decay"]):
            update = update + group["weight_decay"] * p
        lr = group["lr"]
        if not group["adam"]:
            weight_norm, update_norm = p.norm(2), update.norm(2)
            both = (weight_norm > 0) & (update_norm > 0)
            # The quotient of zeros is not taken: its place holds one.
            ratio = torch.where(both, weight_norm / torch.where(both, update_norm, 1.0), 1.0)
            lr = lr * ratio
        descend(p, lr, update)
