"""Device tensors: tensors of the simulated wafer, whose values Python cannot read.

A :class:`WaferTensor` wraps a CPU tensor (`_value`), a fake one where nothing executes, or nothing at all
for results inside a step that is being recorded.  For torch's C++ it lives on "cpu": the same kernels are
chosen as by eager PyTorch, and backward passes stay on the calling thread.  For Python its `.device` is
that of the door in use (csx, lazy, xla).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
import torch
from torch._ops import OpOverload

from wse_sim.cstorch import faults


class Forward(Protocol):
    """The calls of the forward pass; see :class:`wse_sim.cstorch.tape.Tape`."""

    precision: tuple[Any, Any]
    paused: int


class Recording(Protocol):
    """The recording of a step; see :class:`wse_sim.cstorch.record.Recorder`."""

    callbacks: list[tuple[Any, Callable[[Any], None]]]
    scaled: dict[int, torch.Tensor]
    optimizers: dict[int, tuple[torch.optim.Optimizer, dict[tuple[int, str], object]]]

    @property
    def tape(self) -> Forward: ...
    def shown_by(self, tensor: torch.Tensor) -> torch.Tensor: ...
    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object: ...
    def read(self, tensor: WaferTensor, branch: bool = False) -> torch.Tensor: ...
    def cleared(self, parameter: torch.Tensor) -> None: ...


# Set by the recorder while a step is recorded, by the runtime for values and for changes of state.
recorder: Recording | None = None
reader: Callable[[WaferTensor, bool], torch.Tensor] | None = None
guard: Callable[[WaferTensor, str], None] | None = None
device_name = "csx"

_INPLACE: dict[OpOverload, tuple[bool, tuple[int, ...]]] = {}


def schema_facts(func: OpOverload) -> tuple[bool, tuple[int, ...]]:
    """Return (whether the operator writes, positions of the arguments that it writes)."""
    facts = _INPLACE.get(func)
    if facts is None:
        written = tuple(
            i
            for i, arg in enumerate(func._schema.arguments)
            if arg.alias_info is not None and arg.alias_info.is_write
        )
        facts = _INPLACE[func] = (bool(written), written)
    return facts


_GRAD: Any = torch.Tensor.grad  # the descriptor, not a gradient


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return ``tensor.grad`` as torch stores it, without a note to the recorder."""
    return _GRAD.__get__(tensor)


def put_gradient(tensor: torch.Tensor, value: object) -> None:
    """Set ``tensor.grad`` without a note to the recorder."""
    _GRAD.__set__(tensor, value)


@overload
def mapped(value: tuple[Any, ...], change: Callable[[torch.Tensor], Any]) -> tuple[Any, ...]: ...
@overload
def mapped(value: dict[str, Any], change: Callable[[torch.Tensor], Any]) -> dict[str, Any]: ...
@overload
def mapped(value: object, change: Callable[[torch.Tensor], Any]) -> object: ...


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> object:
    """Apply a function to every tensor of the arguments (lists, tuples and dicts only, as operators take them)."""
    if isinstance(value, torch.Tensor):
        return change(value)
    kind = type(value)
    if kind is tuple:
        return tuple(mapped(v, change) for v in value)
    if kind is list or kind is torch.fx.immutable_collections.immutable_list:
        return [mapped(v, change) for v in value]
    if kind is dict:
        return {k: mapped(v, change) for k, v in value.items()}
    return value


class WaferTensor(torch.Tensor):
    """A tensor on the simulated wafer, whose values Python cannot read; the module's docstring has the rules."""

    _value: torch.Tensor | None
    _const: torch.Tensor | None
    _owner: WaferTensor | None
    _role: str  # state, metric, input, output, trace, plain
    _name: str

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        like: torch.Tensor,
        value: torch.Tensor | None = None,
        *,
        role: str = "plain",
        name: str = "",
        requires_grad: bool = False,
    ) -> WaferTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            like.size(),
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=torch.device("cpu"),
            requires_grad=requires_grad,
        )
        made._value, made._const, made._owner, made._role, made._name = value, None, None, role, name
        return made

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if recorder is not None:
            return recorder.record(func, args, kwargs or {})
        return run_at_once(func, args, kwargs or {})

    # -- what Python may not see -------------------------------------------------------------------
    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        name = f", name={self._name!r}" if self._name else ""
        return f"WaferTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}{name})"

    def __str__(self) -> str:
        return str(_read(self))

    def __format__(self, spec: str) -> str:
        return format(_read(self), spec)

    def item(self) -> int | float | bool:
        return _read(self).item()

    def tolist(self) -> list[Any]:
        return _read(self).tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return _read(self).detach().numpy()

    def __array__(self, dtype: npt.DTypeLike | None = None) -> np.ndarray:
        out = _read(self).detach().numpy()
        return out if dtype is None else out.astype(dtype, copy=False)

    def cpu(self, memory_format: object = None) -> torch.Tensor:
        return _read(self)

    def __bool__(self) -> bool:
        return bool(_read(self, branch=True))

    def __float__(self) -> float:
        return float(_read(self))

    def __int__(self) -> int:
        return int(_read(self))

    def __index__(self) -> int:
        return _read(self, branch=True).__index__()

    def __contains__(self, item: object) -> bool:
        return item in _read(self, branch=True)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return _read(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> WaferTensor:
        if id(self) in memo:
            return memo[id(self)]
        value = self._value
        copy = WaferTensor(self, None if value is None else value.clone(), role=self._role, name=self._name)
        copy.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copy._is_param = True
        memo[id(self)] = copy
        return copy

    # -- where it is -------------------------------------------------------------------------------
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(device_name, 0)

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        with torch.no_grad():
            return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if recorder is None and tuple(new.shape) != tuple(self.shape):
            raise faults.program_error(
                f"data of shape {tuple(new.shape)} is assigned to a tensor of shape {tuple(self.shape)}; "
                "keep the shape, or make a new parameter before cstorch.compile"
            )
        with torch.no_grad():
            if new.dtype is not self.dtype and recorder is None:
                made = WaferTensor(new, _value_of(new).detach(), role=self._role, name=self._name)
                made.requires_grad_(self.requires_grad)
                if getattr(self, "_is_param", False):
                    made._is_param = True
                torch.utils.swap_tensors(self, made)
                return
            self.detach().copy_(new)

    @property
    def grad(self) -> torch.Tensor | None:  # type: ignore[override]
        out = gradient_of(self)
        if out is None and recorder is not None and sys._getframe(1).f_code.co_name == "zero_grad":
            recorder.cleared(self)
        return out

    @grad.setter
    def grad(self, new: object) -> None:
        if recorder is not None and (new is None or gradient_of(self) is None):
            recorder.cleared(self)  # what was summed so far is gone
        put_gradient(self, new)


def _read(tensor: WaferTensor, branch: bool = False) -> torch.Tensor:
    if recorder is not None:
        return recorder.read(tensor, branch)
    if reader is None:
        raise faults.program_error(faults.READ)
    return reader(tensor, branch)


def is_wafer(value: object) -> bool:
    """Return whether a value is a device tensor."""
    return isinstance(value, WaferTensor)


def owner_of(tensor: WaferTensor) -> WaferTensor:
    """Return the tensor whose memory a view shows."""
    while tensor._owner is not None and tensor._owner is not tensor:
        tensor = tensor._owner
    return tensor


def wrap(value: torch.Tensor, role: str = "plain", name: str = "") -> WaferTensor:
    """Return a CPU (or fake) tensor as a device tensor."""
    return WaferTensor(value, value.detach(), role=role, name=name)


def _value_of(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, WaferTensor):
        if tensor._value is None:
            raise faults.program_error(
                "a result of the step is used outside it; return it from the step or pass it to a step closure"
            )
        return tensor._value
    return tensor


_READS = frozenset(
    {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose"}
)


def run_at_once(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return an operator outside a step: on the values, at once (initialisation, loading, changes between runs)."""
    name = func._schema.name
    if name in _READS:
        first = next(a for a in args if isinstance(a, WaferTensor))
        _read(first)
    writes, positions = schema_facts(func)
    if writes and guard is not None:
        for i in positions:
            target = args[i] if i < len(args) else kwargs.get(func._schema.arguments[i].name)
            for one in target if isinstance(target, list | tuple) else (target,):
                if isinstance(one, WaferTensor):
                    guard(one, name)
    back: dict[int, torch.Tensor] = {}

    def value(tensor: torch.Tensor) -> torch.Tensor:
        out = _value_of(tensor)
        back[id(out)] = tensor
        return out

    plain_args, plain_kwargs = integers_widened(func, mapped(args, value), mapped(kwargs, value))
    if "device" in plain_kwargs:
        plain_kwargs["device"] = torch.device("cpu")
    out = func(*plain_args, **plain_kwargs)

    def result(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in back and writes:
            return back[id(tensor)]
        return wrap(tensor)

    made = mapped(out, result)
    if isinstance(made, WaferTensor) and not writes and args and isinstance(args[0], WaferTensor):
        returns = func._schema.returns
        if returns and returns[0].alias_info is not None:
            made._owner = args[0]
            made._name = args[0]._name
    return made


# Products of a half type with fp32 weights: the compiler inserts the casts, here up to fp32.
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "bmm", "addmm", "addmv", "mv", "dot", "baddbmm", "convolution", "convolution_backward", "native_layer_norm",
        "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward", "native_batch_norm",
        "native_batch_norm_backward", "_scaled_dot_product_flash_attention_for_cpu", "linear", "matmul", "einsum",
        "_native_batch_norm_legit", "mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
        "nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward", "index_put_", "index_put",
        "scatter_add_", "scatter_add", "scatter_", "scatter", "masked_scatter_", "index_add_", "index_add", "lerp_", "lerp",
        "gelu_backward", "tanh_backward", "threshold_backward", "_softmax_backward_data", "_log_softmax_backward_data",
    )
)  # fmt: skip
_HALF = (torch.float16, torch.bfloat16)


def mixed_floats(func: OpOverload, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of half-typed arguments of a product that has fp32 arguments too."""
    if func._schema.name not in _PRODUCTS:
        return ()
    halves = tuple(i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.dtype in _HALF)
    if not halves or not any(isinstance(a, torch.Tensor) and a.dtype is torch.float32 for a in args):
        return ()
    return halves


def counted_floats(func: OpOverload, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of integers that other devices count, and torch's CPU kernel takes as floats alone."""
    if func._schema.name != "aten::histc" or not args or args[0].is_floating_point():
        return ()
    return (0,)


# Indices and targets of 32 bits are what the wafer takes; torch's CPU kernels of these want 64.
_WIDE: dict[str, tuple[int, ...]] = {
    "aten::nll_loss_forward": (1,),
    "aten::nll_loss_backward": (2,),
    "aten::nll_loss2d_forward": (1,),
    "aten::nll_loss2d_backward": (2,),
    "aten::multi_margin_loss": (1,),
    "aten::multilabel_margin_loss_forward": (1,),
    "aten::gather": (2,),
    "aten::scatter": (2,),
    "aten::scatter_": (2,),
    "aten::scatter_add": (2,),
    "aten::scatter_add_": (2,),
    "aten::scatter_reduce": (2,),
    "aten::scatter_reduce_": (2,),
    "aten::take": (1,),
    "aten::index_fill": (2,),
    "aten::index_fill_": (2,),
}
_NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8)


def wide_positions(func: OpOverload) -> tuple[int, ...]:
    """Return the positions of arguments that torch's CPU kernel requires as int64."""
    return _WIDE.get(func._schema.name, ())


def integers_widened(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert arguments to the types that the CPU's kernel needs: indices to int64, mixed float types to fp32."""
    positions, halves = wide_positions(func), (*mixed_floats(func, args), *counted_floats(func, args))
    if not positions and not halves:
        return args, kwargs
    wide = list(args)
    for i in halves:
        wide[i] = wide[i].float()
    for i in positions:
        if i < len(wide) and isinstance(wide[i], torch.Tensor) and wide[i].dtype in _NARROW:
            wide[i] = wide[i].long()
    return tuple(wide), kwargs
