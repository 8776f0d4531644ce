"""The sources that a factory depends on: its file, the files that it imports, and files that any of them
names.

Nothing is imported. Modules are searched for next to the factory, in the working folder and on the path, as
Python would; installed packages count by name and version, the standard library not at all. A name in a
string of these sources (a module imported by name, a file that is opened) counts if the file is next to them
or in the working folder. Not detected: environment variables, the network, and names that the factory
composes when it runs.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

MOST_FILES = 2000
"""Largest number of files that are followed; a factory inside a larger program is identified by the first
ones only."""

MOST_BYTES = 2**28  # of a file that a text names; for larger files, size and time are hashed
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def sources_digest(origin: Path) -> str:
    """Return a hash of all sources that are found from the file of a factory."""
    total = hashlib.sha256()
    for name, content in sorted(_found(origin)):
        total.update(f"{name}\0{content}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _found(origin: Path) -> Iterator[tuple[str, str]]:
    """Yield names and identities of the sources: files by content, installed packages by version."""
    places = [str(origin.parent), os.getcwd()]
    seen: set[Path] = set()
    packages: set[str] = set()
    open_ = [origin]
    while open_ and len(seen) < MOST_FILES:
        file = Path(os.path.realpath(open_.pop()))
        if file in seen:
            continue
        seen.add(file)
        yield str(file), _content(file)
        if file.suffix != ".py":
            continue
        for module in _named_in(file, origin, places):
            if isinstance(module, Path):
                open_.append(module)
                continue
            for spec in _specs(module, [*places, *sys.path]):
                where = Path(spec.origin) if spec.origin and spec.has_location else None
                if where is None or _is_standard(where):
                    continue
                top = module.partition(".")[0]
                if _is_installed(where) or top == "wse_sim":  # this package's sources are in the key
                    packages.add(top)
                else:
                    open_.append(where)
    yield from ((name, _version(name)) for name in packages)


def _named_in(file: Path, origin: Path, places: Sequence[str]) -> Iterator[str | Path]:
    """Yield the modules that a source imports, and the files that its strings name."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # running it reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            above = file.parents[node.level - 1] if node.level <= len(file.parents) else file.parent
            base = above.joinpath(*(node.module or "").split(".")) if node.module else above
            yield from _module_files(base)
            for alias in node.names:
                yield from _module_files(base / alias.name)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) < 1024:
            yield from _files_of_text(node.value, (str(file.parent), *places))


def _module_files(base: Path) -> Iterator[Path]:
    """Yield the files that a dotted name may denote, below a folder."""
    yield from (path for path in (base.with_name(f"{base.name}.py"), base / "__init__.py") if path.is_file())


def _files_of_text(text: str, places: Sequence[str]) -> Iterator[Path]:
    """Yield the files that a string names: a file, or a module next to the sources."""
    for place in places:
        try:
            path = Path(place) / text
            if path.is_file():
                yield path
            elif _MODULE.fullmatch(text):
                yield from _module_files(Path(place).joinpath(*text.split(".")))
        except (OSError, ValueError):
            continue


def _specs(module: str, path: Sequence[str]) -> Iterator[ModuleSpec]:
    """Yield the specs of a module and its parent packages, without importing them."""
    here: Sequence[str] | None = path
    for count in range(1, module.count(".") + 2):
        name = ".".join(module.split(".")[:count])
        if here is None:
            return
        try:
            spec = PathFinder.find_spec(name, list(here))
        except (ImportError, ValueError, OSError):
            return
        if spec is None:
            return
        yield spec
        here = spec.submodule_search_locations


def _is_standard(file: Path) -> bool:
    paths = sysconfig.get_paths()
    return any(file.is_relative_to(paths[key]) for key in ("stdlib", "platstdlib")) and not _is_installed(
        file
    )


def _is_installed(file: Path) -> bool:
    places = {
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(sysconfig.get_paths()[k] for k in ("purelib", "platlib")),
    }
    return any(file.is_relative_to(place) for place in places)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _content(file: Path) -> str:
    try:
        status = file.stat()
        if status.st_size > MOST_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}"
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
