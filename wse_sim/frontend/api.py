"""The doors of the frontend: a name, a file, a factory, a module or an exported program -> kernel graph.

One file, because every door ends in the same few steps.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from wse_sim.errors import ModelError
from wse_sim.files import exists
from wse_sim.foreign import guarded, loaded, owning
from wse_sim.frontend import store
from wse_sim.frontend.doctor import Diagnosis, examine
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
from wse_sim.spent import spent

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from wse_sim.frontend.build import LoweredModel
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
    "takes_sequence",
]


Made = tuple[Any, Sequence[Any], Mapping[str, Any]]
"""A module with example arguments (args, kwargs)."""


def _torch_part(name: str) -> ModuleType:
    """A module of the frontend that needs torch.

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
    spec: str | Path | Mapping[str, Any],
    *,
    batch: int | None = None,
    seq: int | None = None,
    **how: Unpack[LoweringOptions],
) -> KernelGraph:
    """The kernel graph of a model.

    Parameters
    ----------
    spec
        A name of ``configs/models``, a path to such a YAML, a mapping of model parameters,
        ``package.module:factory`` or ``FILE.py:factory``, a ``.pt2`` file, or ``hf:PATH/config.json``.
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
    key = store.key_of(spec, batch, seq, options)
    graph = store.get(key) if key is not None else None
    if graph is None:
        graph = _load(spec, batch, seq, options)[0]
        if key is not None:
            store.put(key, graph)
    return graph


def takes_sequence(spec: str) -> bool:
    """Whether a length of the sequence can be chosen for a model; True where only building it would tell.

    Raises
    ------
    WseError
        If a name or file is at fault.
    """
    if spec.startswith("hf:"):
        return True
    if spec.endswith((".yaml", ".yml")):
        return read_model_file(Path(spec)).model.is_sequence
    return False if ":" in spec or spec.endswith(".pt2") else named_model(spec).model.is_sequence


def explain(
    spec: str | Path | Mapping[str, Any],
    *,
    batch: int | None = None,
    seq: int | None = None,
    training: bool = False,
) -> list[str]:
    """What clean-up and every rewrite rule did to a model, one line each, equal lines counted."""
    lowered = _load(spec, batch, seq, Lowering(training))[1]
    counts: dict[str, int] = {}
    for applied in lowered.applied:
        key = f"{applied.rule}: {_without_numbers(applied.what)}"
        counts[key] = counts.get(key, 0) + 1
    return [*lowered.log, *(f"{line} (x{n})" if n > 1 else line for line, n in counts.items())]


def diagnose(
    spec: str | Path | Mapping[str, Any] | torch.nn.Module,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    training: bool = False,
    wafer: str = "wse2",
) -> Diagnosis:
    """All obstacles of a model, as :func:`load_model` takes it, or of a module with example arguments.

    Raises
    ------
    ModelError
        If the model cannot be found.
    """
    options, machine = Lowering(training), load_wafer(wafer)
    if args is not None:
        name, module = type(spec).__name__, cast("torch.nn.Module", spec)
        return examine(lambda: _lower(module, args, kwargs, options, samples=None), name, machine)
    model = cast(str, spec)
    return examine(lambda: _load(model, batch, seq, options), str(spec), machine)


def _without_numbers(text: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in text.split("."))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collection: importing torch and tracing make a million lasting objects.

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
    spec: str | Path | Mapping[str, Any], batch: int | None, seq: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    if isinstance(spec, Mapping):
        inner = spec.get("model", spec)
        name = str(spec.get("name", "model")) if inner is not spec else "model"
        return _from_parameters(name, parse_parameters(inner), batch, seq, options)
    text = str(spec)
    if text.startswith("hf:"):
        module, args, kwargs, facts = _torch_part("huggingface").from_config(text[3:], seq)
        graph, lowered = _lower(
            module, args, kwargs, options, samples=1, name=Path(text[3:]).parent.name or "hf", facts=facts
        )
        return graph.with_samples(batch or 1), lowered
    if text.endswith((".yaml", ".yml")):
        file = read_model_file(Path(text))
        return _from_parameters(file.name, file.model, batch, seq, options)
    if text.endswith(".pt2"):
        return _from_pt2(Path(text), batch, options)
    if ":" in text:
        return _from_factory(text, batch, options)
    found: ModelFile = named_model(text)
    return _from_parameters(found.name, found.model, batch, seq, options)


def _from_parameters(
    name: str, p: ModelParameters, batch: int | None, seq: int | None, options: Lowering
) -> tuple[KernelGraph, LoweredModel]:
    """A model of the zoo: captured for one sample, restated for `batch`."""
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
    graph, lowered = _lower(
        module,
        args,
        {},
        options,
        samples=1,
        name=name,
        facts=facts,
        wrapper="model" if options.training else "",
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
) -> tuple[KernelGraph, LoweredModel]:
    capture = _torch_part("capture")
    lora = adapted(module, options.lora, options.lora_on, options.train) if options.lora else nullcontext()
    with lora:
        with spent("capture"):
            trace = capture.trace_module(module, args, kwargs, training=options.training, name=name)
        if wrapper:
            names = list(inspect.signature(getattr(module, wrapper).forward).parameters)
            trace.drop_prefix(wrapper, [*names[: len(args) - 1], "target"])
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
    if options.lora:
        raise ModelError(
            f"{path} is a captured program, which takes no adapters; give the module it was made of"
        )
    capture = _torch_part("capture")
    graph, lowered = _finish(
        capture.trace_exported(capture.load_exported(str(path)), name=path.stem), options, None
    )
    return (graph if batch is None else graph.with_samples(batch)), lowered


def _from_factory(spec: str, batch: int | None, options: Lowering) -> tuple[KernelGraph, LoweredModel]:
    """Of what :func:`_made_by` gives."""
    _torch_part("capture")
    factory = loaded(spec, "a factory", ModelError)
    with guarded(f"'{spec}'", ModelError):
        module, args, kwargs = _made_by(factory, spec)
        graph, lowered = _lower(module, args, kwargs, options, samples=None, name=spec.rpartition(":")[2])
    return (graph if batch is None else graph.with_samples(batch)), lowered


def _made_by(factory: object, spec: str) -> Made:
    """Call ``package.module:factory`` or ``FILE.py:factory``.

    It gives (module, args), (module, args, kwargs) or a GraphModule with `example_args`.
    """
    made = factory
    if callable(factory) and not hasattr(factory, "parameters"):
        _check_call(factory, spec)
        made = factory()
    return _taken_apart(made, spec)


def load_module(spec: str) -> Made:
    """(module, args, kwargs) of a factory, ``package.module:factory`` or ``FILE.py:factory``, with the weights that it gives.

    Raises
    ------
    ModelError
        If the factory is not found or fails.
    """
    _torch_part("capture")
    factory = loaded(spec, "a factory", ModelError)
    with guarded(f"'{spec}'", ModelError):
        return _made_by(factory, spec)


def _check_call(factory: Callable[..., object], spec: str) -> None:
    """Raise ModelError if a factory cannot be called without arguments."""
    try:
        inspect.signature(factory).bind()
    except TypeError as fault:
        raise ModelError(
            f"'{spec}' cannot be called without arguments ({fault}); name a factory that takes none"
        ) from fault
    except ValueError:
        return  # a callable without a signature


def _taken_apart(made: object, spec: str) -> Made:
    if isinstance(made, tuple) and len(made) in (2, 3) and hasattr(made[0], "parameters"):
        given = made[1] if isinstance(made[1], (tuple, list)) else (made[1],)
        return made[0], given, made[2] if len(made) == 3 else {}
    if hasattr(made, "parameters"):
        args = getattr(made, "example_args", None) or getattr(made, "meta", {}).get("example_args")
        if args is not None:
            return made, args, {}
        raise ModelError(
            f"'{spec}' gives a module without arguments; return (module, example_args) or set module.example_args"
        )
    raise ModelError(f"'{spec}' gives a {type(made).__name__}; return (module, example_args)")


def lower(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    **how: Unpack[LoweringOptions],
) -> KernelGraph:
    """The kernel graph of a ``torch.nn.Module`` for example arguments; samples are the first dimension of the first.

    `how`: :class:`~wse_sim.frontend.lowering.LoweringOptions`.

    Raises
    ------
    ModelError
        If torch cannot capture the module, or an operator has no kernel.
    """
    options = Lowering.of(how)
    return pin_kernels(_lower(model, args, kwargs, options, samples=None)[0], *marked_pins(model))


def lower_exported(
    program: torch.export.ExportedProgram,
    *,
    training: bool = False,
    optimizer: str = "adamw",
    recompute: str = "none",
    precision: str | int = "mixed",
) -> KernelGraph:
    """The kernel graph of a ``torch.export.ExportedProgram``."""
    options = Lowering(training, optimizer, recompute, precision_of(precision))
    return _finish(_torch_part("capture").trace_exported(program), options, None)[0]


def lower_fx(
    graph_module: torch.nn.Module,
    args: Sequence[Any],
    *,
    training: bool = False,
    optimizer: str = "adamw",
    recompute: str = "none",
    precision: str | int = "mixed",
) -> KernelGraph:
    """The kernel graph of a ``torch.fx.GraphModule`` for example arguments."""
    options = Lowering(training, optimizer, recompute, precision_of(precision))
    return _finish(_torch_part("capture").trace_fx(graph_module, args, training=training), options, None)[0]
