"""Execution of host scripts that were written for NumPy 1, which promotes a NumPy scalar and a Python number
to the wider type.

Public scripts combine time stamps as ``words[0] + (words[1] << 16) + (words[2] << 32)`` with 16-bit words.
NumPy 1 computes this in 64 bits; NumPy 2 stays at 16 bits and silently gives 0. Wider results of copies would
not help, because the scripts cast to ``uint16`` themselves. Therefore the operators of the script, and of the
modules in its folder, are replaced by calls of :func:`combine`, which applies the type promotion of NumPy 1
to scalars. Arrays keep their type in both versions.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import operator
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_NAME, _NAME_IN_PLACE = "_wse_sim_combine", "_wse_sim_combine_in_place"  # not "__", which classes mangle
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.LShift: "lshift", ast.RShift: "rshift", ast.BitOr: "or_", ast.BitXor: "xor", ast.BitAnd: "and_",
}  # fmt: skip
_PLAIN: dict[str, Callable[[Any, Any], Any]] = {name: getattr(operator, name) for name in _OPERATORS.values()}
_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, f"i{name.rstrip('_')}") for name in _OPERATORS.values()
}
_SCALARS = (np.integer, np.floating, np.complexfloating)
_WIDE: dict[type, type] = {int: np.int64, float: np.float64, complex: np.complex128}


def _widened(a: object, b: object) -> tuple[Any, Any]:
    """Convert a NumPy scalar and a Python number to the type that NumPy 1 gives both; return other operands
    unchanged."""
    if isinstance(a, _SCALARS) and type(b) in _WIDE:
        return _pair(a, b)
    if isinstance(b, _SCALARS) and type(a) in _WIDE:
        second, first = _pair(b, a)
        return first, second
    return a, b


def _pair(scalar: Any, number: Any) -> tuple[Any, Any]:
    wide = _WIDE[type(number)]
    if wide is np.int64 and not -(1 << 63) <= number < 1 << 63:
        return scalar, number
    common = np.promote_types(scalar.dtype, wide)
    if (
        common.kind == "f" and scalar.dtype.kind == "u" and wide is np.int64
    ):  # uint64 and int promote to float, which cannot be shifted
        return scalar, number
    return scalar.astype(common), common.type(number)


def combine(name: str, a: Any, b: Any) -> Any:
    """Return ``a OP b`` with the type promotion of NumPy 1.

    >>> int(combine("lshift", np.uint16(3), 16))
    196608
    """
    return _PLAIN[name](*_widened(a, b))


def combine_in_place(name: str, a: Any, b: Any) -> Any:
    """Return ``a OP= b``: scalars are promoted as in :func:`combine`, and other operands are updated in
    place."""
    return _IN_PLACE[name](*_widened(a, b))


class _Rewriter(ast.NodeTransformer):
    """Transformer that replaces operators by calls, unless both operands are constants; line and column
    numbers stay the same."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OPERATORS or _is_text(node.left):
            return node
        if isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant):
            return node
        return _call(node, _NAME, _OPERATORS[type(node.op)], node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OPERATORS or not isinstance(node.target, ast.Name):
            return node
        before = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = _call(node, _NAME_IN_PLACE, _OPERATORS[type(node.op)], before, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _call(node: ast.AST, function: str, name: str, left: ast.expr, right: ast.expr) -> ast.Call:
    called = ast.Call(ast.Name(function, ast.Load()), [ast.Constant(name), left, right], [])
    return ast.fix_missing_locations(ast.copy_location(called, node))


def compiled(source: bytes | str, path: str) -> types.CodeType:
    """Compile a script with the arithmetic of NumPy 1.

    Raises
    ------
    SyntaxError
        If the source is not valid Python.
    """
    tree = _Rewriter().visit(ast.parse(source, path))
    return compile(tree, path, "exec", dont_inherit=True)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader of a module in the script's folder; its compiled code is not cached on disk."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> types.CodeType:  # type: ignore[override]
        return compiled(data, str(path))

    def path_stats(self, path: Any) -> Any:
        raise OSError("the code is made anew in every run")

    def exec_module(self, module: types.ModuleType) -> None:
        _give_functions(module.__dict__)
        super().exec_module(module)


class _Beside:
    """Finder, for `sys.meta_path`, of modules below the script's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        places = [self.folder] if path is None else [p for p in path if str(p).startswith(self.folder)]
        if not places:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, places, target)
        if (
            found is None
            or not isinstance(found.loader, importlib.machinery.SourceFileLoader)
            or found.origin is None
        ):
            return None
        inside = found.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name, found.origin, loader=_Loader(found.name, found.origin), submodule_search_locations=inside
        )


def _give_functions(names: dict[str, Any]) -> None:
    names[_NAME], names[_NAME_IN_PLACE] = combine, combine_in_place


def run_script(path: Path) -> None:
    """Run a script as ``__main__``; exceptions of the script propagate to the caller."""
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    main.__dict__["__builtins__"] = __builtins__
    _give_functions(main.__dict__)
    code = compiled(path.read_bytes(), str(path))
    before = sys.modules["__main__"]
    finder = _Beside(path.resolve().parent)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    finally:
        sys.modules["__main__"] = before
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
