"""Records one step: every operator once, on fakes, and the calls of its forward pass for lowering.

Two recordings are made in one run of the user's Python:

* the *graph*: ATen operators below autograd, in order, in-place ones as they are; replay executes them on
  the real storage, which is why state carries from step to step by itself;
* the *tape*: the calls of torch's Python functions up to ``backward()``, whole (linear, attention, norms);
  from it the kernel graph is lowered without a second run of the user's code.

Both recordings share one file, because they are made in one run and share its state.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from wse_sim.cstorch import counters, faults, tensors, tests_of_values
from wse_sim.cstorch.device import is_wafer_device, without_wafer_device
from wse_sim.cstorch.standing_in import without_values
from wse_sim.cstorch.tape import StepTape
from wse_sim.cstorch.tensors import WaferTensor, gradient_of, mapped, schema_facts, wide_positions

MAX_CONST_ELEMENTS = 1 << 16
"""Results of constants up to this size are also computed while recording, so that Python may read them."""

_READS = frozenset(
    {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose"}
)
_BRANCHES = frozenset({"__bool__", "is_nonzero", "__contains__", "equal", "allclose", "__index__"})
_NUMBERS = frozenset(
    {"item", "__float__", "__int__", "__complex__", "tolist", "__bool__", "is_nonzero", "__index__", "equal",
     "allclose", "__format__", "__str__", "__repr__", "numpy", "__array__", "cpu", "to"}
)  # fmt: skip
# Operators that write an argument which their schema does not mark.
_HIDDEN_WRITES = {
    "aten::native_batch_norm": (3, 4),
    "aten::_native_batch_norm_legit": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
}


class Recorder:
    """Recording of one run of the step; active between :meth:`start` and :meth:`stop`."""

    def __init__(self, fake_mode: FakeTensorMode, batch: list[WaferTensor]) -> None:
        self.graph = torch.fx.Graph()
        self.fake_mode = fake_mode
        self.nodes: dict[int, torch.fx.Node] = {}
        self.fakes: dict[int, torch.Tensor] = {}
        self.keep: list[Any] = []
        self.inputs: list[tuple[torch.fx.Node, torch.Tensor]] = []  # placeholders and what fills them
        self.written: dict[int, torch.Tensor] = {}  # tensors from before the step that it writes
        self.owner: dict[int, torch.Tensor] = {}  # storage of a fake -> the tensor from before the step
        self.cleared_grads: set[int] = set()
        self.callbacks: list[tuple[Any, Callable[[Any], None]]] = []
        self.operators = 0
        self.fakes_of_results: list[torch.Tensor] = []
        self.tape = StepTape()
        self.call: tuple[Any, Any, Any] | None = None  # the torch function at work, for sentences
        self.scaled: dict[int, torch.Tensor] = {}  # id of a scaled loss -> the loss
        self.optimizers: dict[int, tuple[torch.optim.Optimizer, dict[tuple[int, str], object]]] = {}
        self.batch = list(batch)
        self.has_backward = False
        self.keeps_lines = False  # whether operators know the user's line that made them
        for tensor in batch:
            self.node_of(tensor)

    # -- tensors -> nodes --------------------------------------------------------------------------
    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """Node of a tensor; one from before the step becomes a placeholder."""
        node = self.nodes.get(id(tensor))
        if node is None:
            if isinstance(tensor, WaferTensor) and tensor._value is None:
                raise faults.program_error(
                    "a result of another step is used in this one; keep it as state that is created before the step"
                )
            node = self._placeholder(tensor)
        return node

    def _placeholder(self, tensor: torch.Tensor) -> torch.fx.Node:
        last = self.inputs[-1][0] if self.inputs else None
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before(None):
            node = self.graph.placeholder(f"in_{len(self.inputs)}")
        self.inputs.append((node, tensor))
        self.nodes[id(tensor)] = node
        self.keep.append(tensor)
        return node

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = self.fakes.get(id(tensor))
        if fake is not None:
            return fake
        value = tensor._value if isinstance(tensor, WaferTensor) else tensor
        if value is None:
            self.node_of(tensor)  # raises
        assert value is not None
        if isinstance(value, FakeTensor):
            fake = value
        else:
            with without_wafer_device():
                fake = self.fake_mode.from_tensor(value.detach(), static_shapes=True)
        self.fakes[id(tensor)] = fake
        self.keep.append(tensor)
        self.owner.setdefault(fake.untyped_storage()._cdata, tensor)
        return fake

    def shown_by(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor from before the step whose memory a tensor shows; itself if there is none."""
        if not isinstance(tensor, WaferTensor):
            return tensor
        with _disable_current_modes():  # this is looked up for the program, it is no operator of it
            return self.owner.get(self.fake_of(tensor).untyped_storage()._cdata, tensor)

    def new(self, fake: torch.Tensor, node: torch.fx.Node, const: torch.Tensor | None) -> WaferTensor:
        made = WaferTensor(fake, None, role="trace")
        made._const = const
        self.nodes[id(made)] = node
        self.fakes[id(made)] = fake
        self.keep.append(made)
        return made

    def const_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if isinstance(tensor, WaferTensor):
            return tensor._const
        if type(tensor) is FakeTensor or tensor.numel() > MAX_CONST_ELEMENTS:
            return None
        return tensor

    # -- one operator ------------------------------------------------------------------------------
    def record(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        name = func._schema.name
        if func.namespace == "profiler":
            return func(*args, **kwargs)  # marks of torch's own profiler compute nothing
        given: list[torch.Tensor] = []
        mapped((args, kwargs), given.append)
        consts = [self.const_of(t) for t in given]
        known = all(c is not None for c in consts) and (bool(given) or self._is_plain_factory(kwargs))
        if torch.Tag.nondeterministic_seeded in func.tags:
            known = False
        if name in _READS:
            return self._read_operator(func, args, kwargs, given, known)
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if torch.Tag.inplace_view in func.tags:
            if self._is_turned(func, args):
                return self._turned(func, args, kwargs)
            raise faults.program_error(
                f"{name.removeprefix('aten::')} changes the shape of a tensor in place; use the form that returns a new tensor"
            )
        args = self._widened(func, args)
        back: dict[int, torch.Tensor] = {}

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            out = self.fake_of(tensor)
            back[id(out)] = tensor
            return out

        try:
            out = self._on_fakes(func, mapped(args, fake), mapped(kwargs, fake))
        except DynamicOutputShapeException as fault:
            out = self._shaped_by_constants(func, args, kwargs, given, consts)
            if out is None:
                raise faults.program_error(faults.SHAPE) from fault
        node = self.graph.call_function(func, mapped(args, self.node_of), mapped(kwargs, self.node_of))
        self.operators += 1
        if self.keeps_lines:
            frame = faults.user_frame(sys._getframe(1))
            if frame is not None:
                node.meta["source"] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        real = self._on_constants(func, args, kwargs, out) if known else None
        self._note_writes(func, name, args, kwargs, known)
        made = self._results(out, real, node, back)
        self.tape.note_operator(func, args, kwargs, made)
        return made

    @staticmethod
    def _is_turned(func: OpOverload, args: tuple[Any, ...]) -> bool:
        """Return whether an operator changes the shape of a result of this step without changing its
        memory."""
        target = args[0]
        moves = func._schema.name.removeprefix("aten::").startswith(("resize", "set_"))
        return isinstance(target, WaferTensor) and target._role == "trace" and not moves

    def _turned(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Record ``squeeze_`` and similar operators, which give the same tensor another shape, for torch, for its fake
        and in the graph.
        """
        tensor = args[0]
        with self.fake_mode:
            func(self.fake_of(tensor), *args[1:], **kwargs)
        if tensor._const is not None:
            tensor._const = func(tensor._const.view(tensor._const.shape), *args[1:], **kwargs)
        node = self.graph.call_function(func, (self.node_of(tensor), *args[1:]), kwargs)
        self.operators += 1
        self.nodes[id(tensor)] = node
        with no_dispatch():
            func(tensor, *args[1:], **kwargs)
        self.tape.note_operator(func, args, kwargs, tensor)
        return tensor

    def _results(self, out: object, real: Any, node: torch.fx.Node, back: dict[int, torch.Tensor]) -> object:
        if isinstance(out, torch.Tensor):
            if id(out) in back:
                return back[id(out)]
            return self.new(out, node, real)
        if isinstance(out, tuple | list):
            results = []
            for i, one in enumerate(out):
                if not isinstance(one, torch.Tensor):
                    results.append(one)
                elif id(one) in back:
                    results.append(back[id(one)])
                else:
                    item = self.graph.call_function(operator.getitem, (node, i))
                    results.append(self.new(one, item, real[i] if real is not None else None))
            return results if isinstance(out, list) else tuple(results)
        return out

    def _on_fakes(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        try:
            with self.fake_mode:
                return func(*args, **kwargs)
        except DynamicOutputShapeException:
            with self.fake_mode:
                made = without_values(func, args)
            if made is None:
                raise
            return made
        except DataDependentOutputException as fault:
            raise self._refused(branch=True) from fault
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as fault:
            if isinstance(fault, faults.ProgramError):
                raise
            first = next((line.strip() for line in str(fault).splitlines() if line.strip()), "")
            raise faults.program_error(
                f"operator {func._schema.name} does not take these tensors ({first.rstrip('.')}); check shapes and types"
            ) from fault

    def _shaped_by_constants(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
        consts: list[torch.Tensor | None],
    ) -> object:
        """Return the result's shape where known integers alone decide it (lengths, masks); None for other operators."""
        unknown = [t for t, c in zip(given, consts, strict=True) if c is None]
        if len(unknown) == len(given) or not all(t.is_floating_point() for t in unknown):
            return None

        def real(tensor: torch.Tensor) -> torch.Tensor:
            known = self.const_of(tensor)
            return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype) if known is None else known

        with without_wafer_device(), _disable_current_modes():
            made = func(*mapped(args, real), **mapped(kwargs, real))
            return mapped(made, lambda t: self.fake_mode.from_tensor(t, static_shapes=True))

    def _on_constants(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> object:
        """Return the real result of constants, or None where it is large."""
        for one in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(one, torch.Tensor) or one.numel() > MAX_CONST_ELEMENTS:
                return None
        return func(*mapped(args, self.const_of), **mapped(kwargs, self.const_of))

    def _is_plain_factory(self, kwargs: dict[str, Any]) -> bool:
        device = kwargs.get("device")
        return device is None or torch.device(device).type == "cpu"

    def _widened(self, func: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments as the CPU kernels require: 64-bit indices, one float type; no kernels of the program."""
        positions = [
            i
            for i in wide_positions(func)
            if i < len(args) and isinstance(args[i], torch.Tensor) and args[i].dtype in tensors._NARROW
        ]
        halves = (*tensors.mixed_floats(func, args), *tensors.counted_floats(func, args))
        if not positions and not halves:
            return args
        wide = list(args)
        for i in halves:
            wide[i] = self.record(torch.ops.aten._to_copy.default, (wide[i],), {"dtype": torch.float32})
        for i in positions:
            wide[i] = self.record(torch.ops.aten._to_copy.default, (wide[i],), {"dtype": torch.int64})
        return tuple(wide)

    def _note_writes(
        self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], known: bool
    ) -> None:
        writes, positions = schema_facts(func)
        if name in _HIDDEN_WRITES:
            writes, positions = True, _HIDDEN_WRITES[name]
        if not writes:
            return
        schema = func._schema.arguments
        for i in positions:
            target = args[i] if i < len(args) else kwargs.get(schema[i].name)
            for one in target if isinstance(target, list | tuple) else (target,):
                if not isinstance(one, torch.Tensor):
                    continue
                if isinstance(one, WaferTensor) and not known:
                    one._const = None
                owner = self.owner.get(self.fake_of(one).untyped_storage()._cdata)
                if owner is not None:
                    self.written[id(owner)] = owner

    # -- reads -------------------------------------------------------------------------------------
    def _read_operator(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
        known: bool,
    ) -> object:
        if known:
            return func(*mapped(args, self.const_of), **mapped(kwargs, self.const_of))
        raise self._refused(tensor=given[0])

    def read(self, tensor: WaferTensor, branch: bool = False) -> torch.Tensor:
        """Return the value of a constant of the step; anything else is a fault."""
        if tensor._const is not None:
            return tensor._const
        if branch and tensor.numel() == 1:
            answer = tests_of_values.passing(sys._getframe(3))
            if answer is not None:
                return torch.tensor(answer)
        raise self._refused(branch=branch, tensor=tensor)

    def _refused(self, branch: bool = False, tensor: torch.Tensor | None = None) -> faults.ProgramError:
        counters.count("ReadsRefused")
        counters.count("aten::_local_scalar_dense")
        frame = sys._getframe(2)
        argument = self._argument_of(tensor)
        if argument is not None:
            what, of = argument
            return faults.program_error(
                f"argument '{what}' of {of} takes a number but got a traced tensor, whose value is not known; "
                "multiply by the tensor instead",
                frame,
            )
        called = getattr(self.call[0], "__name__", "") if self.call is not None else ""
        return faults.program_error(faults.BRANCH if branch or called in _BRANCHES else faults.READ, frame)

    def _argument_of(self, tensor: torch.Tensor | None) -> tuple[str, str] | None:
        """Return (argument, function) if torch implicitly converted a traced tensor to a number."""
        if self.call is None:
            return None
        func, args, kwargs = self.call
        name = str(getattr(func, "__name__", ""))
        if name in _NUMBERS or tensor is None:
            return None
        shown = name.strip("_") if not name.startswith("__") else name
        for key, value in (kwargs or {}).items():
            if (
                isinstance(value, torch.Tensor)
                and value.numel() == 1
                and key not in ("other", "input", "tensor1", "tensor2", "out")
            ):
                return key, shown
        for i, value in enumerate(args[1:], start=1):
            if value is tensor:
                return _parameter_name(shown, i), shown
        return ("a number", shown) if shown else None

    # -- gradients ---------------------------------------------------------------------------------
    def cleared(self, parameter: torch.Tensor) -> None:
        """Record that a gradient was set to None (or found None by zero_grad) in the step."""
        if gradient_of(parameter) is None or id(parameter) not in self.cleared_grads:
            self.cleared_grads.add(id(parameter))


def _parameter_name(function: str, position: int) -> str:
    packet = getattr(torch.ops.aten, function, None)
    if packet is None:
        return f"number {position + 1}"
    for overload in packet.overloads():
        arguments = getattr(packet, overload)._schema.arguments
        if position < len(arguments) and str(arguments[position].type) in (
            "number",
            "float",
            "int",
            "Scalar",
        ):
            return arguments[position].name
    return f"number {position + 1}"


class _Operators(TorchDispatchMode):
    """Passes every operator of the step to the recorder, including those without device tensors."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        return self.recorder.record(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Records the current torch function (for error sentences) and writes the tape of the forward pass."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        recorder = self.recorder
        kwargs = kwargs or {}
        before = recorder.call
        recorder.call = (func, args, kwargs)
        try:
            args, kwargs = _on_the_device(func, args, kwargs)
            if func in _CONVOLUTIONS:
                args, kwargs = _of_one_type((args, kwargs))
            if getattr(func, "__name__", "") == "lstm":
                # The fused kernel keeps a workspace only while autograd is on, which it is not in replay.
                with _without_fused_kernels():
                    out = func(*args, **kwargs)
            else:
                out = func(*args, **kwargs)
        finally:
            recorder.call = before
        if before is None:
            recorder.tape.note(func, args, kwargs, out)
        return out


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a call: by place, by name

# torch compares the types of an input and a bias before any operator of theirs reaches a recorder.
_CONVOLUTIONS = frozenset(
    getattr(torch, f"conv{kind}{dims}d") for kind in ("", "_transpose") for dims in (1, 2, 3)
)


def _of_one_type(arguments: _Arguments) -> _Arguments:
    """Convert half-precision inputs of a convolution to fp32 if its weight or bias is fp32, as `autocast` does for
    other operators.
    """
    args, kwargs = arguments
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    if len({v.dtype for v in given}) == 1 or not any(v.dtype is torch.float32 for v in given):
        return arguments

    def wide(value: object) -> object:
        is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        return value.to(torch.float32) if is_half else value  # type: ignore[attr-defined]

    return tuple(map(wide, args)), {name: wide(value) for name, value in kwargs.items()}


@contextmanager
def _without_fused_kernels() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _on_the_device(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Redirect calls that name a device, because the recorder places tensors itself, and "cpu" would be a
    read."""
    device = kwargs.get("device")
    if func is torch.Tensor.to and args and isinstance(args[0], torch.Tensor):
        rest = list(args[1:])
        if rest and isinstance(rest[0], torch.Tensor):
            rest[0] = rest[0].dtype
        elif rest and isinstance(rest[0], str | torch.device):
            device = rest.pop(0)
        to_host = device is not None and torch.device(device).type == "cpu"
        # torch's own functions take the C++ device of a tensor, "cpu", for where it lives.
        if to_host and isinstance(args[0], WaferTensor) and faults.is_user_call(sys._getframe(2)):
            args[0].cpu()
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        rest = [r for r in rest if isinstance(r, torch.dtype)]
        if not rest and not kwargs:
            rest = [args[0].dtype]
        return (args[0], *rest), kwargs
    if device is not None and is_wafer_device(device):
        kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    return args, kwargs


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record everything inside the context."""
    backward: Callable[..., None] = torch.autograd.backward
    grad: Callable[..., tuple[torch.Tensor, ...]] = torch.autograd.grad

    def told_backward(roots: torch.Tensor | Sequence[torch.Tensor], *args: object, **kwargs: object) -> None:
        recorder.tape.end([roots] if isinstance(roots, torch.Tensor) else list(roots))
        recorder.has_backward = True
        with recorder.tape.pause():
            backward(roots, *args, **kwargs)

    def told_grad(
        roots: torch.Tensor | Sequence[torch.Tensor], *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, ...]:
        inner = bool(kwargs.get("create_graph"))
        recorder.tape.end([roots] if isinstance(roots, torch.Tensor) else list(roots), inner)
        recorder.has_backward = True
        with contextlib.nullcontext() if inner else recorder.tape.pause():
            return grad(roots, *args, **kwargs)

    torch.autograd.backward, torch.autograd.grad = told_backward, told_grad  # type: ignore[assignment]
    tensors.recorder = recorder
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True  # our sentence states what it would, with the user's line
    try:
        with tests_of_values.believed(), recorder.tape.modules(), _Calls(recorder), _Operators(recorder):
            yield
    finally:
        tensors.recorder, log.disabled = None, before
        torch.autograd.backward, torch.autograd.grad = backward, grad  # type: ignore[assignment]
