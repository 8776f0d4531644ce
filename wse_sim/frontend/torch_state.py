"""Keeps the settings of torch: what a model or its factory changes is undone at the end of a capture.

This also holds if the capture is refused, which may leave code of the model at any point: a mode that was
entered and not left, a default type, random numbers.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.backends import cudnn, mkldnn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Setting:
    """A setting of torch that can be read and written."""

    get: Callable[[], object]
    put: Callable[..., object]

    def keep(self) -> Callable[[], None]:
        """Return a function that restores the present value if it has changed."""
        before = self.get()

        def restore() -> None:
            if self.get() != before:
                self.put(before)

        return restore


def _default_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _nesting() -> int:
    """Return the number of enclosing autocast blocks."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _nest(count: int) -> None:
    while _nesting() > count:
        torch.autocast_decrement_nesting()
    while _nesting() < count:
        torch.autocast_increment_nesting()
    if not count:
        torch.clear_autocast_cache()


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _autocast(device: str) -> Setting:
    def put(value: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return Setting(lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), put)


def _products() -> tuple[bool, bool, bool]:
    kinds = torch.backends.cuda
    return kinds.flash_sdp_enabled(), kinds.mem_efficient_sdp_enabled(), kinds.math_sdp_enabled()


def _put_products(value: tuple[bool, bool, bool]) -> None:
    torch.backends.cuda.enable_flash_sdp(value[0])
    torch.backends.cuda.enable_mem_efficient_sdp(value[1])
    torch.backends.cuda.enable_math_sdp(value[2])


def _cudnn() -> tuple[bool, bool, bool, bool]:
    return bool(cudnn.enabled), bool(cudnn.benchmark), bool(cudnn.deterministic), bool(cudnn.allow_tf32)


def _put_cudnn(value: tuple[bool, bool, bool, bool]) -> None:
    cudnn.set_flags(_enabled=value[0], _benchmark=value[1], _deterministic=value[2], _allow_tf32=value[3])


SETTINGS: tuple[Setting, ...] = (
    Setting(torch.get_default_dtype, torch.set_default_dtype),
    Setting(_default_device, torch.set_default_device),
    Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    *map(_autocast, _DEVICES),
    Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    Setting(_nesting, _nest),
    Setting(_anomaly, lambda value: torch.autograd.set_detect_anomaly(*value)),
    Setting(_deterministic, lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1])),
    Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting(_products, _put_products),
    Setting(_cudnn, _put_cudnn),
    Setting(lambda: bool(mkldnn.enabled), mkldnn.set_flags),
    Setting(torch.get_num_threads, torch.set_num_threads),
)
"""All settings that are kept; modes on torch's stacks and random numbers are kept in addition."""


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restore all settings of torch, its random numbers and those of Python and numpy after the block."""
    functions = _get_current_function_mode_stack()
    dispatches = len(_get_current_dispatch_mode_stack())
    restore = [setting.keep() for setting in SETTINGS]
    numbers, python = torch.get_rng_state(), random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002 - what models draw from
    try:
        yield
    finally:
        while len(_get_current_dispatch_mode_stack()) > dispatches:
            _pop_mode()
        for put in restore:
            put()
        _put_function_modes(functions)
        torch.set_rng_state(numbers)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def remove_function_mode(mode: TorchFunctionMode) -> None:
    """Remove a mode from those that receive torch's functions, wherever it is among them."""
    _put_function_modes([one for one in _get_current_function_mode_stack() if one is not mode])


def _put_function_modes(wanted: list[TorchFunctionMode]) -> None:
    """Replace the modes that receive torch's functions, if they are others."""
    found = _get_current_function_mode_stack()
    if len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True)):
        return
    for _ in found:
        pop_function_mode()
    for mode in wanted:
        push_function_mode(mode)
