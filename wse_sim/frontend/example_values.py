"""Lets the example arguments decide what values decide: routes of experts, lengths, matches, NMS.

A model whose Python code reads values (``loss / max(mask.sum().item(), 1)``, ``for e in range(E): rows = (choice ==
e).nonzero()``) has no static program. If a capture fails for this reason, the model runs once with the
values of its arguments (:func:`recorded`), and the capture is repeated: each read returns the recorded value, and each
result whose shape depends on values has the recorded shape. A read is found again by its function, the user's
line and its number in that line. The graph is that of the example, which a note states.

The elements of such a result are unknown to the program; they are made from as many elements of the operand.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from math import prod, sqrt
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from wse_sim.errors import ModelError
from wse_sim.frontend.devices import is_move, modules_stay, on_one_device
from wse_sim.frontend.faults import sentence_of
from wse_sim.frontend.known_values import is_inexact
from wse_sim.frontend.obstacles import DECIDED
from wse_sim.frontend.raising_checks import current_place
from wse_sim.frontend.selections import Arguments, Function, Named

Shape = tuple[Any, ...]
"""The shape of a result, or those of its tensors."""

Place = tuple[str, str, int]
"""The name of a function, and the file and the line of the user that calls it."""

NUMBERS = (
    *(Tensor.__bool__, Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(torch.is_nonzero, Tensor.is_nonzero),
)
LISTS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)
READS = (
    *(*NUMBERS, *LISTS, Tensor.__contains__, Tensor.__format__),
    *(torch.equal, Tensor.equal, torch.allclose, Tensor.allclose),
)
"""Functions that give Python a value of a tensor."""
PLACES = (torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
_DISTINCT = (torch.unique, Tensor.unique, torch.unique_consecutive, Tensor.unique_consecutive)
_COUNTS = (torch.bincount, Tensor.bincount)
_CHOSEN = (torch.masked_select, Tensor.masked_select)
REPEATED = (torch.repeat_interleave, Tensor.repeat_interleave)
_INDEXED = (Tensor.__getitem__, Tensor.__setitem__)
_MOST_WEIGHTS = 10**9
"""Most weights of a model that runs once, because a copy of it runs; of a stack of matrices one counts."""

_MOST_READS = 10_000
"""Most calls that depend on values in such a run; a loop that never ends has more."""


class _TooManyReadsError(Exception):
    """A run read more values than a graph can have decisions."""


_replayed: ContextVar[ExampleRun | None] = ContextVar("replayed", default=None)


def shaped_by_values(func: Function, args: Arguments, kwargs: Named) -> bool:
    """Return whether the shape of a call's result depends on the values of a tensor."""
    if func is Tensor.__getitem__:
        return any(_is_mask(x) for x in _parts(args[1]))
    if func is torch.where:
        return len(args) + len(kwargs) == 1
    if func in REPEATED:
        counts = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
        return isinstance(counts, Tensor) and kwargs.get("output_size") is None
    if func is functional.one_hot:
        return (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1
    return func in (*PLACES, *_DISTINCT, *_COUNTS, *_CHOSEN)


def depends_on_values(func: Function, args: Arguments, kwargs: Named) -> bool:
    """Return whether a call reads values of a tensor, for its result, its shape or the places that it writes."""
    if func in READS:
        return any(isinstance(x, Tensor) for x in args[:2])
    is_written = func is Tensor.__setitem__ and any(_is_mask(x) for x in _parts(args[1]))
    return is_written or shaped_by_values(func, args, kwargs)


class ExampleRun(TorchFunctionMode):
    """Records what values decide while a model runs, and returns it in the same order afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Place, list[Any]] = defaultdict(list)
        self.read: dict[Place, int] = {}
        self.used: dict[Place, int] = {}
        self.is_random = False
        self.count = 0

    def __torch_function__(
        self,
        func: Function,
        types: object,
        args: Arguments = (),
        kwargs: Named | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if (placed := on_one_device(func, args, named, torch.device("cpu"))) is not None:
            if is_move(func):
                return args[0]
            args, named = placed
        if not depends_on_values(func, args, named):
            for x in integers_among((*args, *named.values())):
                self.found[_place(func, "operand")].append(x.item())
            for part in _parts(args[1]) if func in _INDEXED else ():
                if isinstance(part, slice):  # torch reads its ends one by one, by item()
                    self.found[_place(Tensor.item)] += [
                        x.item() for x in (part.start, part.stop, part.step) if isinstance(x, Tensor)
                    ]
            return func(*args, **named)
        self.count += 1
        if self.count > _MOST_READS:
            raise _TooManyReadsError
        place = _place(func)
        if func in _INDEXED:
            self.found[place].append([int(x.sum()) for x in _parts(args[1]) if _is_mask(x)])
            return func(*args, **named)
        made = func(*args, **named)
        if func in (*NUMBERS, *LISTS):
            self.found[place] += args[0].detach().reshape(-1).tolist()
        elif func in READS:
            self.found[place].append(made)
        else:
            self.found[place].append(pytree.tree_map_only(Tensor, lambda x: tuple(x.shape), made))
        return made

    def enter(self) -> None:
        """Begin with the first read of every line, because forward() runs again."""
        self.read.clear()
        self.used.clear()

    def next(self, func: Function, x: object) -> Arguments | None:
        """Return what the example run gave for the next call of a function on `x` in the user's line; None if no call is left."""
        place, first = _place(func), self.read.get(_place(func), 0)
        shape = tuple(x.shape) if func in LISTS and isinstance(x, Tensor) else None
        self.read[place] = first + (1 if shape is None else prod(shape))
        found = self.found[place][first : self.read[place]]
        if len(found) < self.read[place] - first:
            return None
        return (found[0] if shape is None else np.array(found).reshape(shape),)

    def operand(self, func: Function) -> int | bool | None:
        """Return the value of the next integer among the operands of a call, which torch may read (``x.tile(n)``).

        Return None if the example run had none.
        """
        place = _place(func, "operand")
        first = self.read.get(place, 0)
        self.read[place] = first + 1
        found = self.found[place]
        return found[first] if first < len(found) else None

    def use(self, func: Function, kind: str = "") -> None:
        """Count a result that the example run decides."""
        place = _place(func, kind)
        self.used[place] = self.used.get(place, 0) + 1

    def made(self, func: Function, args: Arguments, kwargs: Named, found: object) -> object:
        """Return the result of a call that depends on values, which gave `found` in the example run."""
        self.use(func)
        return (
            _value(func, args[0], found)
            if func in READS
            else _of_shape(func, args, kwargs, cast(Shape, found))
        )

    @property
    def note(self) -> str:
        """One sentence for the notes of the graph."""
        _, file, line = next(iter(self.used), ("", "", 0))
        weights = " and random numbers for values that are not given" if self.is_random else ""
        count = sum(self.used.values())
        results = "1 result" if count == 1 else f"{count} results"
        return f"{DECIDED}{weights} decides {results} that depend{'s' * (count == 1)} on values, first at {file}:{line}; other values give other work, and work of Python on them does not count"


def _value(func: Function, x: Tensor, found: object) -> object:
    """Return a recorded value in the type of a function's result."""
    if isinstance(found, np.ndarray):
        with _disable_current_modes():
            kind = torch.empty(0, dtype=x.dtype).numpy().dtype
        return found.tolist() if func is Tensor.tolist else found.astype(kind)
    kinds = {Tensor.__bool__: bool, Tensor.__int__: int, Tensor.__index__: int, Tensor.__float__: float}
    is_test = func in (torch.is_nonzero, Tensor.is_nonzero)
    return bool(found) if is_test else kinds.get(func, lambda same: same)(found)


def _of_shape(func: Function, args: Arguments, kwargs: Named, found: Shape) -> object:
    """Return a result of the recorded shape `found`.

    It is made from the operands of the call, so that the program keeps its dependences.
    """
    x = args[0]
    if func in _INDEXED:
        return func(x, _without_masks(args[1], found), *args[2:])
    if func in PLACES or func is torch.where:
        is_tuple = func is torch.where or (
            isinstance(found, tuple) and bool(found) and isinstance(found[0], tuple)
        )
        count = found[0][0] if is_tuple and found else found[0] if found else 0
        places = _some(x, count)
        return (places,) * len(found) if is_tuple else places[:, None].expand(tuple(found))
    if func in _CHOSEN:
        x, mask = torch.broadcast_tensors(x, args[1] if len(args) > 1 else kwargs["mask"])
        return x[_without_masks(mask, found)]
    if func in _DISTINCT:
        return _distinct(x, found)
    if func in _COUNTS:
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        added = torch.ones_like(x) if weights is None else weights
        return torch.zeros(found, dtype=added.dtype).scatter_add(0, x.long(), added)
    if func is functional.one_hot:
        return func(x, found[-1])
    return _repeated(x, found, *args[1:], **kwargs)


def recorded(module: torch.nn.Module, args: Arguments, kwargs: Named, *, training: bool) -> ExampleRun | None:
    """Run a copy of a model once and return what values decided; None if nothing did, or no run is possible.

    A model on "meta" gets random weights, unless it has too many.

    Raises
    ------
    ModelError
        If the model has values and fails after it read some, because it then fails without a capture too.
    """
    recording = ExampleRun()
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.set_grad_enabled(training),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            made = _with_values(module, (args, kwargs), recording)
            if made is None:
                return None
            real, (given, named) = made
            real.train(training)
            with recording, modules_stay():
                real(*given, **named)
    except Exception as fault:  # of any type: the model's own
        if recording.is_random or isinstance(fault, _TooManyReadsError) or not any(recording.found.values()):
            return None
        raise ModelError(sentence_of(fault, type(module).__name__, is_eager=True)) from fault
    return recording if any(recording.found.values()) else None


@contextlib.contextmanager
def replaying(recording: ExampleRun | None) -> Iterator[None]:
    """Use what an example run recorded in the captures within the block."""
    token = _replayed.set(recording)
    try:
        yield
    finally:
        _replayed.reset(token)


def replayed() -> ExampleRun | None:
    """Return the example run that the present capture repeats; None if it repeats none."""
    return _replayed.get()


def integers_among(operands: Sequence[object]) -> Iterator[Tensor]:
    """Yield the integers among operands that are tensors, also in lists."""
    leaves = (x for one in operands for x in (one if isinstance(one, (tuple, list)) else (one,)))
    yield from (x for x in leaves if isinstance(x, Tensor) and x.dim() == 0 and not is_inexact(x))


def _place(func: Function, kind: str = "") -> Place:
    """Return where a function is called; torch reads a list number by number, so all such reads of a line are one."""
    name = "number" if func in (*NUMBERS, *LISTS) else str(getattr(func, "__name__", func))
    return (f"{name} {kind}", *current_place())


def _parts(index: object) -> Arguments:
    return index if isinstance(index, tuple) else (index,)


def _is_mask(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) and x.dim() > 0


def _some(x: Tensor, count: int) -> Tensor:
    """Return a list of `count` integers that depends on a tensor."""
    flat = x.reshape(-1)
    return (flat[:count] if count <= flat.numel() else flat[:1].expand(count)).long()


def _without_masks(index: object, counts: Sequence[int]) -> tuple[object, ...]:
    """Return an index with a list of places for each dimension of a mask; `counts` are their lengths."""
    left = iter(counts)
    parts: list[object] = []
    for part in _parts(index):
        parts += [_some(part, next(left))] * part.dim() if _is_mask(part) else [part]
    return tuple(parts)


def _distinct(x: Tensor, found: Shape) -> object:
    """Return the distinct elements or slices of a tensor, with their places and counts if these were asked for."""
    first = found[0] if found and isinstance(found[0], tuple) else found
    if len(first) == x.dim() > 1:  # along one dimension
        fewer = (dim for dim, size in enumerate(first) if size != x.shape[dim])
        made = x.narrow((dim := next(fewer, 0)), 0, first[dim])
    else:
        made = x.reshape(-1).sort().values[: first[0]]
    if first is found:
        return made
    return (made, *(_some(x, prod(shape)).reshape(shape) for shape in found[1:]))


def _repeated(
    x: Tensor, found: Shape, repeats: Tensor | None = None, dim: int | None = None, **_: object
) -> Tensor:
    if repeats is None:
        return _some(x, found[0])
    x, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
    return x.index_select(dim, _some(repeats.reshape(-1)[:1].expand(found[dim]), found[dim]))


def _with_values(
    module: torch.nn.Module, given: tuple[Arguments, Named], recording: ExampleRun
) -> tuple[torch.nn.Module, tuple[Arguments, Named]] | None:
    """Return a copy of a module and its arguments, with random values for tensors on "meta"; None if they are too many,
    or integers (masks, ids) are among the arguments without values.

    Rows of a table on "meta" differ by token, because example arguments often repeat one token, which would
    take one route.
    """
    held = [*module.parameters(), *module.buffers()]
    pooled = [x for x in held if x.device.type == "meta"]
    unknown = [x for x in pytree.tree_leaves(given) if isinstance(x, Tensor) and x.device.type == "meta"]
    if sum(map(_stored, held)) > _MOST_WEIGHTS or not all(map(is_inexact, unknown)):
        return None
    recording.is_random = bool(pooled or unknown)
    pool = torch.randn(max(map(_stored, pooled), default=0))
    made: dict[int, Tensor] = {}

    def real(name: str, x: Tensor) -> Tensor:
        if x.device.type != "meta":
            return x
        if id(x) not in made:
            made[id(x)] = _weights(x, pool, 0.0 if name.endswith("bias") else 1.0)
        return made[id(x)]

    copied = copy.deepcopy(module)
    for path, part in copied.named_modules():
        if isinstance(part, torch.nn.Embedding) and part.weight.device.type == "meta":
            part.register_forward_hook(lambda _, __, rows: rows + torch.randn_like(rows))
        for kept in (part._parameters, part._buffers):
            for key, value in kept.items():
                if value is not None:
                    new = real(f"{path}.{key}", value)
                    kept[key] = (
                        torch.nn.Parameter(new, value.requires_grad)
                        if isinstance(value, torch.nn.Parameter)
                        else new
                    )  # type: ignore[assignment]

    def with_values(x: Tensor) -> Tensor:
        return torch.randn(x.shape, dtype=x.dtype) if x.device.type == "meta" else x.clone()

    with torch.no_grad():
        return copied, pytree.tree_map_only(Tensor, with_values, given)


def _stored(x: Tensor) -> int:
    """Return the number of weights in memory for a tensor. The matrices of a stack, such as experts, share those of one."""
    return x.numel() if x.dim() < 3 else x[0].numel()


def _weights(x: Tensor, pool: Tensor, of_vectors: float) -> Tensor:
    """Return weights for a tensor on "meta": matrices with a normal distribution of their width out of a pool.

    Matrices share memory. Vectors have the number `of_vectors`; integers are 0.
    """
    if not x.is_floating_point():
        return torch.zeros(x.shape, dtype=x.dtype)
    if x.dim() < 2:
        return torch.full(x.shape, of_vectors, dtype=x.dtype)
    rest = x.shape[1:] if x.dim() > 2 else x.shape
    matrix = (pool[: prod(rest)] / sqrt(max(1, x.shape[-1]))).to(x.dtype).reshape(rest)
    return matrix.expand(x.shape)
