"""A public class name of the package is defined once, or is listed here with the reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The tree of the CSL grammar: its nodes are named as the grammar names them, and every reader writes `tree.Node`.
TREE = "wse_sim/csl/tree.py"
PAIRS = "the same part of two machines that know nothing of each other: programs of vectors, and cores that run bytecode"
INTERFACE = "a name of the vendor's interface, which scripts use"
FAMILY = "a family of kernels; it is found by its name in the registry"
TWINS = {
    "Command": PAIRS,
    "CoreClass": PAIRS,
    "Op": PAIRS,
    "Cores": "executors do not know each other",
    "Tally": "executors do not know each other",
    "Routes": "executors do not know each other",
    "Band": "a band of rows of the wavelet executor, and of the machine of CSL: they do not know each other",
    "Shape": "parameters of a program without their numbers, and what a buffer of a row-wise kernel holds",
    "Edges": "edges of a fabric's band, and of a placement's window: no file sees both",
    "ChainedScheduler": INTERFACE,
    "Cluster": "the machines of a simulation, and a name of the vendor's interface",
    "Constant": INTERFACE,
    "Group": INTERFACE,
    "Schedule": INTERFACE,
    "Scope": INTERFACE,
    "Session": INTERFACE,
    "Stream": INTERFACE,
    "Task": INTERFACE,
    "Optimizer": INTERFACE,
    "ProgramError": "a fault of a fabric program, and of a training script: each is public under its own door",
    "Attention": FAMILY,
    "Rotary": FAMILY,
    "Decoder": "a module of the bundled models, and the shape of a model for generation",
    "Case": "a kernel with its inputs, and a command file with its output: the bench of each",
    "Fifo": "a FIFO of the image, and its value at compile time",
    "Operand": "what an instruction reads, and what an expression of CSL yields",
    "Options": "what an executor, a simulation and a compilation of CSL are asked: each floor has its own",
    "Replica": "what serves a load, and its state in machine code",
    "Run": "a run of the process, of an executor, and a value of CSL at run time",
}


def defined() -> dict[str, list[str]]:
    """Return the files by the public classes that they define at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in ("wse_sim", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and file != TREE:
                    found[node.name].append(file)
    return found


@pytest.mark.slow
def test_a_public_class_is_defined_once() -> None:
    """Two things with one name make every search ambiguous; those that stay have a reason, and no reason is stale."""
    twins = {name: files for name, files in defined().items() if len(files) > 1}
    assert {name: files for name, files in twins.items() if name not in TWINS} == {}
    assert set(TWINS) - set(twins) == set()


def test_nodes_of_the_grammar_are_named_with_their_module() -> None:
    """Their module is part of their name, so they may be called `Function` or `Node` like other classes."""
    for path in (ROOT / "wse_sim").rglob("*.py"):
        assert "from wse_sim.csl.tree import" not in path.read_text(encoding="utf-8"), path
