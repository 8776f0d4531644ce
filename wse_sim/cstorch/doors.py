"""Aliases: the names under which public scripts import the interface; they exist only on request.

A door is a proxy of a module of this package. It provides the names that exist; any other name raises an
``AttributeError`` that refers to the list of supported names.  Nothing is installed by importing this file:
the runner calls :func:`install_aliases`, or a script does.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from wse_sim.cstorch import faults, legacy_torch, tensors

# Door -> the module behind it; a submodule of a door is the submodule of that module.
DOORS = {
    "cerebras.pytorch": "wse_sim.cstorch",
    "cerebras_pytorch.experimental": "wse_sim.cstorch.experimental",
    "cerebras_pytorch": "wse_sim.cstorch",
    "cerebras_torch": "wse_sim.cstorch.cbtorch",
    "cbtorch": "wse_sim.cstorch.cbtorch",
    "cerebras.appliance": "wse_sim.cstorch.appliance",
    "cerebras_appliance": "wse_sim.cstorch.appliance",
    "cerebras.pb": "wse_sim.cstorch.appliance.messages",
    "cerebras_appliance.CSConfig": "wse_sim.cstorch.utils",
    "cerebras.appliance.CSConfig": "wse_sim.cstorch.utils",
}
# Submodules of the present door whose file has another name here: functions are in front of them.
SUBMODULES = {
    "backend": "wse_sim.cstorch.machine",
    "trace": "wse_sim.cstorch.step",
    "distributed.cluster_resolver": "wse_sim.cstorch.cluster_resolver",
    "backend.ltc_backend": "wse_sim.cstorch.received",
    "data": "wse_sim.cstorch.utils.data",
}
# Names of the oldest interface that this door had too.
ELDER = ("initialize", "module", "optimizer", "dataloader", "Session", "env", "state")
# What the doors call the device: older scripts check it.
DEVICE_NAMES = {"cerebras_pytorch": "lazy", "cerebras_torch": "xla", "cbtorch": "xla"}
_NAMESPACE = "cerebras"


@cache
def behind(name: str) -> str | None:
    """Return the module of this package that an alias shows; an older alias offers the current one under the older
    name.
    """
    for door in sorted(DOORS, key=len, reverse=True):
        if name == door:
            return DOORS[door]
        if name.startswith(f"{door}."):
            rest = name[len(door) :]
            if door == "cerebras.pb":
                return DOORS[door]  # one module shows every message
            if rest[1:] in SUBMODULES and DOORS[door] != "wse_sim.cstorch.appliance":
                return SUBMODULES[rest[1:]]
            if rest.startswith(".pb") and DOORS[door] == "wse_sim.cstorch.appliance":
                return "wse_sim.cstorch.appliance.messages"
            own = DOORS[door] + rest
            return own if _found(own) else f"wse_sim.cstorch{rest}"
    return None


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class Door(ModuleType):
    """A proxy of a module that offers its names under another name."""

    def __init__(self, name: str, target: ModuleType) -> None:
        super().__init__(name, target.__doc__)
        self.__dict__["_target"] = target
        self.__dict__["__path__"] = []  # submodules come from the finder, not from a folder

    def __getattr__(self, name: str) -> object:
        target = self.__dict__["_target"]
        try:
            value = getattr(target, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            if self.__name__ == "cerebras_pytorch" and name in ELDER:
                return getattr(importlib.import_module(DOORS["cerebras_torch"]), name)
            inner = f"{self.__name__}.{name}"
            if _exists(inner) and name != "__path__":
                return importlib.import_module(inner)
            raise AttributeError(
                f"{self.__name__}.{name} is not part of the interface here{near(name, dir(target))}; "
                "supported names: docs/cstorch.md"
            ) from None
        if isinstance(value, ModuleType) and value.__name__ == f"{target.__name__}.{name}":
            return importlib.import_module(f"{self.__name__}.{name}")
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
            return
        if isinstance(value, Door):
            # The import system hangs submodules on their parent; a function of that name stays in front.
            found = getattr(self.__dict__.get("_target"), name, None)
            if found is None or isinstance(found, ModuleType):
                super().__setattr__(name, value)
            return
        setattr(self.__dict__["_target"], name, value)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_target"])


def near(name: str, known: Iterable[str]) -> str:
    """Return similar names as a clause for a message; "" if there are none."""
    found = difflib.get_close_matches(name, [k for k in known if not k.startswith("_")], n=3)
    return f", near it are {', '.join(found)}" if found else ""


def _exists(name: str) -> bool:
    target = behind(name)
    return target is not None and _found(target)


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        target = behind(spec.name)
        assert target is not None
        return Door(spec.name, importlib.import_module(target))

    def exec_module(self, module: ModuleType) -> None:
        door = module.__name__.partition(".")[0]
        if door in DEVICE_NAMES:
            tensors.device_name = DEVICE_NAMES[door]


class _Namespace(importlib.abc.Loader):
    """Loader of an empty ``cerebras`` namespace, if no package of that name is on the path."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        return None


class _Finder(importlib.abc.MetaPathFinder):
    """Finds aliases before all other finders, and the namespace after them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if behind(fullname) is None or not _exists(fullname):
            return None
        if fullname in DOORS:
            _say_if_shadowed(fullname)
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)


class _Folders(list[str]):
    """The folders ``cerebras`` on the path, as the path is when they are requested."""

    def __iter__(self) -> Iterator[str]:
        return (str(folder) for entry in sys.path if (folder := Path(entry or ".") / _NAMESPACE).is_dir())


class _Last(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAMESPACE:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, _Namespace(), is_package=True)
        spec.submodule_search_locations = _Folders()
        return spec


def _say_if_shadowed(name: str) -> None:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder | _Last):
            continue
        find = getattr(finder, "find_spec", None)
        parent = name.rpartition(".")[0]
        path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
        if find is not None and (not parent or path) and find(name, path) is not None:
            faults.warn_once(
                ("shadow", name), f"{name} is installed; the names of the simulator win in this process"
            )
            return


def install_aliases() -> None:
    """Install the aliases in this process: ``cerebras.pytorch``, its older names, and
    ``cerebras.appliance``."""
    legacy_torch.enter()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        sys.meta_path.append(_Last())
