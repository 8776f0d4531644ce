"""Tests the tests: random one-token changes of the sources, and the first test that fails for each.

    python -m benchmarks.mutants --reach                 record once which functions the quick tests call (20 CPU minutes)
    python -m benchmarks.mutants --seed 1                draw 40 changes, try them, print and keep a row each; or go on
    python -m benchmarks.mutants --seed 1 --show         the table of the last run
    python -m benchmarks.mutants --seed 1 --again        those that were alive in it, with the tests of today
    python -m benchmarks.mutants --control               no change at all, a room each: whatever is killed is a fault of the bench

A change swaps an operator or a comparison, moves a constant by one or by a tenth, or turns ``min`` into ``max``.  Rooms
take turns; within a room every possible change of every file is equally likely.  Each is made in a copy of the working
tree.  There the tests of ``make test`` run in the folders of its room in TESTS: files that name the changed module, then
those that call the changed function by the record of ``--reach``, quick ones first, then those that it does not know,
and at last files of other folders that name the module.
With ``--slow`` a change that none of them sees is tried on what ``make test-all`` has besides in the files that name it:
``only slow`` in the table is what a quick ``make test`` costs, ``alive`` is work for whoever writes tests next (other
rooms' tests may still see it).  A test of over TEST_CPU_S is ``too long``: mostly a loop without an end.  The limit is of
CPU time, so that other work on the machine changes no verdict.
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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import reached

ROOT = reached.ROOT
KEPT = ROOT / "build" / "mutants"
REACH = KEPT / "reached.json"
ROOMS = {
    "kernels": "kernels",
    "compiler": "wse_sim/compiler",
    "modes": "wse_sim/modes",
    "engine": "wse_sim/engine",
    "fabric": "wse_sim/fabric",
    "whole": "wse_sim/whole",
    "csl": "wse_sim/csl",
    "cstorch": "wse_sim/cstorch",
}
TESTS = {  # folders of tests that could see a change in a room, the likely ones first
    "kernels": ("numbers", "kernels", "whole", "timing"),
    "compiler": ("numbers", "compiler", "placement", "modes"),
    "modes": ("numbers", "modes", "engine"),
    "engine": ("numbers", "engine", "uncertainty", "validation"),
    "fabric": ("fabric", "csl", "numbers"),
    "whole": ("whole", "numbers"),
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
JITTED = {"kernel", "bare_kernel", "helper_kernel", "inlined_kernel"}  # no record sees calls of these
TEST_CPU_S = 90  # of one test: the longest takes a third, with the machine code of a changed file most of it
LIMIT_CPU_S = 900  # of all tests of a change
WAITS = 4.0  # and in wall-clock time this many times as long, for a process that waits for ever
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "benchmarks.reached")
PYTEST = (sys.executable, "-m", "pytest", *PLUGINS)

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
    text: str  # the line
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
    begins, file, lines = offsets(text), str(path.relative_to(ROOT)), text.splitlines()

    def change(line: int, start: int, old: str, new: str) -> Mutant:
        return Mutant(room, file, line, start, old, new, lines[line - 1].strip())

    def at(line: int, column: int) -> int:
        start = begins[line - 1]
        return start + len(text[start : begins[line]].encode()[:column].decode())

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutant]:
        low = at(left.end_lineno or 0, left.end_col_offset or 0)
        gap = re.search(r"[^\s()\\#]+(?: (?:not|in)\b)?", text[low : at(right.lineno, right.col_offset)])
        if gap and type(operator) in SWAPS:
            yield change(left.end_lineno or 0, low + gap.start(), gap[0], SWAPS[type(operator)])

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
            yield change(node.lineno, start, text[start : at(node.lineno, node.end_col_offset or 0)], new)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            start = at(node.func.lineno, node.func.col_offset)
            yield change(node.func.lineno, start, node.func.id, CALLS[node.func.id])


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


def drawn(seed: int, count: int, rooms: Sequence[str]) -> list[Mutant]:
    """Draw random changes, in one room after the other."""
    rng = random.Random(seed)
    by_room = {
        room: [one for file in sorted((ROOT / ROOMS[room]).rglob("*.py")) for one in sites(room, file)]
        for room in rooms
    }
    return [rng.choice(by_room[rooms[k % len(rooms)]]) for k in range(count)]


def mutated(text: str, mutant: Mutant) -> str:
    """Return the file with the change; as it is if the line has been edited since the draw."""
    end = mutant.start + len(mutant.old)
    begin = text.rfind("\n", 0, mutant.start) + 1
    if text[mutant.start : end] != mutant.old or text[begin:].partition("\n")[0].strip() != mutant.text:
        return text
    return text[: mutant.start] + mutant.new + text[end:]


# --- running --------------------------------------------------------------------------------------------------------


def function_at(text: str, line: int) -> str:
    """Qualified name of the function of a line; "" outside of all and in jitted code."""
    found = ""

    def look(node: ast.AST, name: str) -> None:
        nonlocal found
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner += child.name
                if child.lineno <= line <= (child.end_lineno or 0) and isinstance(child, ast.FunctionDef):
                    jitted = any(
                        isinstance(one, ast.Name) and one.id in JITTED for one in child.decorator_list
                    )
                    found = "" if jitted else inner
                inner += ".<locals>." if isinstance(child, ast.FunctionDef) else "."
            look(child, inner)

    look(ast.parse(text), "")
    return found


def near(tree: Path, mutant: Mutant) -> tuple[list[str], list[str]]:
    """Return the files of tests that name the changed module, and the units that could see the change besides."""
    module = (
        mutant.file.removesuffix(".py").replace("/", ".").removeprefix("wse_sim.").removesuffix(".__init__")
    )
    parent, _, name = module.rpartition(".")
    named = re.compile(rf"{re.escape(module)}\b|{re.escape(parent)} import [^()]*\b{name}\b")
    folders = [f"tests/{folder}/" for folder in TESTS[mutant.room]]
    everywhere = sorted(str(path.relative_to(tree)) for path in (tree / "tests").rglob("test_*.py"))
    files = [file for folder in folders for file in everywhere if file.startswith(folder)]
    naming = [file for file in everywhere if named.search((tree / file).read_text())]
    first = [file for file in files if file in naming]
    record = reached.read(REACH)
    known = {
        unit: found
        for unit, found in record.items()
        if unit.partition("::")[0] in files and found.stamp == reached.stamp(unit, tree)
    }
    function = function_at((tree / mutant.file).read_text(), mutant.line)
    calls = re.compile(re.escape(f"{mutant.file}:{function}") + ("$" if function else ""))
    callers = [unit for unit, found in known.items() if any(map(calls.match, found.functions))]
    callers.sort(key=lambda unit: known[unit].seconds)
    seen = {unit.partition("::")[0] for unit in known}
    if not callers and not function:  # all of it is jitted, or are constants
        seen.clear()
    unseen = [file for file in files if file not in seen and file not in first]
    unseen.sort(key=lambda file: -len(_words(file) & _words(mutant.file)))  # those of a like name
    # Where others of their folder are recorded, they are new, or edited: perhaps for this very change.
    recorded = {str(Path(unit.partition("::")[0]).parent) for unit in record}
    fresh = [file for file in unseen if str(Path(file).parent) in recorded and seen]
    others = [unit for unit in callers if unit.partition("::")[0] not in first]
    others = [*fresh, *others, *(file for file in unseen if file not in fresh)]
    return first, others + [file for file in naming if file not in files]


def _words(path: str) -> set[str]:
    return set(re.findall("[a-z]+", path.partition("/")[2])) - {"py", "test"}


def tried(mutant: Mutant, skip: str, slow: bool) -> Mutant:
    """Return the change in a copy of the tree, and the verdict of the tests."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutant_") as name:
        tree = Path(name) / "tree"
        ignored = shutil.ignore_patterns(".venv", ".git", "build", "out", ".mypy_cache", ".ruff_cache")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored)
        path = tree / mutant.file
        before = path.read_text() if path.is_file() else ""
        if (after := mutated(before, mutant)) == before and mutant.old != mutant.new:
            return replace(mutant, verdict="gone")
        first, others = near(tree, mutant)
        path.write_text(after)
        verdict, test = "killed", _first_failure(tree, [*first, *others], "not slow", "quick", skip)
        if slow and not test and first:
            test = _first_failure(tree, first, "slow or hypothesis", "all", skip)
            verdict = "only slow"
        if not test or test == TOO_LONG:
            verdict = test or "alive"
    return replace(mutant, verdict=verdict, test=test, seconds=time.perf_counter() - began)


def surroundings(tree: Path, profile: str) -> dict[str, str]:
    """Return the environment of the tests: children of a test too run `tree`, and what Python parsed is kept."""
    own = {name: word for name, word in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "OMP_NUM_THREADS": "1", "WSE_SIM_TESTS": profile, "PYTHONPATH": str(tree)}


def _first_failure(tree: Path, places: list[str], chosen: str, profile: str, skip: str) -> str:
    if not places:
        return ""
    words = ["-x", "-m", chosen, "--tb=no", "-rfE", *places]
    words += ["-k", f"not ({skip})"] if skip else []
    environment = surroundings(tree, profile) | {reached.LIMIT: str(TEST_CPU_S)}
    try:
        done = subprocess.run(
            [*PYTEST, *words], cwd=tree, capture_output=True, text=True, check=False,
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


def reach() -> None:
    """Record what the quick tests of all rooms call."""
    places = sorted({f"tests/{folder}" for folders in TESTS.values() for folder in folders})
    environment = surroundings(ROOT, "quick") | {reached.FILE: str(REACH)}
    subprocess.run([*PYTEST, "-m", "not slow", *places], cwd=ROOT, check=False, env=environment)


def run(mutants: Sequence[Mutant], name: str, jobs: int, skip: str, slow: bool) -> None:
    """Try, store and print each change; go on behind those that are stored."""
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"{name}.json"
    done = stored(name) if file.is_file() else []
    if [(one.file, one.start) for one in done] != [(one.file, one.start) for one in mutants[: len(done)]]:
        done = []
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda one: tried(one, skip, slow), mutants[len(done) :]):
            done.append(found)
            print(row(found), flush=True)
            file.write_text(json.dumps([asdict(one) for one in done], indent=1))
    print(summary(done))


def stored(name: str) -> list[Mutant]:
    """Return what a run kept."""
    return [Mutant(**one) for one in json.loads((KEPT / f"{name}.json").read_text())]


def row(mutant: Mutant) -> str:
    """One line of the table."""
    return (
        f"{mutant.verdict:14s} {mutant.seconds:5.0f} s  {mutant.file}:{mutant.line}  "
        f"{mutant.old} -> {mutant.new}  {mutant.test or mutant.text}"
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
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--slow", action="store_true", help="slow tests as well where no quick one fails")
    parser.add_argument("--reach", action="store_true", help="record which functions the quick tests call")
    parser.add_argument("--show", action="store_true", help="print the table of the last run")
    parser.add_argument(
        "--again", action="store_true", help="of the last run the changes alone that no quick test killed"
    )
    parser.add_argument("--control", action="store_true", help="a tree without a change for each room")
    asked = parser.parse_args()
    name = "control" if asked.control else f"seed_{asked.seed}"
    if asked.reach:
        reach()
    elif asked.show:
        found = stored(name)
        print("\n".join([*(row(one) for one in found), summary(found)]))
    else:
        mutants = drawn(asked.seed, len(asked.rooms) if asked.control else asked.count, asked.rooms)
        if asked.again:
            mutants = [replace(one, verdict="", test="") for one in stored(name) if one.verdict != "killed"]
            name += "_again"
        if asked.control:
            mutants = [replace(one, new=one.old) for one in mutants]
        run(mutants, name, asked.jobs, asked.skip, asked.slow)


if __name__ == "__main__":
    main()
