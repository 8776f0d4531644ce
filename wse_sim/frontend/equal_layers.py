"""Captures equal layers once: the first call is traced, and calls of equal layers become copies of it.

During a capture, the first call of a layer is enclosed in two marks (``begin``, ``end``). A later call of an
equal layer, or of the same one, with equal arguments becomes one operator (``again``) with results like those
of the first. After the capture, :func:`wse_sim.frontend.layer_copies.copied` replaces each such operator by
the operators between the marks, with the layer's own weights and names, so the result is the program that
torch would have captured.

Layers are equal if they have the same class, submodules, attributes and shapes of weights, and no hooks.
Numbers and strings may differ (``layer_idx``) as long as the first call does not read them. If a copy would
differ from what torch captures (:class:`wse_sim.frontend.layer_copies.NotCopiedError`), the capture is
repeated without copies; examples are a layer that reads tensors from elsewhere, or stores tensors in
attributes that others read. A layer that changes its arguments or returns parts of them is traced in each
call.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from wse_sim.frontend.hidden_weights import Hidden
from wse_sim.frontend.regions import is_frozen
from wse_sim.frontend.watch import forward_again, in_transform, stand_in

LEAST_PARTS = 2
"""Layers with fewer submodules are traced in each call, because marks would cost as much."""
LEAST_EQUAL = 2
"""Fewest equal layers that are captured once; smaller groups are traced in each call."""

_library = torch.library.Library("wse_layers", "DEF")
_library.define("begin(Tensor[] given, int key) -> Tensor")
_library.define("end(Tensor mark, Tensor[] made) -> Tensor[]")
_library.define("again(Tensor mark, Tensor[] given, int key) -> Tensor[]")
BEGIN: Callable[..., Tensor] = torch.ops.wse_layers.begin.default
END: Callable[..., list[Tensor]] = torch.ops.wse_layers.end.default
AGAIN: Callable[..., list[Tensor]] = torch.ops.wse_layers.again.default
for _mark in (END, AGAIN):  # torch removes no call whose results nothing reads: the layer may change buffers
    torch.fx.node.has_side_effect(_mark)
Made = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]
_keys = itertools.count()
_results: dict[int, list[Made]] = {}
"""Shape, stride, type and device of the results of each copied call, by its key."""


@torch.library.register_fake("wse_layers::begin", lib=_library)
def _begin(given: list[Tensor], key: int) -> Tensor:
    return torch.empty(())


@torch.library.register_fake("wse_layers::end", lib=_library)
def _end(mark: Tensor, made: list[Tensor]) -> list[Tensor]:
    return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in made]


@torch.library.register_fake("wse_layers::again", lib=_library)
def _again(mark: Tensor, given: list[Tensor], key: int) -> list[Tensor]:
    return [
        torch.empty_strided(shape, stride, dtype=dtype, device=device)
        for shape, stride, dtype, device in _results[key]
    ]


@dataclass(frozen=True)
class _Passed:
    """A result that is one of the arguments."""

    place: int


@dataclass(eq=False)
class _First:
    """The first call of a layer: its mark, its arguments, the loose attributes that it read, its results."""

    layer: nn.Module
    mark: Tensor
    given: list[object]  # kept alive, so that their ids are not reused
    like: Hashable
    read: frozenset[tuple[str, str]]
    results: list[object]  # _Passed for arguments, _MADE for new tensors, or plain values
    made: pytree.TreeSpec
    tensors: list[Made]


class Layers:
    """The equal layers of a module during a capture."""

    def __init__(self, module: nn.Module, shown: Collection[str] = ()) -> None:
        found = _Found(module)
        self.module, self.shown = module, frozenset(shown)
        self.hidden = Hidden(module, found.groups, shown)
        self.groups, self.loose = found.groups, found.loose
        self.paths = {id(part): path for path, part in module.named_modules()}
        self.firsts: dict[int, list[_First]] = defaultdict(list)
        self.pairs: dict[int, tuple[str, str]] = {}  # paths of the first layer and of its copy, by key
        self.reads: list[tuple[int, str]] = []

    @property
    def used(self) -> bool:
        """Whether a call became a copy."""
        return bool(self.pairs)

    @contextmanager
    def once(self) -> Iterator[None]:
        """Trace equal layers only once within the block, without the weights of their copies."""
        placed = [(kind, name, vars(kind).get(name, _MISSING)) for kind, name in self.loose]
        for kind, name in self.loose:
            setattr(kind, name, _Watched(name, self.reads))
        for number, members in enumerate(self.groups):
            for layer in members:
                layer.forward = self._going_once(layer, number, layer.forward)
        try:
            with self.hidden.away():
                yield
        finally:
            forward_again(itertools.chain(self.module.modules(), *self.groups))
            for kind, name, was in placed:
                if was is _MISSING:
                    delattr(kind, name)
                else:
                    setattr(kind, name, was)
            self.firsts.clear()  # it refers to tensors of the capture

    def forget(self) -> None:
        """Drop the shapes of results that the operators of this capture needed."""
        for key in self.pairs:
            _results.pop(key, None)

    def _going_once(
        self, layer: nn.Module, number: int, forward: Callable[..., object]
    ) -> Callable[..., object]:
        @stand_in
        @functools.wraps(forward)
        def inner(*args: object, **kwargs: object) -> object:
            given, spec = pytree.tree_flatten((args, kwargs))
            like = _like(given, spec)
            # The tensors of a function transform (vmap, grad) share their memory.
            if like is None or in_transform():
                return forward(*args, **kwargs)
            for first in self.firsts[number]:
                if first.like == like and _read_the_same(first, layer):
                    return self._again(first, layer, given)
            return self._first(layer, number, functools.partial(forward, *args, **kwargs), given, like)

        return inner

    def _first(
        self, layer: nn.Module, number: int, call: Callable[[], object], given: list[object], like: Hashable
    ) -> object:
        if id(layer) in self.hidden.layers:
            self.hidden.show(self.paths[id(layer)])
        tensors = [x for x in given if isinstance(x, Tensor)]
        versions, before = [x._version for x in tensors], len(self.reads)
        mark = BEGIN(tensors, next(_keys))
        result = call()
        places = {id(x): place for place, x in enumerate(given) if isinstance(x, Tensor)}
        leaves, spec = pytree.tree_flatten(result)
        made = [x for x in leaves if isinstance(x, Tensor) and id(x) not in places]
        if [x._version for x in tensors] != versions or not _can_be_copied(made, leaves, tensors):
            return result
        inside = {id(part): path for path, part in layer.named_modules()}
        first = _First(
            *(layer, mark, given, like),
            frozenset((inside[i], name) for i, name in self.reads[before:] if i in inside),
            [_Passed(places[id(x)]) if id(x) in places else _MADE if isinstance(x, Tensor) else x for x in leaves],
            spec,
            [(tuple(x.shape), x.stride(), x.dtype, x.device) for x in made],
        )  # fmt: skip
        self.firsts[number].append(first)
        return _rebuilt(first, given, END(mark, made))

    def _again(self, first: _First, layer: nn.Module, given: list[object]) -> object:
        self.reads += [(id(layer.get_submodule(path)), name) for path, name in first.read]
        key = next(_keys)
        self.pairs[key] = self.paths[id(first.layer)], self.paths[id(layer)]
        _results[key] = first.tensors
        return _rebuilt(first, given, AGAIN(first.mark, [x for x in given if isinstance(x, Tensor)], key))


_MISSING, _MADE = object(), object()


def _rebuilt(first: _First, given: Sequence[object], made: Sequence[Tensor]) -> object:
    """Return the result of a call from its arguments and the tensors that it made."""
    left = iter(made)
    leaves = [
        given[x.place] if isinstance(x, _Passed) else next(left) if x is _MADE else x for x in first.results
    ]
    return pytree.tree_unflatten(leaves, first.made)


def _can_be_copied(made: Sequence[Tensor], leaves: Sequence[object], given: Sequence[Tensor]) -> bool:
    """Return whether all results of a call are arguments, plain values, or new floating-point tensors that
    share no memory with an argument.
    """
    storages = {x.untyped_storage()._cdata for x in given}
    return (
        bool(made)
        and len({id(x) for x in made}) == len(made)
        and all(x.is_floating_point() and x.untyped_storage()._cdata not in storages for x in made)
        and all(isinstance(x, (Tensor, *_PLAIN)) for x in leaves)
    )


def _read_the_same(first: _First, layer: nn.Module) -> bool:
    """Return whether the loose attributes that the first call read have the same values in another layer."""
    return all(
        vars(first.layer.get_submodule(path)).get(name) == vars(layer.get_submodule(path)).get(name)
        for path, name in first.read
    )


def _like(given: Sequence[object], spec: pytree.TreeSpec) -> Hashable:
    """Return a key that is equal for equivalent calls; None if a call cannot be compared.

    Floating-point tensors are equal if torch's metadata are equal; other objects only if they are identical,
    because Python may read their values.
    """
    seen: dict[int, int] = {}
    parts: list[Hashable] = [
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        is_frozen(),
        repr(spec),
    ]
    for x in given:
        if not isinstance(x, Tensor):
            parts.append((type(x), x) if isinstance(x, _PLAIN) else id(x))
            continue
        if not all(type(n) is int for n in x.shape):
            return None
        place = seen.setdefault(id(x), len(seen))
        known = (tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad)
        parts.append((place, known) if x.is_floating_point() else id(x))
    return tuple(parts) if seen else None


class _Watched:
    """A descriptor that records which layers read the attribute that it replaces."""

    def __init__(self, name: str, reads: list[tuple[int, str]]) -> None:
        self.name, self.reads = name, reads

    def __get__(self, part: nn.Module | None, kind: type | None = None) -> object:
        if part is None:
            return self
        self.reads.append((id(part), self.name))
        try:
            return vars(part)[self.name]
        except KeyError:
            raise AttributeError(self.name) from None

    def __set__(self, part: nn.Module, value: object) -> None:
        vars(part)[self.name] = value

    def __delete__(self, part: nn.Module) -> None:
        del vars(part)[self.name]


# --- groups of equal layers

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Size, type)
_LOOSE = (int, float, str)
_NO_STATE = frozenset(["_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"])


class _Found:
    """The groups of equal layers in a module, outermost first, and the attributes that differ in a group."""

    def __init__(self, module: nn.Module) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.signs: dict[int, int] = {}
        self.groups: list[list[nn.Module]] = []
        self.loose: list[tuple[type, str]] = []
        paths = [part for _, part in module.named_modules(remove_duplicate=False)]
        if len({id(part) for part in paths}) < len(paths) or any(map(_is_compiled, paths)):
            return  # torch calls replacements of such modules
        self._sign(module)
        equal: dict[int, list[nn.Module]] = defaultdict(list)
        for part in paths[1:]:
            if len(part._modules) >= LEAST_PARTS and type(part).forward is not nn.Module.forward:
                equal[self.signs[id(part)]].append(part)
        self.groups = [members for members in equal.values() if len(members) >= LEAST_EQUAL]
        found: dict[tuple[type, str], None] = {}
        for members in self.groups:
            for parts in zip(*(member.modules() for member in members), strict=True):
                found |= dict.fromkeys((type(parts[0]), name) for name in _differing(parts))
        self.loose = [one for one in found if not hasattr(one[0], one[1])]

    def _sign(self, part: nn.Module) -> int:
        """Return the number of a module's equivalence class, and number those of its submodules."""
        inside = tuple(
            (name, None if child is None else self._sign(child)) for name, child in part._modules.items()
        )
        held = tuple(
            (kind, name, None if x is None else (x.shape, x.dtype, x.requires_grad, _known(x)))
            for kind, tensors in (("p", part._parameters), ("b", part._buffers))
            for name, x in tensors.items()
        )
        mine = tuple(
            (name, _sign_of(value, part)) for name, value in vars(part).items() if name not in _NO_STATE
        )
        sign = (type(part), part.training, inside, held, mine)
        self.signs[id(part)] = number = self.numbers.setdefault(sign, len(self.numbers))
        return number


def _is_compiled(part: nn.Module) -> bool:
    return isinstance(part, torch.jit.ScriptModule | torch.fx.GraphModule)


def _known(x: Tensor) -> Hashable:
    """Return the values of an integer buffer, which Python may read; None for other tensors."""
    if x.is_floating_point() or x.is_complex() or type(x) is not Tensor or x.device.type == "meta":
        return None
    return tuple(x.flatten().tolist()) if x.numel() <= 4096 else id(x)


def _sign_of(value: object, part: nn.Module) -> Hashable:
    """Return an attribute's contribution to the signature of its module.

    Loose attributes (numbers and strings) contribute only "loose", other plain values their value, other
    objects their identity.
    """
    if isinstance(value, _LOOSE) and not isinstance(value, bool):
        return "loose"
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, (dict, list, tuple, set, frozenset)) and not value:
        return type(value)
    if isinstance(value, dict):
        return (
            type(value),
            tuple((k if isinstance(k, _PLAIN) else id(k), _strict(v)) for k, v in value.items()),
        )
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_strict(v) for v in value))
    if isinstance(value, functools.partial):
        named = tuple((k, _strict(v)) for k, v in value.keywords.items())
        return (id(value.func), tuple(map(_strict, value.args)), named)
    if getattr(value, "__self__", None) is part:
        return ("method", getattr(value, "__name__", ""))
    return id(value)


def _strict(value: object) -> Hashable:
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_strict, value))
    return id(value)


def _differing(parts: Sequence[nn.Module]) -> list[str]:
    """Return the loose attributes that differ between equal modules."""
    first = vars(parts[0])
    return [
        name
        for name, value in first.items()
        if isinstance(value, _LOOSE)
        and name not in _NO_STATE
        and any(vars(other)[name] != value for other in parts[1:])
    ]
