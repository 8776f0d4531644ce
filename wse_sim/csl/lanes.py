"""Numbers of a loop whose iterations are evaluated together, one lane per iteration.

A layout of W x H cores is two nested loops that make the same few decisions for most cores. The outer loop
runs once, on arrays: a :class:`Lanes` contains the number of every iteration. If iterations diverge (a
condition holds for some of them, or an index differs), the evaluation raises :class:`DivergingLanesError`
with the groups and starts again for each group; effects are delayed until a group has finished. Operations
that cannot be done for several iterations at once raise :class:`OneByOneError`, and the loop then runs one
iteration after the other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, SupportsInt, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Work = Callable[[Array, Array], Array]
LIMIT = 1 << 62


class DivergingLanesError(Exception):
    """Signal that the lanes diverge; `groups` are indices into the present lanes."""

    def __init__(self, groups: list[Array]) -> None:
        super().__init__("lanes part")
        self.groups = groups


class OneByOneError(Exception):
    """Signal that iterations depend on each other, or perform an operation that only one iteration can do at
    a time."""


class Lanes:
    """Integer or truth value per lane; operators work lane by lane, and a conversion to one Python value
    splits differing lanes."""

    __slots__ = ("array", "bound")

    def __init__(self, array: Array, bound: int | None = None) -> None:
        self.array = array
        self.bound = int(np.abs(array.astype(np.int64)).max(initial=0)) if bound is None else bound

    def __repr__(self) -> str:
        return f"Lanes({self.array!r})"

    # ---- conversions to one value for all lanes
    def __bool__(self) -> bool:
        true = self.array if self.array.dtype == bool else self.array != 0
        n = int(np.count_nonzero(true))
        if 0 < n < len(true):
            raise DivergingLanesError([np.flatnonzero(true), np.flatnonzero(~true)])
        return n > 0

    def __index__(self) -> int:
        if (self.array != self.array[0]).any():
            _, groups = np.unique(self.array, return_inverse=True)
            order = np.argsort(groups, kind="stable")
            raise DivergingLanesError(np.split(order, np.flatnonzero(np.diff(groups[order])) + 1))
        return int(self.array[0])

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __hash__(self) -> int:
        return hash(self.__index__())

    # ---- arithmetic
    def integer(self) -> Lanes:
        """Return truth values as 0 and 1, and integers unchanged."""
        return Lanes(self.array.astype(np.int64), max(1, self.bound)) if self.array.dtype == bool else self

    def _with(self, other: object, work: Work, bound: Callable[[int, int], int]) -> Lanes:
        mine, theirs = self.integer(), operand(other)
        limit = bound(mine.bound, theirs.bound)
        if limit >= LIMIT:
            mine, theirs = Lanes(mine.array), Lanes(theirs.array)
            limit = bound(mine.bound, theirs.bound)
            if limit >= LIMIT:
                raise OneByOneError
        return Lanes(work(mine.array, theirs.array), limit)

    def __add__(self, other: object) -> Lanes:
        return self._with(other, operator.add, operator.add)

    __radd__ = __add__

    def __sub__(self, other: object) -> Lanes:
        return self._with(other, operator.sub, operator.add)

    def __rsub__(self, other: object) -> Lanes:
        return self._with(other, lambda a, b: b - a, operator.add)

    def __mul__(self, other: object) -> Lanes:
        return self._with(other, operator.mul, operator.mul)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Lanes:
        return self._with(other, operator.floordiv, lambda a, _: a + 1)

    def __rfloordiv__(self, other: object) -> Lanes:
        return self._with(other, lambda a, b: b // a, lambda _, b: b + 1)

    def __lshift__(self, other: object) -> Lanes:
        return self._with(int(other), operator.lshift, lambda a, n: a << min(n, 64))  # type: ignore[call-overload]

    def __rshift__(self, other: object) -> Lanes:
        return self._with(min(int(other), 63), operator.rshift, lambda a, _: a)  # type: ignore[call-overload]

    def __and__(self, other: object) -> Lanes:
        if isinstance(other, int) and 0 <= other < LIMIT:
            return Lanes(self.integer().array & other, other)
        return self._with(other, operator.and_, lambda a, b: 2 * max(a, b) + 1)

    __rand__ = __and__

    def __or__(self, other: object) -> Lanes:
        return self._with(other, operator.or_, lambda a, b: 2 * max(a, b) + 1)

    __ror__ = __or__

    def __xor__(self, other: object) -> Lanes:
        return self._with(other, operator.xor, lambda a, b: 2 * max(a, b) + 1)

    __rxor__ = __xor__

    def __neg__(self) -> Lanes:
        return Lanes(-self.integer().array, self.bound)

    def __invert__(self) -> Lanes:
        return Lanes(~self.integer().array, self.bound + 1)

    def __abs__(self) -> Lanes:
        return Lanes(np.abs(self.integer().array), self.bound)

    # ---- comparisons
    def _compared(self, other: object, work: Work) -> Lanes:
        return Lanes(work(self.integer().array, operand(other).array), 1)

    def __eq__(self, other: object) -> Lanes:  # type: ignore[override]
        if not isinstance(other, int | Lanes):
            return NotImplemented
        return self._compared(other, operator.eq)

    def __ne__(self, other: object) -> Lanes:  # type: ignore[override]
        if not isinstance(other, int | Lanes):
            return NotImplemented
        return self._compared(other, operator.ne)

    def __lt__(self, other: object) -> Lanes:
        return self._compared(other, operator.lt)

    def __le__(self, other: object) -> Lanes:
        return self._compared(other, operator.le)

    def __gt__(self, other: object) -> Lanes:
        return self._compared(other, operator.gt)

    def __ge__(self, other: object) -> Lanes:
        return self._compared(other, operator.ge)


def operand(other: object) -> Lanes:
    """Return the other operand as integers of one lane or of every lane.

    Raises
    ------
    OneByOneError
        If it is not an integer, or too large.
    """
    if isinstance(other, Lanes):
        return other.integer()
    if isinstance(other, int) and -LIMIT < other < LIMIT:
        return Lanes(np.array([int(other)], np.int64), abs(int(other)))
    raise OneByOneError


def integer(data: SupportsInt) -> int:
    """Return `int(data)`, lane by lane for a :class:`Lanes`, which the evaluator uses like an int."""
    return cast("int", data.integer()) if isinstance(data, Lanes) else int(data)
