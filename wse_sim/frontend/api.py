"""Entry points of the frontend: they turn a name, a file, a factory, a module or an exported program into a kernel
graph.

One file, because every door ends in the same few steps.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from wse_sim.errors import ModelError
from wse_sim.files import exists
from wse_sim.foreign import guarded, loaded, owning
from wse_sim.frontend import store
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
from wse_sim.frontend.training import add_training
from wse_sim.graph import KernelGraph, frozen
from wse_sim.hardware import load_wafer
from wse_sim.timings import spent

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from wse_sim.frontend.build import LoweredModel
    from wse_sim.frontend.given import Made
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
"""A model: its name, a file, its sizes, a kernel graph, or an object of torch (:mod:`wse_sim.frontend.given`)."""


def _torch_part(name: str) -> ModuleType:
    """Import a module of the frontend that needs torch.

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
        A name of ``configs/models``, a path to such a YAML, a mapping of model parameters,
        ``package.module:factory`` or ``FILE.py:factory``, a ``.pt2`` file, or ``hf:PATH/config.json``; or an object: a
        module of torch, a function of tensors, ``(module, inputs)``, a program of ``torch.export``, a ``torch.fx``
        graph, a factory.
    inputs
        Example arguments of a module: one tensor, a tuple or list of arguments, or a mapping of names to them.
    batch, seq
        Samples of a step (default: 1, or what a factory's arguments or a saved program hold), and the
        length of a sample where it is a sequence.
    how
        Training, optimizer, precision and so on: :class:`~wse_sim.frontend.lowering.LoweringOptions`.

    Raises
    ------
    ModelError
        If the model cannot be found, read or lowered.
    ConfigError
        If a parameter is unknown or impossible.

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
    if isinstance(spec, Mapping) and "torch" in sys.modules and _torch_part("given").holds_tensors(spec):
        raise ModelError("a dict of tensors contains weights but no program; give (module, inputs)")
    key = store.key_of(spec, batch, seq, options)
    graph = store.get(key) if key is not None else None
    if graph is None:
        graph = _load(spec, batch, seq, options)[0]
        if key is not None:
            store.put(key, graph)
    return graph


def takes_sequence(spec: str) -> bool:
    """Return whether a length of the sequence can be chosen for a model; True where only building it would tell.

    Raises
    ------
    WseError
        If a name or file is at fault.
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
    """Return what clean-up and every rewrite rule did to a model, one line each, with counts of equal lines."""
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
    """Return all obstacles of a model, as :func:`load_model` takes it; `args` and `kwargs` are a module's example
    arguments.

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
    """Return a model together with its example arguments, if they are passed separately."""
    if args is None and not kwargs:
        return spec
    return (spec, () if args is None else args, dict(kwargs or {}))


def name_of(given: Model) -> str:
    """Return the name of a model: its text, of an object its class or the name of its function."""
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


def _without_numbers(text: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in text.split("."))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turn off Python's garbage collection in the block, because importing torch and tracing make a million lasting
    objects.

    A quarter of the CPU time of a first capture went into looking through them.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if (
                not gc.get_freeze_count()
            ):  # they count as old, or the next collection would look through them all
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
            _torch_part("given") and loaded(text, "a factory", ModelError),
            text.rpartition(":")[2],
        )
        return _from_object(factory, f"'{text}'", name, batch, options)
    found: ModelFile = named_model(text)
    return _from_parameters(found.name, found.model, batch, seq, options)


def _from_configuration(path: str, seq: int | None, options: Lowering) -> tuple[KernelGraph, LoweredModel]:
    """Lower a transformers configuration with all of its inputs; if some cannot be captured, without them,
    with a note."""
    module, examples, facts = _torch_part("huggingface").from_config(path, seq)
    name, faults = Path(path).parent.name or "hf", list[ModelError]()
    for kwargs in examples:
        try:
            graph, lowered = _lower(module, (), kwargs, options, samples=1, name=name, facts=facts)
        except ModelError as fault:
            faults.append(fault)
            continue
        if faults and (left := ", ".join(sorted({*examples[0]} - {*kwargs}))):
            note = f"inputs: the model is read without {left}, with which it is refused: {faults[0]}"
            graph = lowered.graph = dataclasses.replace(graph, notes=(*graph.notes, note))
        return graph, lowered
    raise faults[0]


def _from_parameters(
    name: str, p: ModelParameters, batch: int | None, seq: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    """Return a model of the zoo: captured for one sample, restated for `batch`."""
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
    """Capture and lower a module; `wrapper` is a part whose name is left out, `given` names its inputs."""
    capture = _torch_part("capture")
    lora = adapted(module, options.lora, options.lora_on, options.train) if options.lora else nullcontext()
    with lora:
        with spent("capture"):
            trace = capture.trace_module(module, args, kwargs, training=options.training, name=name)
        if wrapper:
            trace.drop_prefix(wrapper, given)
        return _finish(trace, options, samples, facts)


@owning()
def _finish(
    trace: Trace, options: Lowering, samples: int | None, facts: dict[str, Any] | None = None
) -> tuple[KernelGraph, LoweredModel]:
    from wse_sim.frontend.build import lower_trace

    if options.train is not None and options.lora is None:
        train_only(trace, options.train)
    if samples is None:
        first = next((n for n in trace.nodes.values() if n.kind == "input" and n.shape), None)
        samples = first.shape[0] if first is not None else 1
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
            graph = _torch_part("joint").compared(graph, kept, trace, options.train is not None)
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
    if program.example_inputs and _torch_part("given").of_dynamic_shapes(program):
        # Shapes that were left open are those of the example.
        args, kwargs = program.example_inputs
        graph, lowered = _lower(program.module(), args, kwargs, options, samples=None, name=name)
    else:
        graph, lowered = _finish(_torch_part("capture").trace_exported(program, name=name), options, None)
    return (graph if batch is None else graph.with_samples(batch)), lowered


def _from_object(
    given: object, what: str, name: str, batch: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    """Lower a model that is an object; `what` names it in messages, `name` in the graph."""
    parts = _torch_part("given")
    _torch_part("capture")
    found = parts.taken_apart(given, what)
    if isinstance(found, KernelGraph):
        raise ModelError(f"{what} gives a kernel graph, which was read already; pass the graph itself")
    if not isinstance(found, tuple):
        return _from_program(found, what, name, batch, options)
    module, args, kwargs = found
    wrapper = "function" if isinstance(module, parts.Called) else ""
    with guarded(what, ModelError):
        graph, lowered = _lower(module, args, kwargs, options, samples=None, name=name, wrapper=wrapper)
        graph = lowered.graph = pin_kernels(graph, *marked_pins(module))
    return (graph if batch is None else graph.with_samples(batch)), lowered


def load_module(spec: str) -> Made:
    """Return (module, args, kwargs) of a factory, ``package.module:factory`` or ``FILE.py:factory``, with the weights
    that it gives.

    Raises
    ------
    ModelError
        If the factory is not found or fails.
    """
    parts = _torch_part("given")
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
    """Return the kernel graph of a ``torch.nn.Module`` for example arguments; samples are the first dimension of the
    first.

    It takes whatever :func:`load_model` takes.  `how`: :class:`~wse_sim.frontend.lowering.LoweringOptions`.

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
    """Return the kernel graph of a ``torch.export.ExportedProgram``."""
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
    """Return the kernel graph of a ``torch.fx.GraphModule`` for example arguments."""
    options = Lowering(training, optimizer, recompute, precision_of(precision))
    return _load((graph_module, args), None, None, options)[0]
