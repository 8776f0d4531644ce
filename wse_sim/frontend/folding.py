"""Tests of masks in Python, folded: ``if mask.any():`` takes the branch that the example arguments take.

A test is folded if it asks a truth value that depends on integers and truth values among the arguments and on constants
alone (masks, ids, lengths), and these arguments have values.  A test of activations or weights stays a fault.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from wse_sim.errors import ModelError
from wse_sim.frontend.classify import PRODUCTS
from wse_sim.frontend.faults import read_sentence
from wse_sim.frontend.obstacles import is_collecting, met
from wse_sim.frontend.watch import made_by, user_line

_TESTS = (torch.Tensor.__bool__, torch.Tensor.item)
_READS = (*_TESTS, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.tolist)


class FoldedTests(TorchFunctionMode):
    """While a program is captured: answers tests whose outcome the example decides; `notes` lists them."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.given = pytree.tree_leaves((args, kwargs))
        self.values: dict[torch.fx.Node, torch.Tensor] = {}
        self.notes: list[str] = []

    def enter(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A hook before forward(): which node of the program stands for which argument."""
        mode = get_proxy_mode()
        leaves = pytree.tree_leaves((args, kwargs))
        if mode is None or len(leaves) != len(self.given):
            return
        for inner, real in zip(leaves, self.given, strict=True):
            node = made_by(inner, mode.tracer)
            if node is not None and _has_counted_values(real):
                self.values[node] = real

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _TESTS and args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.bool:
            value = self._value(args[0])
            if value is not None:
                return value
        if func in _READS and is_collecting() and args and isinstance(args[0], torch.Tensor):
            return self._gone_on(func, args[0])
        return func(*args, **(kwargs or {}))

    def _gone_on(self, func: Callable[..., Any], read: torch.Tensor) -> Any:
        """Note that a value is read, and go on as if it were false, or one."""
        mode = get_proxy_mode()
        nodes = mode.tracer.graph.nodes if mode is not None else ()
        products = sum(
            str(node.target).split(".")[1] in PRODUCTS for node in nodes if "." in str(node.target)
        )
        test = func is torch.Tensor.__bool__ or read.dtype is torch.bool
        met(ModelError(read_sentence(is_test=test)), "capture", _caller(), products=products)
        if func is torch.Tensor.tolist:
            return torch.ones(read.shape, dtype=read.dtype).tolist()
        if test:
            return False
        return float(1) if read.is_floating_point() else 1

    def _value(self, test: torch.Tensor) -> bool | None:
        mode = get_proxy_mode()
        node = made_by(test, mode.tracer) if mode is not None else None
        if node is None or mode is None or test.numel() != 1:
            return None
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            value = _worked_out(node, self.values, getattr(mode.tracer, "root", None))
            found = None if value is None else bool(value)
        if found is None:
            return None
        note = f"masks: a test of {_where(node)} is {found} for the example arguments; that branch alone is captured"
        if note not in self.notes:
            self.notes.append(note)
        return found


def _has_counted_values(x: object) -> bool:
    """Whether an argument holds integers or truth values that are known."""
    if not isinstance(x, torch.Tensor) or type(x) is not torch.Tensor or x.device.type != "cpu":
        return False
    return not (x.is_floating_point() or x.is_complex())


def _worked_out(wanted: torch.fx.Node, known: Mapping[torch.fx.Node, Any], root: object) -> Any:
    """The value of a node from known ones; None if it depends on anything else."""
    values, waiting = dict(known), [wanted]
    while waiting:
        node = waiting[-1]
        if node in values:
            waiting.pop()
            continue
        if node.op == "get_attr":
            found = getattr(root, str(node.target), None)
            if not isinstance(found, torch.Tensor) or type(found) is not torch.Tensor:
                return None
            values[node] = found
        elif node.op != "call_function" or torch.Tag.nondeterministic_seeded in getattr(
            node.target, "tags", ()
        ):
            return None
        elif missing := [n for n in node.all_input_nodes if n not in values]:
            waiting.extend(missing)
        else:
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[wanted]


def _caller() -> str:
    """The user's line at work: the innermost frame outside torch and the front end."""
    here = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((here, "<")) and "/torch/" not in frame.filename:
            return f"{frame.filename}:{frame.lineno}: {frame.line or ''}"
    return ""


def _where(node: torch.fx.Node) -> str:
    line = user_line(node.meta.get("stack_trace") or node.stack_trace or "")
    return (
        f"{str(node.target).removeprefix('aten.').partition('.')[0]}() at {line}" if line else str(node.name)
    )
