"""Layers and helpers of models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping

import torch

from wse_sim.cstorch import faults
from wse_sim.cstorch.nn import functional
from wse_sim.cstorch.utils.utils import FilterCallable, make_param_filter

SmoothL1Loss = torch.nn.SmoothL1Loss

__all__ = ["DiceCELoss", "Scope", "SelectiveGrad", "SmoothL1Loss", "StripPadding", "functional"]


def applied_to_a_part() -> bool:
    """Return whether the caller was called by ``model.apply`` for a part of the model: names are not the model's there."""
    frame = sys._getframe(2)
    apply = torch.nn.Module.apply.__code__
    return frame.f_code is apply and frame.f_back is not None and frame.f_back.f_code is apply


class StripPadding(torch.nn.Module):
    """Marks sequences whose padding need not be computed; it returns its input, masked where the mask is 0."""

    def forward(self, values: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is None:
            return values
        mask = mask.to(values.dtype)
        return values * mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))


class Scope(torch.nn.Module):
    """Names a part of a model; it returns its input.

    Args:
        scope_name: of the part, in reports.
    """

    def __init__(self, scope_name: str = "") -> None:
        super().__init__()
        self.scope_name = scope_name

    def forward(self, *args: object) -> object:
        return args[0] if len(args) == 1 else args

    def enter(self, *args: object) -> object:
        """Return the inputs of the part unchanged."""
        return self.forward(*args)

    def exit(self, *args: object) -> object:
        """Return the outputs of the part unchanged."""
        return self.forward(*args)


class SelectiveGrad(torch.nn.Module):
    """Passes only a part of each weight's gradient, by a mask of zeros and ones that is made once.

    Args:
        parameters_filter: name patterns (``*`` and ``?``, or ``re:`` and a regular expression), or a function of name and
            parameter.
        init_method: how the mask is made: "random" (half ones), "zeros", "ones", or a function of the parameter.
    """

    METHODS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "random": lambda p: (torch.rand(p.shape) < 0.5).to(torch.float32),
        "zeros": lambda p: torch.zeros(p.shape),
        "ones": lambda p: torch.ones(p.shape),
    }

    def __init__(
        self,
        parameters_filter: str | Iterable[str] | FilterCallable,
        init_method: str | Callable[[torch.Tensor], torch.Tensor] = "random",
    ) -> None:
        super().__init__()
        self.filter = make_param_filter(parameters_filter)
        if not callable(init_method) and init_method not in self.METHODS:
            raise faults.program_error(
                f"SelectiveGrad: init_method='{init_method}' is unknown; the methods are {', '.join(self.METHODS)}"
            )
        self.init_method = init_method
        self.masked: list[str] = []

    def __call__(self, model: torch.nn.Module) -> torch.nn.Module:
        """Accept a model's parameters; ``model.apply`` also calls this for every part, which is ignored."""
        return model if applied_to_a_part() else self.forward(model)

    def forward(self, model: torch.nn.Module) -> torch.nn.Module:
        make = self.init_method if callable(self.init_method) else self.METHODS[self.init_method]
        for name, p in model.named_parameters():
            if p.requires_grad and self.filter(name, p):
                mask = make(p.detach())
                p.register_hook(lambda grad, m=mask: grad * m.to(grad.dtype))
                self.masked.append(name)
        if not self.masked:
            raise faults.program_error(
                "SelectiveGrad: no parameter has a name that the filter accepts; check its patterns"
            )
        return model


class DiceCELoss(torch.nn.Module):
    """Weighted sum of cross entropy and of 1 - the mean Dice coefficient of the classes.

        dice(c) = 2 sum p_c t_c / (sum p_c + sum t_c + 1e-6),  p = softmax of the outputs, t = one-hot labels

    Args:
        num_classes: classes; outputs are ``(batch, classes, ...)``, labels ``(batch, ...)``.
        input_shape: kept for programs that give it; shapes are taken from the outputs.
        include_background: whether class 0 counts.
        wc, wd: weights of cross entropy and of the Dice part.
    """

    def __init__(
        self,
        num_classes: int,
        input_shape: object = None,
        include_background: bool = True,
        wc: float = 0.5,
        wd: float = 0.5,
    ) -> None:
        super().__init__()
        if num_classes < 2 and not include_background:
            raise faults.program_error(
                f"DiceCELoss: num_classes={num_classes} without the background leaves no class"
            )
        self.num_classes, self.first = num_classes, 0 if include_background else 1
        self.wc, self.wd = wc, wd

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar."""
        entropy = torch.nn.functional.cross_entropy(outputs, labels)
        shares = torch.softmax(outputs, dim=1)[:, self.first :]
        truth = functional.one_hot(labels, self.num_classes).movedim(-1, 1)[:, self.first :].to(shares.dtype)
        places = tuple(range(2, shares.ndim))
        both, each = (shares * truth).sum(places), shares.sum(places) + truth.sum(places)
        return self.wc * entropy + self.wd * (1 - (2 * both / (each + 1e-6)).mean())
