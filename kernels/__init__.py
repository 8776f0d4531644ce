"""The kernel library, installed as ``wse_sim.kernels``: one file per kernel family, four faces each.

What several families share lies in ``wse_sim.kernels.parts``; what kernels by name need in ``command*.py``.

Families outside the package come from files (:func:`load_path`) and from installed packages that offer
a module under the entry point group ``wse_sim.kernels``; a later family replaces one of the same name.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module, metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules

from wse_sim.errors import KernelError
from wse_sim.kernels.base import REGISTRY, Cost, Family, Footprint, Tiling, family, register

__all__ = [
    "REGISTRY",
    "Cost",
    "Family",
    "Footprint",
    "Tiling",
    "family",
    "load_families",
    "load_path",
    "register",
]

ENTRY_POINTS = "wse_sim.kernels"


@cache
def load_families() -> tuple[str, ...]:
    """Import every file of the library, then every entry point; returns the names of what was imported."""
    names = tuple(sorted(item.name for item in iter_modules(__path__) if not item.ispkg))
    for name in names:
        import_module(f"{__name__}.{name}")
    offered = sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    for point in offered:
        point.load()
    return (*names, *(point.name for point in offered))


def load_path(path: str | Path) -> tuple[str, ...]:
    """Import a kernel file, or every ``*.py`` of a folder; returns the families that it registered.

    Raises
    ------
    KernelError
        If the path does not exist, does not import, or registers no family.
    """
    load_families()
    path = Path(path)
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise KernelError(f"kernels path '{path}' has no Python file; give a file or a folder of files")
    before = dict(REGISTRY)
    for file in files:
        _import_file(file)
    found = tuple(sorted(name for name, item in REGISTRY.items() if before.get(name) is not item))
    if not found:
        raise KernelError(
            f"kernels path '{path}' registers no family; end the file with FAMILY = register(...)"
        )
    return found


def _import_file(file: Path) -> None:
    name = f"wse_sim_user_kernels.{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise KernelError(f"kernel file '{file}' is no Python file; name it *.py")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, AttributeError, NameError, TypeError, ValueError) as fault:
        del sys.modules[name]
        raise KernelError(
            f"kernel file '{file}' does not import ({type(fault).__name__}: {fault})"
        ) from fault
