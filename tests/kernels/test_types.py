"""Types of the whole project, read from its source: bare ``Any`` and long argument lists cannot grow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Annotations that are just Any, at most; lower a number when the count falls.  Rooms whose functions take what a
# user's program holds (tensors, CSL values) have more.
CEILINGS = {"kernels": 12, "wse_sim": 190, "wse_sim/csl": 13, "wse_sim/cstorch": 460}
MOST_ARGUMENTS = 10


def room_of(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return max((room for room in CEILINGS if name.startswith(room + "/")), key=len)


def files() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("kernels", "wse_sim"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "wse_sim/kernels/" not in path.as_posix():  # a link to the folder above
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr | None]:
    given = function.args
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        yield argument.annotation if argument is not None else None
    yield function.returns


def bare_any(tree: ast.Module) -> int:
    """Arguments, results and variables whose annotation is Any and nothing else."""
    count = 0
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = list(annotations(node))
        elif isinstance(node, ast.AnnAssign):
            found = [node.annotation]
        count += sum(isinstance(item, ast.Name) and item.id == "Any" for item in found)
    return count


def test_the_count_sees_what_it_should() -> None:
    """Two arguments, a result and a variable; a mapping of Any is not bare."""
    text = "def f(a: Any, *b: Any, c: dict[str, Any]) -> Any:\n    x: Any = 0\n"
    assert bare_any(ast.parse(text)) == 4


@pytest.mark.parametrize("room", sorted(CEILINGS))
def test_bare_any_does_not_grow(room: str) -> None:
    count = sum(bare_any(tree) for path, tree in files() if room_of(path) == room)
    assert count <= CEILINGS[room], f"{room}: {count} bare Any; name the type"


def is_exempt(path: Path, function: ast.FunctionDef) -> bool:
    """Jitted code takes arrays one by one; a command, the client's interface and an optimizer declare options."""
    decorators = " ".join(ast.unparse(item) for item in function.decorator_list)
    return "kernel" in decorators or (path.relative_to(ROOT).as_posix(), function.name) in DECLARATIONS


# Functions whose arguments are options of a user: a command line, or an interface that others have fixed.
DECLARATIONS = {
    ("wse_sim/cli/capture.py", "capture_command"),
    ("wse_sim/csl/compiler.py", "compile_program"),
    *(
        ("wse_sim/csl/host/runtime.py", f"memcpy_{way}")
        for way in ("h2d", "d2h", "h2d_colbcast", "h2d_rowbcast")
    ),
    ("wse_sim/cstorch/machine.py", "configure"),
    ("wse_sim/cstorch/optim/scaled.py", "__init__"),
    ("wse_sim/cstorch/options.py", "script_command"),
    ("wse_sim/fabric/format/classes.py", "vector"),
    ("wse_sim/frontend/api.py", "load_model"),
    ("wse_sim/frontend/api.py", "lower"),
}


def test_functions_outside_jitted_code_take_few_arguments() -> None:
    long = set()
    for path, tree in files():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or is_exempt(path, node):
                continue
            given = node.args
            if len(given.posonlyargs + given.args + given.kwonlyargs) > MOST_ARGUMENTS:
                long.add(f"{path.relative_to(ROOT)}:{node.name}")
    assert not long
