"""Models that change types and devices inside forward(), or take forward derivatives, have the FLOPs of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.func import jvp, vmap  # noqa: E402

from tests.frontend.test_samples import forward_by_torch  # noqa: E402
from tests.frontend.test_training_flops import Uses, by_torch, linear  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402

CASES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "there and back": lambda a, x: a(x.to(torch.float64).to(torch.float32)),
    "half": lambda a, x: a(x.half().float()).type(torch.float16).type_as(x),
    "weights in bf16": lambda a, x: F.linear(x.to(torch.bfloat16), a.weight.to(torch.bfloat16)),
    "as another tensor": lambda a, x: a(x.to(a.weight)),
    "a copy on a device": lambda a, x: a(x.to(torch.device("cpu"), torch.float32, copy=True)),
    "integers": lambda a, x: a(x).to(torch.int32).float() * a(x),
    "the real part": lambda a, x: (a(x).to(torch.complex64) * 1j).imag + torch.complex(a(x), x).real,
    "a module that moves": lambda a, x: a.to(x.device)(x) + a.to(x)(x) + a.cpu()(x),
    "a derivative": lambda a, x: jvp(lambda y: a(a(y).tanh()).tanh(), (x,), (x * 2,))[1],
    "derivatives of samples": lambda a, x: vmap(torch.func.jacfwd(lambda y: a(y).tanh()))(x),
}


SLOW = ("a derivative", "derivatives of samples")


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_casts_and_derivatives_have_the_flops_of_torch(name: str) -> None:
    module, args = Uses(CASES[name], *linear(4, 4)), (torch.randn(3, 4),)
    assert lower(module, args).total_flops == forward_by_torch(module, args)
    assert lower(module, args, training=True).total_flops == by_torch(module, args)


def test_a_module_still_moves_after_a_capture() -> None:
    """Only a capture keeps modules in place; a conversion to another type is not one of them."""
    before = torch.nn.Module.to, torch.nn.Module.cuda
    module = Uses(lambda a, x: a.to("cuda")(x), *linear(4, 4))
    assert lower(module, (torch.randn(3, 4),)).total_flops == 96
    assert before == (torch.nn.Module.to, torch.nn.Module.cuda)
    assert module.to(torch.float64).parts[0].weight.dtype is torch.float64
