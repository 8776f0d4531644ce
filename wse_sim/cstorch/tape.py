"""The tape: the calls of torch's functions in the forward pass, and a module that repeats them.

A tape is written while the user's step runs once; :class:`TapeModule` repeats its calls under
``torch.export``, so the kernel graph is lowered without running the user's Python a second time and
without weights: fake parameters are in under their own names.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults, hooks
from wse_sim.cstorch.standing_in import made_or_moved
from wse_sim.cstorch.tensors import WaferTensor
from wse_sim.errors import ModelError


@dataclass(frozen=True)
class TracedCall:
    """One call: function, arguments, results, module and line."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: object
    module: str
    kind: str
    source: str
    precision: tuple[Any, Any]
    with_grad: bool = True


class StepTape:
    """Calls of one step outside its backward passes and updates; each backward pass names its roots."""

    def __init__(self) -> None:
        self.calls: list[TracedCall] = []
        self.operators: list[TracedCall] = []  # the same, operator by operator
        self.roots: list[torch.Tensor] = []
        self.inner_roots: list[torch.Tensor] = []  # of gradients that a later loss is made of
        self.paused = 0
        self.paths: dict[int, str] = {}
        self.stack: list[tuple[str, str]] = []
        self.precision: tuple[Any, Any] = (None, None)

    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> None:
        """Record a call that makes or changes a device tensor."""
        if self.paused or _is_look(func):
            return
        name = getattr(func, "__name__", "")
        if name != "__setitem__" and not _has_tensor(out):
            return
        module, kind = self.stack[-1] if self.stack else ("", "")
        frame = faults.user_frame(sys._getframe(2))
        source = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
        copied, copied_kwargs = pytree.tree_map(_same, (args, kwargs))
        with_grad = torch.is_grad_enabled()
        self.calls.append(
            TracedCall(func, copied, copied_kwargs, out, module, kind, source, self.precision, with_grad)
        )

    def note_operator(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> None:
        """Record an operator of the forward pass."""
        if not self.paused:
            module, kind = self.stack[-1] if self.stack else ("", "")
            copied, copied_kwargs = pytree.tree_map(_same, (args, kwargs))
            self.operators.append(
                TracedCall(
                    func,
                    copied,
                    copied_kwargs,
                    out,
                    module,
                    kind,
                    "",
                    self.precision,
                    torch.is_grad_enabled(),
                )
            )

    def end(self, roots: Sequence[torch.Tensor], inner: bool = False) -> None:
        """Record that a backward pass begins at `roots`; `inner`: its gradients are part of a later loss."""
        found = self.inner_roots if inner else self.roots
        found.extend(r for r in roots if isinstance(r, torch.Tensor) and all(r is not f for f in found))

    @property
    def ended(self) -> bool:
        """True if a backward pass has begun."""
        return bool(self.roots or self.inner_roots)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude calls inside the context from the forward pass: a backward pass, an update."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    def last(self) -> list[torch.Tensor]:
        """Return the results of the last call: the outputs of a pass without a loss."""
        return (
            [t for t in pytree.tree_leaves(self.calls[-1].out) if isinstance(t, WaferTensor)]
            if self.calls
            else []
        )

    @contextmanager
    def modules(self) -> Iterator[None]:
        """Track the module that is executing."""

        def enter(module: torch.nn.Module, inputs: object) -> None:
            path = self.paths.get(id(module))
            if path is None:
                parent = self.stack[-1][0] if self.stack else ""
                path = parent or (
                    "" if isinstance(module, torch.nn.Sequential) else _snake(type(module).__name__)
                )
            self.stack.append((path, f"{type(module).__module__}.{type(module).__qualname__}"))

        def leave(module: torch.nn.Module, inputs: object, output: object) -> None:
            if self.stack:
                path, _ = self.stack.pop()
                if not self.paused:
                    hooks.made(path, output)

        before = register_module_forward_pre_hook(enter)
        after = register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self.stack.clear()

    def needed(self, calls: Sequence[TracedCall], storage: Callable[[torch.Tensor], int]) -> list[TracedCall]:
        """Return the calls that the roots depend on; `storage` returns the key of a tensor's memory."""
        wanted = {storage(r) for r in self.roots}
        kept: list[TracedCall] = []
        for call in reversed(calls):
            outs = [t for t in pytree.tree_leaves(call.out) if isinstance(t, torch.Tensor)]
            if getattr(call.func, "__name__", "") == "__setitem__":
                outs.append(call.args[0])
            if any(storage(t) in wanted for t in outs):
                kept.append(call)
                for leaf in pytree.tree_leaves((call.args, call.kwargs)):
                    if isinstance(leaf, torch.Tensor):
                        wanted.add(storage(leaf))
        kept.reverse()
        return kept


_HALF = (torch.float16, torch.bfloat16)


def _same(value: object) -> object:
    return value


_LOOKS = frozenset({"__get__", "size", "dim", "numel", "stride", "is_floating_point", "backward", "requires_grad_",
                    "register_hook", "retain_grad", "element_size", "is_contiguous"})  # fmt: skip


def _is_look(func: object) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") not in (
            "T",
            "mT",
            "H",
            "mH",
            "real",
            "imag",
        )
    return name in _LOOKS or name == "__set__"


def _has_tensor(out: object) -> bool:
    if isinstance(out, torch.Tensor):
        return isinstance(out, WaferTensor)
    if isinstance(out, tuple | list):
        return any(_has_tensor(o) for o in out)
    return False


def _snake(name: str) -> str:
    return "".join(
        ("_" if i and c.isupper() and not name[i - 1].isupper() else "") + c.lower()
        for i, c in enumerate(name)
    )


class _Branch(torch.nn.Module):
    """Replaces the user's module of a path: it has the module's parameters and makes its calls."""

    def forward(self, call: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        return call(*args, **kwargs)


@cache
def _branch_type(kind: str) -> type[_Branch]:
    """Return a branch under the name of the user's class."""
    module, _, name = kind.rpartition(".")
    return type(name or "_Branch", (_Branch,), {"__module__": module, "__qualname__": name or "_Branch"})


@cache
def _at_line(source: str) -> Callable[..., Any]:
    """Make a function that calls from the user's line, so that torch's stack traces show that line."""
    path, _, line = source.rpartition(":")
    if not path:
        return lambda func, args, kwargs: func(*args, **kwargs)
    space: dict[str, Any] = {}
    text = "\n" * (int(line) - 1) + "def forward(func, args, kwargs): return func(*args, **kwargs)"
    exec(compile(text, path, "exec"), space)
    return space["forward"]


class TapeModule(torch.nn.Module):
    """A module whose ``forward(*batch)`` repeats the calls of a tape.

    Own attributes begin with ``_tape_``: the user's modules hang below under their names.  `names` gives the paths of parameters and buffers by id; `mode` makes their stand-ins.
    `whole`: every result that a call takes is made by a call before it.
    """

    _tape_calls: Sequence[TracedCall]
    _tape_root_ids: list[int]
    _tape_batch_ids: list[int]
    _tape_places: dict[int, str]
    _tape_mode: FakeTensorMode
    _tape_kinds: dict[str, str]

    def __init__(
        self,
        calls: Sequence[TracedCall],
        roots: Sequence[torch.Tensor],
        batch: Sequence[torch.Tensor],
        names: Mapping[int, str],
        mode: FakeTensorMode,
        whole: bool = True,
    ) -> None:
        super().__init__()
        self.__dict__["_tape_mode"] = mode
        self.__dict__["_tape_calls"] = calls
        self.__dict__["_tape_root_ids"] = [id(r) for r in roots]
        self.__dict__["_tape_batch_ids"] = [id(t) for t in batch]
        self.__dict__["_tape_places"] = {}
        self.__dict__["_tape_kinds"] = {c.module: c.kind for c in calls}
        for call in calls:
            self._folder(call.module)
        made = set(self._tape_batch_ids)
        count = 0
        for call in calls:
            # In the order of the calls: one may return its own argument, which it did not make.
            for leaf in pytree.tree_leaves((call.args, call.kwargs)):
                if not isinstance(leaf, torch.Tensor) or id(leaf) in made or id(leaf) in self._tape_places:
                    continue
                if id(leaf) in names:
                    path = names[id(leaf)]
                elif isinstance(leaf, WaferTensor) and leaf._role == "trace" and whole:
                    raise ModelError(
                        f"{getattr(call.func, '__name__', 'a call')} takes a result that no noted call makes; "
                        "its operators are known one by one"
                    )
                elif isinstance(leaf, WaferTensor) or leaf.requires_grad:
                    path, count = f"state_{count}", count + 1
                else:
                    continue  # a plain tensor: a constant of the program
                self._put(path, leaf)
            made |= {id(t) for t in pytree.tree_leaves(call.out) if isinstance(t, torch.Tensor)}

    def _put(self, path: str, leaf: torch.Tensor) -> None:
        owner, _, last = path.rpartition(".")
        folder = self._folder(owner)
        with self._tape_mode:
            dtype = torch.float32 if leaf.dtype in _HALF else leaf.dtype
            stand_in = torch.empty_strided(leaf.size(), leaf.stride(), dtype=dtype, device="cpu")
        made = isinstance(leaf, WaferTensor) and leaf._role == "trace"  # by what no call shows
        if (leaf.requires_grad or isinstance(leaf, torch.nn.Parameter)) and not made:
            folder._parameters[last] = torch.nn.Parameter(stand_in, requires_grad=leaf.requires_grad)
        else:
            folder._buffers[last] = stand_in
        self._tape_places[id(leaf)] = path

    def _folder(self, path: str) -> torch.nn.Module:
        folder: torch.nn.Module = self
        done = ""
        for part in path.split(".") if path else ():
            done = f"{done}.{part}" if done else part
            inner = folder._modules.get(part)
            if inner is None:
                inner = _branch_type(self._tape_kinds.get(done, "_Branch"))()
                folder._modules[part] = inner
            folder = inner
        return folder

    def _stand_in(self, path: str) -> torch.Tensor:
        owner, _, last = path.rpartition(".")
        return getattr(self.get_submodule(owner), last)

    def forward(self, *batch: torch.Tensor) -> object:
        values = dict(zip(self._tape_batch_ids, batch, strict=True))
        values |= {key: self._stand_in(path) for key, path in self._tape_places.items()}

        def value(leaf: object) -> object:
            # Precision is the simulator's setting, not the script's casts: the forward pass is lowered in fp32.
            if isinstance(leaf, torch.Tensor):
                found = values.get(id(leaf), leaf)
                return found.float() if found.dtype in _HALF else found
            return torch.float32 if leaf in _HALF else leaf

        for call in self._tape_calls:
            args, kwargs = pytree.tree_map(value, (call.args, call.kwargs))
            func = (
                torch.Tensor.float if call.func in (torch.Tensor.half, torch.Tensor.bfloat16) else call.func
            )
            given = (func, args, kwargs)
            make = _at_line(call.source)
            if isinstance(func, OpOverload):
                given = (made_or_moved, (func, args, kwargs, call.out), {})
            with contextlib.nullcontext() if call.with_grad else torch.no_grad():
                out = make(*given) if not call.module else self._folder(call.module)(make, given, {})
            old, new = pytree.tree_leaves(call.out), pytree.tree_leaves(out)
            for before, after in zip(old, new, strict=False):
                if isinstance(before, torch.Tensor):
                    values[id(before)] = after
        roots = [values[key] for key in self._tape_root_ids]
        return roots[0] if len(roots) == 1 else tuple(roots)
