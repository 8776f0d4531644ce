"""How kernels take their operands, and how parameters that a pass made follow from those of the module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.serialize import saved

Run = tuple[int, int, int]
"""Channels of a tensor: the first one, how many, and the distance of neighbours. Zeros begin at -1."""
Runs = tuple[Run, ...]
Step = tuple[str, str | float]
"""An elementwise operator, and its operand: a tensor by name, a number, START, or "" for a function of one argument."""
PIXELS, IMAGE = "pixels", "image"
"""How a kernel takes a tensor whose channels are stored in another place."""
START = "(start)"
"""The value with which steps start, as the operand of a later one: x of ``x * clamp(x + 3, 0, 6) / 6``."""


@saved
@dataclass(frozen=True)
class Access:
    """How a kernel takes its operands.

    Prices do not depend on it; programs that compute values do.  The default is the plain case: every operand is read whole,
    in the order in which it is stored.

    Attributes
    ----------
    reordered:
        Tensors that the kernel reads through views that change the order of elements or leave some out, and its result if the
        model returns it through one.
    view:
        How the only such view of an activation orders its elements: "pixels" of an image, each with all channels, or "rows"
        in any other order; "" without one.
    token:
        Index of the one token of every sample that this view selects, if it selects one.
    slices:
        Of a kernel that takes only some channels of a tensor, or in another order, and of a concatenation of channels: its operands
        in order, each with the channels that it takes. Channels are the second of four dimensions, or the last of fewer.
    order:
        Tensors in the order in which elementwise operators take them, or in which rows are joined; empty where inputs and then
        parameters is that order.
    transposed:
        The weight that a product takes as (K, N) and not as (N, K).
    factor:
        The number by which a product multiplies its results (item "scale"), 0 where it is not one number.
    heads:
        Of attention behind rotations of positions or with fewer heads of keys, and of such rotations: the operands in order, each
        with the first and the end of the features of a token that it takes head by head; empty where one is taken otherwise.
    steps:
        Elementwise operators with their operands where some operand is a number.  The first step is ("", first value); of a
        product, whose steps follow its bias, the first value is its own result: ("", "").
    axes:
        Of a sum, mean or extremum, the dimensions along which it is; empty if the kernel takes its operand through a view.
    channels:
        Tensors that the kernel takes with the channels in another place, each with what it takes: PIXELS (samples, lines, columns,
        channels) of an image, the last two of the first three perhaps as one, or an IMAGE (samples, channels, lines, columns) of
        pixels.
    raised:
        Parameters to which the kernel adds a number before it uses them, as in ``x * (1 + weight)``.
    apart:
        Of operands in `heads`, the features in the order of heads; empty where those of all are next to one another.

    Examples
    --------
    >>> Access(order=("x", "y"), steps=(("", "x"), ("sub", "y"))).renamed({"x": "z"}.get).steps
    (('', 'z'), ('sub', 'y'))
    """

    reordered: tuple[str, ...] = ()
    view: str = ""
    token: int | None = None
    slices: tuple[tuple[str, Runs], ...] = ()
    order: tuple[str, ...] = ()
    transposed: str = ""
    factor: float = 1.0
    steps: tuple[Step, ...] = ()
    heads: tuple[tuple[str, int, int], ...] = ()
    axes: tuple[int, ...] = ()
    channels: tuple[tuple[str, str], ...] = ()
    raised: tuple[tuple[str, float], ...] = ()
    apart: tuple[Runs, ...] = ()

    def renamed(self, name_of: Callable[[str], str | None]) -> Access:
        """The same access to tensors with other names; `name_of` returns None for a name that stays."""

        def new(name: str) -> str:
            return name_of(name) or name

        return dataclasses.replace(
            self,
            reordered=tuple(map(new, self.reordered)),
            order=tuple(map(new, self.order)),
            transposed=new(self.transposed),
            heads=tuple((new(name), first, end) for name, first, end in self.heads),
            channels=tuple((new(name), taken_as) for name, taken_as in self.channels),
            slices=tuple((new(name), runs) for name, runs in self.slices),
            raised=tuple((new(name), number) for name, number in self.raised),
            steps=tuple(
                (op, new(operand) if isinstance(operand, str) else operand) for op, operand in self.steps
            ),
        )

    def without_views(self) -> Access:
        """The same access, with operands in the order in which they are stored."""
        return dataclasses.replace(
            self, reordered=(), view="", token=None, slices=(), transposed="", axes=(), channels=(), apart=()
        )


PLAIN = Access()
"""Every operand whole and as stored."""


def channel_axis(rank: int) -> int:
    """Return the dimension of channels or features: the second of an image (samples, channels, lines, columns), the last of others."""
    return 1 if rank == len("nchw") else rank - 1


def runs_of(channels: NDArray[np.integer]) -> Runs:
    """Return a sequence of channels as runs; zeros are -1.

    >>> runs_of(np.array([4, 5, 6, 1, 3, -1, -1, 0]))
    ((4, 3, 1), (1, 2, 2), (-1, 2, 0), (0, 1, 1))
    """
    found: list[Run] = []
    for channel in map(int, channels):
        first, count, step = found[-1] if found else (-1, 0, 1)
        apart = channel - first
        is_next = apart == count * step if count > 1 else apart > 0 or first == channel == -1
        if count and is_next and (first < 0) is (channel < 0):
            found[-1] = (first, count + 1, step if count > 1 else apart)
        else:
            found.append((channel, 1, 1))
    return tuple(found)


def channels_of(runs: Runs) -> NDArray[np.intp]:
    """Return the channels of runs, in order.

    >>> channels_of(((4, 3, 1), (1, 2, 2), (-1, 2, 0))).tolist()
    [4, 5, 6, 1, 3, -1, -1]
    """
    return np.concatenate([first + step * np.arange(count) for first, count, step in runs])


@saved
@dataclass(frozen=True)
class Derived:
    """How a parameter follows from parameters of the module.

    `rule` is "taken" (of one parameter of `shape` the runs in `taken`, by axis, with zeros for -1), "transposed", "flat" (filters of
    `shape` as rows of a matrix), "raised" (by the number `epsilon`), "copy" (that trains as `module`), or, of a batch norm `module` with running statistics, "scale" or "shift": ``a x + b`` with ``a =
    weight / sqrt(running_var + epsilon)`` and ``b = bias - a running_mean``, or "filters": the filters before it times a.  `source`
    is the parameter, itself derived or the name of one of the module; of a scale or shift it is "".
    """

    rule: str
    source: str | Derived = ""
    taken: tuple[tuple[int, Runs], ...] = ()
    epsilon: float = 0.0
    shape: tuple[int, ...] = ()
    module: str = ""

    def value(self, weights: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32] | None:
        """The parameter, from the weights of the module by name; None if one of them is missing."""
        if self.rule in ("scale", "shift"):
            return self._affine(weights, self.rule)
        whole = self.source.value(weights) if isinstance(self.source, Derived) else weights.get(self.source)
        if whole is None:
            return None
        found = np.asarray(whole)
        if self.rule == "filters":
            factor = self._affine(weights, "scale")
            return None if factor is None else found * factor.reshape(-1, *(1 for _ in found.shape[1:]))
        if self.rule == "flat":
            return found.reshape(len(found), -1)
        if self.rule == "transposed":
            return found.T
        if self.rule == "raised":
            return found + np.float32(self.epsilon)
        if self.rule == "copy":  # of a later step
            return weights.get(self.module, found)
        for axis, runs in self.taken:
            channels = channels_of(runs)
            found = np.take(found, np.maximum(channels, 0), axis)
            if (channels < 0).any():
                found[(slice(None),) * axis + (channels < 0,)] = 0.0
        return found

    def _affine(self, weights: Mapping[str, NDArray[np.float32]], rule: str) -> NDArray[np.float32] | None:
        parts = ("weight", "bias", "running_mean", "running_var")
        names = [f"{self.module}.{part}".lstrip(".") for part in parts]
        if any(name not in weights for name in names):
            return None
        weight, bias, mean, variance = (np.asarray(weights[name], np.float32) for name in names)
        factor = weight / np.sqrt(variance + self.epsilon)
        return factor if rule == "scale" else bias - mean * factor
