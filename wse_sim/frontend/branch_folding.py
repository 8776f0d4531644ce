"""Folds tests of masks in Python: ``if mask.any():`` takes the branch that the example arguments take.

A boolean or an integer that Python reads (``mask.sum().tolist()``) is folded if it depends only on constants
and on integers and booleans among the arguments and buffers (masks, ids, lengths), and these have values. A
value that depends on activations or weights is still an error.

Results whose shape depends only on such values (``edges[:, kept]``, ``mask.nonzero()``) become constants. A
mask that selects rows of activations becomes the list of the positions where it is true. So graphs with fixed
edges can be captured. A mask of floating-point arguments is folded only if it tests them for equality (with a value
of padding) and leaves out nothing of the example.

Lists of tensors that torch joins (``torch.tensor([a.max(), 3])``) become constants if the example determines
them; otherwise the tensors are stacked. Functions that represent several operators are expanded
(:mod:`wse_sim.frontend.expansions`).

A test of random numbers only (``if torch.rand([]) < 0.1: skip the layer``) takes the branch of their mean, so
the graph has the more probable branch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, get_proxy_mode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from wse_sim.errors import ModelError, WseError
from wse_sim.frontend.choices import Choices
from wse_sim.frontend.devices import is_move, on_one_device
from wse_sim.frontend.example_values import (
    LISTS,
    NUMBERS,
    PLACES,
    READS,
    REPEATED,
    depends_on_values,
    integers_among,
    replayed,
    shaped_by_values,
)
from wse_sim.frontend.expansions import SPELLED
from wse_sim.frontend.faults import (
    LINEARIZED,
    GradientAskedError,
    read_sentence,
    sentence_of,
    unwanted_operator,
)
from wse_sim.frontend.forward_gradients import gradient, own_detach
from wse_sim.frontend.known_values import (
    constant,
    has_counted_values,
    has_values,
    is_inexact,
    joined,
    stacked,
    tests_for_equality,
    worked_out,
)
from wse_sim.frontend.obstacles import guesses, is_collecting, met
from wse_sim.frontend.raising_checks import TESTS, current_line, passed
from wse_sim.frontend.scalar_indices import ScalarRows
from wse_sim.frontend.selections import FACTS, NOTE, Arguments, Function, Named, Selections
from wse_sim.frontend.source_lines import place_of, user_line
from wse_sim.frontend.substitutes import forget_after, last_operator, products_seen, substitute
from wse_sim.frontend.watch import in_transform, is_captured, is_known, made_by, slot_of

_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_ASKS = (torch.Tensor.requires_grad.__set__, torch.Tensor.requires_grad_)  # type: ignore[attr-defined]
_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
MOST_SHOWN = 8  # most numbers that a note prints


class FoldedTests(TorchFunctionMode):
    """Answers tests whose outcome the example determines, during a capture; `notes` lists them."""

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: torch.nn.Module,
        has_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.has_gradients = has_gradients  # the capture contains the operators that autograd runs
        self.trains = module.training
        self.given = pytree.tree_leaves((args, kwargs))
        self.buffers = {name: x for name, x in module.named_buffers() if has_counted_values(x)}
        self.values: dict[torch.fx.Node, torch.Tensor] = {}
        self.measured: dict[torch.fx.Node, torch.Tensor] = {}  # floating-point arguments with values
        self.notes: list[str] = []
        self.choices = Choices(module)
        self.selections, self.rows = Selections(current_line), ScalarRows(current_line)
        tensors = (
            x for x in (*module.parameters(), *module.buffers(), *self.given) if isinstance(x, torch.Tensor)
        )
        self.device = next((x.device for x in tensors), torch.device("cpu"))
        self.example = replayed()  # a run with the example arguments, if values decide what the model does
        self.latest: torch.Tensor | None = (
            None  # the last floating-point result, while the capture continues after faults
        )

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the node of the program for each argument and buffer with values; a hook before forward()."""
        mode = get_proxy_mode()
        if self.example is not None:
            self.example.enter()
        leaves = pytree.tree_leaves((args, kwargs))
        if mode is None or len(leaves) != len(self.given):
            return
        held = [(x, self.buffers[name]) for name, x in module.named_buffers() if name in self.buffers]
        for inner, real in [*zip(leaves, self.given, strict=True), *held]:
            node = made_by(inner, mode.tracer)
            if node is not None and has_values(real):
                (self.measured if is_inexact(real) else self.values)[node] = real

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if func in FACTS and not self.selections.known:
            return func(*args, **(kwargs or {}))
        if (placed := on_one_device(func, args, dict(kwargs or {}), self.device)) is not None:
            self._note_device()
            if is_move(func):
                return args[0]
            args, kwargs = placed
        if self.selections.known and (chosen := self._of_selected(func, args, kwargs or {})) is not None:
            return chosen[0]
        if func in SPELLED:
            return SPELLED[func](*args, **(kwargs or {}))
        if func is torch.autograd.grad:  # torch.func.grad calls it too
            if not self.has_gradients:
                raise GradientAskedError
            return gradient(func, args, kwargs or {})
        if func is torch.Tensor.detach and self.has_gradients:
            with own_detach():
                return func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "_make_dual" and not self.has_gradients:
            self._forward_gradient()
        if func in _ASKS and self.trains and not self.has_gradients and all((True, *args[1:])):
            self._note_asked()
        if func == _DATA and is_captured(args[0]):
            return args[0].detach()
        decided = self._decided(func, args, kwargs or {})
        if func is torch.Tensor.__format__ and args[0].dim() == 0:  # a name with a number: f"expert_{i}"
            value = self._answer(torch.Tensor.item, args[0])
            if value is not None:
                return format(value, args[1])
        if func in (*NUMBERS, *LISTS) and args and isinstance(args[0], torch.Tensor):
            answer = self._answer(func, args[0])
            if answer is not None:
                return answer
        if func in (torch.equal, torch.Tensor.equal) and (answer := self._equal(*args[:2])) is not None:
            return answer
        if self.example and decided is not None and func in READS:
            return self.example.made(func, args, dict(kwargs or {}), *decided)
        if func in TESTS and args and isinstance(args[0], torch.Tensor):
            is_test = func is not torch.Tensor.item or args[0].dtype is torch.bool
            if is_test and (answer := self._assumed()) is not None:
                return answer
        if (
            func is torch.tensor
            and args
            and any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(args))
        ):
            return self._assembled(args[0], *args[1:], **(kwargs or {}))
        if func in _INDEXING:
            args = (args[0], *self._numbers(func, (joined(args[1]),)), *args[2:])
            if (regular := self._as_slices(args[1])) is not None:
                made = func(args[0], regular, *args[2:])  # a copy, as of a list of places
                return made.clone() if func is torch.Tensor.__getitem__ else made
            if (row := self.rows.call(func, args)) is not None:
                return row[0]
        if shaped_by_values(func, args, kwargs or {}):
            args, answer = self._shaped(func, args, dict(kwargs or {}))
            if (
                answer is None
                and decided is None
                and not guesses()
                and shaped_by_values(func, args, kwargs or {})
            ):
                answer = self.selections.select(func, args)
            if answer is not None:
                return answer
        if self.example and decided is not None and depends_on_values(func, args, kwargs or {}):
            return self.example.made(func, args, dict(kwargs or {}), *decided)
        if func in (*NUMBERS, *LISTS) and is_collecting() and args and isinstance(args[0], torch.Tensor):
            return self._gone_on(func, args[0])
        if numbers := self._known_numbers(func, (*args, *(kwargs or {}).values())):
            return self._of_numbers(numbers, func, args, dict(kwargs or {}))
        if guesses():
            return self._guessed(func, args, dict(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _decided(self, func: Function, args: Arguments, kwargs: Named) -> tuple[object] | None:
        """Return what the example run gave for a call that depends on values, as a tuple; None without such a run.

        Writing one number to the places of a mask is the same program for all values.
        """
        if self.example is None or not depends_on_values(func, args, kwargs):
            return None
        found = self.example.next(func, args[0])
        is_one = func is torch.Tensor.__setitem__ and not (
            isinstance(args[2], torch.Tensor) and args[2].dim()
        )
        return None if is_one else found

    def _known_numbers(
        self, func: Function, operands: tuple[object, ...]
    ) -> list[tuple[torch.fx.Node, bool]]:
        """Return the integers among operands that are tensors and known, and whether the example run says them.

        Torch gets their values, so a function may read them: ``x.split([n, m])``, ``torch.arange(n)``.
        """
        mode = get_proxy_mode()
        found: list[tuple[torch.fx.Node, bool]] = []
        if mode is None:
            return found
        for x in integers_among(operands):
            ran = self.example.operand(func) if self.example is not None else None
            place = slot_of(x, mode.tracer)
            if place is None:
                continue
            value = self._value_of(x) if place.constant is None else None
            if value is not None or (place.constant is None and ran is not None):
                with torch._C.DisableTorchFunction(), _disable_current_modes():
                    # torch writes to it if the program writes to x
                    place.constant = torch.tensor(ran, dtype=x.dtype) if value is None else value.clone()
            if place.constant is not None:
                found.append((place.proxy.node, value is None and ran is not None))
        return found

    def _of_numbers(
        self,
        numbers: list[tuple[torch.fx.Node, bool]],
        func: Function,
        args: Arguments,
        kwargs: dict[str, Any],
    ) -> object:
        """Return the result of a call with known integers, and note if it reads one."""
        uses = [len(node.users) for node, _ in numbers]
        made = self._guessed(func, args, kwargs) if guesses() else func(*args, **kwargs)
        is_read = uses == [len(node.users) for node, _ in numbers]
        if isinstance(made, (torch.Tensor, tuple, list)) and is_read:
            if self.example is not None and any(ran for _, ran in numbers):
                self.example.use(func, "operand")
            else:
                self._note_values(func)
        return made

    def _of_selected(self, func: Function, args: Arguments, kwargs: Named) -> tuple[object] | None:
        """Return the result of a call with elements that a mask selects, as a tuple; None if it has none.

        Raises
        ------
        ModelError
            If the call needs the number of the elements.
        """
        found = self.selections.found((args, dict(kwargs)))
        if not found:
            return None
        possible, made = self.selections.call(func, args, kwargs)
        if not possible:
            raise ModelError(unwanted_operator("dynamic", "", found[0].line))
        if NOTE not in self.notes:
            self.notes.append(NOTE)
        return (made,)

    def leave(self, results: object) -> None:
        """Refuse results whose number of elements depends on values; a hook after forward().

        Raises
        ------
        ModelError
            If there are any.
        """
        self.rows.check()
        for selection in self.selections.found(results):
            raise ModelError(unwanted_operator("dynamic", "", selection.line))

    def _guessed(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Return the result of a call, or a guess if torch rejects the call, and record the obstacle."""
        if shaped_by_values(func, args, kwargs):
            met(
                ModelError(unwanted_operator("dynamic", "", current_line())),
                "capture",
                products=products_seen(),
            )
            if func is torch.Tensor.__getitem__:
                return args[0][self._all_places(args[1])]
            if func in PLACES:
                return torch.zeros(args[0].numel(), args[0].dim(), dtype=torch.long)
            return args[0].flatten() if func not in REPEATED else args[0]
        last = last_operator()
        try:
            made = func(*args, **kwargs)
            if isinstance(made, torch.Tensor) and made.is_floating_point():
                self.latest = made
            return made
        except (WseError, MemoryError):
            raise
        except Exception as fault:
            forget_after(last)
            products, guess = products_seen(), substitute(func, args, kwargs)
            if guess is None:
                raise
            met(ModelError(sentence_of(fault, "", current_line())), "capture", products=products)
            return guess

    def _all_places(self, index: object) -> object:
        """Return an index in which masks select every position."""
        parts: list[object] = []
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, torch.Tensor) and part.dtype is torch.bool:
                with torch._C.DisableTorchFunction(), _disable_current_modes():
                    places = torch.ones(part.shape, dtype=torch.bool).nonzero(as_tuple=True)
                parts += [constant(p) for p in places]
            else:
                parts.append(part)
        return tuple(parts)

    def _numbers(self, func: Function, sizes: Arguments) -> Arguments:
        """Return sizes with scalar integer tensors as numbers, if the example determines them."""
        leaves, spec = pytree.tree_flatten(sizes)
        known = [self._value_of(x) if isinstance(x, torch.Tensor) and x.dim() == 0 else None for x in leaves]
        if all(value is None for value in known):
            return sizes
        self._note_values(func)
        numbers = [x if value is None else value.item() for x, value in zip(leaves, known, strict=True)]
        return pytree.tree_unflatten(numbers, spec)  # type: ignore[no-any-return]

    def _equal(self, a: torch.Tensor, b: torch.Tensor) -> bool | None:
        """Return whether two integer tensors are equal; None if the example does not determine them."""
        known = self._value_of(a), self._value_of(b)
        if known[0] is None or known[1] is None:
            return None
        self._note_values(torch.equal)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return torch.equal(known[0], known[1])

    def _assumed(self) -> bool | None:
        """Return the truth value of :func:`passed`, and note that the check is left out."""
        answer = passed()
        note = f"checks: {current_line()} reads values, which a compiled program does not have; the check is left out"
        if answer is not None and note not in self.notes:
            self.notes.append(note)
        return answer

    def _assembled(
        self,
        data: object,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        **how: bool,
    ) -> torch.Tensor:
        """Evaluate ``torch.tensor`` of a list with tensors, whose values torch would read.

        Known tensors become numbers; otherwise all are stacked.
        """
        if isinstance(data, torch.Tensor):
            return data.detach().clone().to(device, dtype=dtype)
        leaves, spec = pytree.tree_flatten(data)
        known = [self._value_of(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        if all(x is not None for x in known):
            numbers = [x.tolist() if isinstance(x, torch.Tensor) else x for x in known]
            return torch.tensor(pytree.tree_unflatten(numbers, spec), dtype=dtype, device=device, **how)
        made = stacked(data)
        return made.detach().to(device, dtype=dtype)

    def _shaped(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Any]:
        """Return the arguments and the result of a call whose result shape depends on values.

        The result is None if the call still has to run, with known masks in its arguments replaced by index
        lists.
        """
        known = [
            self._value_of(x) if isinstance(x, torch.Tensor) else x
            for x in pytree.tree_leaves((args, kwargs))
        ]
        spec = pytree.tree_structure((args, kwargs))
        if all(
            x is not None or y is None for x, y in zip(known, pytree.tree_leaves((args, kwargs)), strict=True)
        ):
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                given, named = pytree.tree_unflatten(known, spec)
                made = func(*given, **named)
            self._note_values(func)
            return args, pytree.tree_map_only(torch.Tensor, constant, made)
        if func is torch.Tensor.__getitem__:
            places = self._places(args[1])
            if all(isinstance(x, slice) for x in places):  # a copy, as of a list of places
                return args, args[0][places].clone()
            return (args[0], places), None
        if func in REPEATED and len(args) + ("repeats" in kwargs) > 1:
            return args, self._repeated(args[0], *args[1:], **kwargs)
        return args, None

    def _repeated(
        self, x: torch.Tensor, repeats: torch.Tensor, dim: int | None = None, **_: object
    ) -> torch.Tensor | None:
        """Return the elements of x, repeated by counts, as an index_select; None if the counts are unknown."""
        counts = self._value_of(repeats)
        if counts is None:
            return None
        x, dim = (x.flatten(), 0) if dim is None else (x, dim)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            places = torch.arange(x.shape[dim]).repeat_interleave(counts.expand(x.shape[dim]))
        self._note_values(torch.repeat_interleave)
        return x.index_select(dim, constant(places))

    def _places(self, index: object) -> tuple[object, ...]:
        """Return an index in which known masks are replaced by the lists of positions where they are true.

        A mask over one dimension that leaves out nothing of the example becomes the whole dimension.
        """
        parts: list[object] = []
        for part in index if isinstance(index, tuple) else (index,):
            is_mask = isinstance(part, torch.Tensor) and part.dtype is torch.bool
            value = self._value_of(part) if is_mask else None
            if is_mask and value is None and (value := self._all_true(part)) is not None and value.dim() == 1:
                parts.append(slice(None))
                continue
            if value is None:
                parts.append(part)
                continue
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                found = value.nonzero(as_tuple=True)
            parts += [constant(places) for places in found]
            self._note_values(torch.Tensor.__getitem__)
        return tuple(parts)

    def _all_true(self, mask: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a mask that tells floating-point arguments from padding, if all are true; else None.

        They are known from then on, so counts of them are.
        """
        mode = get_proxy_mode()
        node = None if mode is None or not self.measured else made_by(mask, mode.tracer)
        if node is None or mode is None or not tests_for_equality(node):
            return None
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            known, random = {**self.values, **self.measured}, list[torch.fx.Node]()
            found = worked_out(node, known, getattr(mode.tracer, "root", None), random)
            if random or type(found) is not torch.Tensor or not bool(found.all()):
                return None
        self.values[node] = found
        self.notes.append(f"masks: {place_of(node)} leaves out nothing of the example; all is captured")
        return found

    def _as_slices(self, index: object) -> tuple[object, ...] | None:
        """Return an index with a constant list of equidistant places as a slice; None if it has none.

        Places from arguments, buffers or assumed choices count as irregular, because other values may follow.
        """
        if self.choices.values:
            return None
        parts = index if isinstance(index, tuple) else (index,)
        lists = [x for x in parts if isinstance(x, torch.Tensor)]
        if len(lists) != 1 or lists[0].dim() != 1 or lists[0].dtype is torch.bool or len(lists[0]) < 2:
            return None
        if any(isinstance(x, (int, list, tuple)) for x in parts):  # joins the list of places
            return None
        value = self._value_of(lists[0], {})
        places = [] if value is None else value.tolist()
        step = places[1] - places[0] if places else 0
        if step < 1 or places[0] < 0 or places != list(range(places[0], places[-1] + 1, step)):
            return None
        regular = slice(places[0], places[-1] + 1, step)
        return tuple(regular if x is lists[0] else x for x in parts)

    def _value_of(
        self, x: torch.Tensor, values: Mapping[torch.fx.Node, torch.Tensor] | None = None
    ) -> torch.Tensor | None:
        """Return the value of an integer or boolean tensor, else None.

        `values` are known values; default: those of the example's arguments and of buffers.
        """
        mode = get_proxy_mode()
        if mode is None or is_inexact(x):
            return None
        if has_counted_values(x):
            return x
        node = made_by(x, mode.tracer)
        if node is None:
            return None
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            found = self._worked_out(node, self.values if values is None else values, mode, [])
        return found if isinstance(found, torch.Tensor) and type(found) is torch.Tensor else None

    def _worked_out(
        self,
        node: torch.fx.Node,
        known: Mapping[torch.fx.Node, torch.Tensor],
        mode: ProxyTorchDispatchMode,
        random: list[torch.fx.Node],
    ) -> object:
        """Return the value of a node from known nodes, with the example's also from assumed choices of experts."""
        root = getattr(mode.tracer, "root", None)
        value = worked_out(node, known, root, random)
        if value is not None or known is not self.values or not (chosen := self.choices.found(node)):
            return value
        value = worked_out(node, {**known, **chosen}, root, random)
        notes = [self.choices.note(place_of(one).partition(" at ")[2]) for one in chosen]
        self.notes += [note for note in dict.fromkeys(notes) if note not in self.notes]
        return value

    def _note_device(self) -> None:
        if not any(note.startswith("devices:") for note in self.notes):
            line = user_line("".join(traceback.format_stack()))
            self.notes.append(
                f"devices: forward() names an accelerator at {line}; tensors stay where the input is"
            )

    def _forward_gradient(self) -> None:
        """Ask for a capture of the operators that autograd runs, for a dual tensor outside torch.func.jvp.

        Raises
        ------
        GradientAskedError
            If such a capture has to follow.
        ModelError
            If the tensor is one of torch.func.linearize, which traces another program.
        """
        if any(frame.f_code.co_name == "linearize" for frame, _ in traceback.walk_stack(None)):
            raise ModelError(f"{current_line()}: {LINEARIZED[0]}; {LINEARIZED[1]}")
        if not in_transform():
            raise GradientAskedError

    def _note_asked(self) -> None:
        line = user_line("".join(traceback.format_stack()))
        if line.startswith(str(Path(__file__).parent)):  # torch's own, during the capture
            return
        note = (
            f"gradient: {line} asks for the gradient of a value, which no weight and no result needs; its work is left "
            "out, although backward() of torch does it"
        )
        if note not in self.notes:
            self.notes.append(note)

    def _note_values(self, func: Callable[..., Any]) -> None:
        name = getattr(func, "__name__", "a function").replace("__getitem__", "a choice of elements")
        line = user_line("".join(traceback.format_stack()))
        note = f"values: {name} at {line} has the shape that the example's integers give; these are captured as constants"
        if note not in self.notes:
            self.notes.append(note)

    def _gone_on(self, func: Callable[..., Any], read: torch.Tensor) -> object:
        """Record the obstacle that a value is read; return False for a test, and ones for numbers."""
        if is_known(read):  # torch itself reads constants
            return func(read)
        test = func is torch.Tensor.__bool__ or read.dtype is torch.bool
        met(ModelError(read_sentence(is_test=test)), "capture", current_line(), products=products_seen())
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            with _disable_current_modes():
                return func(torch.ones(read.shape, dtype=read.dtype))
        return False if test else 1.0 if read.is_floating_point() and func is not torch.Tensor.__int__ else 1

    def _answer(self, func: Callable[..., Any], read: torch.Tensor) -> Any:
        """Return the value that Python reads; None if the example does not determine it.

        It consists of integers or booleans, or of numbers that depend only on the means of random numbers.
        """
        mode = get_proxy_mode()
        node = made_by(read, mode.tracer) if mode is not None else None
        if node is None or mode is None:
            return None
        random: list[torch.fx.Node] = []
        # Floating-point values are known only if they depend on random numbers alone.
        known = {} if is_inexact(read) else self.values
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            value = self._worked_out(node, known, mode, random)
            if not isinstance(value, torch.Tensor) or type(value) is not torch.Tensor:
                return None
            answer, shown = func(value), str(value.tolist())
        if is_inexact(read) and not random:
            return None
        kind = "a test" if read.dtype is torch.bool else "a value"
        shown = shown if value.numel() <= MOST_SHOWN else f"{value.numel()} numbers"
        note = f"masks: {kind} of {place_of(node)} is {shown} for the example arguments; only that branch is captured"
        if random:
            note = f"chance: {kind} of {place_of(node)} is {shown} for the mean of {place_of(random[0])}; only that branch is captured"
        if note not in self.notes:
            self.notes.append(note)
        return answer
