"""Files that are there whole or not at all: written beside, put in their places together.

    with together(out) as part:          # a folder below `out`
        save(result, part, "result")     # as many files as one likes
        draw(result, part / "map.png")

At the end of the block one rename says that the files are to be kept; then each takes its place.  A command that is
killed before the rename leaves what was there.  One that is killed behind it leaves files on their way, which the next
reader or writer of the folder puts in place (:func:`settle`).  Both happen under a lock on the folder itself, which
ends with the process; two commands on one folder leave the files of the one that ended later, all of them.

Power that fails is as a kill: files are on the disk before that rename, the rename is before places change, and places are
before its folder goes.  Caches do without (``durable=False``): each of their files has a checksum.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wse_sim.errors import WseError

PREFIX, PART, DONE = ".wse-sim-", ".part", ".done"
NEW = f"{PREFIX}new-"
"""Prefix of a temporary folder that no process has locked yet."""

WAIT_S = 60.0
"""How long a command waits for another that moves its files into place, which takes milliseconds."""

NEW_S = 60.0
"""Age from which an unlocked temporary folder counts as left behind, not as just created."""


@contextmanager
def together(folder: str | Path, *, durable: bool = True) -> Iterator[Path]:
    """A folder to write into; when the block succeeds, all of its files are moved into `folder`.

    Other content of `folder` is kept. If the block raises, `folder` is unchanged. Without `durable` nothing
    waits for the disk.

    Raises
    ------
    WseError
        If something that is no file has the name of one of the files.
    OSError
        If the files cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _finish(folder)
        part = Path(tempfile.mkdtemp(prefix=PREFIX, suffix=PART, dir=folder))
        held = _hold(part)
    try:
        yield part
        if durable:
            _to_disk(part)
        with _locked(folder):
            _finish(folder)
            _check(folder, part)
            done = part.with_suffix(DONE)
            os.rename(part, done)  # from here on the files are to be kept
            _put(folder, done, durable=durable)
    finally:
        _let_go(held)
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def whole(path: str | Path, *, durable: bool = True) -> Iterator[Path]:
    """A path to write to; when the block ends well, the file takes the place of `path`.  Raises as :func:`together`."""
    path = Path(os.path.realpath(path))  # a link stays one, and what it leads to changes
    with together(path.parent, durable=durable) as part:
        yield part / path.name


def write_whole(path: str | Path, content: str | bytes, *, durable: bool = True) -> Path:
    """Write one file; the path.  Raises as :func:`together`."""
    with whole(path, durable=durable) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def settle(folder: str | Path) -> None:
    """Complete the moves of a killed command, and remove what it had not finished; for readers of a folder."""
    folder = Path(folder)
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):
        return  # whoever reads it states why it cannot be read
    if not any(_is_ours(name) for name in names):
        return
    with suppress(OSError), _locked(folder):  # a folder that may only be read stays as it is
        _finish(folder)


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A temporary folder of this process; those that killed processes left are removed first."""
    root = Path(tempfile.gettempdir())
    _sweep(root, f"wse-sim-run-{kind}-")
    new = Path(tempfile.mkdtemp(prefix=NEW))
    held = _hold(new)
    path = new.with_name(f"wse-sim-run-{kind}-{new.name.removeprefix(NEW)}")
    new.rename(path)  # only now another process may ask whether it is held
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _let_go(held)


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith((PART, DONE))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; the lock is on the folder itself, so no lock file remains."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + WAIT_S
        while os.fstat(handle).st_ino not in _held and _taken(handle) is False:
            if time.monotonic() > end:
                raise WseError(
                    f"another command has held {folder} for {WAIT_S:g} s; end it, or name another folder"
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool | None:
    """Whether the lock is ours now; None where a file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR) else None
    return True


_held: dict[int, int] = {}
"""Folders that this process writes into, which nobody else does, by their number in the file system."""


def _hold(folder: Path) -> int | None:
    """Lock a folder of our own until :func:`_let_go`, or until the process ends."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        _taken(handle)
        _held[os.fstat(handle).st_ino] = handle
        return handle
    return None


def _let_go(handle: int | None) -> None:
    if handle is not None:
        _held.pop(os.fstat(handle).st_ino, None)
        os.close(handle)


def _is_left(folder: Path) -> bool:
    """Whether a folder of ours is locked by no process."""
    try:
        if folder.lstat().st_uid != os.geteuid():
            return False
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return _taken(handle) is True
    finally:
        os.close(handle)


def _sweep(root: Path, prefix: str) -> None:
    """Remove temporary folders of ours that no process has locked."""
    with suppress(OSError):
        for item in os.scandir(root):
            is_old = (
                item.name.startswith(NEW) and time.time() - item.stat(follow_symlinks=False).st_mtime > NEW_S
            )
            if (item.name.startswith(prefix) or is_old) and _is_left(Path(item.path)):
                shutil.rmtree(item.path, ignore_errors=True)


def _finish(folder: Path) -> None:
    """With the folder locked, move finished files into place, and remove unfinished ones that nobody writes."""
    for name in sorted(name for name in os.listdir(folder) if _is_ours(name)):
        if name.endswith(DONE):
            _put(folder, folder / name)
        elif _is_left(folder / name):
            shutil.rmtree(folder / name, ignore_errors=True)


def _files(part: Path) -> list[Path]:
    """Files below a folder, as paths within it."""
    return sorted(path.relative_to(part) for path in part.rglob("*") if not path.is_dir())


def _check(folder: Path, part: Path) -> None:
    """Raise an error, before anything changes, if a file could not be moved into place."""
    for name in _files(part):
        target = folder / name
        above = [folder / other for other in name.parents if (folder / other).exists()]
        odd = target if target.is_dir() else next((path for path in above if not path.is_dir()), None)
        if odd is not None:
            raise WseError(
                f"{odd} is in the way of a file that would be written; remove it, or name another folder"
            )


def _put(folder: Path, done: Path, *, durable: bool = True) -> None:
    """Every file to its place; done again where it was interrupted."""
    if durable:
        _sync(folder)
    folders = {folder}
    for name in _files(done):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        folders |= {folder / above for above in name.parents}
        with suppress(OSError):  # the rights of a file that was there stay
            (done / name).chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(done / name, target)
    if durable:
        for one in folders:
            _sync(one)
    shutil.rmtree(done, ignore_errors=True)


def _to_disk(part: Path) -> None:
    """Wait until all files below a folder, and their names, are on the disk."""
    for path in sorted(part.rglob("*"), reverse=True):  # what is inside first
        _sync(path)
    _sync(part)


def _sync(path: Path) -> None:
    """Wait for the disk; file systems that cannot (and pipes, and links to nowhere) are passed over, one that is full is not."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as fault:
        if fault.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
