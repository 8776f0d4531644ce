"""``cstorch.backends``: the tree of settings, with checked names and values."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, NoReturn

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.kinds import MicroBatch


class SettingError(faults.ProgramError, AttributeError):
    """An unknown name in the tree of settings; programs may test for it with ``hasattr``."""


class _Group:
    """A branch of the tree: only known names can be read or set."""

    def __init__(self, path: str, known: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]]) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_known", known)

    def _entry(self, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        known = object.__getattribute__(self, "_known")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            path = object.__getattribute__(self, "_path")
            raise SettingError(
                f"setting {path}.{name} is unknown; use one of {', '.join(sorted(known))}{hint}"
            )
        return known[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._entry(name)[0]()

    def __setattr__(self, name: str, value: object) -> None:
        self._entry(name)[1](value)

    def __dir__(self) -> list[str]:
        return sorted(object.__getattribute__(self, "_known"))


def check_level(value: object) -> int:
    """Return a precision level.

    Raises
    ------
    ProgramError
        If it is not 0, 1 or 2.
    """
    if isinstance(value, bool) or value not in (0, 1, 2):
        raise faults.program_error(f"precision level {value!r} is unknown; use 0, 1 or 2")
    return int(value)


def check_micro_batch(value: object) -> MicroBatch:
    """Return a micro-batch size: "auto", "explore", "disable", a number, or limits to explore.

    Raises
    ------
    ProgramError
        If it is something else.
    """
    if value is None:
        return "auto"
    if isinstance(value, str) and value in ("auto", "explore", "disable"):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if (
        isinstance(value, dict)
        and set(value) == {"explore"}
        and set(value["explore"] or {}) <= {"min", "max"}
    ):
        return value
    raise faults.program_error(
        f'micro_batch_size={value!r} is invalid; use "auto", "explore", "disable", a positive number, or {{"explore": {{"min": a, "max": b}}}}'
    )


def _setting(
    name: str, check: Callable[[Any], Any] = lambda v: v
) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return (
        lambda: getattr(runtime.settings(), name),
        lambda value: setattr(runtime.settings(), name, check(value)),
    )


def _cluster(name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(runtime.settings(), name), lambda value: runtime.set_cluster({name: value})


def _kept(name: str, default: object = None) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return getter and setter of a setting without effect: it is recorded, with one warning."""

    def put(value: object) -> None:
        runtime.settings().without_effect[name] = value
        faults.warn_once(("setting", name), f"backends: {name} has no effect here; it is kept in run.json")

    return lambda: runtime.settings().without_effect.get(name, default), put


def _debug_args(value: object) -> None:
    settings = runtime.settings()
    settings.debug_args = value
    settings.without_effect["debug_args"] = str(value)
    text = str(value).lower()
    if "pipeline" in text:
        settings.mode = "pipelined"
    elif "weight_streaming" in text:
        settings.mode = "weight-streaming"


def _ini(value: object) -> None:
    """Settings of the compiler: kept, without effect."""
    for name, setting in (value if isinstance(value, dict) else vars(value)).items():
        setattr(runtime.settings().ini, name, setting)


def _refused(value: object) -> NoReturn:
    raise SettingError("backends.csx.storage.s3 is a group of settings; set one of them")


def _unknown(name: str) -> str:
    return f"setting backends.csx.{name} is unknown; use one of {', '.join(BRANCHES)}"


BRANCHES = ("precision", "performance", "debug", "cluster", "storage")


class _Csx:
    """``backends.csx``: precision, performance, debug, cluster."""

    def __init__(self) -> None:
        self.precision = _Group(
            "backends.csx.precision", {"optimization_level": _setting("precision_level", check_level)}
        )
        self.performance = _Group(
            "backends.csx.performance",
            {
                "micro_batch_size": _setting("micro_batch_size", check_micro_batch),
                "transfer_processes": _cluster("transfer_processes"),
            },
        )
        self.debug = _Group(
            "backends.csx.debug",
            {
                "retrace_every_iteration": _setting("retrace_every_iteration", bool),
                "lazy_initialization": _setting("lazy_initialization", bool),
                "drop_data": _kept("drop_data", False),
                "debug_args": (lambda: runtime.settings().debug_args, _debug_args),
                "ini": (lambda: runtime.settings().ini, _ini),
                "fabric_type_blacklist": _kept("fabric_type_blacklist"),
                "compile_crd_memory_gi": _kept("compile_crd_memory_gi"),
                "execute_crd_memory_gi": _kept("execute_crd_memory_gi"),
                "wrk_memory_gi": _kept("wrk_memory_gi"),
                "act_memory_gi": _kept("act_memory_gi"),
                "cmd_memory_gi": _kept("cmd_memory_gi"),
                "wgt_memory_gi": _kept("wgt_memory_gi"),
                "save_gradients": _kept("save_gradients", False),
                "log_initialization": _kept("log_initialization", False),
            },
        )
        names = ("num_csx", "num_workers_per_csx", "max_act_per_csx", "max_wgt_servers", "transfer_processes")
        idle = ("mgmt_address", "mgmt_namespace", "credentials_path", "mount_dirs", "python_paths", "job_labels",
                "job_time_sec", "job_priority", "disable_version_check", "cbcore_task_spec", "workflow_id", "auto_taint")  # fmt: skip
        self.cluster = _Group(
            "backends.csx.cluster", {n: _cluster(n) for n in names} | {n: _kept(n) for n in idle}
        )
        cloud = _Group(
            "backends.csx.storage.s3", {"profile": _kept("profile"), "endpoint_url": _kept("endpoint_url")}
        )
        self.storage = _Group("backends.csx.storage", {"s3": (lambda: cloud, _refused)})

    def __setattr__(self, name: str, value: object) -> None:
        if name not in BRANCHES or name in vars(self):
            raise SettingError(_unknown(name))
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise SettingError(_unknown(name))


csx = _Csx()
