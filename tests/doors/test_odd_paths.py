"""Paths that the system cannot even examine: for every option and argument that takes one, and inside files.

Options and arguments are listed from the declarations of the commands, so a new one is tested from its first day.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from tests.doors.test_malformed import COMMAND, NOWHERE, called, check
from wse_sim import user_code
from wse_sim.errors import ConfigError, WseError
from wse_sim.files import (
    claim_file,
    claim_folder,
    exists,
    is_file,
    is_folder,
    looked_at,
    read_text,
    sha256_of,
)
from wse_sim.options import Declared


def is_refused() -> bool:
    """Return whether this user is kept out of a folder without permissions."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o000)
        try:
            os.listdir(folder)
        except PermissionError:
            return True
        else:
            return False
        finally:
            os.chmod(folder, 0o700)


LONG = "9" * 5000
ODD_PATHS = [
    LONG,
    "a" * 300,
    "a" * 300 + "/b.yaml",
    "/" + "a" * 300 + ".py",
    "loop",
    "loop/x",
    "loop.yaml",
    "null\0byte.yaml",
    "lone\ud800.yaml",
    *(["closed/x.yaml", "closed"] if is_refused() else []),  # the superuser is mostly refused nothing
]
# How a model, a placer or an instance is named by a path.
AS_MODEL = ("{}", "hf:{}", "{}:make", "{}.py:make", "{}.pt2", "{}.yaml", "ispd2020:{}", "{}:{}")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with link loops, a folder without access, and plain files."""
    folder = tmp_path_factory.mktemp("odd_paths")
    for name in ("loop", "loop.yaml", "loop.py", "loop.pt2"):
        (folder / name).symlink_to(name)
    (folder / "plain.txt").write_text("text")
    (folder / "closed").mkdir(mode=0o000)
    with contextlib.chdir(folder):
        yield folder
    (folder / "closed").chmod(0o700)


def commands(inner: Any = COMMAND, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (words, command) of every command that works on files."""
    if getattr(inner, "commands", None):
        for word, below in inner.commands.items():
            yield from commands(below, f"{name} {word}".strip())
    else:
        yield name, inner


def takes_path(parameter: Any) -> bool:
    """Return whether a parameter is declared as a path, or its help speaks of one."""
    about = f"{parameter.help or ''}"
    return "Path" in str(parameter.type_descriptor.annotation) or bool(
        re.search(r"\b([Ff]iles?|[Ff]olders?|YAML|FILE|NAME)\b", about)
    )


def cases() -> list[tuple[str, str, str]]:
    """Return (command, name of a parameter, how it is given) for all that take a path; arguments all count."""
    found = []
    for name, command in commands():
        for parameter in command.params:
            if getattr(parameter, "is_flag", False):
                continue
            if parameter.param_type_name == "argument":
                found.append((name, parameter.name, ""))
            elif takes_path(parameter):
                found.append((name, parameter.name, parameter.opts[0]))
    return found


# What the other arguments are: what is cheap, and real enough for the path to be looked at.
SOUND = {
    "model": "fc-mnist", "name": "wse2", "folder": "nothing", "folders": "nothing", "file": NOWHERE, "script": NOWHERE,
    "study": NOWHERE, "words": "x", "number": "1", "port": "1", "wafer": "wse2", "arguments": "",
}  # fmt: skip


# What ends otherwise: a verdict of the doctor, a word to search for.
TAKEN = {("doctor", "model"): None, ("study parameters", "words"): 0}


def line(command: str, parameter: str, flag: str, value: str) -> list[str]:
    """Return the words of a command with one parameter of that value and sound ones elsewhere."""
    inner = dict(commands())[command]
    words = command.split()
    for other in inner.params:
        if other.param_type_name != "argument":
            continue
        if other.name == parameter and not flag:
            words.append(value)
        elif other.required and SOUND[other.name]:
            words.append("reduce" if command == "kernel" else SOUND[other.name])
    if flag:
        option = next(one for one in inner.params if one.name == parameter)
        words += [flag, *([value] * option.nargs)]
    return words


def test_the_list_holds_what_it_should() -> None:
    """Every option of type Path is listed, and those that a person would think of first."""
    found = {(command, parameter) for command, parameter, _ in cases()}
    assert len(found) > 60
    for command, parameter in (
        ("kernel", "kernels"), ("kernel", "emit"), ("run", "wafer"), ("run", "pins"), ("run", "model"), ("place", "check"),
        ("csl run", "file"), ("study run", "store"), ("validate", "sources"), ("show model", "graph"), ("capture", "out"),
    ):  # fmt: skip
        assert (command, parameter) in found


@pytest.mark.thinned(28)
@pytest.mark.parametrize(("command", "parameter", "flag"), cases())
def test_every_path_of_a_command_line(odd: Path, command: str, parameter: str, flag: str) -> None:
    """Whatever the path, there is one sentence and status 2, and nothing is left behind."""
    for path in ODD_PATHS:
        check(line(command, parameter, flag, path), odd, must=TAKEN.get((command, parameter), 2))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("form", AS_MODEL)
def test_models_named_by_odd_paths(odd: Path, form: str) -> None:
    """Files, factories, programs, configurations of transformers and instances of the contest."""
    for path in ODD_PATHS:
        text = form.replace("{}", path)
        for words in (
            ["run", text],
            ["show", "model", text],
            ["place", text],
            ["run", "fc-mnist", "--mode", text],
        ):
            check(words, odd, must=2)


def in_files(path: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield (command before the file, content of the file) with one path in it."""
    yield ["show", "wafer"], {"name": "x", "base": path}
    yield ["show", "cluster"], {"name": "x", "base": path}
    for key in ("model", "wafer", "cluster", "mode", "pins"):
        fixed = {"model": "fc-mnist", "mode": "pipelined", "phase": "inference"} | {key: path}
        yield ["study", "run", "--dry-run"], {"name": "x", "fixed": fixed, "grid": {"batch": [1]}}


def test_paths_inside_files(odd: Path) -> None:
    """A wafer names its base, a study its model, its wafer and its cluster."""
    file = odd / "given.yaml"
    for path in ODD_PATHS:
        for words, data in in_files(path):
            file.write_text(yaml.safe_dump(data), encoding="utf-8", errors="surrogatepass")
            check([*words, str(file)], odd, must=2)
    file.unlink()


def test_the_one_place_that_looks_at_paths(odd: Path) -> None:
    """Functions for Python callers raise an error of the requested class, never an OSError."""
    for path in ODD_PATHS:
        for look in (looked_at, exists, is_file, is_folder):
            with contextlib.suppress(ConfigError):
                assert not look(path, "thing") or path == "closed"  # that one is there
        for read in (read_text, sha256_of):
            with pytest.raises(ConfigError, match=r"^thing .* (cannot be read|is a folder)"):
                read(path, "thing")
        for claim in (claim_file, claim_folder):
            with contextlib.suppress(WseError):
                claim(path)
    assert is_file("plain.txt")
    assert is_folder(".")
    assert exists(".")
    assert not exists("nothing")
    assert not exists("plain.txt/x")  # nothing can be below a file


def test_a_refusal_that_nobody_expected_is_a_sentence(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An OSError that names a file and is not handled elsewhere becomes a sentence with path and reason, status 2."""
    for number in (
        1,
        13,
        20,
        21,
        30,
        36,
        40,
    ):  # may not, no access, no folder, a folder, read-only, too long, a loop

        def refuse(*_: object, number: int = number, **__: object) -> None:
            raise OSError(number, os.strerror(number), "/some/path")

        monkeypatch.setattr(user_code, "place_of", lambda fault: "")  # this file counts as the user's
        monkeypatch.setattr("wse_sim.kernels.load_path", refuse)
        status, text = called(["kernel", "reduce", "--kernels", "plain.txt"])
        assert status == 2
        assert text.startswith(f"wse-sim: /some/path cannot be used ({os.strerror(number)}); ")


def test_a_declaration_looks_at_its_paths() -> None:
    """If the declaration is filled in Python, the fault is of the declaration's own class."""
    from wse_sim.cli.kernel import KernelCommandOptions

    assert issubclass(KernelCommandOptions, Declared)
    with pytest.raises(WseError, match=r"kernels .* cannot be used .*too long"):
        KernelCommandOptions(kernels=Path(LONG))
    with pytest.raises(WseError, match=r"out .* cannot be used .*null"):
        KernelCommandOptions(out=Path("a\0b"))
