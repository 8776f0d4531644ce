"""Entry points of the frontend, which lower any form of a model to a kernel graph.

A model may be a name, a file, a factory, a module or an exported program. The entry points are in one file
because all of them end in the same few steps.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from wse_sim.errors import ModelError
from wse_sim.files import exists
from wse_sim.frontend import shipped_graphs, store
from wse_sim.frontend.doctor import Diagnosis, examine, examine_graph
from wse_sim.frontend.factories import names_file, unnamed
from wse_sim.frontend.hints import marked_pins, pin_kernels
from wse_sim.frontend.lowering import Lowering, LoweringOptions
from wse_sim.frontend.parameters import (
    ModelFile,
    ModelParameters,
    model_names,
    named_model,
    parse_parameters,
    read_model_file,
)
from wse_sim.frontend.partial import adapted, train_only
from wse_sim.frontend.precision import precision_of
from wse_sim.frontend.samples import first_samples, is_uncertain
from wse_sim.frontend.training import add_training
from wse_sim.graph import KernelGraph, frozen
from wse_sim.hardware import load_wafer
from wse_sim.timings import spent
from wse_sim.user_code import guarded, loaded, owning

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from wse_sim.frontend.build import LoweredModel
    from wse_sim.frontend.model_objects import Made
    from wse_sim.frontend.trace import Trace

__all__ = [
    "diagnose",
    "explain",
    "load_model",
    "load_module",
    "lower",
    "lower_exported",
    "lower_fx",
    "model_names",
    "name_of",
    "takes_sequence",
]

Model = str | Path | Mapping[str, Any] | KernelGraph | object
"""A model: a name, a file, its sizes, a kernel graph, or a PyTorch object (:mod:`wse_sim.frontend.model_objects`)."""


def _torch_part(name: str) -> ModuleType:
    """Import and return a module of the frontend that needs torch.

    Raises
    ------
    ModelError
        If torch is not installed.
    """
    try:
        with spent("import torch"):
            return importlib.import_module(f"wse_sim.frontend.{name}")
    except ModuleNotFoundError as fault:
        if fault.name == "torch":
            raise ModelError(
                "reading a model needs torch, which is not installed; pip install wse-sim[torch]"
            ) from fault
        raise


def load_model(
    spec: Model,
    inputs: object = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    **how: Unpack[LoweringOptions],
) -> KernelGraph:
    """Return the kernel graph of a model.

    Parameters
    ----------
    spec
        A name from ``configs/models``, the path of such a YAML file, a mapping of model parameters,
        ``package.module:factory`` or ``FILE.py:factory``, a ``.pt2`` file, or ``hf:PATH/config.json``; or an
        object: a PyTorch module, a function of tensors, ``(module, inputs)``, a program of ``torch.export``,
        a ``torch.fx`` graph module, a factory, or a kernel graph.
    inputs
        Example arguments of a module: one tensor, a tuple or list of arguments, or a mapping from names to
        arguments.
    batch
        Samples per step. Default: the number in the example arguments or in the saved program; 1 for other
        models.
    seq
        Length of a sample, for models whose samples are sequences.
    how
        Training, optimizer, precision and other options: :class:`~wse_sim.frontend.lowering.LoweringOptions`.

    Raises
    ------
    ModelError
        If the model cannot be found, read or lowered.
    ConfigError
        If a parameter is unknown or out of range.

    Examples
    --------
    >>> load_model("gpt2-small", training=True).facts["layers"]
    12
    """
    if batch is not None and batch < 1:
        raise ModelError(f"batch {batch} is not positive; ask for at least one sample")
    if seq is not None and seq < 1:
        raise ModelError(f"seq {seq} is not positive; ask for at least one position")
    options = Lowering.of(how)
    if isinstance(spec, KernelGraph):
        return spec if batch is None else spec.with_samples(batch)
    if inputs is not None or not isinstance(spec, str | Path | Mapping):
        return _load(spec if inputs is None else (spec, inputs), batch, seq, options)[0]
    if (
        isinstance(spec, Mapping)
        and "torch" in sys.modules
        and _torch_part("model_objects").holds_tensors(spec)
    ):
        raise ModelError("a dict of tensors contains weights but no program; give (module, inputs)")
    key = store.key_of(spec, batch, seq, options)
    if key is not None and (found := shipped_graphs.get(spec, seq, options)) is not None:
        return found.with_samples(batch or 1)
    graph = store.get(key) if key is not None else None
    if graph is None:
        graph = _load(spec, batch, seq, options)[0]
        if key is not None:
            store.put(key, graph)
    return graph


def takes_sequence(spec: str) -> bool:
    """Return whether the sequence length of a model can be chosen, without building the model.

    It is True for every ``hf:`` configuration, and False for factories and ``.pt2`` files.

    Raises
    ------
    WseError
        If the name is unknown, or the file cannot be read.
    """
    if spec.startswith("hf:"):
        return True
    if spec.endswith((".yaml", ".yml")):
        return read_model_file(Path(spec)).model.is_sequence
    if names_file(spec):
        raise unnamed(spec)
    return False if ":" in spec or spec.endswith(".pt2") else named_model(spec).model.is_sequence


def explain(
    spec: Model,
    *,
    batch: int | None = None,
    seq: int | None = None,
    training: bool = False,
) -> list[str]:
    """Return what clean-up and every rewrite rule did to a model, one line per kind of change with its count.

    Raises
    ------
    ModelError
        If the model cannot be found, read or lowered.
    """
    lowered = _load(spec, batch, seq, Lowering(training))[1]
    counts: dict[str, int] = {}
    for applied in lowered.applied:
        key = f"{applied.rule}: {_without_numbers(applied.what)}"
        counts[key] = counts.get(key, 0) + 1
    return [*lowered.log, *(f"{line} (x{n})" if n > 1 else line for line, n in counts.items())]


def diagnose(
    spec: Model,
    args: object = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    training: bool = False,
    wafer: str = "wse2",
) -> Diagnosis:
    """Return all obstacles of a model and its slow lines.

    Parameters
    ----------
    spec
        A model, as for :func:`load_model`.
    args, kwargs
        Example arguments of a module, by position and by name.
    batch, seq, training
        As for :func:`load_model`.
    wafer
        Name of the wafer on which slow lines are priced.

    Raises
    ------
    ModelError
        If the model cannot be found.
    """
    options, machine = Lowering(training), load_wafer(wafer)
    if isinstance(spec, KernelGraph) and args is None and not kwargs:
        return examine_graph(spec if batch is None else spec.with_samples(batch), machine)
    model = _with_arguments(spec, args, kwargs)
    return examine(lambda: _load(model, batch, seq, options), name_of(model), machine)


def _with_arguments(spec: Model, args: object, kwargs: Mapping[str, Any] | None = None) -> Model:
    """Return a model with its example arguments, if they are passed separately."""
    if args is None and not kwargs:
        return spec
    return (spec, () if args is None else args, dict(kwargs or {}))


def name_of(given: Model) -> str:
    """Return the name of a model: its text, or the name of an object's class or function."""
    if isinstance(given, str | Path):
        return str(given)
    if isinstance(given, KernelGraph):
        return given.name
    if isinstance(given, Mapping):
        return str(given.get("name", "model"))
    first = given[0] if isinstance(given, tuple) and given else given
    first = getattr(first, "_orig_mod", first)
    name = getattr(first, "__name__", "") if inspect.isroutine(first) else ""
    name = name if name.isidentifier() else type(first).__name__
    return "exported" if name == "ExportedProgram" else name


@contextmanager
def _torch_kept() -> Iterator[None]:
    """Restore the settings of torch after the block, which the code of a model may change."""
    with _torch_part("torch_state").kept():
        yield


def _without_numbers(text: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in text.split("."))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable Python's garbage collection within the block.

    Importing torch and tracing create about a million long-lived objects; scanning them took a quarter of the
    CPU time of a first capture.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if (
                not gc.get_freeze_count()
            ):  # move the new objects to the oldest generation; otherwise the next collection scans them all
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@_uncollected()
def _load(
    spec: Model, batch: int | None, seq: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    if not isinstance(spec, str | Path | Mapping):
        graph, lowered = _from_object(spec, "the model given", name_of(spec), batch, options)
        if seq is not None:
            note = f"seq {seq} has no effect: the example arguments give the length of a sample"
            graph = dataclasses.replace(graph, notes=(*graph.notes, note))
        return graph, lowered
    if isinstance(spec, Mapping):
        inner = spec.get("model", spec)
        name = str(spec.get("name", "model")) if inner is not spec else "model"
        return _from_parameters(name, parse_parameters(inner), batch, seq, options)
    text = str(spec)
    if text.startswith("hf:"):
        graph, lowered = _from_configuration(text[3:], seq, options)
        return graph.with_samples(batch or 1), lowered
    if text.endswith((".yaml", ".yml")):
        file = read_model_file(Path(text))
        return _from_parameters(file.name, file.model, batch, seq, options)
    if text.endswith(".pt2"):
        return _from_pt2(Path(text), batch, options)
    if names_file(text):
        raise unnamed(text)
    if ":" in text:
        factory, name = (
            _torch_part("model_objects") and loaded(text, "a factory", ModelError),
            text.rpartition(":")[2],
        )
        return _from_object(factory, f"'{text}'", name, batch, options)
    found: ModelFile = named_model(text)
    return _from_parameters(found.name, found.model, batch, seq, options)


def _from_configuration(path: str, seq: int | None, options: Lowering) -> tuple[KernelGraph, LoweredModel]:
    """Lower a transformers configuration with the first of its example inputs that can be captured.

    A note names the inputs that are left out and the reason.

    Raises
    ------
    ModelError
        The fault of the first example inputs, if none can be captured.
    """
    module, examples, facts = _torch_part("huggingface").from_config(path, seq)
    name, faults, inputs = Path(path).parent.name or "hf", list[ModelError](), set[str]()
    for kwargs in examples:
        inputs = inputs or {*kwargs}
        try:
            graph, lowered = _lower(module, (), kwargs, options, samples=1, name=name, facts=facts)
        except ModelError as fault:
            faults.append(fault)
            continue
        if faults and (left := ", ".join(sorted(inputs - {*kwargs}))):
            note = f"inputs: the model is read without {left}, with which it is refused: {faults[0]}"
            graph = lowered.graph = dataclasses.replace(graph, notes=(*graph.notes, note))
        return graph, lowered
    raise faults[0]


def _from_parameters(
    name: str, p: ModelParameters, batch: int | None, seq: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    """Lower a model of the zoo: capture it for one sample and scale its graph to `batch` samples."""
    if p.is_sequence and p.mlm_positions and seq and p.mlm_positions > seq:
        raise ModelError(
            f"mlm_positions {p.mlm_positions} exceeds seq {seq}; lower it or give a longer sequence"
        )
    zoo = _torch_part("zoo")
    with spent("build the module"):
        module, args = zoo.build(p, 1, seq, loss=options.training)
    facts = {k: v for k, v in p.model_dump().items() if v is not None}
    facts |= {"dropout": p.training_dropout}
    if p.heads:
        facts["kv_heads"] = p.kv_heads or p.heads
    if p.is_sequence:
        facts["seq"] = seq or p.seq
        facts["tied"] = p.is_tied
    given: list[str] = []
    if options.training:
        given = [*list(inspect.signature(module.model.forward).parameters)[: len(args) - 1], "target"]
    graph, lowered = _lower(
        *(module, args, {}, options),
        samples=1,
        name=name,
        facts=facts,
        wrapper="model" if options.training else "",
        given=given,
    )
    return graph.with_samples(batch or 1), lowered


@_uncollected()
@owning()
@_torch_kept()
def _lower(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Lowering,
    *,
    samples: int | None,
    name: str = "",
    facts: dict[str, Any] | None = None,
    wrapper: str = "",
    given: Sequence[str] = (),
) -> tuple[KernelGraph, LoweredModel]:
    """Capture and lower a module.

    `wrapper` is the name of a wrapping module, which is removed from module paths; `given` are the names of
    the inputs in that case.
    """
    capture = _torch_part("capture")
    lora = adapted(module, options.lora, options.lora_on, options.train) if options.lora else nullcontext()
    with lora:
        with spent("capture"):
            trace = capture.trace_module(module, args, kwargs, training=options.training, name=name)
        if wrapper:
            trace.drop_prefix(wrapper, given)
        return finish(trace, options, samples, facts)


@owning()
@_torch_kept()
def finish(
    trace: Trace, options: Lowering, samples: int | None, facts: dict[str, Any] | None = None
) -> tuple[KernelGraph, LoweredModel]:
    from wse_sim.frontend.build import lower_trace

    if options.train is not None and options.lora is None:
        train_only(trace, options.train)
    if options.training:
        trace.keep_weights()
    if samples is None:
        samples = first_samples(trace)
    with spent("lower to kernels"):
        lowered = lower_trace(
            trace,
            precision=options.precision,
            training=options.training,
            samples=samples,
            facts=facts,
            skip=options.skip,
        )
    graph = dataclasses.replace(
        lowered.graph, facts=frozen({**lowered.graph.facts, "precision": options.precision.name})
    )
    if options.training:
        forward = graph
        with spent("gradients and updates"):
            graph = add_training(forward, optimizer=options.optimizer, recompute=options.recompute)
        with spent("FLOPs by torch"):
            kept = graph if options.recompute == "none" else add_training(forward)
            graph = _torch_part("torch_flops").compared(graph, kept, trace, options.train is not None)
    else:
        notes = _torch_part("torch_flops").unread_notes(trace)
        graph = dataclasses.replace(graph, notes=(*graph.notes, *notes))
    lowered.graph = graph
    return graph, lowered


def _from_pt2(path: Path, batch: int | None, options: Lowering) -> tuple[KernelGraph, LoweredModel]:
    if not exists(path, "model file", ModelError):
        raise ModelError(f"{path} does not exist; give the path of a file written by torch.export.save")
    program = _torch_part("capture").load_exported(str(path))
    return _from_program(program, str(path), path.stem, batch, options)


def _from_program(
    program: torch.export.ExportedProgram, what: str, name: str, batch: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    if options.lora:
        raise ModelError(
            f"{what} is a captured program, which takes no adapters; give the module it was made of"
        )
    if program.example_inputs and _torch_part("model_objects").of_dynamic_shapes(program):
        # Dynamic shapes get the sizes of the example inputs.
        args, kwargs = program.example_inputs
        graph, lowered = _lower(program.module(), args, kwargs, options, samples=None, name=name)
    else:
        graph, lowered = finish(_torch_part("capture").trace_exported(program, name=name), options, None)
    return (graph if batch is None else graph.with_samples(batch)), lowered


@_torch_kept()
def _from_object(
    given: object, what: str, name: str, batch: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    """Lower a model that is an object; `what` is its name in messages, `name` its name in the graph."""
    parts = _torch_part("model_objects")
    _torch_part("capture")
    found = parts.taken_apart(given, what)
    if isinstance(found, KernelGraph):
        raise ModelError(f"{what} gives a kernel graph, which was read already; pass the graph itself")
    if not isinstance(found, tuple):
        return _from_program(found, what, name, batch, options)
    module, args, kwargs = found
    wrapper = "function" if isinstance(module, parts.Called) else ""

    def lowered_for(made: Made) -> tuple[KernelGraph, LoweredModel]:
        module, args, kwargs = made
        graph, lowered = _lower(module, args, kwargs, options, samples=None, name=name, wrapper=wrapper)
        graph = lowered.graph = pin_kernels(graph, *marked_pins(module))
        return graph, lowered

    with guarded(what, ModelError):
        graph, lowered = lowered_for(found)
        if batch is None or batch == graph.samples:
            return graph, lowered
        if is_uncertain(graph.notes) and batch % graph.samples == 0:
            more = _torch_part("capture_inputs").with_more_samples((args, kwargs), batch // graph.samples)
            if more is not None:
                with suppress(ModelError):  # the graph of the given arguments then has a note
                    return lowered_for((module, *more))
    return graph.with_samples(batch), lowered


def load_module(spec: str) -> Made:
    """Return (module, args, kwargs) of a factory, ``package.module:factory`` or ``FILE.py:factory``.

    The module has the weights that the factory gave it.

    Raises
    ------
    ModelError
        If the factory is not found or fails, or returns no module with arguments.
    """
    parts = _torch_part("model_objects")
    _torch_part("capture")
    found = parts.taken_apart(loaded(spec, "a factory", ModelError), f"'{spec}'")
    if isinstance(found, tuple):
        return found
    if isinstance(found, KernelGraph) or not found.example_inputs:
        raise ModelError(f"'{spec}' gives no module with arguments; return (module, example_args)")
    return (found.module(), *found.example_inputs)


def lower(
    model: Model,
    args: object = None,
    kwargs: Mapping[str, Any] | None = None,
    **how: Unpack[LoweringOptions],
) -> KernelGraph:
    """Return the kernel graph of a ``torch.nn.Module`` for example arguments.

    `model` may also be any other model that :func:`load_model` accepts. The number of samples is the first
    dimension of the first input. `how`: :class:`~wse_sim.frontend.lowering.LoweringOptions`.

    Example
    -------
    >>> import torch
    >>> graph = lower(torch.nn.Linear(64, 10), (torch.zeros(1, 64),))
    >>> [(kernel.family, dict(kernel.dims)) for kernel in graph.kernels]
    [('gemm', {'m': 1, 'k': 64, 'n': 10})]

    Raises
    ------
    ModelError
        If torch cannot capture the module, or an operator has no kernel.
    """
    return load_model(_with_arguments(model, args, kwargs), **how)


def lower_exported(
    program: torch.export.ExportedProgram,
    *,
    training: bool = False,
    optimizer: str = "adamw",
    recompute: str = "none",
    precision: str | int = "mixed",
) -> KernelGraph:
    """Return the kernel graph of a ``torch.export.ExportedProgram``.

    `optimizer`, `recompute` and `precision` are those of :class:`~wse_sim.frontend.lowering.LoweringOptions`.

    Raises
    ------
    ModelError
        If the program cannot be lowered.
    """
    options = Lowering(training, optimizer, recompute, precision_of(precision))
    return _load(program, None, None, options)[0]


def lower_fx(
    graph_module: torch.nn.Module,
    args: Sequence[Any],
    *,
    training: bool = False,
    optimizer: str = "adamw",
    recompute: str = "none",
    precision: str | int = "mixed",
) -> KernelGraph:
    """Return the kernel graph of a ``torch.fx.GraphModule`` for example arguments.

    `optimizer`, `recompute` and `precision` are those of :class:`~wse_sim.frontend.lowering.LoweringOptions`.

    Raises
    ------
    ModelError
        If torch cannot capture the module, or an operator has no kernel.
    """
    options = Lowering(training, optimizer, recompute, precision_of(precision))
    return _load((graph_module, args), None, None, options)[0]
