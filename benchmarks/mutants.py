"""Tests the tests: random one-token changes of the sources, and the first test that fails for each.

    python -m benchmarks.mutants --seed 1                draw 40 changes, try them, print and keep a row each
    python -m benchmarks.mutants --seed 1 --show         the table of the last run
    python -m benchmarks.mutants --seed 1 --again        those that were alive in it, with the tests of today
    python -m benchmarks.mutants --control               no change at all, a room each: whatever is killed is a fault of the bench

A change swaps an operator or a comparison, moves a constant by one or by a tenth, or turns ``min`` into ``max``.  Rooms
take turns; within a room every possible change of every file is equally likely.  Each is made in a copy of the working
tree.  There the tests of ``make test`` run that stand near it: files that name the changed module, then the folders of
its room in TESTS.  A change that none of them sees is tried on what ``make test-all`` has besides in the files that name
it: ``only slow`` in the table is what a quick ``make test`` costs, ``alive`` is work for whoever writes tests next
(other rooms' tests may still see it).  A run of over LIMIT_CPU_S is ``too long``: mostly a loop without an end.  The limit
is of CPU time, so that other work on the machine changes no verdict.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "mutants"
ROOMS = {
    "kernels": "kernels",
    "compiler": "wse_sim/compiler",
    "modes": "wse_sim/modes",
    "engine": "wse_sim/engine",
    "fabric": "wse_sim/fabric",
    "csl": "wse_sim/csl",
    "cstorch": "wse_sim/cstorch",
}
TESTS = {  # folders of tests that could see a change in a room, the likely ones first
    "kernels": ("numbers", "kernels", "frontend", "whole", "timing"),
    "compiler": ("numbers", "compiler", "placement", "modes"),
    "modes": ("numbers", "modes", "engine"),
    "engine": ("numbers", "engine", "uncertainty", "validation"),
    "fabric": ("fabric", "numbers", "csl"),
    "csl": ("csl",),
    "cstorch": ("cstorch",),
}
SWAPS: dict[type, str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any"}
LIMIT_CPU_S = 900  # of one call of the tests; all of a room with its machine code take a third of it
WAITS = 4.0  # and in wall-clock time this many times as long, for a process that waits for ever

TOO_LONG = "too long"


@dataclass(frozen=True)
class Mutant:
    """One change: where, from what to what; after a run, the verdict and the first test that failed."""

    room: str
    file: str
    line: int
    start: int  # offset of the first character in the file
    old: str
    new: str
    verdict: str = ""
    test: str = ""
    seconds: float = 0.0


def offsets(text: str) -> list[int]:
    """Offset of the first character of every line."""
    found = [0]
    for line in text.splitlines(keepends=True):
        found.append(found[-1] + len(line))
    return found


def sites(room: str, path: Path) -> Iterator[Mutant]:
    """Every change that could be made to a file."""
    text = path.read_text()
    begins, file = offsets(text), str(path.relative_to(ROOT))

    def at(line: int, column: int) -> int:
        start = begins[line - 1]
        return start + len(text[start : begins[line]].encode()[:column].decode())

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutant]:
        low = at(left.end_lineno or 0, left.end_col_offset or 0)
        gap = re.search(r"[^\s()\\#]+(?: (?:not|in)\b)?", text[low : at(right.lineno, right.col_offset)])
        if gap and type(operator) in SWAPS:
            yield Mutant(room, file, left.end_lineno or 0, low + gap.start(), gap[0], SWAPS[type(operator)])

    tree = ast.parse(text)
    silent = {id(node) for part in ast.walk(tree) for node in _unchanged(part)}
    for node in ast.walk(tree):
        if id(node) in silent:
            continue
        if isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], node.op)
        elif isinstance(node, ast.Compare):
            yield from between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            start = at(node.lineno, node.col_offset)
            new = repr(node.value + 1 if isinstance(node.value, int) else node.value * 1.1 or 0.1)
            yield Mutant(
                room, file, node.lineno, start, text[start : at(node.lineno, node.end_col_offset or 0)], new
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            start = at(node.func.lineno, node.func.col_offset)
            yield Mutant(room, file, node.func.lineno, start, node.func.id, CALLS[node.func.id])


def _unchanged(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts below a node that a program does not execute: types, and the texts of f-strings."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.AnnAssign | ast.arg):
        parts = [node.annotation]
    elif isinstance(node, ast.FunctionDef):
        parts = [node.returns]
    elif isinstance(node, ast.JoinedStr | ast.Raise):
        parts = [node]
    for part in parts:
        yield from ast.walk(part) if part else ()


def drawn(seed: int, count: int) -> list[Mutant]:
    """Draw random changes, in one room after the other."""
    rng = random.Random(seed)
    by_room = {
        room: [one for file in sorted((ROOT / folder).rglob("*.py")) for one in sites(room, file)]
        for room, folder in ROOMS.items()
    }
    rooms = list(by_room)
    return [rng.choice(by_room[rooms[k % len(rooms)]]) for k in range(count)]


def mutated(text: str, mutant: Mutant) -> str:
    """Return the file with the change."""
    end = mutant.start + len(mutant.old)
    assert text[mutant.start : end] == mutant.old, "the file has changed since the draw"
    return text[: mutant.start] + mutant.new + text[end:]


# --- running --------------------------------------------------------------------------------------------------------


def near(tree: Path, mutant: Mutant) -> tuple[list[str], list[str]]:
    """Return the files of tests that name the changed module, and folders of tests of its room."""
    module = (
        mutant.file.removesuffix(".py").replace("/", ".").removeprefix("wse_sim.").removesuffix(".__init__")
    )
    parent, _, name = module.rpartition(".")
    named = re.compile(rf"{re.escape(module)}\b|{re.escape(parent)} import .*\b{name}\b")
    folders = [f"tests/{folder}" for folder in TESTS[mutant.room]]
    files = [
        path
        for folder in folders
        for path in sorted((tree / folder).rglob("test_*.py"))
        if named.search(path.read_text())
    ]
    return [str(path.relative_to(tree)) for path in files], folders


def tried(mutant: Mutant, skip: str) -> Mutant:
    """Return the change in a copy of the tree, and the verdict of the tests."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutant_") as name:
        tree = Path(name) / "tree"
        ignored = shutil.ignore_patterns(".venv", ".git", "build", "out", ".mypy_cache", ".ruff_cache")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored)
        path = tree / mutant.file
        path.write_text(mutated(path.read_text(), mutant))
        files, folders = near(tree, mutant)
        verdict, test = "killed", _first_failure(tree, [*files, *folders], "not slow", "quick", skip)
        if not test and files:
            test = _first_failure(tree, files, "slow or hypothesis", "all", skip)
            verdict = "only slow"
        if not test or test == TOO_LONG:
            verdict = test or "alive"
    return replace(mutant, verdict=verdict, test=test, seconds=time.perf_counter() - began)


def _first_failure(tree: Path, places: list[str], chosen: str, profile: str, skip: str) -> str:
    words = ["-x", "-m", chosen, "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist", *places]
    words += ["-k", f"not ({skip})"] if skip else []
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WSE_SIM_TESTS": profile,
        "PYTHONPATH": str(tree),  # children of a test too run the changed tree
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=tree, capture_output=True, text=True, check=False,
            timeout=WAITS * LIMIT_CPU_S, env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S + 5)),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return TOO_LONG
    if done.returncode in {-signal.SIGXCPU, -signal.SIGKILL}:
        return TOO_LONG
    if done.returncode in {0, 5}:  # 5: no test is left
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else "the tests do not start"


def run(mutants: Iterable[Mutant], name: str, jobs: int, skip: str) -> None:
    """Try, store and print each change."""
    KEPT.mkdir(parents=True, exist_ok=True)
    done: list[Mutant] = []
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda one: tried(one, skip), mutants):
            done.append(found)
            print(row(found), flush=True)
            (KEPT / f"{name}.json").write_text(json.dumps([asdict(one) for one in done], indent=1))
    print(summary(done))


def row(mutant: Mutant) -> str:
    """One line of the table."""
    return (
        f"{mutant.verdict:14s} {mutant.seconds:5.0f} s  {mutant.file}:{mutant.line}  "
        f"{mutant.old} -> {mutant.new}  {mutant.test}"
    )


def summary(mutants: Iterable[Mutant]) -> str:
    """Count the verdicts, in total and by room."""
    counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in mutants:
        counts[one.room][one.verdict] += 1
        counts["all"][one.verdict] += 1
    return "\n".join(
        f"{room}: " + ", ".join(f"{n} {v}" for v, n in found.items()) for room, found in counts.items()
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--skip", default="", help="names of tests to leave out, as of pytest's -k")
    parser.add_argument("--show", action="store_true", help="print the table of the last run")
    parser.add_argument(
        "--again", action="store_true", help="of the last run the changes alone that no quick test killed"
    )
    parser.add_argument("--control", action="store_true", help="a tree without a change for each room")
    asked = parser.parse_args()
    name = "control" if asked.control else f"seed_{asked.seed}"
    if asked.show:
        found = [Mutant(**one) for one in json.loads((KEPT / f"{name}.json").read_text())]
        print("\n".join([*(row(one) for one in found), summary(found)]))
    else:
        mutants = drawn(asked.seed, len(ROOMS) if asked.control else asked.count)
        if asked.again:
            kept = [Mutant(**one) for one in json.loads((KEPT / f"{name}.json").read_text())]
            mutants = [replace(one, verdict="", test="") for one in kept if one.verdict != "killed"]
            name += "_again"
        if asked.control:
            mutants = [replace(one, new=one.old) for one in mutants]
        run(mutants, name, asked.jobs, asked.skip)


if __name__ == "__main__":
    main()
