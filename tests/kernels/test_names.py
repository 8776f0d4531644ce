"""The compiler, the modes and the front end query a family; none of them refers to one by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from wse_sim.kernels import load_families

ROOT = Path(__file__).parents[2]
ROOMS = ("compiler", "modes", "frontend")

# Files whose content is a table of families: which kernel an operator becomes, which kernels a layer of decode is.
REGISTRATIONS = frozenset(
    [
        "wse_sim/frontend/classify.py",
        "wse_sim/frontend/classify_rows.py",
        "wse_sim/frontend/linear_systems.py",
        "wse_sim/frontend/torch_flops.py",  # which products of torch a kernel is
        "wse_sim/frontend/pairs.py",  # which kernels operators of complex tensors are
        "wse_sim/modes/generation/layer_parts.py",
        "wse_sim/modes/pipelined/loss.py",  # which kernel a loss is
    ]
)

# Words that are also the name of a family but mean something else there.
OTHER_MEANINGS = {
    "wse_sim/modes/generation/quantized_weights.py": {"layout"},  # a file of a program in CSL
    "wse_sim/compiler/defects.py": {"shift"},  # what a row with a defect does
    "wse_sim/frontend/api.py": {"dropout"},  # a parameter of a model
    "wse_sim/frontend/cleanup.py": {"dropout"},  # an operator of PyTorch
    "wse_sim/frontend/parameters.py": {"activation", "rotary"},  # a key of a model; a value of one
    "wse_sim/frontend/orders.py": {"softmax"},  # an operator of PyTorch
    # patterns and operators of PyTorch
    "wse_sim/frontend/patterns.py": {"attention", "dropout", "rotary", "softmax"},
    "wse_sim/frontend/training.py": {"attention", "optimizer"},  # a recompute policy; a fact of a graph
    "wse_sim/frontend/zoo.py": {"rotary"},  # a value of a key of a model
    "wse_sim/modes/pipelined/repricing.py": {"optimizer"},  # an option of a tiling
    "wse_sim/modes/pipelined/steps.py": {"attention"},  # a recompute policy
    "wse_sim/modes/weight_streaming/steps.py": {"attention"},  # a recompute policy
    "wse_sim/modes/weight_streaming/graph_facts.py": {"attention"},  # a recompute policy
}


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """String literals of a file with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def named_families(room: str) -> list[tuple[str, int, str]]:
    """Return (file, line, name) of every literal of a room that is the name of a family."""
    names = set(load_families())
    return [
        (path.relative_to(ROOT).as_posix(), line, text)
        for path in sorted((ROOT / "wse_sim" / room).rglob("*.py"))
        for line, text in strings(path)
        if text in names
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_no_family_is_known_by_name(room: str) -> None:
    """Differences between families are queries to the family (`link`, `is_affine`, `flow`, `sums_rows`, ...)."""
    found = [
        f"{file}:{line}: '{text}'"
        for file, line, text in named_families(room)
        if file not in REGISTRATIONS and text not in OTHER_MEANINGS.get(file, set())
    ]
    assert not found


@pytest.mark.slow
def test_the_exceptions_are_needed() -> None:
    """Every exception matches a literal, because an unused one would hide the next violation."""
    seen = {(file, text) for room in ROOMS for file, _, text in named_families(room)}
    files = {file for file, _ in seen}
    assert files >= REGISTRATIONS
    assert {(file, text) for file, texts in OTHER_MEANINGS.items() for text in texts} <= seen


@pytest.mark.slow
def test_attributes_are_read_through_their_declaration() -> None:
    """No file of the kernels reads a mapping of attributes by name, because that would state a default a second time."""
    found = []
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else node
            if isinstance(node, ast.Call) and isinstance(called, ast.Attribute) and called.attr == "get":
                holder, keys = ast.unparse(called.value), node.args
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                holder, keys = ast.unparse(node.value), [node.slice]
            else:
                continue
            if holder.rpartition(".")[2] == "attrs" and keys and isinstance(keys[0], ast.Constant):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not found
