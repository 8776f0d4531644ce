"""The oldest interface: ``initialize``, ``module``, ``optimizer``, ``dataloader``, ``Session``.

The loop is ordinary Python: a step ends when the program requests the next batch from the loader. Python runs
in every step, and the recorded graph is compared with those already compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from wse_sim.cstorch import amp, core, faults, machine, optim, runtime
from wse_sim.cstorch.capture import Capture
from wse_sim.cstorch.checkpoint import load, save
from wse_sim.cstorch.core import cb_model
from wse_sim.cstorch.execution import begin_execution
from wse_sim.cstorch.legacy import env, state
from wse_sim.cstorch.step import Graphs
from wse_sim.cstorch.tensors import WaferTensor

if TYPE_CHECKING:
    from wse_sim.cstorch.execution import Execution

__all__ = [
    "Session", "amp", "cb_model", "core", "dataloader", "env", "initialize", "load", "module", "optim", "optimizer", "save", "state",
    "use_cs",
]  # fmt: skip

use_cs = runtime.use_cs


def initialize(cs_ip: str | None = None, *args: object, **kwargs: Any) -> None:
    """Choose the simulated wafer; any address is accepted and nothing is connected."""
    settings = runtime.settings()
    if cs_ip is not None:
        settings.without_effect["cs_ip"] = cs_ip
    held = env()
    state()  # from here on closures from before the loop wait for it
    for name in ("service_workdir", "compile_dir", "compile_only", "use_appliance_data"):
        if name in kwargs:
            setattr(held, name, kwargs[name])
    if kwargs.pop("use_cbfloat16", False):
        amp.set_half_dtype("cbfloat16")
    folder, compile_only = kwargs.pop("service_workdir", None), bool(kwargs.pop("compile_only", False))
    settings.without_effect.update(kwargs)
    machine.backend("CSX", artifact_dir=folder, compile_only=compile_only)


def module(model: torch.nn.Module, device: object = None) -> torch.nn.Module:
    """Put a model on the wafer; the same object is returned."""
    return machine.compile(model, "CSX")


def optimizer(given: Optimizer) -> Optimizer:
    """Return an optimizer of the interface; one of ``torch.optim`` becomes its twin, in place."""
    kind = type(given)
    if not kind.__module__.startswith("torch.optim"):
        if not issubclass(kind, optim.Optimizer):
            optim.Optimizer.register(kind)  # older schedules ask whether an optimizer is one of the interface
        _as_legacy(given)
        return given
    twin = getattr(optim, kind.__name__, None)
    if twin is None:
        raise faults.program_error(
            f"torch.optim.{kind.__name__} has no counterpart here; use one of {', '.join(optim.__all__)}"
        )
    parameters = [{"params": list(g["params"])} for g in given.param_groups]
    known = twin(parameters).defaults
    groups = [
        {k: v for k, v in g.items() if k in known or k == "params"} | {"params": list(g["params"])}
        for g in given.param_groups
    ]
    made = twin(
        groups,
        **{k: v for k, v in given.defaults.items() if k in known and v is not None and _takes(twin, k)},
    )
    given.__class__ = twin
    given.__dict__ = made.__dict__
    _as_legacy(given)
    return given


def _as_legacy(given: Optimizer) -> None:
    """Add the attributes and methods that older trainers use on a wrapped optimizer."""
    given.__dict__.setdefault("_optimizer", given)
    if not hasattr(given, "set_main_lr_scheduler"):
        given.__dict__["set_main_lr_scheduler"] = lambda scheduler: None
    if not hasattr(given, "convert_state_dict_for_checkpoint"):
        given.__dict__["convert_state_dict_for_checkpoint"] = lambda state_dict: state_dict


def _takes(kind: type, name: str) -> bool:
    import inspect

    return name in inspect.signature(kind.__init__).parameters  # type: ignore[misc]


class Loader:
    """A loader whose batches are on the wafer; a request for the next batch ends the step."""

    def __init__(self, loader: Iterable[object]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(cast(Sized, self.loader))

    def __getattr__(self, name: str) -> Any:
        loader, execution = self.__dict__["loader"], runtime.current_execution()
        if name == "batch_size" and execution is not None and not hasattr(loader, name):
            return execution.batch_samples  # any iterable of batches will do as a loader
        return getattr(loader, name)

    def __iter__(self) -> Iterator[Any]:
        session = Session.current or state().appliance
        if session is None:
            yield from self.loader
            return
        yield from session.batches(self.loader)


def dataloader(loader: Iterable[object], use_parallel_loader: bool = True) -> Loader:
    """Wrap an ordinary DataLoader."""
    return loader if isinstance(loader, Loader) else Loader(loader)


class Session:
    """The loop's context: ``Session(loader, mode=)`` or ``Session(model, optimizer, criterion, mode=)``."""

    current: Session | None = None

    def __init__(self, *parts: object, mode: str = "train", **other: object) -> None:
        if mode not in ("train", "eval", "sync"):
            raise faults.program_error(f"Session mode {mode!r} is unknown; use train or eval")
        self.mode = mode
        self.parts = parts
        self.graphs = Graphs(f"{mode} step")
        self.execution: Execution | None = None
        self.taking: Capture | None = None
        for part in parts:
            if isinstance(part, torch.optim.Optimizer):
                optimizer(part)
            elif isinstance(part, torch.nn.Module) and mode == "eval":
                part.eval()
        runtime.settings().without_effect.update(other)

    def __enter__(self) -> Session:
        if runtime.current_backend() is None:
            raise faults.program_error("no run is initialized; call initialize() before a Session")
        Session.current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or kind is KeyboardInterrupt:
                self.end_step()
            else:
                self._abandon()
        finally:
            Session.current = None
            if self.execution is not None:
                self.execution.finish()

    def batches(self, loader: Iterable[object]) -> Iterator[Any]:
        """Yield device batches; each pair of batches is separated by one step."""
        state().run_pending()
        if self.execution is None:
            self.execution = begin_execution(self, num_steps=None, checkpoint_steps=0)
            self.execution.free_fetch = True
        iterator = iter(loader)
        done = False
        try:
            while True:
                start = time.perf_counter()
                try:
                    raw = next(iterator)
                except StopIteration:
                    break
                batch = self.execution.feed(raw, wait_s=time.perf_counter() - start)
                self.begin_step(batch)
                yield batch
                self.end_step()
                if self.execution.only_one:
                    break
            done = True
        finally:
            if not done:
                self.end_step()  # the loop was left by break

    def begin_step(self, batch: object) -> None:
        """Start to record the loop's body."""
        tensors = [t for t in pytree.tree_leaves(batch) if isinstance(t, WaferTensor)]
        self.taking = Capture(self.graphs.name, tensors)
        self.taking.start()

    def end_step(self) -> None:
        """Replay the recording and run closures."""
        taking, self.taking = self.taking, None
        if taking is None:
            return
        tape = taking.recorder.tape
        start = time.perf_counter()
        given = [t for values, _ in taking.recorder.callbacks for t in pytree.tree_leaves(values)]
        if not tape.ended:
            tape.end([t for t in given if isinstance(t, WaferTensor) and t._role == "trace"] or tape.last())
        taking.stop()
        if not tape.roots:
            return
        program = taking.program(None)
        self.graphs.settle(taking.run, program, time.perf_counter() - start)
        assert self.execution is not None  # a step is recorded in the loop only
        self.execution.execute(program, taking.batch)
        self.execution.end_step()

    def _abandon(self) -> None:
        taking, self.taking = self.taking, None
        if taking is not None:
            taking.stop()

    def add_step_closure(
        self,
        function: Callable[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        """Call a function with the values of tensors at the end of this step."""
        runtime.step_output((tuple(args), dict(kwargs or {})), lambda given: function(*given[0], **given[1]))
