"""A capture leaves torch as it was, whatever the model sets, and also if the model is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from wse_sim.errors import WseError  # noqa: E402
from wse_sim.frontend import diagnose, lower  # noqa: E402
from wse_sim.frontend.torch_state import SETTINGS  # noqa: E402

CHANGES: dict[str, Callable[[], object]] = {
    "default type": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "a device that is entered": lambda: torch.device("meta").__enter__(),
    "gradients": lambda: torch.set_grad_enabled(False),
    "autocast that is entered": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "type of autocast": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "random numbers": lambda: (torch.manual_seed(3), random.seed(3), np.random.seed(3)),  # noqa: NPY002
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "kinds of attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
}


class Changes(nn.Module):
    """A layer that changes a setting and then ends, raises, tests a value, or has an operator without a kernel."""

    def __init__(self, change: str, end: str) -> None:
        super().__init__()
        self.change, self.end, self.fc = change, end, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        CHANGES[self.change]()
        if self.end == "raises":
            raise ValueError("not today")
        if self.end == "tests" and y.sum() > 0:
            return x
        return torch.linalg.svd(y)[1] if self.end == "has no kernel" else y


def state() -> tuple[object, ...]:
    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    numbers = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    return (*(setting.get() for setting in SETTINGS), modes, numbers)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("change", CHANGES)
def test_a_capture_leaves_torch_as_it_was(change: str) -> None:
    """In both phases, refused or not, and while obstacles are collected."""
    x = (torch.zeros(2, 4),)
    for end in ("", "raises", "tests", "has no kernel"):
        module = Changes(change, end)
        before = state()
        for training in (False, True):
            try:
                lower(module, x, training=training)
            except WseError:
                assert end or "entered" in change
            assert state() == before, (end, training)
        diagnose(module, x)
        assert state() == before, end
    assert (torch.zeros(2) + 1).device.type == "cpu"


def test_what_the_user_set_stays() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        lower(nn.Linear(4, 4), (torch.zeros(2, 4),))
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
