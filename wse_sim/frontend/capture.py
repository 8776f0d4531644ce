"""Converts a PyTorch module to a :class:`~wse_sim.frontend.trace.Trace`.

Weights become fake tensors on the device "cpu" (if they were built on "meta"), ``torch.export`` captures the
module without strict mode, and writes in place become operators with a new result, while linear layers, attention,
norms and convolutions stay single operators.

It is one file so that a change of torch's export affects one file.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from wse_sim.errors import ModelError, WseError
from wse_sim.frontend import torch_flops
from wse_sim.frontend.archive import inert
from wse_sim.frontend.branch_folding import FoldedTests
from wse_sim.frontend.capture_inputs import as_fake, run_without_values, told_apart, with_more_samples
from wse_sim.frontend.containers import Containers, decomposed_result, root_of, unread
from wse_sim.frontend.decompositions import decomposed
from wse_sim.frontend.devices import modules_stay
from wse_sim.frontend.eager_types import types_as_eager
from wse_sim.frontend.equal_layers import Layers
from wse_sim.frontend.example_values import recorded, replaying
from wse_sim.frontend.faults import (
    EAGER,
    asked_for_gradient,
    fails_alike,
    holds_cache,
    raised_here,
    sentence_of,
    unwanted_operator,
)
from wse_sim.frontend.forward_gradients import captured
from wse_sim.frontend.function_definitions import defined
from wse_sim.frontend.functional import made_functional
from wse_sim.frontend.layer_copies import copied
from wse_sim.frontend.obstacles import guesses, is_collecting, met
from wse_sim.frontend.program_reader import ProgramReader, is_counter, kinds_of, operator_of, source_of
from wse_sim.frontend.raising_checks import PassedChecks
from wse_sim.frontend.regions import frozen_marked, without_regions
from wse_sim.frontend.samples import FACTOR
from wse_sim.frontend.scalar_indices import scalars_stay
from wse_sim.frontend.source_lines import helpers_recorded
from wse_sim.frontend.substitutes import modules_go_on, products_seen
from wse_sim.frontend.trace import Trace
from wse_sim.frontend.unread import may_be_unread
from wse_sim.frontend.watch import (
    Caches,
    as_it_was,
    assigned_attributes,
    does_the_same,
    found_submodules,
    plain_state,
    quiet,
    reject_assigned_attributes,
    reject_side_effects,
    scripts_called,
    seeded,
    set_plain,
    switched,
    take_caches_apart,
    unchecked,
)

if TYPE_CHECKING:
    pass

MOST_SEEN = 1
"""Most captures that end because a hidden weight is needed; the next one hides none."""


def _ties(module: torch.nn.Module) -> dict[str, list[str]]:
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {names[0]: names[1:] for names in groups.values() if len(names) > 1}


def export(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    training: bool,
    notes: list[str] | None = None,
    *,
    is_retry: bool = False,
    has_gradients: bool = False,
    once: list[Layers] | None = None,
) -> torch.export.ExportedProgram:
    """Export a module; its training mode is set for the capture and restored afterwards.

    A result with a cache object of transformers is decomposed into its keys and values.

    Parameters
    ----------
    module, args, kwargs
        The module and its example arguments, by position and by name.
    training
        Whether the module is captured in training mode.
    notes
        A list to which notes on the capture are appended.
    is_retry
        Whether this is the second attempt, after cache classes were registered with torch.
    has_gradients
        Whether forward() computes gradients itself.
    once
        A list that receives the equal layers that are captured once. The program then has marks, which
        :func:`trace_exported` replaces. None captures every layer.

    Raises
    ------
    ModelError
        One sentence with the user's line, the reason and the remedy.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ModelError(
            "autocast is on around the capture, where torch ignores it; enter it inside forward() or choose precision="
        )
    given, named = told_apart((tuple(args), dict(kwargs or {})))
    fake, fake_args, fake_kwargs = as_fake(module, given, named)
    modes = {m: m.training for m in fake.modules()}
    program: torch.export.ExportedProgram | None
    with contextlib.suppress(NotImplementedError):  # an exported module has its mode built in
        fake.train(training)
    try:
        with as_it_was(fake), found_submodules(fake) as constants:
            program, said, switches = _settled(
                fake, fake_args, fake_kwargs, (given, named), once, has_gradients
            )
    except (WseError, MemoryError):
        raise
    except Exception as fault:  # the model's own or torch's, of any type; the sentence quotes it
        if not has_gradients and asked_for_gradient(fault):
            has_gradients, once = True, None
        elif raised_here(fault):
            raise
        elif not is_retry and holds_cache(fault) and take_caches_apart(module):
            is_retry = True
        else:
            with PassedChecks():
                fails_too = fails_alike(fault, lambda: run_without_values(module, given, named))
            raise ModelError(sentence_of(fault, type(module).__name__, is_eager=fails_too)) from fault
        program = None
    finally:
        for part, mode in modes.items():
            part.training = mode
    if program is None:  # retry outside the handler, so that a new fault is not chained to this one
        return export(
            module, args, kwargs, training, notes, is_retry=is_retry, has_gradients=has_gradients, once=once
        )
    if notes is not None:
        notes += said
        notes += [
            f"weights: {count:,} weights of the modules in '{name}' are constants, because a plain attribute holds the modules and "
            "no optimizer of the model's parameters would update them; torch.nn.ModuleList registers them"
            for name, count in constants.items()
            if training
        ]
        notes += [
            f"switches: forward() sets {name} to {value!r} at its first call; the graph is that of the calls after it"
            for name, value in switches.items()
        ]
    return program


def _settled(
    fake: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    once: list[Layers] | None,
    has_gradients: bool,
) -> tuple[torch.export.ExportedProgram, list[str], dict[str, Any]]:
    """Return the program of a module, notes, and the attributes that its first call switches.

    torch restores plain attributes after the capture, so changes are visible only at the end of forward(). If
    forward() changed strings, booleans or numbers, the module is captured again with the changed values. The
    second call must then leave them unchanged, or both calls must do the same work, as with a counter that
    the model itself does not use.
    """
    state = first = plain_state(fake)
    program, after, caches, caught, tests, containers = _watched(
        fake, args, kwargs, given, once, has_gradients
    )
    if made := switched(fake, first, after):
        first_call, first_program = after, program
        set_plain(fake, made)
        state = plain_state(fake)
        program, after, caches, caught, tests, containers = _watched(
            fake, args, kwargs, given, once, has_gradients
        )
        set_plain(fake, {name: first[name] for name in made})
        counts = {name for name in made if after[name] != state[name]}  # they change in every call
        is_same = bool(counts) and does_the_same(first_program, program)
        state = {**state, **{name: first[name] for name in counts}}
        after = {**after, **{name: first[name] if is_same else first_call[name] for name in counts}}
        made = {name: value for name, value in made.items() if name not in counts}
        if is_same:
            tests.notes.append(
                f"counters: forward() changes {', '.join(sorted(counts))}; its work is the same in the first two calls"
            )
    scratch: set[str] = set()
    if assigned := assigned_attributes(caught, caches):
        # An attribute that is assigned before it is read is not state: capture again with other values in it.
        weights = [*fake.parameters(), *fake.buffers()]
        mode = next((w.fake_mode for w in weights if isinstance(w, FakeTensor)), contextlib.nullcontext())
        with containers.left_behind(fake, assigned, mode):
            again, _, kept, warned, *_ = _watched(fake, args, kwargs, given, None, has_gradients)
        if {*map(root_of, assigned_attributes(warned, kept))} <= {*map(root_of, assigned)}:
            scratch = unread(again, assigned)
    said = reject_assigned_attributes(caught, caches, scratch)
    reject_side_effects({k: v for k, v in state.items() if k not in scratch}, after, caches)
    return program, said + tests.notes, made


def _watched(
    fake: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    once: list[Layers] | None,
    has_gradients: bool,
) -> tuple[Any, ...]:
    """Capture a module, and repeat it if hidden weights are needed (:mod:`wse_sim.frontend.hidden_weights`).

    `once` is as for :func:`export`; layers in it state which weights an earlier capture needed.
    """
    if once is None:
        return _watched_once(fake, args, kwargs, given, None, has_gradients)
    shown = {*once[0].shown} if once else set[str]()
    for left in itertools.count(MOST_SEEN, -1):
        layers = Layers(fake, shown)
        once[:] = [layers]
        found = None
        try:
            found = _watched_once(fake, args, kwargs, given, layers, has_gradients)
        except Exception:
            if not layers.hidden.seen:
                raise
        if found is not None and not layers.hidden.seen:
            return found
        shown = shown | layers.hidden.seen if left else {""}  # all weights
    raise AssertionError("weights that are shown cannot be needed")


def _watched_once(
    fake: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    layers: Layers | None,
    has_gradients: bool,
) -> tuple[Any, ...]:
    """Capture a module once, with the equal layers that are traced once.

    Return the program, the plain attributes at the end of forward(), caches, torch's warnings, folded tests
    and containers.
    """
    after, caches, tests, containers = (
        dict[str, Any](),
        Caches(),
        FoldedTests(*given, fake, has_gradients),
        Containers(),
    )

    def at_the_end(
        _: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], made: object
    ) -> object:
        made = decomposed_result(made)
        tests.leave(made)
        after.update(plain_state(fake))
        caches.look(fake, inputs, named)
        containers.leave(fake)
        return made

    hidden = layers.hidden if layers is not None else None
    hooks = (
        fake.register_forward_pre_hook(containers.enter),
        fake.register_forward_pre_hook(tests.enter, with_kwargs=True),
        fake.register_forward_hook(at_the_end, with_kwargs=True),
        *(
            [fake.register_forward_pre_hook(hidden.enter), fake.register_forward_hook(hidden.leave)]
            if hidden
            else []
        ),
    )
    try:
        with (
            torch.no_grad(),
            warnings.catch_warnings(record=True) as caught,
            quiet(),
            seeded(),
            unchecked(),
            scripts_called(),
            modules_stay(),
            scalars_stay(),
            helpers_recorded(),
            types_as_eager(fake),
            defined() as unfused,
            modules_go_on(fake, products_seen, lambda: tests.latest)
            if guesses()
            else contextlib.nullcontext(),
            frozen_marked() if fake.training else contextlib.nullcontext() as functions,
            layers.once() if layers is not None else contextlib.nullcontext(),
            tests,
        ):
            warnings.simplefilter("always")
            program = (
                captured(fake, args, kwargs) if has_gradients else torch.export.export(fake, args, kwargs)
            )
        tests.notes += unfused
        tests.notes += [
            f"gradient: {name} has its own backward pass, which capture does not see; the graph has the gradient of its forward pass"
            for name in dict.fromkeys(functions or ())
        ]
    finally:
        for hook in hooks:
            hook.remove()
    return program, after, caches, caught, tests, containers


def trace_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = False,
    name: str = "",
) -> Trace:
    """Capture a module as a functional trace.

    Raises
    ------
    ModelError
        If torch cannot capture the module, or it has operators that a static machine cannot run.
    """
    ties = {other: first for first, others in _ties(module).items() for other in others}
    name = name or type(module).__name__

    copies = not is_collecting()  # while obstacles are collected, every layer is captured
    once: list[Layers] = []

    def captured_with(args: Sequence[object], kwargs: Mapping[str, object] | None) -> Trace:
        nonlocal copies
        try:
            return _traced(module, args, kwargs, training, ties, name, once if copies else None)
        except Exception:
            if not any(layers.used for layers in once):
                raise
        copies = False
        return _traced(module, args, kwargs, training, ties, name, None)

    def by_values(args: Sequence[object], kwargs: Mapping[str, object] | None) -> Trace:
        """Capture the module; if values decide what it does, those of the arguments do."""
        stopped: ModelError | None = None
        if not is_collecting():
            try:
                return captured_with(args, kwargs)
            except ModelError as fault:
                stopped = fault
        example = None
        try:
            example = recorded(module, tuple(args), dict(kwargs or {}), training=training)
        except ModelError as fault:
            if stopped is None or EAGER not in str(stopped):
                met(fault, "model")
        if example is None and stopped is not None:
            raise stopped
        with replaying(example):
            trace = _traced(module, args, kwargs, training, ties, name, None)
        trace.notes += [example.note] if example is not None and example.used else []
        return trace

    trace = by_values(args, kwargs)
    given = (tuple(args), dict(kwargs or {}))
    trace.counts = (lambda trains: torch_flops.counted_module(module, *given, trains), *trace.counts)
    more = None if is_collecting() else with_more_samples(given, FACTOR)
    if more is not None:

        def again() -> Trace:
            with quiet():
                return by_values(*more)

        trace.again = again
    return trace


def _traced(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    training: bool,
    ties: Mapping[str, str],
    name: str,
    once: list[Layers] | None,
) -> Trace:
    notes: list[str] = []
    program = export(module, args, kwargs, training, notes, once=once)
    trace = trace_exported(program, ties, name, once[0] if once else None)
    trace.notes += notes
    return trace


def trace_exported(
    program: torch.export.ExportedProgram,
    ties: Mapping[str, str] | None = None,
    name: str = "exported",
    layers: Layers | None = None,
) -> Trace:
    """Convert an exported program to a trace.

    `ties` maps names of tied weights to the name that is kept; `layers` are the equal layers that the program
    has once.

    Raises
    ------
    ModelError
        If the program has symbolic shapes, data-dependent operators or an operator that changes its input.
    """
    _check_program(program)
    program = given = without_regions(program)
    known = dict(ties or {}) | _ties_of(program)
    is_unread = may_be_unread(program)
    if not _is_functional(program):
        _set_apart(program)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # from torch's own calls
                program = made_functional(program)
        except (RuntimeError, AssertionError, ValueError, TypeError) as fault:
            raise ModelError(sentence_of(fault, name)) from fault
    if layers is not None:
        program = copied(program, layers)
    program = decomposed(program, lambda target: operator_of(target)[0])
    trace = ProgramReader(program, known, name).trace()
    # The decomposition leaves out what nothing reads; gradients need it, because writes in place have none.
    trace.counts = (lambda trains: torch_flops.counted_program(given if trains is None else program, trains),)
    trace.may_be_unread = is_unread
    return trace


def load_exported(path: str) -> torch.export.ExportedProgram:
    """Load a ``.pt2`` file; none of its content is executed, and the values of parameters are left out.

    Raises
    ------
    ModelError
        If the file is not a saved exported program, or has content that could be executed.
    """
    try:
        with quiet():
            return torch.export.load(inert(path))
    except (RuntimeError, ValueError, OSError, LookupError, TypeError, AttributeError, AssertionError, EOFError,
            zipfile.BadZipFile) as fault:  # fmt: skip
        first = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
        raise ModelError(
            f"{path} cannot be read as an exported program ({first}); write it with torch.export.save"
        ) from fault


def _ties_of(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the names of parameters that share memory with an earlier one, mapped to the name of that one."""
    seen: dict[Any, str] = {}
    ties = {}
    for key, value in program.state_dict.items():
        if isinstance(value, torch.nn.Parameter):
            storage = value.untyped_storage()
            mark = (storage._cdata, value.storage_offset(), tuple(value.shape))
            if storage.nbytes() and mark in seen:
                ties[key] = seen[mark]
            else:
                seen[mark] = key
    return ties


def _set_apart(program: torch.export.ExportedProgram) -> None:
    """Give the second names of tensors, which no operator of a program reads, separate tensors.

    torch does not decompose a program that writes to a tensor with two names, such as a buffer of a layer that is
    two attributes.
    """
    seen: set[int] = set()
    for name, value in program.state_dict.items():
        if id(value) in seen:
            copied_value = value.detach().clone()
            program.state_dict[name] = (
                torch.nn.Parameter(copied_value, value.requires_grad)
                if isinstance(value, torch.nn.Parameter)
                else copied_value
            )
        seen.add(id(value))


def _check_program(program: torch.export.ExportedProgram) -> None:
    stopped: ModelError | None = None
    for node in program.graph.nodes:
        kind = _unwanted(node)
        if kind is not None:
            source = source_of(node)
            stopped = ModelError(unwanted_operator(kind[0], kind[1], source))
            met(stopped, "capture", source)
    if stopped is not None:  # shapes of later nodes are unknown
        raise stopped


def _unwanted(node: torch.fx.Node) -> tuple[str, str] | None:
    """Return (kind, operator) of a node that a static machine cannot run; None for other nodes."""
    value = node.meta.get("val")
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor) and any(not isinstance(s, int) for s in item.shape):
            return "dynamic", str(node.target)
        if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)) and node.op == "call_function":
            return operator_of(node.target)[0], str(node.target)
    if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
        kind = node.target.__name__
        if kind not in {"wrap_with_autocast", "wrap_with_set_grad_enabled"}:
            return kind, kind
    return None


def _is_functional(program: torch.export.ExportedProgram) -> bool:
    """Return whether a program changes nothing in place except counters.

    Its nodes are then not copied.
    """
    kinds = kinds_of(program)
    return all(
        isinstance(node.target, torch._ops.OpOverload)
        and (not node.target._schema.is_mutable or is_counter(node, kinds))
        for node in program.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    )
