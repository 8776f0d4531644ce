"""Checkpoints: a state in one HDF5 file, written atomically.

Layout of a file: every tensor is a dataset named by its place in the structure, joined by dots
(``model.fc.weight``, ``optimizer.state.0.exp_avg``), with its data type (types that HDF5 lacks are stored as
integers of the same width, with the attribute ``dtype``).  The dataset ``__spec__`` holds the structure as
JSON: names of datasets at the leaves, and plain Python values in place.  Attributes: ``version``, ``format``.
Tensors that share their memory are stored once, under both names.

``load`` without a location returns handles that read on copy, so a model is loaded tensor by tensor.

Writing and reading share one file, because they share the layout above.
"""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch._ops import OpOverload

from wse_sim.atomic_files import whole
from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.kinds import Location, Plain
from wse_sim.cstorch.stores import of_run
from wse_sim.errors import WseError
from wse_sim.files import JSON, is_file

if TYPE_CHECKING:
    import h5py

VERSION = 1.0
FORMAT = "wse_sim.cstorch state"
SPEC, RANDOM = "__spec__", "__random__"
# Rows of a chunk are chosen so that it holds about this many bytes.
CHUNK_BYTES = 1 << 20

# Types without a counterpart in HDF5, and the integers of the same width.
AS_INTEGERS = {torch.bfloat16: torch.int16}
for _name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
    if hasattr(torch, _name):
        AS_INTEGERS[getattr(torch, _name)] = torch.uint8


def _hdf5() -> ModuleType:
    try:
        import h5py
    except ModuleNotFoundError:
        raise faults.program_error(
            "checkpoints need the package h5py, which is not installed; pip install 'wse-sim[cstorch]'"
        ) from None
    return h5py


# -- structure ----------------------------------------------------------------------------------------


def _key(key: object) -> Plain:
    """Return a dictionary key as JSON keeps it."""
    if isinstance(key, str | int | float | bool) or key is None:
        return key
    raise faults.program_error(
        f"save: a key of type {type(key).__name__} cannot be stored; use text or numbers as keys"
    )


class _Flat:
    """Flattens a structure: tensors by name, everything else as JSON."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def walk(self, value: object, path: tuple[str, ...]) -> JSON:
        if isinstance(value, torch.Tensor):
            name = self._name(path)
            self.tensors[name] = value
            kind = "parameter" if isinstance(value, torch.nn.Parameter) else "tensor"
            return {"t": name, "kind": kind}
        if isinstance(value, dict):
            kind = "ordered" if isinstance(value, collections.OrderedDict) else "dict"
            return {"d": [[_key(k), self.walk(v, (*path, str(k)))] for k, v in value.items()], "kind": kind}
        if isinstance(value, tuple | list):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {"l": [self.walk(v, (*path, str(i))) for i, v in enumerate(value)], "kind": kind}
        if isinstance(value, set | frozenset):
            return {
                "l": [self.walk(v, (*path, str(i))) for i, v in enumerate(sorted(value, key=str))],
                "kind": "set",
            }
        if isinstance(value, np.ndarray):
            name = self._name(path)
            self.tensors[name] = torch.from_numpy(np.ascontiguousarray(value))
            return {"t": name, "kind": "array"}
        return {"v": self._plain(value, path)}

    def _name(self, path: tuple[str, ...]) -> str:
        name = ".".join(path).replace("/", "_") or "value"
        unique, n = name, 1
        while unique in self.tensors or unique in (SPEC, RANDOM, "."):
            unique, n = f"{name}~{n}", n + 1
        return unique

    @staticmethod
    def _plain(value: object, path: tuple[str, ...]) -> JSON:
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, os.PathLike):
            return str(value)
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        raise faults.program_error(
            f"save: '{'.'.join(path)}' is a {type(value).__name__}, which a checkpoint cannot hold; "
            "save tensors, numbers, text and structures of them"
        )


_BUILD = {"list": list, "tuple": tuple, "set": set, "dict": dict, "ordered": collections.OrderedDict}


def _rebuild(spec: dict[str, Any], tensor: Callable[[str], torch.Tensor]) -> Any:
    if "t" in spec:
        value = tensor(spec["t"])
        return np.asarray(value) if spec["kind"] == "array" else value
    if "d" in spec:
        return _BUILD[spec["kind"]]((k, _rebuild(v, tensor)) for k, v in spec["d"])
    if "l" in spec:
        return _BUILD[spec["kind"]](_rebuild(v, tensor) for v in spec["l"])
    value = spec["v"]
    if not isinstance(value, dict):
        return value
    dtype = _dtype_named(value.get("dtype"))
    if dtype is None:
        raise faults.program_error(
            f"load: the checkpoint names {str(value)[:80]} as an element type, which torch does not have; use an earlier checkpoint"
        )
    return dtype


# -- writing ------------------------------------------------------------------------------------------


def _write_tensor(file: h5py.File, name: str, tensor: torch.Tensor, compression: str | None) -> None:
    stored = tensor.detach().cpu().contiguous()
    as_integer = AS_INTEGERS.get(stored.dtype)
    data = (stored.view(as_integer) if as_integer is not None else stored).numpy()
    if as_integer is torch.int16:
        data = data.view(np.uint16)
    options: dict[str, Any] = {}
    if data.ndim and data.nbytes > CHUNK_BYTES:
        row_bytes = max(1, data.nbytes // data.shape[0])
        options["chunks"] = (max(1, min(data.shape[0], CHUNK_BYTES // row_bytes)), *data.shape[1:])
    elif compression and data.size and data.ndim:
        options["chunks"] = True
    if compression and "chunks" in options:
        options["compression"] = compression
    made = file.create_dataset(name, data=data, **options)
    made.attrs["dtype"] = str(tensor.dtype).removeprefix("torch.")


def _write(
    path: Path,
    spec: object,
    tensors: dict[str, torch.Tensor],
    random: torch.Tensor | None,
    compression: str | None,
) -> None:
    """Write to a temporary name next to the file, then rename it: a killed process leaves the old or the new
    file."""
    h5 = _hdf5()
    with whole(path) as part:
        with h5.File(part, "w") as file:
            file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
            written: dict[tuple[Any, ...], str] = {}
            for name, tensor in tensors.items():
                key = (
                    (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
                    if tensor.numel()
                    else (name,)
                )
                if key in written:
                    file[name] = file[written[key]]
                else:
                    written[key] = name
                    _write_tensor(file, name, tensor, compression)
            file.create_dataset(SPEC, data=json.dumps(spec))
            if random is not None:
                _write_tensor(file, RANDOM, random, None)
        with part.open("rb") as handle:
            os.fsync(handle.fileno())


_writer = concurrent.futures.ThreadPoolExecutor(1, "checkpoint")
_pending: dict[Path, concurrent.futures.Future[Path]] = {}
_kept: list[Path] = of_run([])


def save(
    obj: object,
    path: str | os.PathLike[str],
    *,
    compression: str | None = None,
    asynchronous: bool | None = None,
) -> concurrent.futures.Future[Path]:
    """Write a structure of tensors and plain values to a file.

    Args:
        obj: dictionaries, lists, tuples of tensors, numbers, text.
        path: the file; its folder is made.
        compression: a filter of HDF5 ("gzip", "lzf") or None.
        asynchronous: copy the tensors now and write in the background; the future it gives tells when the file is
            there.  Default: the runner's choice.

    Raises:
        ProgramError: weights are fetched off a checkpoint step, or a value cannot be stored.
    """
    target = Path(os.path.expanduser(path))
    done: concurrent.futures.Future[Path] = concurrent.futures.Future()
    done.set_result(target)
    if not runtime.executes():
        faults.note(f"{target} is not written: nothing is executed")
        return done
    flat = _Flat()
    spec = flat.walk(obj, ())
    tensors = {name: _fetched(t) for name, t in flat.tensors.items()}
    random = torch.get_rng_state()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise faults.program_error(
            f"save: the folder {target.parent} cannot be made ({fault.strerror}); choose another path"
        ) from None
    if asynchronous is None:
        asynchronous = bool(getattr(runtime.options(), "async_checkpoints", False))
    _hdf5()
    wait(target)
    if asynchronous:
        # Copies: training continues and writes into the tensors while the file is made.
        tensors = {name: t.clone() for name, t in tensors.items()}
        done = _writer.submit(_written, target, spec, tensors, random, compression)
        _pending[target] = done
        return done
    with runtime.span("checkpoint", target.name):
        _written(target, spec, tensors, random, compression)
    return done


def _written(
    target: Path,
    spec: object,
    tensors: dict[str, torch.Tensor],
    random: torch.Tensor,
    compression: str | None,
) -> Path:
    try:
        _write(target, spec, tensors, random, compression)
    except OSError as fault:
        raise faults.program_error(
            f"save: {target} cannot be written ({fault}); choose another path or make room", where=""
        ) from None
    _forget_oldest(target)
    return target


def _fetched(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, LazyTensor):
        return tensor.read()
    return runtime.host_value(tensor).detach()


def _forget_oldest(newest: Path) -> None:
    backend = runtime.current_backend(required=False)
    limit = getattr(backend, "max_checkpoints", None)
    if newest in _kept:
        _kept.remove(newest)
    _kept.append(newest)
    while limit and len(_kept) > limit:
        _kept.pop(0).unlink(missing_ok=True)


def wait(path: str | os.PathLike[str] | None = None) -> None:
    """Wait until a file (or all files) written in the background is complete."""
    wanted = list(_pending) if path is None else [Path(os.path.expanduser(path))]
    for target in wanted:
        future = _pending.pop(target, None)
        if future is not None:
            future.result()


atexit.register(wait)


def exposed_seconds(write_s: float, interval_s: float, copy_s: float = 0.0) -> float:
    """Return the time that a checkpoint costs a run that continues while it is written.

    The copy stops the run; the write is hidden by the time until the next checkpoint, and only the excess is
    waited for.

        cost = copy_s + max(0, write_s - interval_s)
    """
    return copy_s + max(0.0, write_s - interval_s)


# -- reading ------------------------------------------------------------------------------------------


def opened(path: str | os.PathLike[str]) -> h5py.File:
    """Open an HDF5 file with its own values: references to other files (links, external and virtual storage)
    are rejected.

    Raises:
        ProgramError: the file refers to another one.
    """
    status = os.stat(path)
    name = _elsewhere(os.fspath(path), status.st_ino, status.st_mtime_ns, status.st_size)
    if name is not None:
        raise faults.program_error(
            f"load: {path} takes {name[:80]!r} from another file, which is not read; give a file that contains its values"
        )
    return _hdf5().File(path, "r")


@functools.lru_cache(maxsize=64)  # tensors are read one by one from the same file
def _elsewhere(path: str, *state: int) -> str | None:
    """Return the first name in a file whose values are in another file; `state` identifies the version of the
    file."""
    h5 = _hdf5()

    def elsewhere(name: str, link: object) -> str | None:
        if isinstance(link, h5.ExternalLink):
            return name
        found = file[name] if isinstance(link, h5.HardLink) else None
        outside = isinstance(found, h5.Dataset) and (found.external or found.is_virtual)
        return name if outside else None

    with h5.File(path, "r") as file:
        name = file.visititems_links(elsewhere)
    return None if name is None else str(name)


def _dtype_named(name: object) -> torch.dtype | None:
    """Return the type of elements that a file names; None where torch has none of the name."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    return found if isinstance(found, torch.dtype) else None


class _Source:
    """An open file that several handles read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.file = opened(path)

    def read(self, name: str) -> torch.Tensor:
        with self.lock, _undamaged(self.path):
            found = self.file[name]
            wanted = found.attrs.get("dtype")
            data = np.asarray(found[()])
        dtype = _dtype_named(wanted)
        if dtype is not None and data.dtype == np.uint16 and AS_INTEGERS.get(dtype) is torch.int16:
            data = data.view(np.int16)
        tensor = torch.from_numpy(np.ascontiguousarray(data)).reshape(data.shape)
        return tensor.view(dtype) if dtype in AS_INTEGERS else tensor

    def facts(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        found = self.file[name]
        wanted = found.attrs.get("dtype")
        if (dtype := _dtype_named(wanted)) is not None:
            return tuple(found.shape), dtype
        return tuple(found.shape), torch.from_numpy(np.empty(0, found.dtype)).dtype


class LazyTensor(torch.Tensor):
    """A tensor in a file: it has shape and type, and reads its values when it is used."""

    _source: _Source
    _name: str

    @staticmethod
    def __new__(cls, source: _Source, name: str) -> LazyTensor:
        shape, dtype = source.facts(name)
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device("cpu"))  # type: ignore
        made._source, made._name = source, name
        return made  # type: ignore[no-any-return]

    def read(self) -> torch.Tensor:
        """Return the values, from the file."""
        return self._source.read(self._name)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"LazyTensor({self._source.path.name}:{self._name}, {tuple(self.shape)}, {self.dtype})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return self.read().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: object) -> torch.Tensor:
        return self.read()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:  # type: ignore[override]
        values = self.read().numpy()
        return values if dtype is None else values.astype(dtype)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return self.read().numpy()

    def tolist(self) -> list[Any]:
        return self.read().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:  # type: ignore[override]
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.utils import _pytree as pytree

        # Where weights are never allocated, what is read is only a shape.
        fake = next((x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)), None)
        mode = None if fake is None else fake.fake_mode

        def value(x: object) -> object:
            if not isinstance(x, LazyTensor):
                return x
            if mode is None:
                return x.read()
            with mode:
                return torch.empty(x.shape, dtype=x.dtype)

        args, kwargs = pytree.tree_map(value, (args, kwargs or {}))
        return func(*args, **kwargs)


def load(path: str | os.PathLike[str], map_location: Location | None = None, **keywords: object) -> Any:
    """Read a checkpoint, of this kind or one that ``torch.save`` wrote.

    Args:
        path: the file.
        map_location: None: tensors are handles that read when they are copied; "cpu" (or any device): all values now.

    Raises:
        ProgramError: the file is missing, is no checkpoint, or is damaged.
    """
    target = Path(os.path.expanduser(path))
    wait(target)
    if not is_file(target, "load: checkpoint", faults.ProgramError):
        raise faults.program_error(f"load: there is no file {target}; check the path")
    if not _is_hdf5(target):
        return _load_pickle(target, map_location, keywords)
    with _undamaged(target):
        return _load_hdf5(target, map_location)


@contextlib.contextmanager
def _undamaged(target: Path) -> Iterator[None]:
    """Convert errors of HDF5 or JSON on a damaged file to one sentence; there are a dozen kinds of
    exceptions, some of Cython's own."""
    try:
        yield
    except (WseError, MemoryError):
        raise
    except Exception as fault:
        reason = " ".join(str(fault).split())[:160]
        raise faults.program_error(
            f"load: {target} is damaged ({type(fault).__name__}: {reason}); use an earlier checkpoint"
        ) from None


def _load_hdf5(target: Path, map_location: Location | None) -> Any:
    source = _Source(target)
    spec = source.file.get(SPEC)
    if spec is None:
        found = list(source.file)
        structure: dict[str, Any] = {
            "d": [[n, {"t": n, "kind": "tensor"}] for n in found if hasattr(source.file[n], "shape")],
            "kind": "dict",
        }
    else:
        structure = json.loads(spec[()])
    if RANDOM in source.file:
        _random.update(state=source.read(RANDOM), seed=torch.initial_seed())
    if map_location is None:
        return _rebuild(structure, functools.partial(LazyTensor, source))
    device = (
        torch.device(map_location) if isinstance(map_location, str | torch.device) else torch.device("cpu")
    )
    if device.type in ("meta", "cuda"):
        return _rebuild(structure, lambda name: source.read(name).to(device))
    return _rebuild(structure, source.read)


def _load_pickle(target: Path, map_location: Location | None, keywords: dict[str, Any]) -> Any:
    keywords.setdefault("weights_only", True)
    try:
        return torch.load(target, map_location=map_location or "cpu", **keywords)
    except MemoryError:
        raise
    except Exception as fault:  # a file that is no pickle makes its reader stumble in any way
        reason = (str(fault).splitlines() or [type(fault).__name__])[0][:160]
        raise faults.program_error(
            f"load: {target} is not a checkpoint of this interface or of torch.save ({reason}); check the file"
        ) from None


def _is_hdf5(path: Path) -> bool:
    """Return whether a file has the HDF5 signature, which is at 0, 512, 1024, 2048 ..."""
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


# -- random state of a resumed run --------------------------------------------------------------------

_random: dict[str, Any] = of_run({})


def apply_random_state() -> None:
    """Continue with the random numbers of the loaded checkpoint, unless the program has seeded again since."""
    state, seed = _random.pop("state", None), _random.pop("seed", None)
    if state is not None and seed == torch.initial_seed() and runtime.executes():
        torch.set_rng_state(state)


def names(path: str | os.PathLike[str]) -> Iterator[str]:
    """Names of the tensors in a file."""
    with opened(path) as file:
        yield from (n for n in file if n not in (SPEC, RANDOM))
