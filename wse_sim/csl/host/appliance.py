"""Cluster interface (``cerebras.sdk.client``): compile, run and launch, on this machine and in the simulator.

An artifact is a file ``cs_HASH.tar.gz`` with the output folder of ``cslc -o``, in the same folder as that
output folder; its name is the absolute path of the file. Functions that take an artifact also take the output
folder itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from wse_sim.atomic_files import scratch
from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.host.commands import cslc, fill_command_folder
from wse_sim.csl.host.runtime import SdkRuntime
from wse_sim.files import is_file

ADDRESS = "%CMADDR%"
"""Placeholder for the address of the system in commands of :class:`SdkLauncher`."""
MOST_SECONDS = 24 * 3600.0


def packed(folder: Path) -> Path:
    """Write the artifact of a compiled folder next to it, named by a hash of its contents, and return its
    path."""
    names = sorted(path for path in folder.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(str(p.relative_to(folder)).encode() + p.read_bytes() for p in names))
    file = folder.parent / f"cs_{digest.hexdigest()[:16]}.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(folder, folder.name)
    return file


def unpacked(artifact: str | os.PathLike[str], place: Path) -> Path:
    """Return the compiled folder of an artifact: the folder itself, or the file's contents unpacked into
    `place`.

    Raises
    ------
    HostError
        If it is not an artifact.
    """
    found = Path(artifact).absolute()
    if found.is_file():
        with contextlib.suppress(tarfile.TarError, OSError, EOFError), tarfile.open(found) as archive:
            archive.extractall(place, filter="data")
            found = next(place.iterdir(), found)
    if not (found / "out.json").is_file():
        raise HostError(f"'{artifact}' is not an artifact; give what SdkCompiler.compile returned")
    return found


class _Held:
    """Base class of context managers without resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release nothing."""


class SdkCompiler(_Held):
    """Compiler on a node of the cluster; here it runs on this machine. Requested resources and versions have
    no effect."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def compile(self, app_path: str, csl_main: str, options: str = "", out_path: str = ".") -> str:
        """Compile `csl_main`, a file in the folder `app_path`, with options of ``cslc``; return the
        artifact's path.

        Raises
        ------
        CslError
            If the program has errors.
        HostError
            If the folder does not exist.
        """
        folder, place = Path(app_path).absolute(), Path(out_path).absolute()
        if not folder.is_dir():
            raise HostError(
                f"SdkCompiler.compile: '{app_path}' is not a folder; give the one that holds '{csl_main}'"
            )
        words = shlex.split(options)
        name = next((b for a, b in itertools.pairwise(words) if a == "-o"), "out")
        place.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(folder):
            cslc([csl_main, *words])
            made = Path(name).absolute()
        target = place / made.name
        if target != made:
            shutil.rmtree(target, ignore_errors=True)
            shutil.move(made, target)
        return str(packed(target))


class ApplianceRuntime(SdkRuntime):
    """Runtime of the cluster, a context manager: loads and starts the program on entry, and stops it on
    exit."""

    def __init__(
        self, artifact: str | os.PathLike[str], *_: object, simulator: bool = False, **__: object
    ) -> None:
        self._unpacked = tempfile.TemporaryDirectory(prefix="wse-sim-artifact-")
        super().__init__(unpacked(artifact, Path(self._unpacked.name)))

    def __enter__(self) -> Self:
        self.load()
        self.run()
        return self

    def load(self, *_: object, **__: object) -> None:
        """Load the program onto the fabric, unless ``with`` has done so."""
        if self._session is None:
            super().load()

    def run(self, *_: object, **__: object) -> None:
        """Start the cores, unless ``with`` has done so."""
        if not self._has_run:
            super().run()

    def stop(self, *_: object, **__: object) -> None:
        """Wait for all commands and stop, unless the script has done so."""
        if self._running:
            super().stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()


class SdkLauncher(_Held):
    """Launcher of commands on the system's node; here they run in a scratch folder with a copy of the
    artifact, with ``cs_python`` on PATH."""

    def __init__(
        self, artifact: str | os.PathLike[str], *_: object, simulator: bool = False, **__: object
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="wse-sim-launcher-")
        self.folder = Path(self._scratch.name)
        source = unpacked(artifact, self.folder)
        if source.parent != self.folder:
            shutil.copytree(source, self.folder / source.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def stage(self, path: str) -> None:
        """Copy a file into the folder in which the commands run.

        Raises
        ------
        HostError
            If the file does not exist.
        """
        if not is_file(path, "a staged file", HostError):
            raise HostError(f"SdkLauncher.stage: there is no file '{path}'")
        shutil.copy(path, self.folder)

    def run(self, *commands: str) -> str:
        """Run shell commands one after the other and return what they print.

        Raises
        ------
        HostError
            If a command fails; the message contains the end of its standard error.
        """
        said = ""
        with scratch("csl") as first:
            fill_command_folder(first)
            environment = {**os.environ, "PATH": f"{first}{os.pathsep}{os.environ.get('PATH', '')}"}
            for command in commands:
                text = command.replace(ADDRESS, "''")
                done = subprocess.run(
                    text, shell=True, cwd=self.folder, env=environment, capture_output=True, check=False, text=True, timeout=MOST_SECONDS
                )  # fmt: skip
                said += done.stdout
                if done.returncode:
                    raise HostError(
                        f"'{command}' ended with status {done.returncode}: {done.stderr.strip()[-2000:]}"
                    )
        return said

    def download_artifact(self, name: str, target: str) -> None:
        """Copy a file that a command has written to the path `target`.

        Raises
        ------
        HostError
            If the file does not exist.
        """
        if not is_file(self.folder / name, "an artifact", HostError):
            raise HostError(f"SdkLauncher.download_artifact: the commands wrote no file '{name}'")
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / name, target)
