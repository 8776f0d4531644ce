"""Pages are true: files of the map exist, pictures are those of their lists, examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = runpy.run_path(str(ROOT / "docs" / "pictures" / "walks.py"))
SOURCES = sorted(path for folder in ("wse_sim", "kernels") for path in (ROOT / folder).rglob("*.py"))
EXAMPLES = sorted({path.resolve() for path in SOURCES if "\n    >>> " in path.read_text(encoding="utf-8")})

# composes a model; runs models
LONG = {"over_plain", "api", "difference", "result", "simulation", "plan", "study"}


@pytest.mark.parametrize("name", sorted(WALKS["WALKS"]))
def test_the_stops_of_a_walk_exist_and_its_picture_is_fresh(name: str):
    """A moved file makes the map wrong, which this test detects; ``python docs/pictures/walks.py`` draws it again."""
    title, stops = WALKS["WALKS"][name]
    for file, what in stops:
        assert (ROOT / file).exists(), file
        assert len(what) <= 78  # fits beside its box
    assert (ROOT / "docs" / "pictures" / f"{name}.svg").read_text() == WALKS["picture"](title, stops)


@pytest.mark.parametrize("page", ["docs/map.md", "docs/design.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page: str):
    """Paths in code marks that begin with a folder of the tree, without placeholders."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:wse_sim|kernels|configs|docs|benchmarks|tests|examples)/[\w./-]+)`", text)
    assert len(named) >= 5
    for path in named:
        if "NAME" not in path:
            assert (ROOT / path).exists(), f"{page} names {path}"


def test_words_are_defined_once():
    """Each word has one row, in any order, and no duplicate."""
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*([^*]+)\*\* \|", text, re.MULTILINE)
    assert len(words) >= 60
    assert len(words) == len(set(words))


@pytest.mark.thinned(16)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONG), id=path.stem) for path in EXAMPLES],
)
def test_examples_in_docstrings_run(path: Path):
    """Doctests print what they state."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "wse_sim" else ("wse_sim", *parts)).removesuffix(".__init__")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def public_names() -> dict[str, object]:
    """Return the names in the reference page and in ``dir(wse_sim)``, each with its object."""
    import wse_sim

    found: dict[str, object] = {
        name: getattr(wse_sim, name) for name in wse_sim.__all__ if name != "__version__"
    }
    for block in re.split(r"\n(?=::: )", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"))[1:]:
        path = block.split()[1]
        members = re.search(r"members: \[(.*?)\]", block)
        try:
            module = importlib.import_module(path)
        except ImportError:
            home, _, name = path.rpartition(".")
            found[path] = getattr(importlib.import_module(home), name)
            continue
        own = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == path
        ]
        names = [name.strip() for name in members[1].split(",")] if members else own
        found |= {f"{path}.{name}": getattr(module, name) for name in names if name}
    return found


def test_every_public_name_has_an_example():
    """The example is in its docstring; the test above runs them all."""
    names = public_names()
    assert len(names) > 60
    assert [name for name, value in names.items() if "\n>>> " not in (inspect.getdoc(value) or "")] == []
