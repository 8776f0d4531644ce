"""User code that runs inside a command: factories, kernel files, placements, forward functions.

What goes wrong there is the user's to mend: one sentence with their file and line, exit status 2.  A program that
they end themselves (``sys.exit``) is a fault too: their exit status never becomes ours unseen.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from wse_sim.errors import WseError
from wse_sim.files import is_file

_PACKAGE = Path(__file__).parent


def _folders(*paths: str | Path | None) -> tuple[Path, ...]:
    """Folders as they are named and as they are: an environment may be behind a link."""
    named = [Path(path).absolute() for path in paths if path]
    return tuple(dict.fromkeys([*named, *(path.resolve() for path in named)]))


# Our folders of kernels, configurations and suites are links: their files resolve to places next to the package.
_OURS = _folders(_PACKAGE, *(entry for entry in _PACKAGE.iterdir() if entry.is_symlink()))
# Folders whose files are nobody's to mend: installed packages and the standard library.
_INSTALLED = _folders(sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), Path(sys.prefix) / "bin")
# Packages may be in other folders of the same names: a user's own (pip install --user), the system's under a virtual environment.
_OF_PACKAGES = {"site-packages", "dist-packages"}
_STANDARD = _folders(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


@lru_cache(maxsize=4096)
def owner_of(filename: str) -> Literal["ours", "installed", "standard", "user"]:
    """Who wrote a file: this project, an installed package, Python's standard library, or the user.

    What has no file (``<string>``) counts as the standard library's.
    """
    if filename.startswith("<"):
        return "standard"
    paths = _folders(filename)
    if _lies_in(paths, _OURS):
        return "ours"
    if _lies_in(paths, _INSTALLED) or any(
        _OF_PACKAGES & set(path.parts) for path in paths
    ):  # before the standard library, whose folder may hold that of the packages
        return "installed"
    return "standard" if _lies_in(paths, _STANDARD) else "user"


def _lies_in(paths: tuple[Path, ...], folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for path in paths for folder in folders)


def is_foreign(filename: str) -> bool:
    """Whether a file is neither ours nor installed: the user wrote it."""
    return owner_of(filename) == "user"


def place_of(fault: BaseException) -> str:
    """``file:line`` of the user's code that raised `fault` or something that led to it; "" if none did."""
    seen: set[int] = set()
    pending: BaseException | None = fault
    while pending is not None and id(pending) not in seen:
        seen.add(id(pending))
        if isinstance(pending, SyntaxError) and pending.filename and is_foreign(pending.filename):
            return f"{pending.filename}:{pending.lineno}"
        for frame, line in reversed(list(traceback.walk_tb(pending.__traceback__))):
            if is_foreign(frame.f_code.co_filename):
                return f"{frame.f_code.co_filename}:{line}"
        pending = pending.__cause__ or pending.__context__
    return ""


OURS = "this is a fault of wse_sim, not of the model; please report it with the model and this trace"


def is_own(fault: BaseException) -> bool:
    """Whether a fault was found to be this project's own (:func:`owning`)."""
    return OURS in getattr(fault, "__notes__", ())


@contextmanager
def owning() -> Iterator[None]:
    """Mark exceptions raised in this block inside our own files as our fault, so that no message blames the
    user.

    Of the frames in our files and in the user's, the innermost counts: a library that we call wrongly is our
    fault, too.
    """
    try:
        yield
    except WseError:
        raise
    except Exception as fault:
        frames = [owner_of(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(fault.__traceback__)]
        inner = next((owner for owner in reversed(frames) if owner in ("ours", "user")), "ours")
        if inner == "ours" and not is_own(fault):
            fault.add_note(OURS)
        raise


def sentence(fault: BaseException, where: str) -> str:
    """A sentence about the fault of the user's code, with a remedy."""
    if isinstance(fault, SystemExit):
        return f"{where}: ends the program (exit {fault.code!r}); return a value instead"
    if isinstance(fault, SyntaxError):
        return f"{where}: does not parse ({fault.msg}); correct the syntax"
    if isinstance(fault, ModuleNotFoundError) and fault.name:
        return f"{where}: {not_installed(fault.name)}"
    text = " ".join(str(fault).split())
    text = f": {text[:200]}" if text else ""
    folder = _folder_with(fault)
    if folder:
        return f"{where}: raises {type(fault).__name__}{text}; the file is in {folder}: run the command there"
    return f"{where}: raises {type(fault).__name__}{text}; correct it there"


@contextmanager
def guarded(what: str, kind: type[WseError]) -> Iterator[None]:
    """Turn any exception of the user's code in this block into one sentence; `what` names the place if it is
    unknown.

    Faults of our own code pass unchanged.

    Raises
    ------
    WseError
        Of class `kind`, with file and line.
    """
    try:
        yield
    except (WseError, KeyboardInterrupt):
        raise
    except BaseException as fault:  # code of others may raise anything
        if is_own(fault):
            raise
        raise kind(sentence(fault, place_of(fault) or what)) from fault


_NAMES_CODE = ("model", "mode", "placer")
MOST_OFFERED = 12  # names that a message lists of a module


def code_of(setting: Mapping[str, object]) -> list[str]:
    """Values of a setting that name Python (a factory, a mode, a placer of one's own), which a run of it executes."""
    named = (value for name, value in setting.items() if name.rpartition(".")[2] in _NAMES_CODE)
    return [text for text in named if isinstance(text, str) and ":" in text and not text.startswith("hf:")]


def file_of(spec: str) -> Path | None:
    """The file of the module that ``package.module:NAME`` or ``FILE.py:NAME`` names, which is not imported.

    Raises
    ------
    ImportError
        If there is no such module.
    """
    where = spec.rpartition(":")[0]
    if where.endswith(".py"):
        return Path(os.path.realpath(where))
    look_in(Path.cwd())
    found = importlib.util.find_spec(where)
    return Path(found.origin) if found is not None and found.origin else None


def loaded(spec: str, what: str, kind: type[WseError]) -> Any:
    """The object that ``package.module:NAME`` or ``FILE.py:NAME`` names.

    Parameters
    ----------
    spec
        The text that the user gave.
    what
        What it is to be, with its article: "a factory", "a placer".

    Raises
    ------
    WseError
        Of class `kind`: the text names nothing, there is no such file, module or name, or the module's code raises.
    """
    where, _, name = spec.rpartition(":")
    names_file = where.endswith(".py")
    parts = [name] if names_file else [name, *where.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise kind(f"'{spec}' does not name {what}; give package.module:NAME or FILE.py:NAME")
    if names_file and not is_file(where, f"'{spec}': file", kind):
        raise kind(f"'{spec}': there is no file {where}; name one that exists")
    with guarded(f"'{spec}'", kind):
        try:
            module = _from_file(Path(where).resolve()) if names_file else _from_path(where)
        except ModuleNotFoundError as fault:
            raise kind(f"'{spec}': {_missing(where, fault.name or where, names_file)}") from fault
        if not hasattr(module, name):
            raise kind(
                f"'{spec}': module {module.__name__} has no '{name}'; name {what} of it{_offered(module)}"
            )
        return getattr(module, name)


def _missing(where: str, name: str, names_file: bool) -> str:
    """Sentence for a missing module: the named one, or one that it imports."""
    if not names_file and f"{where}.".startswith(f"{name}."):
        return (
            f"no module named '{name}'; give package.module:NAME from a folder on the path, or FILE.py:NAME"
        )
    return f"{where} {not_installed(name)}"


def not_installed(name: str) -> str:
    """The end of a sentence about an import that this interpreter cannot make."""
    return (
        f"imports '{name}', which {sys.executable} does not have; install it there "
        f"({sys.executable} -m pip install PACKAGE), or put its folder on PYTHONPATH"
    )


def _offered(module: ModuleType) -> str:
    """Names of some public functions and classes that a module defines itself, in order, for a message."""
    own = [
        name
        for name, item in vars(module).items()
        if not name.startswith("_")
        and callable(item)
        and getattr(item, "__module__", None) == module.__name__
    ]
    more = f" and {len(own) - MOST_OFFERED} more" if len(own) > MOST_OFFERED else ""
    return (
        f" (it defines {', '.join(own[:MOST_OFFERED])}{more})"
        if own
        else " (it defines no function and no class)"
    )


def look_in(folder: Path) -> None:
    """Put a folder first among those that Python looks in."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _from_path(module: str) -> ModuleType:
    look_in(Path.cwd())
    return importlib.import_module(module)


def _from_file(file: Path) -> ModuleType:
    """The module of one file, run once; its name is the file's unless another module has that name."""
    look_in(file.parent)  # for what it imports from next to it
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(file):
            return module
    other = importlib.util.find_spec(file.stem) if file.stem.isidentifier() else None
    name = file.stem
    if name in sys.modules or (other is not None and other.origin != str(file)):
        name += "_" + hashlib.sha256(str(file).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be read as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _folder_with(fault: BaseException) -> str:
    """Return the folder of the code that raised, if the relative path that was not found is in it; else ''."""
    if not (isinstance(fault, FileNotFoundError) and isinstance(fault.filename, str)):
        return ""
    for frame, _ in reversed(list(traceback.walk_tb(fault.__traceback__))):
        folder = Path(frame.f_code.co_filename).parent
        if owner_of(frame.f_code.co_filename) == "user" and (folder / fault.filename).exists():
            return str(folder)
    return ""
