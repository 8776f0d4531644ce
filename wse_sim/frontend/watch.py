"""Checks and settings around a capture: torch's messages, side effects of forward(), and the user's lines."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import random
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils import _pytree as pytree

from wse_sim.errors import ModelError
from wse_sim.frontend.containers import root_of
from wse_sim.frontend.obstacles import met
from wse_sim.frontend.trace import shape_operand

if TYPE_CHECKING:
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer, _GraphAppendingTracerEx, _ProxyTensor

T = TypeVar("T")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch's messages about incomplete graphs within the block; an error sentence replaces them."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Disable torch.distributions' checks of parameter values within the block.

    A captured program does not have these values.
    """
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


class _Direct:
    """A descriptor that calls the compiled forward() of a scripted module.

    It has a setter so that it takes precedence over the stored method.
    """

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        return module._c._get_method("forward") if module is not None else self

    def __set__(self, module: torch.jit.ScriptModule, value: object) -> None:
        raise AttributeError("forward() of a scripted module is compiled")


@contextlib.contextmanager
def scripts_called() -> Iterator[None]:
    """Let scripted modules run their compiled program within the block.

    A capture sees the operators of that program, whereas torch's tracer fails on a scripted call.
    """
    kind: Any = torch.jit.ScriptModule
    before = vars(kind).get("forward")
    kind.forward = _Direct()
    try:
        yield
    finally:
        kind.forward = before


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Seed the random numbers of Python and numpy within the block, so that captures are reproducible.

    The earlier states are restored afterwards.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what models draw from
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextlib.contextmanager
def as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Restore submodules and public attributes, with lists and dictionaries in them, after the block."""
    plain = [(part, {k: v for k, v in vars(part).items() if k[0] != "_"}) for part in module.modules()]
    parts = [(part, dict(part._modules)) for part in module.modules()]
    contents = [
        (value, copy.copy(value))
        for _, held in plain
        for value in held.values()
        if type(value) in (list, dict)
    ]
    try:
        yield
    finally:
        for part, held in plain:
            for key in [k for k in vars(part) if k[0] != "_" and k not in held]:
                del vars(part)[key]
            vars(part).update(held)
        for part, kept_parts in parts:
            # The submodules of a scripted module are in C++, where forward() cannot replace them.
            if isinstance(part._modules, dict) and part._modules != kept_parts:
                part._modules.clear()
                part._modules.update(kept_parts)
        for value, kept in contents:
            value.clear()
            value.extend(kept) if isinstance(value, list) else value.update(kept)


def stand_in(function: Callable[..., T]) -> Callable[..., T]:
    """Mark a function that replaces forward() of one module during a capture."""
    function.is_stand_in = True  # type: ignore[attr-defined]
    return function


def in_transform() -> bool:
    """Return whether a function transform runs, such as vmap or grad of torch.func."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def forward_again(parts: Iterable[torch.nn.Module]) -> None:
    """Delete the functions that replace forward() of modules.

    A module that forward() put in the place of another one has that one's function after the capture, because torch
    restores attributes by path.
    """
    for part in parts:
        if getattr(vars(part).get("forward"), "is_stand_in", False):
            del part.forward


@contextlib.contextmanager
def found_submodules(module: torch.nn.Module) -> Iterator[dict[str, int]]:
    """Register submodules that torch does not find by their attribute, within the block.

    Submodules in plain lists and dictionaries are registered if the module also registers their weights
    elsewhere, as in ``self.weights = nn.ParameterList(...)``; otherwise torch would treat the weights as
    constants, which do not train. Submodules whose name is also a method of their owner, as in
    ``self.parameters = nn.ParameterList(...)``, get another name.

    Yields the number of weights that remain constants, by the attribute of the modules that have them.
    """
    weights = {id(weight) for weight in module.parameters()}
    known = {id(part) for part in module.modules()}
    changed: list[tuple[dict[str, torch.nn.Module | None], dict[str, torch.nn.Module | None]]] = []
    left = list(module.modules())
    constants: dict[str, int] = {}
    while left:
        part = left.pop()
        if not isinstance(part._modules, dict):  # the submodules of a scripted module are in C++
            continue
        found = {
            f"{name}_" if name not in vars(part) and hasattr(type(part), name) else name: child
            for name, child in part._modules.items()
        }
        for key in vars(part).keys() - _OF_MODULES:
            for i, held in enumerate(pytree.tree_leaves(vars(part)[key])):
                if isinstance(held, torch.nn.Module) and id(held) not in known:
                    own = {id(weight): weight for weight in held.parameters() if weight.requires_grad}
                    if own and own.keys() <= weights:
                        found[f"{key}_{i}"] = held
                        known |= {id(inner) for inner in held.modules()}
                        left += held.modules()
                    elif own:
                        constants[key] = constants.get(key, 0) + sum(one.numel() for one in own.values())
        if list(found) != list(part._modules):
            changed.append((part._modules, dict(part._modules)))
            part._modules.clear()
            part._modules.update(found)
    try:
        yield constants
    finally:
        for parts, kept in changed:
            parts.clear()
            parts.update(kept)


def plain_state(module: torch.nn.Module) -> dict[str, Any]:
    """Return the numbers, booleans, strings and container lengths in a module's public attributes, by path."""
    state: dict[str, Any] = {}
    for path, part in module.named_modules():
        for key, value in vars(part).items():
            name = f"{path}.{key}".lstrip(".")
            if key.startswith("_") or key == "training":
                continue
            if isinstance(value, (bool, int, float, str)):
                state[name] = value
            elif isinstance(value, (list, dict, set)):
                state[name] = len(value)
    return state


def held_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors in plain attributes, alone or in containers, by torch's names for them."""
    found: dict[str, torch.Tensor] = {}

    def collect(name: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                collect(f"{name}[{key!r}]", item)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                collect(f"{name}[{index}]", item)

    for path, part in module.named_modules():
        for key, value in vars(part).items():
            if key not in _OWN:
                collect(".".join(filter(None, ("self", path, key))), value)
    return found


_OF_MODULES = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has."""
_OWN = frozenset(["_parameters", "_buffers", "_modules"])


class Caches:
    """Tensors that a forward pass stores in attributes and that depend only on weights.

    Each step may recompute them. :meth:`look` is a hook for the end of forward(), when torch still knows the
    inputs of each tensor.
    """

    def __init__(self) -> None:
        self.harmless: set[str] = set()

    def look(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the tensors in the module's attributes that depend on no argument of the call."""
        mode = get_proxy_mode()
        if mode is None:
            return
        found = (made_by(x, mode.tracer) for x in pytree.tree_leaves((args, kwargs)))
        given = {node for node in found if node is not None}
        for name, value in held_tensors(module).items():
            node = made_by(value, mode.tracer)
            if node is not None and not _reads(node, given):
                self.harmless.add(name)

    def holds(self, attribute: str) -> bool:
        """Return whether a container in an attribute has a harmless tensor."""
        return any(name.startswith(f"self.{attribute}[") for name in self.harmless)


def made_by(value: object, tracer: PythonKeyTracer | _GraphAppendingTracerEx) -> torch.fx.Node | None:
    """Return the node of the program under capture that made a tensor; None if there is none."""
    slot = slot_of(value, tracer)
    return slot.proxy.node if slot is not None else None


def slot_of(value: object, tracer: PythonKeyTracer | _GraphAppendingTracerEx) -> _ProxyTensor | None:
    """Return what a capture knows of a tensor: its node, and its value if it is constant; None if it is not of the program."""
    if not isinstance(value, torch.Tensor):
        return None
    inner = torch._from_functional_tensor(value.elem) if isinstance(value, FunctionalTensor) else value
    return get_proxy_slot(inner, tracer, None)


def is_known(value: torch.Tensor) -> bool:
    """Return whether a tensor is a constant of the program under capture, so that torch knows its values."""
    mode = get_proxy_mode()
    slot = slot_of(value, mode.tracer) if mode is not None else None
    return slot is not None and slot.constant is not None


def is_captured(x: torch.Tensor) -> bool:
    """Return whether a tensor is made by the program under capture."""
    mode = get_proxy_mode()
    return mode is not None and made_by(x, mode.tracer) is not None


def _reads(node: torch.fx.Node, given: set[torch.fx.Node]) -> bool:
    """Return whether a node depends on one of the nodes `given` by more than its shape."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        if current in given:
            return True
        place = shape_operand(str(current.target).removeprefix("aten.").partition(".")[0])
        named = current.args[place] if place is not None and place < len(current.args) else None
        fresh = [n for n in current.all_input_nodes if n not in seen and n is not named]
        seen.update(fresh)
        waiting.extend(fresh)
    return False


def take_caches_apart(module: torch.nn.Module) -> bool:
    """Register the cache classes of transformers with torch by their own rules; return whether it succeeded."""
    source = sys.modules.get("transformers")
    if source is None:
        return False
    try:
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model
    except ImportError:  # an older release
        return False
    for part in module.modules():
        if type(part).__module__.startswith("transformers."):
            register_cache_pytrees_for_model(cast(Any, part))
            return True
    return False


def switched(module: torch.nn.Module, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the strings, booleans and numbers that a forward pass changed, by path, with the new values."""
    found = {}
    for name, value in after.items():
        owner, _, leaf = name.rpartition(".")
        if before.get(name, value) != value and isinstance(
            getattr(module.get_submodule(owner), leaf, None), (str, bool, int, float)
        ):
            found[name] = value
    return found


def does_the_same(one: torch.export.ExportedProgram, other: torch.export.ExportedProgram) -> bool:
    """Return whether two programs have the same operators on the same numbers and shapes."""

    def work(program: torch.export.ExportedProgram) -> list[object]:
        shapes = [getattr(node.meta.get("val"), "shape", None) for node in program.graph.nodes]
        return [str(program.graph), *shapes]

    return work(one) == work(other)


def set_plain(module: torch.nn.Module, values: dict[str, Any]) -> None:
    """Set plain attributes of a module by their paths."""
    for path, value in values.items():
        owner, _, leaf = path.rpartition(".")
        setattr(module.get_submodule(owner), leaf, value)


def reject_side_effects(before: dict[str, Any], after: dict[str, Any], caches: Caches) -> None:
    """Raise for plain attributes that forward() changes, except containers of harmless caches.

    Raises
    ------
    ModelError
        For the first such attribute, unless obstacles are collected.
    """
    changed = [name for name, value in after.items() if before.get(name, value) != value]
    changed = [name for name in changed if not caches.holds(name)]
    for name in changed:
        fault = ModelError(
            f"the forward pass changes the attribute {name} ({before[name]} before, {after[name]} "
            "after), which a compiled step would do only once; keep counts in a buffer or outside the model"
        )
        met(fault, "model")


def assigned_attributes(
    caught: list[warnings.WarningMessage], caches: Caches, *, kept: bool = False
) -> list[str]:
    """Return the names of tensors in attributes that forward() assigned, according to torch's warnings.

    Harmless caches are left out; with `kept`, only they are returned.
    """
    found: list[str] = []
    for item in caught:
        match = re.search(r"attributes? (.+?) (?:was|were) assigned during export", str(item.message))
        # torch's recurrent layers list their own parameters again when the export swaps them.
        if match:
            found += [name for name in match[1].split(", ") if "_flat_weights[" not in name]
    return sorted(name for name in found if (name in caches.harmless) == kept)


def reject_assigned_attributes(
    caught: list[warnings.WarningMessage], caches: Caches, scratch: Collection[str] = ()
) -> list[str]:
    """Raise for tensors that forward() keeps in attributes; return notes on the harmless ones.

    `scratch` are attributes that forward() assigns before it reads them.

    Raises
    ------
    ModelError
        If a tensor is kept from one step to the next, unless obstacles are collected.
    """
    names = [name for name in assigned_attributes(caught, caches) if root_of(name) not in scratch]
    if names:
        fault = ModelError(
            f"the forward pass assigns to {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}, which a "
            "compiled step cannot keep; register it with register_buffer and write in place, or return it"
        )
        met(fault, "model")
    kept = assigned_attributes(caught, caches, kept=True)
    notes = []
    if scratch:
        notes.append(
            f"scratch: {', '.join(sorted(scratch))} assigned in forward() before it is read; nothing is kept after the step"
        )
    if kept:
        notes.append(
            f"caches: {kept[0].removeprefix('self.')}{f' and {len(kept) - 1} more' if len(kept) > 1 else ''} filled in "
            "forward() depend on no input; they are computed in every step"
        )
    return notes
