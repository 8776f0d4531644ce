"""The device "csx" for Python: its name, its factories, and what `tensor.to(device)` means.

torch has no kernels for this device and needs none: a call that names it is made on the CPU and its result
becomes a device tensor.  The older doors call the same device "lazy" (2.x) and "xla" (1.8).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from wse_sim.cstorch import faults
from wse_sim.cstorch.tensors import WaferTensor, mapped, run_at_once, wrap

NAMES = ("csx", "lazy", "xla")
_registered = False


def register() -> None:
    """Make ``torch.device("csx")`` a name that torch reads."""
    global _registered
    if _registered:
        return
    _registered = True
    if torch._C._get_privateuse1_backend_name() == "privateuseone":
        backend_registration._setup_privateuseone_for_python_backend("csx")
        # torch.utils.checkpoint asks the accelerator of the process for it, wherever its tensors are.
        setattr(getattr(torch, "csx"), "get_amp_supported_dtype", _half_types)  # noqa: B009, B010


def _half_types() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_wafer_device(device: object) -> bool:
    """Return whether a device (or its name) is the wafer."""
    if isinstance(device, torch.device):
        return device.type in NAMES
    return isinstance(device, str) and device.partition(":")[0] in NAMES


class WaferDeviceMode(TorchFunctionMode):
    """Active in a process with a wafer backend: calls that name the device make device tensors."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        to_cuda = func is torch.Tensor.cuda or (func is torch.Tensor.to and _names_cuda(args, kwargs))
        if to_cuda and (isinstance(args[0], WaferTensor) or not torch.cuda.is_available()):
            raise faults.program_error(
                "a tensor is moved to 'cuda' in a run on the wafer; move it with .to(backend.torch_device), "
                "or leave it where the executor puts it"
            )
        if "device" in kwargs and is_wafer_device(kwargs["device"]):
            if func is torch.Tensor.to:
                return _moved(args[0], args[1:], kwargs)
            return _wrapped(func(*args, **{**kwargs, "device": "cpu"}))
        if func is torch.Tensor.to and len(args) > 1:
            where = args[1]
            if isinstance(where, WaferTensor):
                return _moved(args[0], (where.dtype, *args[2:]), kwargs)
            if isinstance(where, str | torch.device):
                if is_wafer_device(where):
                    return _moved(args[0], args[2:], kwargs)
                if isinstance(args[0], WaferTensor):
                    if not faults.is_user_call(sys._getframe(1)):
                        return _moved(args[0], args[2:], kwargs)
                    host = args[0].cpu()
                    return host.to(*args[2:], **kwargs) if len(args) > 2 or kwargs else host
        if func is torch.Tensor.to and isinstance(args[0], WaferTensor) and "device" in kwargs:
            return args[0].cpu()
        return func(*args, **kwargs)


def _names_cuda(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    where = kwargs.get("device", args[1] if len(args) > 1 else None)
    return isinstance(where, str | torch.device) and str(where).partition(":")[0] == "cuda"


def _moved(tensor: torch.Tensor, rest: tuple[object, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking", "copy")}
    types = [r for r in rest if isinstance(r, torch.dtype)]
    to: Callable[..., torch.Tensor] = tensor.to
    changed = to(*types, **kwargs) if types or kwargs else tensor
    return changed if isinstance(changed, WaferTensor) else _wrapped(changed)


@overload
def _wrapped(value: torch.Tensor) -> torch.Tensor: ...
@overload
def _wrapped(value: object) -> object: ...


def _wrapped(value: object) -> object:
    if isinstance(value, torch.Tensor) and not isinstance(value, WaferTensor):
        made = wrap(value)
        if value.requires_grad:
            made.requires_grad_()
        return (
            torch.nn.Parameter(made, value.requires_grad) if isinstance(value, torch.nn.Parameter) else made
        )
    return value


MAX_REAL_ELEMENTS = 1 << 16
"""Under compile_only tensors up to this size are real: constructors may read them."""


class WithoutWeights(TorchDispatchMode):
    """Models made inside have no weights: large tensors are device tensors of fakes."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self.fake_mode = fake_mode

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        given: list[torch.Tensor] = []
        mapped((args, kwargs), given.append)
        if any(isinstance(t, WaferTensor) for t in given):
            return run_at_once(func, args, kwargs)
        if not given:
            with self.fake_mode:
                out = func(*args, **kwargs)
            if isinstance(out, torch.Tensor) and out.numel() > MAX_REAL_ELEMENTS:
                return wrap(out)
        return func(*args, **kwargs)


@contextmanager
def without_wafer_device() -> Iterator[None]:
    """No function mode inside: for our own use of torch (capture, fakes)."""
    with torch._C.DisableTorchFunction():
        yield
