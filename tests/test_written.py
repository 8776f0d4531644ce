"""The files of a command are complete after any kill, and from one command if several write at once.

A child is ended at its n-th step that touches the disk, for every n: the interpreter reports each (`sys.addaudithook`).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.children import start_child, status_of
from tests.generated import cases
from wse_sim.atomic_files import DONE, PART, PREFIX, scratch, settle, together, whole, write_whole
from wse_sim.errors import WseError
from wse_sim.serialize import load, save

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks of this process")
TOUCHES = {
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.chmod",
    "shutil.rmtree",
    "os.truncate",
    "os.link",
}
"""Waiting for the disk changes nothing that a kill would show, so it is no step."""
KILLED = 9


def ended_at(step: int, work: Callable[[], None]) -> bool:
    """Run `work` in a child that ends at its `step`-th touch of the disk; whether it came to its own end."""
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if event in TOUCHES or writes:
            left -= 1
            if left == 0:
                os._exit(KILLED)

    def counted() -> None:
        sys.addaudithook(hook)
        work()

    return status_of(start_child(counted)) == 0


def answer(tag: str) -> tuple[str, np.ndarray]:
    """Make a saved value: a text in the one file, an array in the other."""
    return tag, np.frombuffer(tag.encode(), np.uint8)


def by_save(folder: Path, tag: str) -> None:
    save(answer(tag), folder, "result")


def by_command(folder: Path, tag: str) -> None:
    """Write as commands do: a result and its pictures, in folders too."""
    with together(folder) as part:
        save(answer(tag), part, "result")
        (part / "page.html").write_text(tag)
        (part / "more").mkdir()
        (part / "more" / "map.png").write_bytes(tag.encode())


def by_file(folder: Path, tag: str) -> None:
    write_whole(folder / "page.html", tag)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("write", [by_save, by_command, by_file])
def test_a_kill_at_every_step_leaves_the_old_or_the_new(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    """Before the rename everything is old, after it everything is new; other files are unchanged."""
    (tmp_path / "notes.txt").write_text("mine")
    seen = set()
    for step in range(1, 1000):
        write(tmp_path, "old")
        is_through = ended_at(step, lambda: write(tmp_path, "new"))
        settle(tmp_path)
        tags = set()
        if write is not by_file:
            tags.add(load(tmp_path, "result")[0])
        tags |= {path.read_text() for path in tmp_path.rglob("*") if path.name in ("page.html", "map.png")}
        assert len(tags) == 1, (step, tags)
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], step
        seen |= tags
        if is_through:
            break
    assert (is_through, seen) == (True, {"old", "new"})
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_second_kill_while_files_take_their_places(tmp_path: Path) -> None:
    """The process that finishes the work of a killed command may also be killed, at every step of it."""
    by_command(tmp_path, "old")
    first = next(
        n for n in range(1, 1000) if ended_at(n, lambda: by_command(tmp_path, "new")) or _is_halfway(tmp_path)
    )
    assert first > 1
    for step in range(1, 1000):
        settle(tmp_path)
        by_command(tmp_path, "old")
        assert not ended_at(first, lambda: by_command(tmp_path, "new"))
        assert _is_halfway(tmp_path)
        is_through = ended_at(step, lambda: settle(tmp_path))
        settle(tmp_path)
        assert load(tmp_path, "result")[0] == "new"
        assert (tmp_path / "more" / "map.png").read_text() == "new"
        if is_through:
            return


def _is_halfway(folder: Path) -> bool:
    """Return whether a killed command left files on their way; else what it left is swept, as the next one would."""
    if any(path.name.endswith(DONE) for path in folder.iterdir()):
        return True
    settle(folder)
    return False


def test_the_disk_has_it_before_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a power failure files are synced before the rename that keeps them, that rename before files are moved, and
    the moves before the folder of the new files is removed; synced files are identified by their inode number.
    """
    by_command(tmp_path, "old")
    steps: list[tuple[str, int | str]] = []
    due: list[int] = []  # files and folders as they are at the rename
    real = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def fsync(handle: int) -> None:
        real["fsync"](handle)
        steps.append(("fsync", os.fstat(handle).st_ino))

    def rename(old: Path, new: Path) -> None:
        if str(new).endswith(DONE):
            due.extend(path.stat().st_ino for path in [Path(old), *Path(old).rglob("*")])
            steps.append(("rename", ""))
        real["rename"](old, new)

    def replace(old: Path, new: Path) -> None:
        real["replace"](old, new)
        if Path(new).parent in (tmp_path, tmp_path / "more"):
            steps.append(("place", Path(new).name))

    for name, fake in (("fsync", fsync), ("rename", rename), ("replace", replace)):
        monkeypatch.setattr(os, name, fake)
    by_command(tmp_path, "new")
    kept = max(n for n, step in enumerate(steps) if step[0] == "rename")
    assert set(due) <= {number for how, number in steps[:kept] if how == "fsync"}
    places = [n for n, step in enumerate(steps) if step[0] == "place"]
    assert ("fsync", tmp_path.stat().st_ino) in steps[kept : places[0]]
    after = steps[places[-1] :]
    assert {("fsync", folder.stat().st_ino) for folder in (tmp_path, tmp_path / "more")} <= set(after)


@pytest.mark.slow
def test_commands_on_one_folder_at_once(tmp_path: Path) -> None:
    """Four processes write without a pause and two are killed: at any time a reader finds files of one of them."""

    def write(number: int) -> None:
        for turn in range(cases(40)):
            by_command(tmp_path, f"{number} {turn}")

    children = [start_child(partial(write, number)) for number in range(4)]
    chance = random.Random(0)
    for child in children[:2]:
        time.sleep(chance.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
    statuses = [status_of(child) for child in children]
    assert statuses[2:] == [0, 0]
    settle(tmp_path)
    tag = load(tmp_path, "result")[0]
    assert (tmp_path / "page.html").read_text() == tag == (tmp_path / "more" / "map.png").read_text()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(PREFIX)]


def test_a_fault_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    """After an exception, a name conflict or a full disk, nothing changes and nothing is left."""
    by_command(tmp_path, "old")

    def fails(raised: BaseException, *names: str) -> None:
        with pytest.raises(type(raised)), together(tmp_path) as part:  # noqa: PT012
            for name in names:
                (part / name).parent.mkdir(exist_ok=True)
                (part / name).write_text("new")
            raise raised

    fails(OSError(28, "No space left on device"), "page.html")
    fails(KeyboardInterrupt(), "page.html", "more/map.png")
    with pytest.raises(WseError, match="is in the way"):
        write_whole(tmp_path / "more", "a file where a folder is")
    assert {path.read_text() for path in tmp_path.rglob("*.html")} == {"old"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(PREFIX)]


def test_a_link_stays_a_link_and_rights_stay(tmp_path: Path) -> None:
    target = tmp_path / "there" / "page.html"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "page.html"
    link.symlink_to(target)
    with whole(link) as part:
        part.write_text("new")
    assert link.is_symlink()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)


def test_temporary_folders_of_killed_commands_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of killed processes are removed at the next start; those of running ones stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ready, says = os.pipe()

    def hold() -> None:
        with scratch("test") as folder:
            (folder / "file").write_text("x")
            os.write(says, b"x")
            signal.pause()

    child = start_child(hold)
    os.close(says)
    assert os.read(ready, 1) == b"x"
    with scratch("test"):
        assert len(list(tmp_path.iterdir())) == 2
    os.kill(child, signal.SIGKILL)
    assert status_of(child) == -signal.SIGKILL
    with scratch("test") as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert not list(tmp_path.iterdir())


def test_arrays_are_looked_at_by_size_before_they_are_unpacked(tmp_path: Path) -> None:
    """An archive of 100 kB represents 100 MB of zeros, next to a result that states none."""
    by_save(tmp_path, "old")
    np.savez_compressed(tmp_path / "result.npz", a0=np.zeros(10**8 // 8))
    with pytest.raises(WseError, match="unpacks to more"):
        load(tmp_path, "result")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "compare", "cslc", "kernel --heatmap"])
def test_no_command_opens_an_earlier_output_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The second run of a command writes to other files: no file of the first one is opened for writing."""
    pytest.importorskip("torch")
    from benchmarks import kills
    from wse_sim.cli import app
    from wse_sim.door import run

    (tmp_path / "o").mkdir()
    (tmp_path / "layout.csl").write_text(kills.LAYOUT)
    (tmp_path / "pe.csl").write_text(kills.PE)
    monkeypatch.chdir(tmp_path)
    words = [kills.COMMANDS[command].format(setting).split() for setting in kills.SETTINGS]
    assert run(app, words[0]) == 0
    earlier = {str(path.resolve()) for path in (tmp_path / "o").rglob("*") if path.is_file()}
    assert earlier
    opened = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            opened.append(os.path.realpath(str(arguments[0])))

    sys.addaudithook(hook)
    assert run(app, words[1]) == 0
    assert not earlier & set(opened)
    assert any(PART in path for path in opened)


@pytest.mark.slow
def test_kills_of_whole_commands(tmp_path: Path) -> None:
    """Twelve kills happen at random moments; `python -m benchmarks.kills` does hundreds over all commands."""
    pytest.importorskip("torch")
    from benchmarks import kills

    kills.prepared(tmp_path)
    for command in ("run", "cslc"):
        found = kills.tally(command, 6, tmp_path, random.Random(3))
        assert (found.kills, found.lost) == (6, [])
        (tmp_path / "o").rename(tmp_path / f"o {command}")
