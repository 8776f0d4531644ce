"""The table of names is the interface: each of its names exists, each public name is in it, and the page shows it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from wse_sim import cstorch
from wse_sim.cstorch import names

PAGE = Path(__file__).parents[2] / "docs" / "cstorch.md"


def found(path: str) -> object:
    """Return the object of a dotted path below the interface, as attributes or submodules."""
    value: object = cstorch
    reached = "wse_sim.cstorch"
    for part in path.split("."):
        reached = f"{reached}.{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(reached)
    return value


@pytest.mark.parametrize(
    "group", names.TABLE, ids=lambda g: f"{g.module or 'cstorch'}-{g.tier}-{g.names.split()[0]}"
)
def test_every_name_exists(group: names.Names) -> None:
    for path in group.paths:
        found(path)


def test_no_name_stands_twice_and_none_is_missing() -> None:
    listed = [path for group in names.TABLE for path in group.paths]
    assert len(listed) == len(set(listed))
    missing = set(cstorch._HOME) - set(listed)
    for module in (
        "optim",
        "optim.lr_scheduler",
        "optim.scheduler",
        "optim.weight_decay_scheduler",
        "sparse",
        "metrics",
        "utils.data",
        "nn",
    ):
        loaded = importlib.import_module(f"wse_sim.cstorch.{module}")
        public = getattr(loaded, "__all__", None)
        if public is None:
            own = ("Scheduler", "LR", "WD", "Restarts")
            public = [
                n
                for n, v in vars(loaded).items()
                if isinstance(v, type) and v.__module__ == loaded.__name__ and n.endswith(own)
            ]
        missing |= {f"{module}.{n}" for n in public} - set(listed)
    submodules = {"optim.lr_scheduler", "optim.scheduler", "optim.weight_decay_scheduler", "nn.functional"}
    assert missing - submodules == set()


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert names.filled(page) == page, "run: python -m wse_sim.cstorch.names docs/cstorch.md"
