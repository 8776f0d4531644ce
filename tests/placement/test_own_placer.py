"""A placer is one file: it is found in its folder, accepted by name from anywhere, and offered by every list."""

from __future__ import annotations

import json
import pkgutil
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.placement import side_by_side
from tests.placement.test_placers import check, squares
from wse_sim.cli import app
from wse_sim.compiler import placers as package
from wse_sim.compiler.placers import (
    Placer,
    RectanglePlacer,
    StagePlacer,
    forget_placer,
    placer_names,
    placers,
    rectangle_placer,
    registry,
)
from wse_sim.compiler.placers.options import PlaceOptions
from wse_sim.errors import ConfigError


def test_a_file_in_the_folder_is_a_placer(tmp_path, monkeypatch):
    """The file alone is copied; its name appears and it places three squares in a row: centres 2 apart, wire 4."""
    shutil.copy(side_by_side.__file__, tmp_path / "side_by_side.py")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_known", {})
    assert "side-by-side" in placer_names(contest=True)
    problem = squares(3, 2, 9)
    found = rectangle_placer("side-by-side").place(problem)
    check(problem, found)
    assert found.wire_l1 == 4.0
    assert found.x.tolist() == [0, 2, 4]


def test_the_command_line_takes_a_placer_of_ones_own():
    """``--placers package.module:NAME`` registers it; its stages stand side by side in one row of the wafer."""
    words = ("fc-mnist", "--batch", "16", "--placers", "tests.placement.side_by_side:PLACER", "--json")
    try:
        found = CliRunner().invoke(app, ["place", *words])
        assert found.exit_code == 0, found.output
        assert [row["placer"] for row in json.loads(found.stdout)["placements"]] == ["side-by-side"]
        assert "side-by-side" in placer_names()
    finally:
        forget_placer("side-by-side")
    assert "side-by-side" not in placer_names()


def test_every_file_of_the_folder_is_contract_or_placer():
    """Every file is the contract or a placer, no two placers share a name, and each has a sentence."""
    files = {found.name for found in pkgutil.iter_modules(package.__path__)} - set(registry.CONTRACT)
    homes = {type(placer).__module__.rpartition(".")[2] for placer in placers()}
    assert (
        files
        == homes
        == {path.stem for path in Path(package.__file__).parent.glob("*.py")}
        - {
            "__init__",
            *registry.CONTRACT,
        }
    )
    assert all(isinstance(placer, StagePlacer | RectanglePlacer) and placer.about for placer in placers())
    assert len({placer.about for placer in placers()}) == len(placers())


def test_help_lists_what_the_registry_knows():
    """Contest placers are in the help of one option, all in the other."""
    helps = {option.name: option.help for option in PlaceOptions.options()}
    assert all(name in helps["placers"] for name in placer_names())
    assert all(name in helps["placer"] for name in placer_names(contest=True))
    assert "shelves" not in helps["placer"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"placer": "shelves"}, "places only the stages of a model; use one of best, exact"),
        ({"placers": "shelves,nobody"}, "no placer 'nobody'"),
        ({"placers": "json:loads"}, "not a placer; derive it"),
        ({"placers": "no.such.module:PLACER"}, "no module named 'no'"),
        ({"objective": "beauty"}, "use some of throughput"),
    ],
)
def test_faults_name_what_there_is(options, says):
    """An unknown placer or objective is refused before any work."""
    with pytest.raises(ConfigError, match=says):
        PlaceOptions(**options)


def test_a_placer_without_a_method_is_none():
    """The contract is checked where a placer is made."""
    with pytest.raises(TypeError, match="abstract"):
        type("Idle", (RectanglePlacer,), {"name": "idle", "about": "nothing"})()
    assert issubclass(RectanglePlacer, Placer)
