"""Python state that a step reads: it is captured once, and later steps repeat that capture.

Before and after the capture, and at every later call, these are compared:

* plain values, containers and random generators behind the globals and closure cells that the step reads,
  including its functions in the user's files, and behind the attributes of its owner and of the compiled
  models;
* the random numbers of Python and numpy;
* plain numbers in the groups of the optimizers that it calls (``param_groups[0]["lr"] = x``).

A difference is a warning with the line that makes it; an error under ``--strict``.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import random
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.optimizer_hooks import numbers_of
from wse_sim.user_code import owner_of

_PLAIN = (int, float, bool, str, complex, type(None))
_CONTAINERS = (list, tuple, set, deque)
MOST_ITEMS = 64  # of a container that are compared
MOST_FUNCTIONS = 64

Values = dict[str, object]


class Watched:
    """The Python state that one step reads, taken before its capture."""

    def __init__(self, function: object) -> None:
        self.functions, self.owner = _functions(function)
        self.before = self._values()
        self.drawn = _drawn()
        self.kept: Values = {}
        self.said: set[str] = set()
        self.optimizers: dict[int, tuple[torch.optim.Optimizer, dict[tuple[int, str], object]]] = {}

    def _values(self, whole: bool = True) -> Values:
        """Return names and fingerprints of values; `whole`: the attributes of models too."""
        found: Values = {}
        for function in self.functions:
            for name, value in _named(function):
                found |= _marks(name, value)
        if self.owner is not None and not isinstance(self.owner, torch.nn.Module):
            found |= _attributes("self", self.owner)
        if whole:
            for model, _ in runtime.run().modules:
                for path, module in model.named_modules():
                    found |= _of_module(path, module)
        return found

    def compare(self) -> None:
        """Compare after the capture, and warn of what the step changed."""
        after = self._values()
        for name, old in self.before.items():
            if name in after and after[name] != old:
                self._suspect(
                    name,
                    "changed inside the step: the step is captured once, later steps see its first value",
                )
        for kind, old, new in zip(("random", "numpy"), self.drawn, _drawn(), strict=True):
            if old != new:
                self._suspect(
                    kind,
                    "random numbers are drawn inside the step: every later step has those of the first; "
                    "use torch.rand, or put them into the batch",
                )
        self.kept = self._values(whole=False)

    def look_again(self) -> None:
        """Compare before a step is repeated, and warn of what was changed since its capture."""
        now = self._values(whole=False)
        for name, old in self.kept.items():
            if name in now and now[name] != old:
                self._suspect(
                    name, "changed after the step was captured, which still has its first value", here=True
                )
        for optimizer, numbers in self.optimizers.values():
            for place, value in numbers_of(optimizer).items():
                if numbers.get(place, value) != value:
                    self._suspect(
                        f'param_groups[{place[0]}]["{place[1]}"]',
                        f"changed from {numbers[place]} to {value} after the step was captured, which still has "
                        "the first; use a scheduler of cstorch.optim.lr_scheduler",
                        here=True,
                    )

    def _suspect(self, name: str, what: str, here: bool = False) -> None:
        if name in self.said:
            return
        self.said.add(name)
        line = _line_of(name, self.functions)
        if here or not line:
            line = line if line and not here else faults.where_of(faults.user_frame())
        faults.suspect(("watched", name), f"{line}: '{name}' {what}" if line else f"'{name}' {what}")


def _functions(function: object) -> tuple[list[FunctionType], object]:
    """Return the function and those of the user's files that it calls by name; and the object whose method it is."""
    owner = None
    while not isinstance(function, FunctionType):
        if isinstance(function, functools.partial):
            owner = function.args[0] if function.args else owner
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            owner, function = getattr(function, "__self__", None), function.__func__
        else:
            return [], owner
    while hasattr(function, "__wrapped__") and isinstance(function.__wrapped__, FunctionType):
        function = function.__wrapped__
    found: list[FunctionType] = [function]
    for one in found:
        for _, value in _named(one):
            plain = inspect.unwrap(value) if callable(value) else value
            is_own = isinstance(plain, FunctionType) and owner_of(plain.__code__.co_filename) == "user"
            if is_own and plain not in found and len(found) < MOST_FUNCTIONS:
                found.append(plain)
    return found, owner


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals and closure cells that a function reads."""
    space = function.__globals__
    for name in _globals_of(function.__code__):
        if name in space:
            yield name, space[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue


@functools.lru_cache(maxsize=1024)
def _globals_of(code: Any) -> tuple[str, ...]:
    inner = [c for c in code.co_consts if hasattr(c, "co_code")]
    own = [
        i.argval
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")
    ]
    return tuple(dict.fromkeys([*own, *(name for c in inner for name in _globals_of(c))]))


def _mark(value: object) -> object:
    """Return the comparable part of a value; `_marks` does so for containers."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, torch.Tensor):
        return f"tensor {id(value)}"
    if type(value).__module__.startswith("numpy.random"):
        state = getattr(value, "bit_generator", None)
        return str(state.state) if state is not None else str(getattr(value, "get_state", lambda: "")())
    return f"object {type(value).__name__}"


def _marks(name: str, value: object) -> Values:
    if (
        isinstance(value, type)
        and owner_of(getattr(sys.modules.get(value.__module__), "__file__", None) or "<") == "user"
    ):
        return {
            f"{name}.{k}": _mark(v) for k, v in vars(value).items() if isinstance(v, _PLAIN) and k[0] != "_"
        }
    if isinstance(value, _CONTAINERS):
        return {name: (len(value), tuple(_mark(item) for item in list(value)[:MOST_ITEMS]))}
    if isinstance(value, dict):
        items = [(_mark(k), _mark(v)) for k, v in list(value.items())[:MOST_ITEMS]]
        return {name: (len(value), tuple(items))}
    if _is_own(value):
        return _attributes(name, value)
    if isinstance(value, (*_PLAIN, random.Random, torch.Tensor)) or type(value).__module__.startswith(
        "numpy.random"
    ):
        return {name: _mark(value)}
    return {}


def _is_own(value: object) -> bool:
    """Return whether a value is an object of a class of the user's files, and no model."""
    kind = type(value)
    if isinstance(value, SimpleNamespace):
        return True
    if isinstance(value, (torch.nn.Module, type, torch.Tensor)) or callable(value):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and owner_of(file) == "user"


def _attributes(name: str, value: object) -> Values:
    found: Values = {}
    # What the class states is changed by the first assignment to an instance.
    held = {k: v for k, v in vars(type(value)).items() if k[0] != "_" and isinstance(v, _PLAIN)}
    for key, inner in {**held, **getattr(value, "__dict__", {})}.items():
        if isinstance(inner, (*_PLAIN, *_CONTAINERS, dict, random.Random)):
            found |= _marks(f"{name}.{key}", inner)
    return found


def _of_module(path: str, module: torch.nn.Module) -> Values:
    prefix = f"{path}." if path else ""
    file = getattr(sys.modules.get(type(module).__module__), "__file__", None)
    is_own = file is not None and owner_of(file) == "user"
    found: Values = {}
    for key, value in vars(module).items():
        if key == "training" or key.startswith("_"):
            continue
        if type(value) in (int, float):
            found[f"{prefix}{key}"] = value
        elif is_own and isinstance(value, (*_PLAIN, *_CONTAINERS, dict, random.Random)):
            found |= _marks(f"{prefix}{key}", value)
    return found


def _drawn() -> tuple[object, object]:
    """Return the states of the random numbers of Python and of numpy."""
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state() if numpy is not None else None
    return hash(random.getstate()), None if state is None else (state[1].tobytes(), state[2])


# -- lines ----------------------------------------------------------------------------------------------------
def _line_of(name: str, functions: list[FunctionType]) -> str:
    """Return the line of these functions that changes a name; "" where none is seen."""
    base, _, last = name.rpartition(".")
    words = {name.partition(".")[0].partition("[")[0], last} if base else {name}
    words.discard("self")
    for function in functions:
        for node in _statements(function):
            if any(_changes(part, words) for part in ast.walk(node)):
                code = function.__code__
                return faults.line_of(code.co_filename, code.co_firstlineno + getattr(node, "lineno", 1) - 1)
    return ""


@functools.lru_cache(maxsize=256)
def _statements(function: Callable[..., Any]) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError, ValueError):
        return ()
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.If, ast.For)
    return tuple(sorted((n for n in ast.walk(tree) if isinstance(n, simple)), key=lambda n: -n.lineno))[::-1]


def _changes(node: ast.AST, words: set[str]) -> bool:
    """Return whether a part of a program assigns one of the names, or calls a method of it."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value]
    return any(_word(t) in words for t in targets)


def _word(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
