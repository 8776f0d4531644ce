"""Wafers of one core, one row, one column, and of dead cores only: every command answers, in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.doors.test_malformed import called, check, here
from wse_sim.bench.command import find, fitting
from wse_sim.hardware import load_wafer

__all__ = ["here"]  # the fixture

SIZES = ((1, 1), (10, 10), (1000, 1), (1, 1000))
TINY = "family: mlp\n  layers: 2\n  hidden: 16\n  input: 8\n  classes: 4\n"
COMMANDS = (
    "show wafer {w} --json", "run tiny.yaml --wafer {w} --batch 4", "run tiny.yaml --wafer {w} --batch 4 --mode pipelined",
    "compare tiny.yaml --wafer {w} --batch 4", "sensitivity tiny.yaml --wafer {w} --batch 4 --quiet",
    "kernel reduce --wafer {w} --timing model", "kernel gemm --wafer {w} --timing model",
    "generate decoder.yaml --wafer {w} --context 16",
)  # fmt: skip


def wafer_file(folder: Path, rows: int, cols: int, more: str = "") -> Path:
    """Return a wafer of rows x cols cores."""
    file = folder / f"w{rows}x{cols}{'dead' if more else ''}.yaml"
    sides = {"rows": rows, "cols": cols, "program_rows": rows, "program_cols": cols}
    lines = [
        f"  {name}: {{value: {n}, unit: '1', source: made, evidence: assumed}}" for name, n in sides.items()
    ]
    file.write_text("\n".join([f"base: wse2\nname: {file.stem}\nconstants:", *lines, more]) + "\n")
    return file


@pytest.fixture
def models(here: Path) -> Path:
    """Return a perceptron and a decoder of a few thousand parameters."""
    (here / "tiny.yaml").write_text(f"name: tiny\nsource: made\nmodel:\n  {TINY}")
    decoder = "family: decoder\n  layers: 1\n  hidden: 16\n  heads: 2\n  ffn: 32\n  vocab: 32\n  seq: 16\n"
    (here / "decoder.yaml").write_text(f"name: small\nsource: made\nmodel:\n  {decoder}")
    return here


@pytest.mark.thinned(1)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_command_answers_on_a_small_wafer(models: Path, size: tuple[int, int]) -> None:
    """The model fits, does not fit, or is refused in one sentence; the simulator never fails."""
    wafer = wafer_file(models, *size)
    for words in COMMANDS:
        check(words.format(w=wafer).split(), models)


def test_a_wafer_of_dead_cores_runs_nothing(models: Path) -> None:
    """No mode and no kernel uses dead cores."""
    wafer = wafer_file(models, 10, 10, f"dead_rows: {list(range(10))}")
    for mode in ("pipelined", "weight-streaming"):
        check(["run", "tiny.yaml", "--wafer", str(wafer), "--batch", "4", "--mode", mode], models, must=1)
    check(["kernel", "reduce", "--wafer", str(wafer)], models, must=2)
    status, text = called(["generate", "decoder.yaml", "--wafer", str(wafer), "--context", "16"])
    assert status == 1, text


def test_kernels_shrink_their_defaults_and_nothing_else() -> None:
    """A default line of 16 cores becomes one of 10 on a wafer of 10 columns; a requested number is unchanged."""
    narrow = load_wafer("wse2").derive(rows=10, cols=10, program_rows=10, program_cols=10)
    reduce = find("reduce")
    assert fitting(reduce, {}, narrow) == {"cores": 10}
    assert fitting(reduce, {"cores": 16}, narrow) == {"cores": 16}
    assert fitting(reduce, {"cols": 16}, narrow) == {"cols": 16}
    assert fitting(reduce, {}, load_wafer("wse2")) == {}


@pytest.mark.slow
def test_a_time_limit_is_for_all_searches_together(models: Path) -> None:
    """Two placers that search share the limit; a line states why the command took longer.

    The limit is 2 ms: no machine compiles, routes and simulates two plans in that time.
    """
    wafer = wafer_file(models, 10, 10)
    words = [
        "place",
        "tiny.yaml",
        "--wafer",
        str(wafer),
        "--batch",
        "4",
        "--placers",
        "peel,snake",
        "--time-limit",
        "0.002",
    ]
    from contextlib import redirect_stdout
    from io import StringIO

    out = StringIO()
    with redirect_stdout(out):
        from wse_sim import door
        from wse_sim.cli import app

        assert door.run(app, words) == 0
    assert "searches were given 0.001 s each" in out.getvalue()
