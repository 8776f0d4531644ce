"""The optimizer that applies sparsity, as earlier releases have it."""

from __future__ import annotations

from typing import Any

import torch

from wse_sim.cstorch.sparse.algorithms import SparsityAlgorithm


class SparsityWrapperOptimizer:
    """Wraps an optimizer; its state includes the masks (under ``sparsity``)."""

    def __init__(self, optimizer: torch.optim.Optimizer, sparsity: SparsityAlgorithm) -> None:
        self.__dict__["_optimizer"], self.__dict__["sparsity"] = optimizer, sparsity
        sparsity.sparsify_optimizer(optimizer)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[misc]
        # Schedulers and scalers ask for an optimizer.
        return type(self.__dict__["_optimizer"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_optimizer"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_optimizer"], name, value)

    def step(self, *args: object, **keywords: object) -> object:
        return self.__dict__["_optimizer"].step(*args, **keywords)

    def zero_grad(self, *args: object, **keywords: object) -> None:
        self.__dict__["_optimizer"].zero_grad(*args, **keywords)

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.__dict__["_optimizer"].state_dict(),
            "sparsity": self.__dict__["sparsity"].state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rest = dict(state_dict)
        masks = rest.pop("sparsity", None)
        self.__dict__["_optimizer"].load_state_dict(rest)
        if masks is not None:
            self.__dict__["sparsity"].load_state_dict(masks)
