"""Finds the factories in a Python file without executing it."""

from __future__ import annotations

import ast
from pathlib import Path

from wse_sim.errors import ModelError
from wse_sim.files import is_file, read_text


def names_file(spec: str) -> bool:
    """Return whether a model is given as a Python file without the name of a factory."""
    return spec.endswith(".py")


def factories_of(path: str | Path) -> list[str]:
    """Return the names of the public functions of a file that take no arguments and return a value, in order.

    Raises
    ------
    ModelError
        If there is no such file, or it does not parse.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "users.py"
    >>> _ = file.write_text("def make(): return model, args\\ndef helper(x): return x\\n")
    >>> factories_of(file)
    ['make']
    """
    if not is_file(path, "model file", ModelError):
        raise ModelError(f"there is no file {path}; name one that exists, as FILE.py:factory")
    try:
        tree = ast.parse(read_text(path))
    except (SyntaxError, ValueError) as fault:
        line = f":{fault.lineno}" if isinstance(fault, SyntaxError) else ""
        raise ModelError(
            f"{path}{line}: does not parse ({getattr(fault, 'msg', fault)}); correct the syntax"
        ) from fault
    return [
        item.name
        for item in tree.body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and _is_factory(item)
    ]


def _is_factory(item: ast.FunctionDef) -> bool:
    """Return whether a function needs no argument and returns a value."""
    needed = len(item.args.posonlyargs) + len(item.args.args) - len(item.args.defaults)
    needed += sum(default is None for default in item.args.kw_defaults)
    return not needed and any(isinstance(x, ast.Return) and x.value is not None for x in ast.walk(item))


def unnamed(path: str | Path) -> ModelError:
    """Return the error for a file without the name of a factory; it lists the factories of the file.

    Raises
    ------
    ModelError
        As :func:`factories_of`.
    """
    found = factories_of(path)
    if found:
        listed = ", ".join(f"{path}:{name}" for name in found)
        return ModelError(
            f"{path} is a file without the name of a factory; it has {listed}; name one of them"
        )
    made = next(reversed(_classes(path)), None)
    returned = f"({made}(...), example_args) of its class {made}" if made else "(module, example_args)"
    return ModelError(
        f"{path} has no factory; write a function without arguments that returns {returned} and name it, "
        f"as {path}:factory"
    )


def _classes(path: str | Path) -> list[str]:
    """Return the names of the classes of a file that have a base with a name ending in "Module"."""
    return [
        item.name
        for item in ast.parse(read_text(path)).body
        if isinstance(item, ast.ClassDef) and any(ast.unparse(base).endswith("Module") for base in item.bases)
    ]


def named_models(spec: str) -> list[str]:
    """Return the models that a name represents: itself, or all factories of a Python file.

    Raises
    ------
    ModelError
        If the file has no factory, or as :func:`factories_of`.
    """
    if not names_file(spec):
        return [spec]
    found = factories_of(spec)
    if not found:
        raise unnamed(spec)
    return [f"{spec}:{name}" for name in found]
