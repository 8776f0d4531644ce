"""Types of the complete project, read from its source: bare ``Any``, long argument lists and long functions cannot
increase.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Annotations that are Any and nothing else, at most, in all folders; lower the number when the count falls.  What torch keeps to
# itself (its dispatch, contexts of gradients) has no types: ten of them are there.  41 came with models as objects, scripts of
# NumPy 1 and capture by operators, and wait for names.
MOST_BARE = 133
# Names Any in annotations of any form (as in dict[str, Any]), at most.
MOST_NAMED = 1245
MOST_ARGUMENTS = 10
MOST_LINES = 120  # of a function, with its docstring
# Each of these hands on the options of `csl run` one by one; they want an object of options.
MORE_ARGUMENTS = {
    "wse_sim/cli/csl.py:run_command",
    "wse_sim/csl/host/commands.py:run_commands",
    "wse_sim/fabric/vm/session.py:__init__",
}

PACKAGE = ("wse_sim", "kernels")
FOLDERS = (*PACKAGE, "benchmarks", "examples")


@functools.cache
def files() -> tuple[tuple[Path, ast.Module], ...]:
    gc.disable()  # it would look at a million nodes again and again
    found = tuple(
        (path, ast.parse(path.read_text(encoding="utf-8")))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "wse_sim/kernels/" not in path.as_posix()  # a link to the folder above
    )
    gc.enable()
    return found


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Free a million nodes, which would slow every later garbage collection of this process."""
    yield
    files.cache_clear()
    nodes.cache_clear()


def annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr | None]:
    given = function.args
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        yield argument.annotation if argument is not None else None
    yield function.returns


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def stated(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the annotations of arguments, results and variables."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (item for item in annotations(node) if item is not None)
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation


def is_any(item: ast.expr) -> bool:
    return isinstance(item, ast.Name) and item.id == "Any"


def is_bare(item: ast.expr) -> bool:
    """Return whether an annotation is Any, or a union with it, which accepts everything."""
    if isinstance(item, ast.BinOp):
        return is_bare(item.left) or is_bare(item.right)
    return is_any(item)


def bare_any(tree: ast.Module) -> int:
    return sum(is_bare(item) for item in stated(tree))


def named_any(tree: ast.Module) -> int:
    return sum(is_any(node) for item in stated(tree) for node in ast.walk(item) if isinstance(node, ast.expr))


def other_names_of_any(tree: ast.Module) -> list[str]:
    """Return the names that are given to Any, which would hide it from the count."""
    return [
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and is_bare(node.value)
    ] + [
        alias.asname
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "Any" and alias.asname
    ]


def test_the_count_sees_what_it_should() -> None:
    """Two arguments, a result, a union and a variable are bare; a mapping of Any has the name only."""
    text = "def f(a: Any, *b: Any, c: dict[str, Any], d: Any | None) -> Any:\n    x: Any = 0\n"
    tree = ast.parse(text)
    assert bare_any(tree) == 5
    assert named_any(tree) == 6
    assert other_names_of_any(ast.parse("from typing import Any as A\nB = Any\nC = int | Any")) == [
        *("B = Any", "C = int | Any"),
        "A",
    ]


@pytest.mark.slow
def test_bare_any_does_not_grow() -> None:
    found = {path.relative_to(ROOT).as_posix(): bare_any(tree) for path, tree in files()}
    most = sorted(found, key=lambda name: -found[name])[:5]
    assert sum(found.values()) <= MOST_BARE, f"{sum(found.values())} bare Any; name the type; most: {most}"


@pytest.mark.slow
def test_any_inside_types_does_not_grow() -> None:
    assert sum(named_any(tree) for _, tree in files()) <= MOST_NAMED


@pytest.mark.slow
def test_any_has_no_other_name() -> None:
    found = {str(path.relative_to(ROOT)): other_names_of_any(tree) for path, tree in files()}
    assert not {name: aliases for name, aliases in found.items() if aliases}


def is_jitted(function: ast.FunctionDef) -> bool:
    """Return whether a function is jitted, because jitted code takes arrays one by one."""
    return "kernel" in " ".join(ast.unparse(item) for item in function.decorator_list)


def arguments(function: ast.FunctionDef) -> int:
    """Return the arguments that a caller gives."""
    given = function.args
    names = [item.arg for item in given.posonlyargs + given.args + given.kwonlyargs]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@pytest.mark.slow
def test_functions_outside_jitted_code_take_few_arguments() -> None:
    """A function with more arguments declares a group of keywords (``**how: Unpack[...]``) or an object of options."""
    long = set()
    for path, tree in files():
        if path.relative_to(ROOT).parts[0] not in PACKAGE:
            continue
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef) and arguments(node) > MOST_ARGUMENTS and not is_jitted(node):
                long.add(f"{path.relative_to(ROOT)}:{node.name}")
    assert long == MORE_ARGUMENTS


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines from ``def`` to the last one."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


@pytest.mark.slow
def test_functions_are_not_longer_than_they_are() -> None:
    """A longer function, jitted or not, is divided by meaning, and the compiler inlines the parts."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{node.name}": lines(node)
        for path, tree in files()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines(node) > MOST_LINES
    }
    assert not found


def test_lines_of_a_function() -> None:
    (tree,) = ast.parse("@decorated\ndef f(\n    x,\n):\n    pass\n").body
    assert isinstance(tree, ast.FunctionDef)
    assert lines(tree) == 4
