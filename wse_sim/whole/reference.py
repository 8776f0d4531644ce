"""The forward kernels of a model in PyTorch, in fp32 or rounded where the fabric rounds; autograd provides
the gradients.

With rounding, where R rounds to fp16 and sums are in fp32::

    stream between regions   R(x) forward, R(g) of every reader's gradient, R of their sum
    weights                  R(w) in the products, their gradients and updates in fp32
    dense layer, filters     sums with the bias R once; each further operation on them R
    activation               R(f(z)); R(g f'(z))
    norm                     n = R(x R(1 / s) - R(m / s)); R(a n + b)
    attention                R of the softmax
    loss                     gradients of a row, not of the mean, R

Rounding can change whether a ReLU is active, and which pixel of a window is the largest. The gradient then
changes by that unit's whole contribution. So fp16 gradients can be far from fp32 gradients although every
step is correct; a reference with the same rounding makes the same choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch.nn import functional

from wse_sim.graph import Kernel, KernelGraph, Phase, TensorKind
from wse_sim.kernels.blocks.activation_slopes import BOUNDS
from wse_sim.kernels.blocks.windows import surround
from wse_sim.kernels.contract.element_work import Floats, Rounded
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.norm import NormAttributes, affine_of
from wse_sim.kernels.families.pool2d import Pool2dAttributes
from wse_sim.whole.regions.convolution import statistics_of
from wse_sim.whole.regions.element_work import work_of
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.leading_rows import FIRST, rows_of
from wse_sim.whole.regions.pointwise_place import met_by, operators_of, taken_by
from wse_sim.whole.tokens import tokens_pooled

Values = dict[str, torch.Tensor]
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "log": torch.log,
    "erf": torch.erf,
    "softplus": functional.softplus,
    "sin": torch.sin,
    "cos": torch.cos,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "abs": torch.abs,
    "neg": torch.neg,
    "square": torch.square,
    "copy": lambda z: z,
}
COMBINED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "max": lambda a, b: torch.where(a > b, a, b),  # of equal values the second has the gradient
    "min": lambda a, b: torch.where(a < b, a, b),
}


class _Copy(torch.autograd.Function):
    """Use the fp16 copy of a number that is stored in fp32; the gradient passes unchanged."""

    @staticmethod
    def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
        """Round the values."""
        return x.half().float()

    @staticmethod
    def backward(_ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        """Return the gradients unchanged."""
        return gradients[0]


class _Words(_Copy):
    """Round values and gradients to fp16, as the words of a stream do."""

    @staticmethod
    def backward(_ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        """Round the gradients."""
        return gradients[0].half().float()


@dataclass
class Reference:
    """The forward pass of a graph; with `rounds`, rounded as on the fabric.

    After a pass, `selected` holds the active units of every ReLU and the largest pixel of every window;
    `before` holds the inputs of every ReLU. The units in `turned`, as (ReLU, element), have the derivative
    flipped: they pass gradients if they are off and block them if they are on.
    """

    graph: KernelGraph
    rounds: bool
    turned: tuple[tuple[int, int], ...] = ()
    selected: list[torch.Tensor] = field(default_factory=list)
    before: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernels = [kernel for kernel in self.graph.kernels if kernel.phase is Phase.FORWARD]
        # A network that trains adds the bias to the fp32 sums; the other programs add it to the rounded sums.
        self.adds_bias_apart = not self.graph.training

    def __call__(self, weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Return the output for all samples of `x`: (samples, T, N), (samples, N), or images."""
        self.selected, self.before = [], []
        found: Values = {}
        for kernel in self.kernels:
            operands = [self._words(found.get(name, x)) for name in kernel.inputs]
            made = _KINDS.get(kernel.family, Reference._work)(self, kernel, operands, weights)
            found[kernel.outputs[0]] = self._words(made)
        outputs = self.graph.tensors
        return next(value for name, value in found.items() if outputs[name].kind is TensorKind.OUTPUT)

    def _words(self, x: torch.Tensor) -> torch.Tensor:
        return _apply(_Words, x) if self.rounds else x

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        return _apply(_Copy, x) if self.rounds else x

    # ---- kinds of kernels ------------------------------------------------------------------------------------------

    def _dense(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        x, *residual = operands
        weight, *bias = (weights[name] for name in kernel.parameters)
        rows = int(kernel.dims["m"]) // self.graph.samples
        x = x.reshape(len(x), rows, int(kernel.dims["k"]))
        return self._finished(kernel, x @ self._copy(weight).T, bias, residual)

    def _filters(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        weight, *bias = (weights[name] for name in kernel.parameters)
        if names := statistics_of(kernel):
            mean, variance = (weights[name] for name in names)
            scale, shift = bias
            factor = scale / torch.sqrt(variance + Conv2dAttributes.of(kernel.attrs).eps)
            weight, bias = weight * factor[:, None, None, None], [shift - mean * factor]
        stride, around = int(kernel.dims["stride"]), surround(kernel.dims, kernel.attrs)
        groups = Conv2dAttributes.of(kernel.attrs).groups
        sums = functional.conv2d(
            operands[0], self._copy(weight), stride=stride, padding=around, groups=groups
        )
        return self._finished(kernel, sums, [one[:, None, None] for one in bias], operands[1:])

    def _finished(
        self,
        kernel: Kernel,
        value: torch.Tensor,
        bias: Sequence[torch.Tensor],
        residual: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Apply the fused operations to the sums of a product."""
        rest = list(items_of(kernel))
        if bias:
            rest.remove("bias")
            apart = self.adds_bias_apart
            value = self._words(value) + self._copy(bias[0]) if apart else value + bias[0]
        for i, item in enumerate(rest):
            if item == "residual":
                value = self._words(value) if i else value
                value = value + residual[0].reshape(value.shape)
            else:
                # ReLU takes its input before rounding, which changes no unit's sign.
                value = self._function(item, value if item == "relu" else self._words(value))
        return value

    def _function(self, name: str, z: torch.Tensor) -> torch.Tensor:
        found = FUNCTIONS[name](z)
        if name == "relu":
            self.selected.append(found.detach() > 0)
            here = [element for number, element in self.turned if number == len(self.before)]
            self.before.append(z.detach())
            if here:
                found = _turned(found, z, here)
        return self._words(found)

    def _norm(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        said, x = NormAttributes.of(kernel.attrs), operands[0]
        images = dict(kernel.access.channels)
        x = x.movedim(1, -1) if kernel.inputs[0] in images else x
        x = x.reshape(len(x), -1, int(kernel.dims["cols"]))
        if said.kind == "rms":
            normal = x * self._copy(torch.rsqrt((x * x).mean(-1, keepdim=True) + said.eps))
        else:
            mean = x.mean(-1, keepdim=True)
            inverse = torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + said.eps)
            normal = x * self._copy(inverse) + self._copy(-mean * inverse)
        value = self._words(normal)
        affine = zip(affine_of(kernel.attrs), kernel.parameters, strict=True)
        held = {name: self._copy(weights[parameter].reshape(-1)) for name, parameter in affine}
        value = value * held.get("scale", torch.ones(())) + held.get("shift", torch.zeros(()))
        if (out := kernel.outputs[0]) not in images:
            return value
        _, _, lines, columns = self.graph.tensors[out].shape
        return value.unflatten(1, (lines, columns)).movedim(-1, 1)

    def _softmax(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], _weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        function = torch.log_softmax if kernel.attrs.get("log", False) else torch.softmax
        return function(operands[0].reshape(len(operands[0]), -1, int(kernel.dims["cols"])), -1)

    def _joined(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        if kernel.attrs.get("op") == FIRST:
            return operands[0].reshape(len(operands[0]), rows_of(self.graph, kernel.inputs[0]), -1)[:, :1]
        front = [self._copy(weights[name]) for name in kernel.parameters]
        rows = torch.cat([one.reshape(1, -1, one.shape[-1]) for one in front], 1)
        rows = rows.expand(len(operands[0]), -1, -1)
        return torch.cat([rows, operands[0].reshape(len(rows), -1, rows.shape[-1])], 1)

    def _attention(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        heads, width = int(kernel.dims["heads"]), int(kernel.dims["d"])
        q, k, v = (x.reshape(len(x), int(kernel.dims["q"]), -1, width).transpose(1, 2) for x in operands)
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * (float(kernel.attrs.get("scale", 0.0)) or width**-0.5)
        if cap := float(kernel.attrs.get("cap", 0.0)):
            scores = cap * torch.tanh(scores / cap)
        if kernel.attrs.get("causal", False):
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        for name in kernel.parameters:
            scores = scores + weights[name].reshape(-1, *scores.shape[-2:])
        found = self._copy(torch.softmax(scores, -1)) @ v
        return found.transpose(1, 2).reshape(len(found), -1, heads * width)

    def _pooling(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], _weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        said, x = Pool2dAttributes.of(kernel.attrs), operands[0]
        taps = (int(kernel.dims["r"]), int(kernel.dims["s"]))
        stride = int(kernel.dims["stride"])
        if tokens := tokens_pooled(self.graph, kernel):
            return x.reshape(len(x), tokens, -1).mean(1)
        if said.kind == "avg":
            return functional.avg_pool2d(x, taps, stride, said.around)
        found, where = functional.max_pool2d(x, taps, stride, said.around, return_indices=True)
        self.selected.append(where)
        return found

    def _pointwise(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        held = dict(zip(kernel.inputs, operands, strict=True))
        held |= {name: self._copy(weights[name]) for name in kernel.parameters}
        value = held[taken_by(kernel)[0]]
        numbers = {taken: torch.tensor(taken) for taken in met_by(kernel) if isinstance(taken, float)}
        rest = iter(numbers[taken] if isinstance(taken, float) else held[taken] for taken in met_by(kernel))
        for op in operators_of(kernel):
            if op in COMBINED:
                other = self._copy(next(rest)) if op in BOUNDS else next(rest)
                # Operands of regions of different kinds have the same word order: (samples, elements).
                shape = value.shape if other.numel() == value.numel() else other.shape
                value = self._words(COMBINED[op](value, other.reshape(shape)))
            else:
                value = self._function(op, value)
        return value

    def _work(
        self, kernel: Kernel, operands: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        work, features = work_of(kernel), self.graph.tensors[kernel.outputs[0]].shape[-1]
        x = operands[0].reshape(len(operands[0]), -1, features // work.unit, work.unit)
        tables = [
            self._copy(torch.tensor(work.table(i, weights[name].detach().numpy(), features)))
            for i, name in enumerate(kernel.parameters)
        ]
        held = [table.reshape(-1, *x.shape[2:]) for table in tables]
        # Tensors take the place of arrays.
        found = work.values(
            cast("Floats", x), *cast("list[Floats]", held), rounded=cast("Rounded", self._words)
        )
        return cast("torch.Tensor", found).reshape(len(x), -1, features)


def _turned(found: torch.Tensor, z: torch.Tensor, elements: Sequence[int]) -> torch.Tensor:
    """Flip the derivative of ReLU for some units; values stay unchanged."""
    where = torch.zeros(z.numel(), dtype=torch.bool)
    where[list(elements)] = True
    off = z.detach() <= 0
    other = found.detach() + torch.where(off, z - z.detach(), torch.zeros(()))
    return torch.where(where.reshape(z.shape), other, found)


def _apply(function: type[torch.autograd.Function], x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = function.apply(x)  # type: ignore[no-untyped-call]
    return found


_KINDS: dict[
    str,
    Callable[[Reference, Kernel, Sequence[torch.Tensor], Mapping[str, torch.Tensor]], torch.Tensor],
] = {
    "gemm": Reference._dense,
    "conv2d": Reference._filters,
    "norm": Reference._norm,
    "softmax": Reference._softmax,
    "layout": Reference._joined,
    "attention": Reference._attention,
    "pool2d": Reference._pooling,
    **dict.fromkeys(("elementwise", "activation", "generated"), Reference._pointwise),
}
