"""Layout loops whose iterations are evaluated together: see :mod:`wse_sim.csl.lanes`.

A loop qualifies if its iterations neither change variables declared outside its body nor leave it early, so
their order does not matter. Other loops run one iteration after the other. Loops inside a loop that is
evaluated together also run one iteration after the other, on all lanes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Evaluator, Scope, Signal
from wse_sim.csl.lanes import LIMIT, DivergingLanesError, Lanes, OneByOneError
from wse_sim.csl.unit import CodeUnit
from wse_sim.csl.values import Cell, Entry, Operand, Range, Ref, Value

FEWEST = 4
"""Minimum number of iterations for evaluating a loop's iterations together."""

ALONE = ("@set_rectangle", "@export_name", "@comptime_print")
"""Builtins whose order of calls matters."""

Array = npt.NDArray[Any]
Effect = tuple[Callable[..., None], tuple[object, ...]]


class LoopEvaluator(Evaluator):
    """Evaluator of a layout, which evaluates the iterations of suitable loops together."""

    def __init__(self, unit: CodeUnit) -> None:
        super().__init__(unit)
        self.lanes = 0  # number of iterations that are evaluated together now; 0: no such loop
        self.born: set[int] = set()  # variables declared in its body
        self.effects: list[Effect] = []
        self.stubborn: set[int] = set()  # loops whose iterations must run one by one

    # ---- what a body may do
    def effect(self, act: Callable[..., None], *args: object) -> None:
        if self.lanes:
            self.effects.append((act, args))
        else:
            act(*args)

    def cores(self, index: int | Lanes) -> npt.NDArray[np.int64]:
        if type(index) is not Lanes:
            if self.lanes > 1:
                raise OneByOneError
            return np.array([index], np.int64)
        if len(np.unique(index.array)) < len(index.array):
            raise OneByOneError
        return index.array

    def declare(self, node: tree.Declaration, scope: Scope, entry: Entry) -> None:
        super().declare(node, scope, entry)
        if self.lanes and type(entry) is Cell:
            self.born.add(id(entry))

    def store(self, place: Operand, value: Operand, at: int) -> None:
        if self.lanes and type(place) is Ref and id(place.root) not in self.born:
            raise OneByOneError
        super().store(place, value, at)

    def x_Builtin(self, node: tree.Builtin, scope: Scope) -> Operand:
        if self.lanes and node.name in ALONE:
            raise OneByOneError
        return super().x_Builtin(node, scope)

    # ---- loops
    def s_For(self, node: tree.For, scope: Scope) -> Signal:
        if self.lanes or id(node) in self.stubborn:
            return super().s_For(node, scope)
        over = self.known(node.over, scope)
        numbers = over.data
        if isinstance(numbers, Range) and len(numbers) >= FEWEST and max(numbers.start, numbers.stop) < LIMIT:
            element = numbers.element
            values = np.array(list(numbers), np.int64)

            def body(lanes: int | Lanes, places: int | Lanes) -> Signal:
                inner = Scope(scope.instance, scope)
                inner.names[node.names[0]] = Value(element, lanes)
                if len(node.names) > 1:
                    inner.names[node.names[1]] = Value(ty.U16, places)
                return self.exec(node.body, inner)

            if self.together(node, values, body):
                return None
        return super().s_For(node, scope)

    def s_While(self, node: tree.While, scope: Scope) -> Signal:
        if self.lanes or id(node) in self.stubborn:
            return super().s_While(node, scope)
        counter = self.counter(node, scope)
        if counter is None:
            self.stubborn.add(id(node))
            return super().s_While(node, scope)
        first = counter.data
        values = []
        while self.condition(node.test, scope) and abs(counter.data) < LIMIT:
            self.tick(node.at)
            values.append(counter.data)
            assert node.step is not None
            self.exec(node.step, scope)
        last = counter.data

        def body(lanes: int | Lanes, _: int | Lanes) -> Signal:
            counter.data = lanes
            return self.exec(node.body, scope)

        if len(values) >= FEWEST and self.together(node, np.array(values, np.int64), body):
            counter.data = last
            return None
        counter.data = first
        return super().s_While(node, scope)

    def counter(self, node: tree.While, scope: Scope) -> Cell | None:
        """Return the integer variable that a loop's step changes by a constant, or None if there is none or
        the condition calls a function."""
        step = node.step
        if not isinstance(step, tree.Assign) or step.op not in ("+=", "-="):
            return None
        if not isinstance(step.target, tree.Name) or not isinstance(step.value, tree.Number):
            return None
        if calls(node.test):
            return None
        found = self.lookup(step.target, scope)
        return found if type(found) is Cell and ty.is_int(found.type) else None

    def together(
        self, node: tree.Node, values: Array, body: Callable[[int | Lanes, int | Lanes], Signal]
    ) -> bool:
        """Evaluate all iterations of a loop at once; return False, without effects, if they must run one by
        one."""
        waiting = [np.arange(len(values))]
        kept: list[Effect] = []
        try:
            while waiting:
                part = waiting.pop()
                self.lanes, self.born, self.effects = len(part), set(), []
                try:
                    if len(part) == 1:
                        signal = body(int(values[part[0]]), int(part[0]))
                    else:
                        signal = body(Lanes(values[part]), Lanes(part))
                except DivergingLanesError as split:
                    waiting.extend(part[group] for group in reversed(split.groups))
                    continue
                if signal is not None and signal[:2] != ("continue", None):
                    raise OneByOneError
                kept += self.effects
        except (OneByOneError, CslError, TypeError, ValueError, OverflowError):
            # An error is found again, at its own iteration, when they run one by one.
            self.stubborn.add(id(node))
            return False
        finally:
            self.lanes, self.born, self.effects = 0, set(), []
        for act, args in kept:
            act(*args)
        return True


def calls(node: object) -> bool:
    """Return whether an expression contains a call or a block."""
    if isinstance(node, (tree.Call, tree.Builtin, tree.Block)):
        return True
    if isinstance(node, (list, tuple)):
        return any(calls(item) for item in node)
    if isinstance(node, tree.Node):
        return any(calls(getattr(node, name)) for name in node.__dataclass_fields__)  # type: ignore[attr-defined]
    return False
