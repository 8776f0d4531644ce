"""The single run of a process: its options, state and clock, which the rest of the package reads.

A process has one :class:`Run`.  It knows the backend, whether a step is being recorded or executed, which
tensors are state, and when values may be read.

One file, because the state of a run and its clock change together.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wse_sim.cstorch import faults, tensors
from wse_sim.cstorch.counters import count, timed
from wse_sim.cstorch.debug_args import DebugArgs
from wse_sim.cstorch.kinds import MicroBatch
from wse_sim.cstorch.roles import BackendRole, ExecutionRole, LegacyRole
from wse_sim.cstorch.runner_options import RunnerOptions
from wse_sim.cstorch.stores import restore_all
from wse_sim.cstorch.tensors import WaferTensor, owner_of

if TYPE_CHECKING:
    from wse_sim.cstorch.compiled import Compiled

HALF_TYPES = ("float16", "bfloat16", "cbfloat16")


@dataclass
class Settings:
    """Settings that a script makes before its first step and that stay fixed afterwards."""

    half_dtype: str = "float16"
    precision_level: int = 1
    mixed_precision: bool = True
    micro_batch_size: MicroBatch = "auto"
    retrace_every_iteration: bool = False
    lazy_initialization: bool = True
    num_csx: int = 1
    num_workers_per_csx: int = 1
    max_act_per_csx: int = 1
    max_wgt_servers: int = 24
    transfer_processes: int = 5
    checkpoint_steps: int = 0
    mode: str | None = None  # from backend= of compile, or debug_args
    density: dict[str, float] = field(default_factory=dict)
    without_effect: dict[str, Any] = field(default_factory=dict)
    ini: DebugArgs = field(default_factory=DebugArgs)
    debug_args: object = field(default_factory=DebugArgs)


STRATEGIES = {1: "pipelined", 2: "weight-streaming"}
"""Execution strategies of the cluster's protocol, as modes."""
CLUSTER_KEYS = ("num_csx", "num_workers_per_csx", "max_act_per_csx", "max_wgt_servers", "transfer_processes")


@dataclass(frozen=True)
class ClientSpan:
    """One activity of the client, with start and end in seconds of ``time.perf_counter``."""

    kind: str
    name: str
    step: int
    start_s: float
    duration_s: float


class Run:
    """The state that exists once per process."""

    def __init__(self) -> None:
        self.options = RunnerOptions()
        self.settings = Settings()
        self.backend: BackendRole | None = None
        self.configured: dict[str, Any] | None = None
        self.clock_s = 0.0
        self.client_start_s = time.perf_counter()
        self.client_s = 0.0
        self.execution: ExecutionRole | None = None
        self.last_execution: ExecutionRole | None = None
        self.executions = 0
        self.global_step = 0  # steps executed in this process
        self.total_samples = 0
        self.in_closure = 0
        self.internal = 0
        self.compiled: list[Compiled] = []
        self.modules: list[tuple[torch.nn.Module, dict[int, str]]] = []  # compiled models, names by id
        self.locked: dict[str, Any] | None = None
        self.log_lines: deque[str] = deque(maxlen=2000)
        self.spans: list[ClientSpan] = []
        self.wafer_steps: list[tuple[int, float, float, int]] = []
        self.capturing = False
        self.boundary: Callable[[], None] | None = None  # called at step boundaries while a capture is wanted
        self.stop_requested = False
        self.state_name = "idle"
        self.losses: list[tuple[int, float, float]] = []  # (step, wafer time, loss) that closures read
        self.measured_input: deque[float] = deque(maxlen=50)
        self.callbacks_of_exit: list[Callable[[], None]] = []
        self.kernel_precision: tuple[Any, Any] = (None, None)
        self.leave_device: Callable[[], None] | None = None  # undoes what the backend did to torch
        self.legacy_env: object = None  # what older trainers ask for; made by the door `cbtorch`
        self.legacy_state: LegacyRole | None = None

    @property
    def folder(self) -> Path:
        """The run's folder: artifacts of the backend."""
        return Path(self.backend.artifact_dir) if self.backend is not None else Path()

    @property
    def executes(self) -> bool:
        """Whether steps are executed (not under compile_only, validate_only)."""
        return self.backend is None or not (self.backend.compile_only or self.backend.validate_only)

    def request_stop(self) -> None:
        """End after the current step, with its checkpoint."""
        self.stop_requested = True

    def titles(self) -> list[str]:
        """Return a name for each compiled model, no two alike: its class, with a number where several have that."""
        plain = [type(model).__name__.lower() for model, _ in self.modules]
        return [
            f"{name}_{1 + plain[:i].count(name)}" if plain.count(name) > 1 else name
            for i, name in enumerate(plain)
        ]

    def names(self) -> dict[int, str]:
        """Return the names of parameters and buffers of compiled models by id; with that of the model before them where
        there are several.
        """
        out: dict[int, str] = {}
        several = len(self.modules) > 1
        for title, (_, known) in zip(self.titles(), self.modules, strict=True):
            for key, name in known.items():
                out.setdefault(key, f"{title}.{name}" if several else name)
        return out

    def status(self) -> dict[str, Any]:
        """Return the status for clients of the monitor."""
        execution = self.execution
        compiled = self.compiled[-1] if self.compiled else None
        return {
            "state": self.state_name,
            "step": self.global_step,
            "steps": execution.num_steps if execution is not None else None,
            "wafer_s": self.clock_s,
            "client_s": time.perf_counter() - self.client_start_s,
            "samples": self.total_samples,
            "samples_per_s": self.total_samples / self.clock_s if self.clock_s else 0.0,
            "mode": compiled.mode if compiled else None,
            "step_s": compiled.step_s if compiled else None,
            "binding": compiled.binding if compiled else None,
            "folder": str(self.folder),
        }


_RUN = Run()


def run() -> Run:
    """Return the run of this process."""
    return _RUN


def reset() -> None:
    """Discard the run and everything that its modules stored of it (for tests and notebooks)."""
    global _RUN
    if _RUN.leave_device is not None:
        _RUN.leave_device()
    _RUN = Run()
    restore_all()
    tensors.recorder = None
    tensors.device_name = "csx"
    faults.strict = False


def options() -> RunnerOptions:
    """Return the options of the runner."""
    return _RUN.options


def settings() -> Settings:
    """Return the settings of the script."""
    return _RUN.settings


def is_tracing() -> bool:
    """Return whether a step is being recorded."""
    return tensors.recorder is not None


def executes() -> bool:
    """Return whether steps are executed (not under compile_only and validate_only)."""
    return _RUN.executes


def current_backend(required: bool = False) -> BackendRole | None:
    """Return the backend of this process.

    Raises
    ------
    ProgramError
        If `required` and there is none.
    """
    if _RUN.backend is None and required:
        raise faults.program_error('no backend exists yet; call cstorch.backend("CSX") first')
    return _RUN.backend


def use_cs() -> bool:
    """Return whether the backend is the simulated wafer."""
    return _RUN.backend is not None and _RUN.backend.is_csx


def current_execution() -> ExecutionRole | None:
    """Return the execution at work."""
    return _RUN.execution


def clock() -> float:
    """Return the seconds of the wafer since the program was loaded; of the client on other backends."""
    return _RUN.clock_s if use_cs() else time.perf_counter() - _RUN.client_start_s


# -- state and values ---------------------------------------------------------------------------------
def state_tensor(value: torch.Tensor, name: str = "", metric: bool = False) -> torch.Tensor:
    """Return a tensor that steps carry: on the wafer under CSX, the tensor itself elsewhere."""
    if not use_cs() or isinstance(value, WaferTensor):
        return value
    with internal(), torch.no_grad():
        plain = value.detach().clone()
        if _RUN.backend is not None and not _RUN.executes and type(plain) is torch.Tensor:
            plain = _RUN.backend.fake_mode.from_tensor(plain)
    made = WaferTensor(plain, plain, role="metric" if metric else "state", name=name)
    made.requires_grad_(value.requires_grad)
    return made


@contextmanager
def internal() -> Iterator[None]:
    """Mark changes of state within the block as internal (loading, resetting metrics), not the user's."""
    _RUN.internal += 1
    try:
        yield
    finally:
        _RUN.internal -= 1


def assign(target: torch.Tensor, source: object) -> None:
    """Copy values into an existing tensor, which keeps its identity."""
    with torch.no_grad():
        target.copy_(source if isinstance(source, torch.Tensor) else torch.as_tensor(source))


def host_value(tensor: torch.Tensor, metric: bool = False) -> torch.Tensor:
    """Return the values of a tensor on the CPU, where they may be read.

    Raises
    ------
    ProgramError
        In a step, in the loop outside closures, or for weights off a checkpoint step.
    """
    if not isinstance(tensor, WaferTensor):
        return tensor
    if tensors.recorder is not None:
        return tensors.recorder.read(tensor)
    return _host_value(tensor, False, metric)


def _host_value(tensor: WaferTensor, branch: bool = False, metric: bool = False) -> torch.Tensor:
    owner = owner_of(tensor)
    value = tensor._value
    if value is None:
        raise faults.program_error(
            "a tensor of the step has no value outside it; return it from the step or pass it to a step closure"
        )
    if type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
        raise faults.program_error(
            "values do not exist under compile_only and validate_only; run the script without them to read a tensor"
        )
    if _RUN.internal or _RUN.executions == 0:
        return value.detach()
    # A rate, a scale or a count is fetched like a loss; weights and moments are what a checkpoint is for.
    is_state = owner._role == "state" and (owner.numel() > 1 or owner.requires_grad)
    if metric or owner._role == "metric":
        if _RUN.execution is None or _RUN.in_closure:
            return value.detach().clone()
    elif _RUN.in_closure:
        if is_state:
            check_fetch()
        return value.detach().clone()
    elif owner._role in ("state", "plain") and _RUN.execution is None:
        check_fetch()  # state, or what is made of it between executions: a learning rate
        return value.detach().clone()
    count("ReadsRefused")
    raise faults.program_error(faults.BRANCH if branch else faults.READ)


def may_fetch() -> bool:
    """Return whether weights may be fetched now: a checkpoint step, or before the first execution."""
    execution = _RUN.execution or _RUN.last_execution
    if execution is not None and _RUN.execution is None and not execution.wrote_state:
        return True  # an evaluation leaves the weights as they were when they could be fetched
    return execution is None or execution.free_fetch or execution.is_checkpoint_step


def is_checkpoint_step() -> bool:
    """Return whether the step at work (or the last one) is a checkpoint step."""
    return may_fetch()


def check_fetch() -> None:
    """Refuse to fetch weights off a checkpoint step.

    Raises
    ------
    ProgramError
        With step and interval.
    """
    if may_fetch():
        return
    execution = _RUN.execution or _RUN.last_execution
    assert execution is not None
    steps = execution.checkpoint_steps
    rule = (
        f"weights can be fetched only every {steps} steps (checkpoint_steps={steps}) and at the end"
        if steps
        else "weights cannot be fetched in this run (checkpoint_steps=0); set checkpoint_steps > 0"
    )
    raise faults.program_error(f"step {execution.iteration}: {rule}", where="")


def _guard(tensor: WaferTensor, operator: str) -> None:
    """Refuse changes of weights outside a step, except before the first execution or after a checkpoint."""
    owner = owner_of(tensor)
    if owner._role != "state" or _RUN.internal or _RUN.executions == 0:
        return
    name = _RUN.names().get(id(owner)) or owner._name or "state"
    if _RUN.execution is not None:
        raise faults.program_error(
            f"{name} is changed while an execution is running; change it in the step, or after the last step "
            "with checkpoint_steps > 0"
        )
    if not may_fetch():
        raise faults.program_error(
            f"{name} was changed after an execution without a checkpoint on its last step; set checkpoint_steps > 0"
        )


tensors.reader = _host_value
tensors.guard = _guard


def step_output(values: object, callback: Callable[[Any], None]) -> None:
    """Call `callback` with the values of tensors, for every step (in a step), this step (in the loop), or now."""
    if tensors.recorder is not None:
        tensors.recorder.callbacks.append((values, callback))
        return
    if use_cs() and _RUN.execution is not None:
        _RUN.execution.enqueue(values, callback)
        return
    if not executes():
        return
    legacy = _RUN.legacy_state
    if legacy is not None and _RUN.executions == 0 and (legacy.appliance is None or legacy.pending):
        # Older trainers: closures wait for the loop, each behind those that wait already.
        legacy.pending.append((values, callback))
        return
    callback(values)


def set_density(fraction: float, name: str = "weights") -> None:
    """Set the fraction of non-zero weights for the simulation."""
    _RUN.settings.density[name] = fraction


@contextmanager
def kernel_precision(level: object = None, bwd_level: object = None) -> Iterator[None]:
    """Give kernels captured within the block this precision level (forward, backward)."""
    if tensors.recorder is None:
        yield
        return
    tape = tensors.recorder.tape
    before, tape.precision = tape.precision, (level, bwd_level)
    try:
        yield
    finally:
        tape.precision = before


def mark_scaled(loss: torch.Tensor, scaled: torch.Tensor) -> None:
    """Tell the recorder that `scaled` is `loss` times the loss scale."""
    if tensors.recorder is not None:
        tensors.recorder.scaled[id(scaled)] = loss


# -- cluster ------------------------------------------------------------------------------------------
def apply_cluster(config: object) -> None:
    """Apply the fields of a CSConfig or ClusterConfig.

    Raises
    ------
    ProgramError
        If the first compile has locked the cluster and a field differs.
    """
    given = {k: getattr(config, k) for k in CLUSTER_KEYS if getattr(config, k, None) is not None}
    explicit = getattr(config, "given", None)
    if explicit is not None:
        given = {k: v for k, v in given.items() if k in explicit}
    set_cluster(given)
    level = getattr(config, "precision_opt_level", None)
    if level is not None:
        _RUN.settings.precision_level = level
    strategy = getattr(config, "execution_strategy", None)
    if strategy in STRATEGIES:
        _RUN.settings.mode = STRATEGIES[strategy]


def set_cluster(given: dict[str, Any]) -> None:
    """Set fields of the cluster; see :func:`apply_cluster`."""
    for key, value in given.items():
        if key == "num_workers_per_csx" and value == 0:
            value = Settings.num_workers_per_csx  # 0 means automatic: as many as nothing asks for
        if not isinstance(value, int) or value < 1:
            raise faults.program_error(f"{key}={value!r} is invalid; give an integer of at least 1")
        if _RUN.locked is not None and _RUN.locked.get(key) != value:
            raise faults.program_error(
                f"{key}={value} comes after the first compile, which locked the cluster at {key}={_RUN.locked.get(key)}; "
                "set it before the first step, or use another process"
            )
        setattr(_RUN.settings, key, value)


def lock_cluster() -> None:
    """Fix the cluster at the first compile."""
    if _RUN.locked is None:
        _RUN.locked = {key: getattr(_RUN.settings, key) for key in CLUSTER_KEYS}


# -- monitoring ---------------------------------------------------------------------------------------
@contextmanager
def span(kind: str, name: str = "", metric: str | None = None) -> Iterator[None]:
    """Time the context: a span of the capture, a sample of the metrics report."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        if metric is not None:
            timed(metric, seconds)
        if _RUN.capturing:
            _RUN.spans.append(ClientSpan(kind, name, _RUN.global_step, start, seconds))


def random_state() -> torch.Tensor:
    """State of torch's default generator."""
    return torch.get_rng_state()


@contextmanager
def random_kept() -> Iterator[None]:
    """Restore torch's random state after the block, as if the block had drawn nothing."""
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)


def set_random_state(state: torch.Tensor) -> None:
    """Restore the result of :func:`random_state`."""
    torch.set_rng_state(state.to(torch.uint8))


def note(text: str) -> None:
    """Write a line of progress to standard error and to the run's log."""
    _RUN.log_lines.append(text)
    faults.note(text)
