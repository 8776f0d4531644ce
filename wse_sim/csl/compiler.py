"""Compiler from a layout file to a program and to the files that the host reads.

Files of an output folder: `out.json` (parameters, colors, rectangle, fabric, architecture),
`bin/out_rpc.json` (exported names) and `bin/image.npz` (the image). The same sources give the same bytes.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

from wse_sim.atomic_files import settle, together
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import NOWHERE, CslError
from wse_sim.csl.images import build_image
from wse_sim.csl.layout import command_line_values, run_layout
from wse_sim.csl.modules import ARCHES, SDKS, LayoutState, Options
from wse_sim.csl.release import release_of
from wse_sim.csl.unit import Compiler
from wse_sim.errors import WseError
from wse_sim.fabric.vm.image import Image, Symbol
from wse_sim.fabric.vm.opcodes import HALF_FORMATS
from wse_sim.files import claim_folder, is_file

RECURSION = 20_000
HOST_COLUMNS_WEST, HOST_COLUMNS_EAST, HOST_ROWS = 4, 3, 1
MAX_CHANNELS = 16


@dataclass(frozen=True)
class Export:
    """Name that the host may use: `kind` is Var or Func, `type` the type as written in the layout, `inputs` a
    function's arguments as (name, type)."""

    id: int
    name: str
    kind: str
    type: str
    immutable: bool
    inputs: tuple[tuple[str, str], ...] = ()


@dataclass
class CompiledProgram:
    """Result of :func:`compile_program`: the image, and the data that the host needs in addition."""

    image: Image
    exports: tuple[Export, ...]
    params: dict[str, str]
    colors: dict[str, int]
    options: Options
    width: int
    height: int
    notes: list[str] = field(default_factory=list)

    def write(self, out: Path) -> None:
        """Write the output folder, with all files or none."""
        with together(out) as part:
            self._write(part)

    def _write(self, out: Path) -> None:
        (out / "bin").mkdir()
        options = self.options
        about = {
            "arch": options.arch,
            "params": self.params,
            "colors": {n: str(c) for n, c in self.colors.items()},
            "rectangle": {"width": self.width, "height": self.height},
            "fabric": {"width": options.fabric[0], "height": options.fabric[1]},
            "offsets": {"width": options.offsets[0], "height": options.offsets[1]},
            "memcpy": options.memcpy,
            "channels": options.channels,
        }
        rpc = {"rpc_symbols": [asdict(e) for e in self.exports]}
        (out / "bin" / "out_rpc.json").write_text(json.dumps(rpc, indent=2) + "\n", encoding="utf-8")
        self.image.save(out / "bin" / "image.npz")
        about[SUM] = _sum(out, about)
        (out / "out.json").write_text(json.dumps(about, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, out: Path) -> CompiledProgram:
        """Read the program in an output folder.

        Raises
        ------
        WseError
            If the folder contains no compiled program, or its files were changed after it was written.
        """
        settle(out)
        try:
            about = json.loads((out / "out.json").read_text(encoding="utf-8"))
            rpc = json.loads((out / "bin" / "out_rpc.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise WseError(
                f"'{out}' holds no compiled program ({error}); compile it with 'wse-sim cslc -o {out}'"
            ) from error
        try:
            if about.get(SUM) != _sum(out, about):
                raise ValueError("its checksum belongs to other files")
            pair = {
                n: (int(about[n]["width"]), int(about[n]["height"]))
                for n in ("fabric", "offsets", "rectangle")
            }
            options = Options(
                about["arch"], pair["fabric"], pair["offsets"], bool(about["memcpy"]), int(about["channels"])
            )
            exports = tuple(
                Export(**{**e, "inputs": tuple(tuple(i) for i in e["inputs"])}) for e in rpc["rpc_symbols"]
            )
            colors = {n: int(c) for n, c in about["colors"].items()}
            return cls(
                Image.load(out / "bin" / "image.npz"),
                exports,
                about["params"],
                colors,
                options,
                *pair["rectangle"],
            )
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise WseError(
                f"'{out}' holds a damaged program ({type(error).__name__}: {error}); compile it again with 'wse-sim cslc -o {out}'"
            ) from error


SUM = "sha256"
"""Key of the checksum in `out.json`, which covers the other keys of that file and the files of :data:`SUMMED`."""

SUMMED = ("bin/out_rpc.json", "bin/image.npz")


def _sum(out: Path, about: Mapping[str, Any]) -> str:
    """Return the checksum of an output folder."""
    rest = {key: value for key, value in about.items() if key != SUM}
    total = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in SUMMED:
        total.update(hashlib.sha256((out / name).read_bytes()).digest())
    return total.hexdigest()


class CompileOptions(TypedDict, total=False):
    """Keywords of :func:`compile_program`, named as on the compiler's command line.

    `arch` is wse2 (default) or wse3. `fabric_dims` and `fabric_offsets` are (columns, rows); (0, 0) selects
    the smallest fabric that fits. `fp16` is the 16-bit float of run time: f16 (default), bf16 or cb16.
    `strict` also enforces rules of the language guide that compilation does not need. `sdk` is the release
    whose rules apply, "1.4" or "2.10", or "" to infer it from the sources. `params` are text or numbers,
    whose types are those of their ``param`` declarations.
    """

    arch: str
    fabric_dims: tuple[int, int]
    fabric_offsets: tuple[int, int]
    params: Mapping[str, Any] | None
    colors: Mapping[str, int] | None
    memcpy: bool
    channels: int
    import_paths: tuple[str, ...]
    max_inlined_iterations: int
    fp16: str
    strict: bool
    sdk: str


FIELDS = {"fabric_dims": "fabric", "fabric_offsets": "offsets"}
"""Command-line names that differ from those of :class:`Options`."""


def compile_program(
    path: str | Path, *, out: str | Path | None = None, **given: Unpack[CompileOptions]
) -> CompiledProgram:
    """Compile a layout file and the programs that it names; with `out`, also write the output folder.

    Raises
    ------
    CslError
        If the program has an error; the message begins with its position.
    WseError
        If an option is invalid or the file does not exist.
    """
    params, colors = dict(given.pop("params", None) or {}), dict(given.pop("colors", None) or {})
    for name in given:
        if name not in CompileOptions.__annotations__:
            known = ", ".join(CompileOptions.__annotations__)
            raise WseError(f"the compiler has no option '{name}'; use {known}")
    options = check_options(Options(**{FIELDS.get(name, name): value for name, value in given.items()}))  # type: ignore[arg-type]
    if out is not None:
        claim_folder(out, "-o")
    if not is_file(path, "layout", WseError):
        raise WseError(f"there is no file '{path}'; name the file with the layout block")
    limit, collects = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(limit, RECURSION))
    gc.disable()  # most objects of a compilation live to its end; garbage collection took two thirds of its time
    try:
        return _compile(str(path), options, params, colors, out)
    except RecursionError:
        raise WseError(
            f"'{path}' or a file that it names nests expressions, calls or types too deeply; split them, and check for one "
            "that names itself"
        ) from None
    finally:
        sys.setrecursionlimit(limit)
        if collects:
            gc.enable()


def check_options(options: Options) -> Options:
    """Check the options and return them.

    Raises
    ------
    WseError
        If an option has an invalid value.
    """
    if options.arch not in ARCHES:
        raise WseError(f"the architecture is '{options.arch}'; it must be {' or '.join(ARCHES)}")
    if options.sdk not in SDKS:
        raise WseError(
            f"--sdk is '{options.sdk}'; it must be 1.4 or 2.10, or left out to detect it from the sources"
        )
    if options.fp16 not in HALF_FORMATS:
        raise WseError(f"--fp16-format is '{options.fp16}'; it must be {', '.join(HALF_FORMATS)}")
    if not 1 <= options.channels <= MAX_CHANNELS:
        raise WseError(f"{options.channels} channels are requested; the range is 1 to {MAX_CHANNELS}")
    return options


def _compile(
    path: str, options: Options, params: dict[str, Any], colors: dict[str, int], out: str | Path | None
) -> CompiledProgram:
    compiler = Compiler(options)
    compiler.sdk = options.sdk or release_of(path)
    layout = run_layout(compiler, path, command_line_values(params, colors))
    compiler.options = options = fit_fabric(options, layout)
    image = build_image(compiler)
    exports = tuple(exported(layout))
    check_exports(image, exports, layout)
    result = CompiledProgram(
        image,
        exports,
        {n: str(v) for n, v in params.items()},
        colors,
        options,
        layout.width,
        layout.height,
        compiler.notes,
    )
    if out is not None:
        result.write(Path(out))
    return result


def fit_fabric(options: Options, layout: LayoutState) -> Options:
    """Check that the rectangle, with the host interface's columns if it is used, is on the fabric; choose a
    fabric if none is given.

    Raises
    ------
    WseError
        If it does not fit.
    """
    import dataclasses

    west, east, rows = (HOST_COLUMNS_WEST, HOST_COLUMNS_EAST, HOST_ROWS) if options.memcpy else (0, 0, 0)
    if options.fabric == (0, 0):
        offsets = options.offsets if options.offsets != (0, 0) else (west, rows)
        size = (offsets[0] + layout.width + east, offsets[1] + layout.height + rows)
        return dataclasses.replace(options, fabric=size, offsets=offsets)
    (x, y), (columns, lines) = options.offsets, options.fabric
    if x < west or y < rows:
        raise WseError(f"the offsets are {x},{y}; with memcpy they must be at least {west},{rows}")
    if columns < x + layout.width + east or lines < y + layout.height + rows:
        need = f"{x + layout.width + east},{y + layout.height + rows}"
        raise WseError(
            f"a rectangle of {layout.width} x {layout.height} PEs at {x},{y} needs --fabric-dims={need} at least; {columns},{lines} are given"
        )
    return options


def exported(layout: LayoutState) -> list[Export]:
    """Return the exported names in the order of their export."""
    found = []
    for k, item in enumerate(layout.names.values()):
        t = item.type
        if isinstance(t, ty.FnType):
            inputs = tuple((f"arg{i}", str(p)) for i, p in enumerate(t.params))
            found.append(Export(k, item.name, "Func", str(t), True, inputs))
        else:
            found.append(Export(k, item.name, "Var", str(t), not item.mutable))
    return found


def check_exports(image: Image, exports: tuple[Export, ...], layout: LayoutState) -> None:
    """Check that exported names agree with the programs' symbols in kind and signature.

    Raises
    ------
    CslError
        If they differ.
    """
    symbols: dict[str, Symbol] = {}
    for cls in image.classes:
        for symbol in (s for s in cls.symbols if s.exported):
            symbols.setdefault(symbol.name, symbol)
    for e in exports:
        s = symbols.get(e.name)
        at = layout.names[e.name].at
        if (
            s is None
        ):  # declared for programs that are not part of this build: its use by the host raises an error
            continue
        if (s.kind == "function") != (e.kind == "Func"):
            raise CslError(
                at, f"'{e.name}' is exported here as '{e.type}', and the program exports it as '{s.type}'"
            )
        if e.kind == "Func" and s.arguments != len(e.inputs):
            raise CslError(
                at, f"'{e.name}' takes {len(e.inputs)} arguments here and {s.arguments} in the program"
            )


__all__ = ["NOWHERE", "CompiledProgram", "Export", "compile_program"]
