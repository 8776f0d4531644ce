"""Lists which names of the interface public code uses, and which of them exist here, in a table by folder.

``python -m benchmarks.cstorch_walk FOLDER`` walks every Python file below each folder of FOLDER (one per release, say),
resolves imports and the attributes of what they bind, and looks every name up behind the doors.  ``--keep FILE`` writes the
names that were found, which ``tests/cstorch/test_zoo_names.py`` holds: dotted names are facts of the interface, the code
they were found in is not needed again.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from wse_sim.cstorch import doors


def is_ours(name: str) -> bool:
    """Return whether a dotted name belongs to one of the doors."""
    return any(name == door or name.startswith(f"{door}.") for door in doors.DOORS)


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name in the file, dotted name) of every import of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    yield alias.name.partition(".")[0], alias.name.partition(".")[0]
                    yield "", alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                yield (
                    alias.asname or alias.name,
                    node.module if alias.name == "*" else f"{node.module}.{alias.name}",
                )


def chain(node: ast.Attribute) -> list[str]:
    """``a.b.c`` as its parts; empty if it begins with something else than a name."""
    parts: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return [at.id, *reversed(parts)] if isinstance(at, ast.Name) else []


def used(source: str) -> set[str]:
    """Dotted names of the interface that a file uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return set()
    pairs = list(imported(tree))
    bound: dict[str, set[str]] = {}
    for name, what in pairs:
        bound.setdefault(name, set()).add(what)
    found = {what for _, what in pairs}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (parts := chain(node)):
            found |= {".".join([what, *parts[1:]]) for what in bound.get(parts[0], ())}
    return {name for name in found if is_ours(name)}


@functools.cache
def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@functools.cache
def missing(name: str) -> str:
    """The first part of a dotted name that does not exist here; "" if all do.

    What is called or made by a class is not followed: ``Class.method`` is looked at, what ``Class()`` has is not.
    """
    parts = name.split(".")
    found: object = None
    for n in range(len(parts), 0, -1):
        found = _module(".".join(parts[:n]))
        if found is not None:
            break
    if found is None:
        return name
    for end in range(n, len(parts)):
        try:
            found = getattr(found, parts[end])
        except AttributeError:
            return ".".join(parts[: end + 1])
        except Exception:  # a property that needs a run exists
            return ""
    return ""


def names_below(folder: Path) -> set[str]:
    """Dotted names of the interface that the Python files below a folder use."""
    found: set[str] = set()
    for file in sorted(folder.rglob("*.py")):
        found |= used(file.read_text(encoding="utf-8", errors="replace"))
    return found


def table(folders: Iterable[Path]) -> tuple[list[str], set[str]]:
    """Return a line per folder, and every name that was met."""
    rows, every = ["| folder | names | missing | which |", "|---|---|---|---|"], set[str]()
    for folder in folders:
        names = names_below(folder)
        every |= names
        lacking = sorted({gone for name in names if (gone := missing(name))})
        rows.append(f"| {folder.name} | {len(names)} | {len(lacking)} | {' '.join(lacking)} |")
    return rows, every


def main() -> None:
    """Print the table of a folder of releases."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--keep", type=Path, help="write the names that were found")
    given = arguments.parse_args()
    doors.install_aliases()
    rows, every = table(sorted(f for f in given.folder.iterdir() if f.is_dir()))
    print("\n".join(rows))
    if given.keep is not None:
        given.keep.write_text("".join(f"{name}\n" for name in sorted(every)), encoding="utf-8")


if __name__ == "__main__":
    main()
