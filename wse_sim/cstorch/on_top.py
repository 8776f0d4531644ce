"""Kernels and times that clipping, loss scaling and the schedule add to a captured step.

They are found in the recorded program, not by names.  With G the shapes of the trained parameters::

    norm        a number that depends on tensors of all shapes G              gradient_norm, then gradient_scale
    clip        a clamp of as many tensors as there are parameters            gradient_scale, op clip
    scaling     the loss is multiplied before its backward pass               gradient_scale; with `check` if a truth
                                                                              value depends on tensors of all shapes G
    schedule    k, the longest chain of operators on single numbers           schedule

In the pipelined mode, gradients are distributed over the active cores, treated as a square, and T is the cost
of the kernel there.  In weight streaming they are at the weight servers, which read and write `server_bytes`
per parameter at the rate of their update; numbers stay on one core.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.fx import Node

from wse_sim.cstorch.program import StepProgram
from wse_sim.cstorch.tensors import WaferTensor
from wse_sim.kernels import Tiling, family
from wse_sim.modes import mode_of

if TYPE_CHECKING:
    from wse_sim.engine.result import Result

_JOINS = ("aten.stack", "aten.cat")


@dataclass(frozen=True)
class OnTop:
    """One kernel on top of the simulated step."""

    name: str
    family: str
    dims: dict[str, int]
    attrs: dict[str, Any]
    rows: int
    cols: int
    seconds: float
    where: str


def on_top(program: StepProgram, result: Result) -> list[OnTop]:
    """Return the kernels that clipping, loss scaling and the schedule add to a simulated step."""
    return [_priced(*kernel, result) for kernel in wanted(program)]


def wanted(program: StepProgram) -> list[tuple[str, str, dict[str, int], dict[str, Any]]]:
    """Return (name, family, dims, attributes) of the kernels of a step."""
    numbers = Numbers(program)
    out: list[tuple[str, str, dict[str, int], dict[str, Any]]] = []
    all_gradients = {"elements": sum(t.numel() for t in _trained(program))}
    if numbers.has_norm:
        out.append(("gradient norm", "gradient_norm", all_gradients, {}))
        out.append(("gradient clipping", "gradient_scale", all_gradients, {}))
    elif numbers.clamps:
        out.append(("gradient clipping", "gradient_scale", all_gradients, {"op": "clip"}))
    if program.recorder.scaled:
        out.append(("loss scaling", "gradient_scale", all_gradients, {"check": numbers.has_check}))
    if numbers.longest:
        out.append(("schedule and counters", "schedule", {"operators": numbers.longest}, {}))
    return out


def _trained(program: StepProgram) -> list[torch.Tensor]:
    return [t for t in program.written if isinstance(t, WaferTensor) and t.requires_grad]


def _priced(name: str, kind: str, dims: dict[str, int], attrs: dict[str, Any], result: Result) -> OnTop:
    plan, wafer, found = result.plan, result.plan.wafer, family(kind)
    rests = mode_of(plan).weights_rest
    if rests:
        cores = max(1, round(result.active_pe_fraction * wafer.rows * wafer.cols))
        rows = min(wafer.rows, math.isqrt(cores))
        tiling = Tiling(rows, -(-cores // rows), "stationary")
    else:
        tiling = Tiling(1, 1, "streamed")
    server_bytes = getattr(found, "server_bytes", 0)
    if not rests and server_bytes:
        seconds = server_bytes * dims["elements"] / float(plan.cluster.memoryx_update_bytes_per_s)
        return OnTop(name, kind, dims, attrs, 0, 0, seconds, "weight servers")
    cycles = float(found.cost(dims, tiling, wafer, dtype="fp32", attrs=attrs).total)
    return OnTop(
        name, kind, dims, attrs, int(tiling.rows), int(tiling.cols), cycles / wafer.clock_hz, "wafer"
    )


class Numbers:
    """The scalar computations of a recorded step, and the tensors that they start from."""

    def __init__(self, program: StepProgram) -> None:
        recorder = program.recorder
        self.tensors: dict[Node, torch.Tensor] = {
            node: recorder.fakes[key] for key, node in recorder.nodes.items() if key in recorder.fakes
        }
        self.shapes = Counter(tuple(t.shape) for t in _trained(program))
        self.sources: dict[Node, frozenset[Node]] = {}
        self.depth: dict[Node, int] = {}
        self.has_norm = self.has_check = False
        self.longest = 0
        clamps = 0
        for node in program.graph.nodes:
            if node.op != "call_function":
                continue
            target = str(node.target)
            if target.startswith(("aten.clamp_.", "aten.clamp_min_")):
                clamps += 1
            elif target.startswith(("aten._foreach_clamp_min", "aten._foreach_clamp_.")):
                clamps += len(node.args[0]) if isinstance(node.args[0], list | tuple) else 1
            self._follow(node, target)
        self.clamps = bool(self.shapes) and clamps >= self.shapes.total()

    def _is_number(self, node: Node) -> bool:
        tensor = self.tensors.get(node)
        if tensor is None and _writes(str(node.target)) and node.all_input_nodes:
            tensor = self.tensors.get(node.all_input_nodes[0])
        return tensor is not None and tensor.dim() == 0

    def _follow(self, node: Node, target: str) -> None:
        given = node.all_input_nodes
        joins = target.startswith(_JOINS) and bool(given) and all(self._is_number(n) for n in given)
        if not joins and not self._is_number(node):
            return
        if target == "<built-in function getitem>" and "_foreach" in str(given[0].target):
            of_one, position = cast(list[Node], given[0].args[0]), cast(int, node.args[1])
            self.sources[node] = frozenset([of_one[position]])  # the norm of one of a list
            return
        wide = [n for n in given if n not in self.sources and not self._is_number(n) and n in self.tensors]
        self.sources[node] = frozenset().union(wide, *(self.sources.get(n, frozenset()) for n in given))
        if not self.sources[node]:
            self._count(node, target, given)
        elif self.shapes:
            self._judge(node)

    def _count(self, node: Node, target: str, given: list[Node]) -> None:
        """Record the length of a node's chain; chains begin at state that is a number, and an operator in place
        continues from what it writes.
        """
        before = [
            self.depth.get(n, 0)
            for n in given
            if n in self.depth or (n.op == "placeholder" and self._is_number(n))
        ]
        if not before:
            return
        self.depth[node] = 1 + max(before)
        self.longest = max(self.longest, self.depth[node])
        if _writes(target):
            self.depth[given[0]] = self.depth[node]

    def _judge(self, node: Node) -> None:
        sources = [self.tensors[n] for n in self.sources[node] if n in self.tensors]
        if self.shapes - Counter(tuple(t.shape) for t in sources):
            return
        if all(t.dtype is torch.bool for t in sources):
            self.has_check = True
        else:
            self.has_norm = True


def _writes(target: str) -> bool:
    """Return whether an operator works in place."""
    parts = target.split(".")
    return len(parts) > 1 and parts[1].endswith("_")
