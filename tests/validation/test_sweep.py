"""The size sweep: rows of both modes, the largest pipelined model, the crossover, the picture."""

from __future__ import annotations

import csv
import dataclasses

import pytest

from wse_sim.errors import ModelError
from wse_sim.sweep import SERIES, SizeRow, SizeSweep, draw, sweep_sizes


def row(size: int, mode: str, rate: float) -> SizeRow:
    fits = rate > 0
    return SizeRow(f"m{size}", size, mode, fits, "compute" if fits else "SRAM", rate, rate * 10, 1.0, 0.2)


def made(pipelined: list[float], streamed: list[float]) -> SizeSweep:
    rows = [row(10**8 * (i + 1), "pipelined", rate) for i, rate in enumerate(pipelined)]
    rows += [row(10**8 * (i + 1), "weight-streaming", rate) for i, rate in enumerate(streamed)]
    return SizeSweep(tuple(rows))


def test_crossover_is_where_streaming_stays_ahead():
    sweep = made([9, 5, 2, 0], [4, 6, 3, 1])
    assert sweep.crossover_parameters == 2 * 10**8
    assert sweep.largest_pipelined is not None
    assert sweep.largest_pipelined.model == "m300000000"
    assert made([9, 9], [1, 1]).crossover_parameters is None
    assert made([0, 0], [1, 1]).largest_pipelined is None


def test_picture_and_table_are_written(tmp_path):
    for number, sweep in enumerate((made([9, 5, 2, 0], [4, 6, 3, 1]), made([0, 0], [1, 1]))):
        path = tmp_path / f"compare{number}.png"
        draw(sweep, path)
        assert path.stat().st_size > 10_000
    sweep.write_csv(tmp_path / "compare.csv")
    with (tmp_path / "compare.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [item["binding"] for item in read] == ["SRAM", "SRAM", "compute", "compute"]
    assert set(read[0]) == {field.name for field in dataclasses.fields(SizeRow)}


def test_the_series_makes_thirty_runs_from_a_tenth_of_a_billion_to_a_trillion():
    assert 2 * len(SERIES["gpt"]) >= 30
    assert (SERIES["gpt"][0], SERIES["gpt"][-1]) == ("gpt-100m", "gpt-1t")
    assert len(set(SERIES["gpt"])) == len(SERIES["gpt"])


def test_an_unknown_series_is_one_sentence():
    with pytest.raises(ModelError, match="series 'bert'"):
        sweep_sizes("bert")


@pytest.mark.slow
def test_a_sweep_runs_in_processes():
    sweep = sweep_sizes(models=("gpt-100m", "gpt3-1.3b"), workers=2, batch=64)
    assert len(sweep.rows) == 4
    assert [row.feasible for row in sweep.of("weight-streaming")] == [True, True]
    assert [row.feasible for row in sweep.of("pipelined")] == [True, False]
