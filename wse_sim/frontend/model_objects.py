"""Accepts models as Python objects: finds the module and its example arguments in them.

A model may be a module with arguments, a tuple of both, a function of tensors, a factory, a ``torch.fx``
graph module whose inputs have shapes, or an exported program. Error messages name types and shapes, never
values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import torch
from torch.export import ExportedProgram

from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.user_code import guarded

Made = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module with its example arguments by position and by name."""

FORMS = (
    "give (module, inputs), a function that returns it, a module with example_args, a program of torch.export, "
    "or a name"
)


class Called(torch.nn.Module):
    """A module that wraps a function of tensors, a scripted module, or a module without forward()."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.nn.Module):  # the weights of a method are those of its module
            self.owner = owner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped function with the same arguments."""
        return self.function(*args, **kwargs)


def taken_apart(given: object, what: str = "the model given") -> Made | ExportedProgram | KernelGraph:
    """Return the module and the arguments of a model that is an object.

    Parameters
    ----------
    given
        ``module``, ``(module, inputs)`` or ``(module, args, kwargs)``, where a function of tensors may
        replace the module; ``program`` or ``(program, inputs)``; a kernel graph; or a factory: a function
        without arguments that returns one of these.
    what
        The name of the model in error messages.

    Returns
    -------
    tuple, ExportedProgram or KernelGraph
        ``(module, args, kwargs)``; a program without inputs and a kernel graph are returned as they are.

    Raises
    ------
    ModelError
        If there is no module, or its inputs are not known.
    """
    if isinstance(given, KernelGraph | ExportedProgram):
        return given
    if isinstance(given, tuple) and len(given) in (2, 3) and _is_model(given[0]):
        args, kwargs = _arguments(given[1], what)
        named = given[2] if len(given) == 3 else {}
        if not isinstance(named, Mapping):
            raise ModelError(f"{what} has {_shown(named)} for named arguments; give a dict of names")
        return _joined(given[0], args, {**kwargs, **named}, what)
    if isinstance(given, torch.nn.Module):
        own = _own_arguments(given)
        if own is None:
            raise ModelError(
                f"{what} is a module without arguments, {type(given).__name__}; give (module, inputs) or set module.example_args"
            )
        return _joined(given, own, {}, what)
    if isinstance(given, type) and issubclass(given, torch.nn.Module):
        raise ModelError(_of_class(given, what))
    if callable(given):
        made, what = _called(given, what), f"what {what} returns"
        if not callable(made) or isinstance(made, torch.nn.Module | ExportedProgram):
            return taken_apart(made, what)
        given = made  # a function is not called again, so this ends
    if (
        isinstance(given, tuple)
        and given
        and isinstance(given[0], str | PurePath | Mapping | KernelGraph | tuple)
    ):
        raise ModelError(
            f"{what} is {_shown(given)}: its first part already has arguments; give it alone, without inputs"
        )
    raise ModelError(f"{what} is {_shown(given)}; {FORMS}")


def _of_class(given: type, what: str) -> str:
    name = given.__name__
    return f"{what} is the class {name}, not a module of it; give ({name}(...), inputs), or a function that returns it"


def _is_model(given: object) -> bool:
    return isinstance(given, ExportedProgram) or callable(given)


def _called(factory: Callable[..., object], what: str) -> object:
    """Call a factory and return its result.

    Raises
    ------
    ModelError
        If it needs arguments, or its code raises.
    """
    try:
        inspect.signature(factory).bind()
    except TypeError as fault:
        raise ModelError(
            f"{what} cannot be called without arguments ({fault}); name a factory that takes none, or give (function, inputs)"
        ) from fault
    except ValueError:
        pass  # a callable without a signature
    with guarded(what, ModelError):
        return factory()


def _arguments(inputs: object, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as positional and named arguments.

    A mapping has named arguments, a tuple or list has positional ones, and anything else is one argument.
    """
    if isinstance(inputs, str | bytes):
        raise ModelError(f"{what} has text as its inputs; give tensors, or a dict of them by name")
    if isinstance(inputs, Mapping):
        return (), {str(name): value for name, value in inputs.items()}
    if inputs is None:
        return (), {}
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _joined(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> Made | ExportedProgram:
    """Return a model with its arguments, as a module that torch can capture."""
    if isinstance(model, ExportedProgram):
        return model.module(), args, kwargs
    if isinstance(model, type):
        raise ModelError(_of_class(model, what))
    module = getattr(model, "_orig_mod", model)  # the module inside a wrapper of torch.compile
    if isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        module = module.module
    if isinstance(module, torch.jit.ScriptModule) or not isinstance(module, torch.nn.Module):
        module = Called(module)
    elif (
        type(module).forward is torch.nn.Module.forward
        and type(module).__call__ is not torch.nn.Module.__call__
    ):
        module = Called(module.__call__)  # a class that defines __call__() and no forward()
    return module, args, kwargs


def _own_arguments(module: torch.nn.Module) -> tuple[Any, ...] | None:
    """Return the example arguments that a module has; None if it has none.

    They are in its `example_args`, in the `meta` of a graph module, or in the metadata of its inputs from
    shape propagation.
    """
    args = getattr(module, "example_args", None)
    if args is None:
        args = getattr(module, "meta", {}).get("example_args")
    if args is not None:
        return tuple(args) if isinstance(args, tuple | list) else (args,)
    if not isinstance(module, torch.fx.GraphModule):
        return None
    found = []
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        known = node.meta.get("tensor_meta", node.meta.get("val"))
        if not (hasattr(known, "shape") and all(isinstance(size, int) for size in known.shape)):
            return None
        found.append(torch.zeros(tuple(known.shape), dtype=known.dtype))
    return tuple(found) if found else None


def _shown(given: object) -> str:
    """Return a description of an object without its values: its type, and the shape of a tensor."""
    if isinstance(given, torch.Tensor):
        return f"a tensor of shape {tuple(given.shape)}"
    if isinstance(given, Mapping) and any(isinstance(x, torch.Tensor) for x in given.values()):
        return "a dict of tensors, which has weights and no program"
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {', '.join(type(x).__name__ for x in given[:4]) or 'nothing'}"
    name = type(given).__name__
    return "None" if given is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def holds_tensors(given: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is a state dict and not the sizes of a model."""
    return any(isinstance(x, torch.Tensor) for x in given.values())


def of_dynamic_shapes(program: ExportedProgram) -> bool:
    """Return whether an input of a program has a dynamic shape."""
    return any(
        isinstance(value := node.meta.get("val"), torch.Tensor)
        and any(not isinstance(size, int) for size in value.shape)
        for node in program.graph.nodes
        if node.op == "placeholder"
    )
