"""A module with checks of values; it is no test file, because pytest writes the asserts of those anew."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 8


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)


class Checked(Linear):
    """Each check has another form; the example passes all of them."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        if not bool(
            torch.isfinite(x)
            .all()
            .item()
        ):  # fmt: skip
            raise ValueError("not finite")
        assert x.isnan().sum() == 0 and not (x.abs() > 1e9).any(), "large"  # noqa: PT018
        assert torch.allclose(x, x + 0)
        assert not torch.equal(x, x + 1)
        if not (x.sum() > 1e9 or not (x.max() > 1e9).item()):
            message = "large"
            raise RuntimeError(message)
        if x.mean() < 1e9:
            pass
        else:
            raise RuntimeError("large")
        return self.layer(x)
