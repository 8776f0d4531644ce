"""Tests of masks in Python, folded: ``if mask.any():`` takes the branch that the example arguments take.

A truth value or a whole number that Python reads (``mask.sum().tolist()``) is folded if it depends on integers and truth
values among the arguments and on constants alone (masks, ids, lengths), and these arguments have values.  What is read of
activations or weights stays a fault.

A test of random numbers alone (``if torch.rand([]) < 0.1: skip the layer``) takes the branch of their mean: a step of the
graph is the more probable step.
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

_READS = (
    torch.Tensor.__bool__,
    torch.Tensor.item,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.Tensor.tolist,
)
MOST_SHOWN = 8  # numbers that a note prints


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
    ) -> object:
        if func in _READS and args and isinstance(args[0], torch.Tensor):
            answer = self._answer(func, args[0])
            if answer is not None:
                return answer
        if func in _READS and is_collecting() and args and isinstance(args[0], torch.Tensor):
            return self._gone_on(func, args[0])
        return func(*args, **(kwargs or {}))

    def _gone_on(self, func: Callable[..., Any], read: torch.Tensor) -> object:
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

    def _answer(self, func: Callable[..., Any], read: torch.Tensor) -> Any:
        """What Python reads: whole numbers or truth values; None if the example does not decide them."""
        mode = get_proxy_mode()
        node = made_by(read, mode.tracer) if mode is not None else None
        if node is None or mode is None:
            return None
        random: list[torch.fx.Node] = []
        known = (
            {} if _is_inexact(read) else self.values
        )  # of what is no whole number, random numbers alone are read
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            value = _worked_out(node, known, getattr(mode.tracer, "root", None), random)
            if not isinstance(value, torch.Tensor) or type(value) is not torch.Tensor:
                return None
            answer, shown = func(value), str(value.tolist())
        if _is_inexact(read) and not random:
            return None
        kind = "a test" if read.dtype is torch.bool else "a value"
        shown = shown if value.numel() <= MOST_SHOWN else f"{value.numel()} numbers"
        note = f"masks: {kind} of {_where(node)} is {shown} for the example arguments; that branch alone is captured"
        if random:
            note = f"chance: {kind} of {_where(node)} is {shown} for the mean of {_where(random[0])}; that branch alone is captured"
        if note not in self.notes:
            self.notes.append(note)
        return answer


def _is_inexact(x: torch.Tensor) -> bool:
    """Whether a tensor holds numbers that are not whole."""
    return x.is_floating_point() or x.is_complex()


def _has_counted_values(x: object) -> bool:
    """Whether an argument holds integers or truth values that are known."""
    if not isinstance(x, torch.Tensor) or type(x) is not torch.Tensor or x.device.type != "cpu":
        return False
    return not _is_inexact(x)


def _mean(node: torch.fx.Node) -> torch.Tensor | None:
    """Uniform random numbers at their mean; None for another node."""
    made = node.meta.get("val")
    if str(node.target).removeprefix("aten.").partition(".")[0] != "rand" or not isinstance(
        made, torch.Tensor
    ):
        return None
    return torch.full(made.shape, 0.5, dtype=made.dtype)


def _worked_out(
    wanted: torch.fx.Node, known: Mapping[torch.fx.Node, Any], root: object, random: list[torch.fx.Node]
) -> object:
    """The value of a node from known ones and means of random numbers (put into `random`); None if it depends on else."""
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
        elif (mean := _mean(node)) is not None:
            values[node] = mean
            random.append(node)
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
    target = str(node.target)
    name = target.removeprefix("aten.").partition(".")[0] + "()" if target.startswith("aten.") else "a tensor"
    return f"{name} at {line}" if line else str(node.name)
