"""The user's code is loaded by the name of a module or by its file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wse_sim.cstorch import faults
from wse_sim.errors import ConfigError
from wse_sim.user_code import file_of, loaded, owner_of


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch):
    """Remove the modules and folders that a test adds."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def written(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return f"{folder / name}:THING"


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Two studies may each have a model.py; json.py must not hide the standard library's json either."""
    first = written(tmp_path / "a", "model.py", "THING = 1\n")
    second = written(tmp_path / "b", "model.py", "THING = 2\n")
    third = written(tmp_path / "c", "json.py", "THING = 3\n")
    assert [loaded(spec, "a thing", ConfigError) for spec in (first, second, third, first)] == [1, 2, 3, 1]
    import json

    assert json.loads("[3]") == [3]


def test_a_file_sees_what_lies_beside_it_and_runs_once(tmp_path: Path) -> None:
    """Its imports are found in its own folder; on a second request it is the same module."""
    written(tmp_path, "beside_it.py", "WIDTH = 7\n")
    spec = written(tmp_path, "outer_file.py", "from beside_it import WIDTH\nTHING = [WIDTH]\n")
    assert loaded(spec, "a thing", ConfigError) is loaded(spec, "a thing", ConfigError)
    assert loaded(spec, "a thing", ConfigError) == [7]


def test_a_module_in_the_present_folder_needs_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "here_it_is.py", "THING = 'here'\n")
    monkeypatch.chdir(tmp_path)
    assert loaded("here_it_is:THING", "a thing", ConfigError) == "here"
    assert file_of("here_it_is:THING") == tmp_path / "here_it_is.py" == file_of("here_it_is.py:THING")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("THING = 1 / 0\n", r"broken\.py:1: raises ZeroDivisionError"),
        ("x = 1\nTHING = = 2\n", r"broken\.py:2: does not parse"),
        ("import sys\nsys.exit(0)\n", r"broken\.py:2: ends the program"),
        ("OTHER = 1\n", "module broken has no 'THING'; name a thing of it"),
        (
            "import no_such_module_at_all\n",
            "imports 'no_such_module_at_all', which .* does not have; install it",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    spec = written(tmp_path, "broken.py", text)
    for _ in range(2):  # a module that failed is not kept half made
        with pytest.raises(ConfigError, match=sentence):
            loaded(spec, "a thing", ConfigError)


def test_a_file_next_to_the_code_is_opened_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that opens a relative path works in its own folder alone, and the message names that folder."""
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "corpus.txt").write_text("a b c")
    spec = written(folder, "reads.py", "THING = len(open('corpus.txt').read())\n")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigError, match=f"the file is in {folder}: run the command there"):
        loaded(spec, "a thing", ConfigError)
    monkeypatch.chdir(folder)
    assert loaded(spec, "a thing", ConfigError) == 5


def test_files_belong_to_us_to_packages_to_python_or_to_the_user(tmp_path: Path) -> None:
    import wse_sim.kernels
    from wse_sim.kernels.families import norm

    assert owner_of(json.__file__) == owner_of("<string>") == "standard"
    assert owner_of(pytest.__file__) == "installed"
    assert owner_of(wse_sim.kernels.__file__) == owner_of(norm.__file__) == "ours"
    assert owner_of(str(Path(norm.__file__).resolve())) == "ours"  # the folder of the kernels is a link
    assert owner_of(str(tmp_path / "model.py")) == "user"


@pytest.mark.parametrize(
    "folder",
    ["home/.local/lib/python3.11/site-packages", "usr/lib/python3/dist-packages", "base/site-packages"],
)
def test_packages_of_other_folders_than_this_environments_are_not_the_users(
    tmp_path: Path, folder: str
) -> None:
    """``pip install --user``, the system's packages under a virtual environment, one environment on top of another."""
    file = tmp_path / folder / "torch" / "nn" / "utils" / "clip_grad.py"
    assert owner_of(str(file)) == "installed"
    assert faults.is_torch(str(file))


def test_packages_of_an_environment_behind_a_link_are_not_the_users(tmp_path: Path) -> None:
    link = tmp_path / "env"
    link.symlink_to(sys.prefix)
    asked = (
        "import json, rich, numpy, wse_sim.user_code as f; from pathlib import Path;"
        "named = [rich.__file__, numpy.__file__]; real = [str(Path(p).resolve()) for p in named];"
        "print([f.owner_of(p) for p in named + real], f.owner_of(json.__file__))"
    )
    done = subprocess.run(
        [link / "bin" / "python", "-c", asked], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == f"{['installed'] * 4} standard"
