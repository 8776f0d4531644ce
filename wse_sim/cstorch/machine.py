"""The backend, which selects the machine that runs the script, and its preparation by ``configure`` and ``compile``.

Backend, ``compile`` and ``configure`` share one file, because they prepare the single machine of a process.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from wse_sim.cstorch import device as devices
from wse_sim.cstorch import faults, one_machine, optimizer_hooks, rates, runtime, tensors
from wse_sim.cstorch.cluster import Cluster
from wse_sim.cstorch.kinds import T
from wse_sim.cstorch.roles import BackendRole
from wse_sim.cstorch.tensors import WaferTensor, wrap
from wse_sim.frontend.torch_state import remove_function_mode

if TYPE_CHECKING:
    from wse_sim.cstorch.distributed import ClusterConfig

KINDS = ("CSX", "CPU", "GPU")
MODES_OF_BACKEND = {
    "wse_ws": "weight-streaming",
    "wse_lp": "pipelined",
    "csx": None,
    "cpu": None,
    "gpu": None,
}


class BackendType(Enum):
    """Kinds of backends."""

    CSX = "CSX"
    CPU = "CPU"
    GPU = "GPU"

    @classmethod
    def from_str(cls, name: str) -> BackendType:
        """Return the kind of backend with a name; see :func:`kind_of`."""
        return kind_of(name)

    @property
    def is_csx(self) -> bool:
        return self is BackendType.CSX

    @property
    def is_cpu(self) -> bool:
        return self is BackendType.CPU

    @property
    def is_gpu(self) -> bool:
        return self is BackendType.GPU


class Device:
    """``backend.device``: a context in which models are made, and settings of initialisation."""

    def __init__(self, owner: Backend) -> None:
        self._owner = owner
        self._open: list[Any] = []
        self.config = DeviceConfig()

    def __enter__(self) -> Device:
        context = contextlib.ExitStack()
        if self._owner.is_csx and not self._owner.is_e2e_execution:
            context.enter_context(
                devices.WithoutWeights(self._owner.fake_mode)
            )  # weights are never allocated
        self._open.append(context)
        return self

    def __exit__(self, *fault: object) -> None:
        self._open.pop().close()

    def __str__(self) -> str:
        return self._owner.backend_type.name

    def __repr__(self) -> str:
        return f"<device {self}>"

    @property
    def type(self) -> str:
        return self._owner.torch_device.type

    @property
    def torch_device(self) -> torch.device:
        return self._owner.torch_device

    def move_to_device(self, value: T) -> T:
        """Device tensors (or modules) of the same values."""
        if isinstance(value, torch.nn.Module):
            place_module(value)
            return value
        return torch.utils._pytree.tree_map(
            lambda t: as_device_tensor(t) if isinstance(t, torch.Tensor) else t, value
        )


class DeviceConfig:
    """``device.config``: initialisation settings; values are checked, effects are the simulator's own."""

    def __init__(self) -> None:
        object.__setattr__(self, "drop_data", False)

    @property
    def lazy_initialization(self) -> bool:
        return runtime.settings().lazy_initialization

    @lazy_initialization.setter
    def lazy_initialization(self, value: bool) -> None:
        runtime.settings().lazy_initialization = bool(value)


class Backend:
    """The machine of this process; made by :func:`backend`."""

    def __init__(
        self,
        kind: BackendType,
        artifact_dir: str | os.PathLike[str] | None = None,
        compile_dir: str | os.PathLike[str] | None = None,
        compile_only: bool = False,
        validate_only: bool = False,
        max_checkpoints: int | None = None,
    ) -> None:
        options = runtime.options()
        self.backend_type = kind
        self.artifact_dir = Path(artifact_dir) if artifact_dir is not None else Path("cerebras_logs")
        self.compile_dir = compile_dir
        self.compile_only = bool(compile_only or options.compile_only) and kind.is_csx
        self.validate_only = bool(validate_only or options.validate_only) and kind.is_csx
        self.max_checkpoints = max_checkpoints
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.device = Device(self)
        self.cluster_config: ClusterConfig | None = None
        self.cluster = Cluster()
        self._impl = self  # where releases from 2.3 on ask whether steps are executed

    @property
    def is_csx(self) -> bool:
        return self.backend_type.is_csx

    @property
    def is_cpu(self) -> bool:
        return self.backend_type.is_cpu

    @property
    def is_gpu(self) -> bool:
        return self.backend_type.is_gpu

    @property
    def name(self) -> str:
        return self.backend_type.name

    @property
    def is_e2e_execution(self) -> bool:
        """True if steps are executed."""
        return not (self.compile_only or self.validate_only)

    @property
    def is_tracing(self) -> bool:
        """True if tensors have no values now: in a step, and in the loop around it, but not in closures."""
        run = runtime.run()
        return runtime.is_tracing() or (self.is_csx and run.execution is not None and not run.in_closure)

    @property
    def appliance(self) -> SimpleNamespace | None:
        """Floating-point operations of the last compile (per sample, and the peak per second)."""
        compiled = runtime.run().compiled
        result = compiled[-1].result if compiled else None
        if result is None or not result.compute_utilization:
            return None
        flops = result.flops_per_step / compiled[-1].batch
        most = result.flops_per_step / result.step_s / result.compute_utilization
        info = SimpleNamespace(algo_flops=flops, supported_flops=most)
        return SimpleNamespace(compile_resp=SimpleNamespace(perf_info=info))

    @property
    def torch_device(self) -> torch.device:
        if self.is_csx:
            return torch.device(tensors.device_name, 0)
        return torch.device("cuda" if self.is_gpu else "cpu")

    def __repr__(self) -> str:
        return f"<backend {self.name}>"


def kind_of(name: object) -> BackendType:
    """Return the kind of backend with a name.

    Raises
    ------
    ProgramError
        With the choices and the nearest name.
    """
    if isinstance(name, BackendType):
        return name
    text = str(name).upper()
    text = {"WSE_WS": "CSX", "WSE_LP": "CSX", "CS": "CSX"}.get(text, text)
    if text not in KINDS:
        near = difflib.get_close_matches(text, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise faults.program_error(f"backend {name!r} is unknown; use one of {', '.join(KINDS)}{hint}")
    return BackendType[text]


def current_backend_impl(raise_exception: bool = True) -> BackendRole | None:
    """Return the backend of this process, for 2.x modules."""
    return runtime.current_backend(required=raise_exception)


_ACCEPTED = {
    "artifact_dir", "compile_dir", "compile_only", "validate_only", "max_checkpoints", "cluster_config",
    "micro_batch_size", "retrace_every_iteration", "mixed_precision", "drop_data", "use_cs_grad_accum",
    "csx", "mgmt_address", "mgmt_namespace", "credentials_path", "num_steps", "op_profiler_config",
}  # fmt: skip


def get_backend_args(backend_type: object) -> dict[str, object]:
    """Return the keywords that :func:`backend` takes for a kind, with their defaults.

    Raises
    ------
    ProgramError
        For an unknown kind.
    """
    common: dict[str, object] = {"artifact_dir": None, "max_checkpoints": None, "mixed_precision": None}
    if not kind_of(backend_type).is_csx:
        return common
    return {**common, "compile_dir": None, "compile_only": False, "validate_only": False, "drop_data": False,
            "cluster_config": None, "micro_batch_size": None, "retrace_every_iteration": None}  # fmt: skip


def use_cs() -> bool:
    """Return whether the backend of this process is the simulated wafer."""
    return runtime.use_cs()


def backend(backend_type: object = None, *args: object, **kwargs: Any) -> Backend:
    """Make the backend of this process, or give the present one.

    Parameters
    ----------
    backend_type
        "CSX" (simulated wafer), "CPU" or "GPU" (plain eager PyTorch).  None: the present backend.
    artifact_dir, compile_dir
        Folders of the run; `compile_dir` is kept in the record.
    compile_only, validate_only
        Stop after the plan, or after kernels are matched; nothing is executed.
    cluster_config
        A ``distributed.ClusterConfig``.
    micro_batch_size, retrace_every_iteration, max_checkpoints, mixed_precision
        As in the documentation of the interface.

    Raises
    ------
    ProgramError
        For an unknown kind, or for a second backend of a different kind.
    """
    run = runtime.run()
    if backend_type is None:
        found = runtime.current_backend(required=True)
        assert isinstance(found, Backend)
        return found
    if args:
        kwargs.setdefault("artifact_dir", args[0])
    kind = kind_of(backend_type)
    unknown = sorted(set(kwargs) - _ACCEPTED)
    if isinstance(run.backend, Backend):
        if run.backend.backend_type is not kind:
            raise faults.program_error(
                f"a backend {run.backend.name} exists and {kind.name} is asked for; one process has one kind of backend, "
                "use its own process"
            )
        if kwargs.get("artifact_dir") is not None:
            run.backend.artifact_dir = Path(kwargs["artifact_dir"])
        _take_settings(kwargs)
        return run.backend
    if kind.is_gpu and not torch.cuda.is_available():
        raise faults.program_error('this torch has no GPU; use cstorch.backend("CPU")')
    if unknown:
        faults.warn_once(
            ("backend", *unknown), f"backend: {', '.join(unknown)} has no effect here; it is kept in run.json"
        )
        run.settings.without_effect.update({k: kwargs[k] for k in unknown})
    made = Backend(
        kind,
        kwargs.get("artifact_dir"),
        kwargs.get("compile_dir"),
        kwargs.get("compile_only", False),
        kwargs.get("validate_only", False),
        kwargs.get("max_checkpoints"),
    )
    run.backend, run.leave_device = made, leave_device
    rates.run_clock = lambda: (runtime.use_cs(), runtime.clock())
    _take_settings(kwargs)
    if kind.is_csx:
        enter_device()
    return made


def _take_settings(given: dict[str, Any]) -> None:
    run = runtime.run()
    assert run.backend is not None
    if given.get("cluster_config") is not None:
        run.backend.cluster_config = run.backend.cluster.config = given["cluster_config"]
        if run.backend.is_csx:
            runtime.apply_cluster(given["cluster_config"])
    if "micro_batch_size" in given:
        from wse_sim.cstorch.backends import check_micro_batch

        run.settings.micro_batch_size = check_micro_batch(given["micro_batch_size"])
    if "retrace_every_iteration" in given:
        run.settings.retrace_every_iteration = bool(given["retrace_every_iteration"])
    if "mixed_precision" in given:
        run.settings.mixed_precision = bool(given["mixed_precision"])


_mode: devices.WaferDeviceMode | None = None
_plain_to = torch.nn.Module.to


def _module_to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """``module.to(device)`` with the wafer's device: parameters move and keep their identity."""
    device = kwargs.get("device", args[0] if args else None)
    if not devices.is_wafer_device(device):
        return _plain_to(self, *args, **kwargs)
    place_module(self)
    rest = tuple(a for a in args if isinstance(a, torch.dtype))
    if not rest and isinstance(kwargs.get("dtype"), torch.dtype):
        rest = (kwargs["dtype"],)
    return _plain_to(self, dtype=rest[0]) if rest else self


def enter_device() -> None:
    """Enable calls that name the wafer's device."""
    global _mode
    devices.register()
    optimizer_hooks.install()
    torch.nn.Module.to = _module_to  # type: ignore[method-assign,assignment]
    one_machine.enter()
    if _mode is None:
        _mode = devices.WaferDeviceMode()
        _mode.__enter__()


def leave_device() -> None:
    """Undo :func:`enter_device`."""
    global _mode
    torch.nn.Module.to = _plain_to  # type: ignore[method-assign]
    one_machine.leave()
    if _mode is not None:
        remove_function_mode(_mode)
        _mode = None


CONFIGURE_WITH_EFFECT = {
    "model_dir", "compile_only", "validate_only", "checkpoint_steps", "num_csx", "max_wgt_servers",
    "transfer_processes", "num_workers_per_csx", "max_act_per_csx", "seed", "precision_opt_level",
}  # fmt: skip


class Configuration(TypedDict, total=False):
    """Keywords of :func:`configure` in addition to the folders; the others of the interface have no effect here."""

    compile_only: bool
    validate_only: bool
    checkpoint_steps: int
    num_csx: int
    max_wgt_servers: int
    transfer_processes: int
    num_workers_per_csx: int
    max_act_per_csx: int
    mount_dirs: list[str] | None
    python_paths: list[str] | None
    job_labels: list[str] | None
    seed: int | None
    precision_opt_level: int


CLUSTER_DEFAULTS = {
    "num_csx": 1,
    "max_wgt_servers": 24,
    "transfer_processes": 5,
    "num_workers_per_csx": 1,
    "max_act_per_csx": 1,
}


def configure(model_dir: str = "./", compile_dir: str | None = None, **how: Unpack[Configuration]) -> None:
    """Configure the run, once per process (the experimental interface).

    Parameters that do not change the simulation are kept in the run's record and named once.

    Raises
    ------
    ProgramError
        On a second call, or for an impossible value.
    """
    run = runtime.run()
    if run.configured is not None:
        raise faults.program_error(
            f"configure: a run is configured already in this process (model_dir {run.configured['model_dir']}); "
            "use one configuration per process"
        )
    other: dict[str, Any] = dict(how)
    checkpoint_steps = other.pop("checkpoint_steps", 0)
    if not isinstance(checkpoint_steps, int) or checkpoint_steps < 0:
        raise faults.program_error(
            f"checkpoint_steps={checkpoint_steps!r} is invalid; give an integer of at least 0"
        )
    tensors.device_name = "xla"  # what scripts of the experimental interface check
    run.configured = {"model_dir": str(model_dir), "checkpoint_steps": checkpoint_steps}
    backend(
        "CSX",
        artifact_dir=model_dir,
        compile_dir=compile_dir,
        compile_only=other.pop("compile_only", False),
        validate_only=other.pop("validate_only", False),
    )
    runtime.set_cluster({name: other.pop(name, least) for name, least in CLUSTER_DEFAULTS.items()})
    run.settings.checkpoint_steps = checkpoint_steps
    seed = other.pop("seed", None)
    if seed is not None:
        torch.manual_seed(seed)
    if "precision_opt_level" in other:
        run.settings.precision_level = other.pop("precision_opt_level")
    idle = {key: value for key, value in {"compile_dir": compile_dir, **other}.items() if value is not None}
    run.settings.without_effect.update(idle)
    if idle:
        faults.warn_once(
            ("configure", *idle), f"configure: {', '.join(idle)} has no effect here; it is kept in run.json"
        )


def as_device_tensor(tensor: torch.Tensor, role: str = "plain", name: str = "") -> torch.Tensor:
    """Return a tensor on the current device."""
    found = runtime.current_backend()
    if found is None or isinstance(tensor, WaferTensor):
        return tensor
    return wrap(tensor.detach(), role, name) if found.is_csx else tensor.to(found.torch_device)


def place_module(model: torch.nn.Module) -> dict[int, str]:
    """Put parameters and buffers of a module on the wafer; every object keeps its identity, ties stay ties.

    Returns names by id.
    """
    run = runtime.run()
    names: dict[int, str] = {}
    fake = run.backend is not None and not run.executes
    recurrent = [module for module in model.modules() if isinstance(module, torch.nn.RNNBase)]
    for module in recurrent:
        module._flat_weight_refs = []  # weak references, with which a payload cannot be swapped
    _drop_history(model)
    for kind in ("_parameters", "_buffers"):
        for path, module in model.named_modules(remove_duplicate=False):
            for key, tensor in list(getattr(module, kind).items()):
                if tensor is None:
                    continue
                name = f"{path}.{key}" if path else key
                if id(tensor) in names:
                    continue
                if not isinstance(tensor, WaferTensor):
                    _swap(tensor, name, fake)
                tensor._role = "state"
                tensor._name = tensor._name or name
                names[id(tensor)] = name
    for module in recurrent:
        module._init_flat_weights()
    return names


def _drop_history(model: torch.nn.Module) -> None:
    """Detach tensors that modules derived from their parameters at construction (pruning, weight norms) and
    recompute per call."""
    for module in model.modules():
        for key in list(vars(module)):
            if isinstance(module.__dict__[key], torch.Tensor) and module.__dict__[key].grad_fn is not None:
                module.__dict__[key] = module.__dict__[key].detach()


def _swap(tensor: torch.Tensor, name: str, fake: bool) -> None:
    value = tensor.detach()
    with torch._C.DisableTorchFunction():
        if fake and not isinstance(value, FakeTensor):
            mode = runtime.run().backend.fake_mode  # type: ignore[union-attr]
            value = mode.from_tensor(value, static_shapes=True)
        elif not fake and isinstance(value, FakeTensor):
            raise faults.program_error(
                f"{name} was made under compile_only and has no values; make the model again"
            )
        made: torch.Tensor = WaferTensor(
            value,
            value if fake else value.clone(memory_format=torch.preserve_format),
            role="state",
            name=name,
        )
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, tensor.requires_grad)
        elif tensor.requires_grad:
            made.requires_grad_()
        kept = dict(tensor.__dict__)
        gradient = tensor.grad
        tensor.grad = None
        try:
            torch.utils.swap_tensors(tensor, made)
        except RuntimeError as fault:
            raise faults.program_error(
                f"{name} cannot move to the wafer ({str(fault).rstrip('.')}); compile the model before other code refers to it"
            ) from fault
        for key, what in kept.items():
            if key not in tensor.__dict__ and key != "_is_param" and not isinstance(made, FakeTensor):
                tensor.__dict__[key] = what
        if gradient is not None:
            faults.warn_once("grad", "gradients that parameters had before cstorch.compile are dropped")


class _Compiled:
    """Marks a module as compiled: calls outside a step are refused."""

    def __call__(self, module: torch.nn.Module, inputs: object, kwargs: object = None) -> None:
        if runtime.use_cs() and not runtime.is_tracing() and not runtime.run().internal:
            raise faults.program_error(faults.OUTSIDE)


def compile(model: torch.nn.Module, backend: object = None, **other: object) -> torch.nn.Module:  # noqa: A001
    """Prepare a model: its parameters move to the backend's device; compilation comes with the first step.

    Parameters
    ----------
    model
        Any module.  The same object is returned; its parameters keep their identity.
    backend
        A backend, or its name: "CSX", "CPU", "GPU", "wse_ws" (weight streaming), "wse_lp" (pipelined).

    Raises
    ------
    ProgramError
        For an unknown or a second kind of backend.
    """
    run = runtime.run()
    if not isinstance(model, torch.nn.Module):
        raise faults.program_error(
            f"compile takes a torch.nn.Module but got a {type(model).__name__}; give the model"
        )
    if isinstance(backend, str) or backend is None:
        name = (backend or (run.backend.name if run.backend is not None else "CSX")).lower()
        mode = MODES_OF_BACKEND.get(name)
        if mode is not None:
            run.settings.mode = mode
        chosen = globals()["backend"](name)
    else:
        chosen = backend
    object.__setattr__(model, "backend", chosen)
    if not chosen.is_csx:
        model.to(chosen.torch_device)
        _set_device(model, chosen)
        return model
    names = place_module(model)
    if all(m is not model for m, _ in run.modules):
        run.modules.append((model, names))
        model.register_forward_pre_hook(_Compiled())
    _set_device(model, chosen)
    return model


def _set_device(model: torch.nn.Module, chosen: Backend) -> None:
    with contextlib.suppress(AttributeError):
        object.__setattr__(model, "device", chosen.torch_device)


@contextlib.contextmanager
def lazily() -> Iterator[None]:
    """Enter a context without effect: values are created with the model."""
    yield
