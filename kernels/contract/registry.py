"""Registry of kernel families by name; a family is imported on first use.

Families outside the package come from files (:func:`load_path`) and from installed packages with a module in
the entry-point group ``wse_sim.kernels``. A later family replaces an earlier one of the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TypeVar

from wse_sim.errors import KernelError
from wse_sim.files import is_file, is_folder, read_text
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.contract.family import Family, Role
from wse_sim.user_code import guarded, look_in

F = TypeVar("F", bound=Family)

ENTRY_POINTS = "wse_sim.kernels"
FAMILIES = "wse_sim.kernels.families"

# Module of each family of the library; a family is imported on first use.
LIBRARY = {
    **{
        name: name
        for name in (
            *("activation", "batch_gemm", "cross_entropy", "dropout", "elementwise", "gemv"),
            *("grouped_gemm", "halo", "indexed", "norm", "optimizer", "point_to_point", "pool2d"),
            *("ctc", "elimination", "fft", "resample", "shift", "softmax", "stencil25", "topk", "vector_op"),
        )
    },
    **{"conv3d": "conv2d.volume", "pool3d": "pool2d", "reduce": "reduction"},
    **dict.fromkeys(("gradient_norm", "gradient_scale", "schedule"), "gradients"),
    **{
        name: f"{name}.family"
        for name in ("attention", "conv2d", "embedding", "gemm", "generated", "layout", "rotary", "scan")
    },
    **{
        name: f"collectives.{name}"
        for name in (*("allreduce", "allreduce2d", "broadcast", "line_reduce", "reduce2d"),)
    },
    **dict.fromkeys(("all_gather", "reduce_scatter"), "collectives.ring_halves"),
}

REGISTRY: dict[str, Family] = {}


def register(family: F) -> F:
    """Register a family under its name; it replaces an earlier family of the same name.

    Example
    -------
    >>> register(family("gemm")) is family("gemm")
    True
    """
    REGISTRY[family.name] = family
    return family


def family(name: str) -> Family:
    """Return the kernel family with a name.

    Example
    -------
    >>> family("softmax").name
    'softmax'

    Raises
    ------
    KernelError
        If no family has this name.
    """
    _load_offered()
    if name not in REGISTRY and name in LIBRARY:
        import_module(f"{FAMILIES}.{LIBRARY[name]}")
    try:
        return REGISTRY[name]
    except KeyError:
        raise KernelError(
            f"kernel family '{name}' is unknown; 'wse-sim show kernels' lists the families"
        ) from None


def flops_of(kernel: Kernel) -> int:
    """Return the FLOPs of a kernel, as its family counts them."""
    return int(family(kernel.family).flops(kernel.dims, kernel.attrs, kernel.phase))


def role_of(kernel: Kernel) -> Role:
    """Return the role of a kernel in a network, as its family states it."""
    return family(kernel.family).role


def check_kernel(kernel: Kernel) -> None:
    """Check the dimensions and attributes of a kernel, names and types, against the declarations of its
    family.

    Raises
    ------
    KernelError
        If the family, a dimension or an attribute is unknown, a dimension is missing or below 1, or an attribute
        has another type.
    """
    found = family(kernel.family)
    known = (*found.dims, *found.more_dims)
    for name in (*kernel.dims, *found.dims):
        if name not in known:
            raise KernelError(
                f"kernel '{kernel.name}': family '{kernel.family}' has no dimension '{name}'; it has {', '.join(known)}"
            )
        if kernel.dims.get(name, 0) < 1:
            raise KernelError(
                f"kernel '{kernel.name}': dimension {name} is {kernel.dims.get(name, 'missing')}; it takes at least 1"
            )
    parameters = found.parameters()
    for name, value in kernel.attrs.items():
        if name not in parameters:
            raise KernelError(
                f"kernel '{kernel.name}': family '{kernel.family}' reads no attribute '{name}'; "
                f"it reads {', '.join(sorted(parameters))}"
            )
        if fault := parameters[name].fault(value):
            raise KernelError(f"kernel '{kernel.name}': attribute {name}={value!r} {fault}")


def check_graph(graph: KernelGraph) -> None:
    """Check every kernel of a graph with :func:`check_kernel`; equal kernels are checked once.

    Raises
    ------
    KernelError
        As :func:`check_kernel`.
    ModelError
        If two kernels have one name, or a kernel reads a tensor that the graph does not have.
    """
    graph.validate()
    for kernel in {kernel.signature: kernel for kernel in graph.kernels}.values():
        check_kernel(kernel)


def notes_of(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    """Return the notes of the families of these kernels for readers of their plan, without duplicates."""
    found = (family(kernel.family).notes(kernel.attrs) for kernel in kernels)
    return tuple(dict.fromkeys(note for notes in found for note in notes))


def load_families() -> tuple[str, ...]:
    """Import all families of the library and all entry points; return the registered names."""
    for name in LIBRARY:
        family(name)
    return tuple(sorted(REGISTRY))


@cache
def _load_offered() -> None:
    """Import the modules that installed packages offer."""
    points = sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    if points:  # an external family replaces one of the library, so the library's must be registered first
        for module in LIBRARY.values():
            import_module(f"{FAMILIES}.{module}")
    for point in points:
        point.load()


@contextmanager
def restored() -> Iterator[None]:
    """Undo every registration made inside the block."""
    load_families()
    before = dict(REGISTRY)
    try:
        yield
    finally:
        REGISTRY.clear()
        REGISTRY.update(before)


def load_path(path: str | Path) -> tuple[str, ...]:
    """Import a kernel file, or every ``*.py`` of a folder; return the names of the registered families.

    Example
    -------
    >>> load_path("no/such/folder")
    Traceback (most recent call last):
        ...
    wse_sim.errors.KernelError: kernels path 'no/such/folder' has no Python file; give a file or a folder of files

    Raises
    ------
    KernelError
        If the path does not exist, does not import, or registers no family.
    """
    load_families()
    path = Path(path)
    files = sorted(path.glob("*.py")) if is_folder(path, "kernels path", KernelError) else [path]
    if not files or not all(is_file(file, "kernel file", KernelError) for file in files):
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
        raise KernelError(f"kernel file '{file}' is not a Python file; name it *.py")
    read_text(file, "kernel file", KernelError)
    module = module_from_spec(spec)
    sys.modules[name] = module
    look_in(file.resolve().parent)  # for what it imports from next to it
    before = dict(REGISTRY)
    try:
        with guarded(f"kernel file '{file}'", KernelError):
            spec.loader.exec_module(module)
    except BaseException:  # undo the registrations of a file that fails halfway
        del sys.modules[name]
        REGISTRY.clear()
        REGISTRY.update(before)
        raise
