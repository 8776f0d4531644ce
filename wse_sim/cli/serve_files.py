"""Files that ``wse-sim serve --out`` writes: the result, requests, series, the picture, the page, the timeline."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wse_sim.atomic_files import together
from wse_sim.files import Values
from wse_sim.serving.base import TICK_S
from wse_sim.serving.metrics import request_times
from wse_sim.serving.run import Serving
from wse_sim.serving.series import columns_of

if TYPE_CHECKING:
    from wse_sim.report.serving_page import ServingPage

Column = NDArray[np.floating] | NDArray[np.int64] | NDArray[np.str_]


def write_files(out: Path, page: ServingPage, trace: bytes | None = None) -> None:
    """Write all files of a run, or none; Parquet where pyarrow is installed."""
    from wse_sim.report.serving import draw_serving
    from wse_sim.report.serving_page import write_serving_page

    requests, series = request_columns(page.serving), series_columns(page.serving)
    with together(out) as part:
        (part / "result.json").write_text(json.dumps(page.data, indent=2) + "\n", encoding="utf-8")
        _write_csv(part / "requests.csv", requests)
        if find_spec("pyarrow") is None:
            print(
                "wse-sim: note: tables are not written as Parquet: it needs pyarrow; pip install 'wse-sim[study]'",
                file=sys.stderr,
            )
            _write_csv(part / "series.csv", series)
        else:
            _write_parquet(part / "requests.parquet", requests)
            _write_parquet(part / "series.parquet", series)
        draw_serving(page.serving, part / "serving.png", title=page.title, goals=page.goals)
        write_serving_page(page, part / "report.html")
        if trace is not None:
            (part / "timeline.perfetto").write_bytes(trace)


def request_columns(serving: Serving) -> dict[str, Column]:
    """Return a row for each completed request, in order of arrival."""
    served, load = serving.served, serving.load
    done, times = served.completed, request_times(load, served)
    return {
        "request_id": done.nonzero()[0].astype(np.int64),
        "replica": served.replica[done],
        "input": load.input_tokens[done],
        "output": load.output_tokens[done],
        "arrival_s": served.arrival_ticks[done] * TICK_S,
        "queue_time_s": times["queue"] / 1e3,
        "prompt_time_s": (served.first_ticks - served.admitted_ticks)[done] * TICK_S,
        "completion_time_s": (served.last_ticks - served.first_ticks)[done] * TICK_S,
        "ttft_s": times["ttft"] / 1e3,
        "tpot_s": times["tpot"] / 1e3,
        "latency_s": times["e2el"] / 1e3,
        "cached_tokens": served.cached[done],
        "accepted_tokens": served.accepted[done],
        "preemptions": served.preemptions[done],
    }


def series_columns(serving: Serving) -> dict[str, Column]:
    """Return the run over time: `replica` is "all", or the number of one."""
    sampled, rules, power = serving.sampled, serving.replica.rules, serving.replica.power
    count = serving.replicas
    tables = [("all", columns_of(sampled, sampled.total, blocks=rules.blocks * count, draw=power))]
    if count > 1:
        tables += [
            (str(number), columns_of(sampled, rows, blocks=rules.blocks, draw=power))
            for number, rows in enumerate(sampled.single)
        ]
    rows = len(sampled.at_ticks)
    found: dict[str, Column] = {"replica": np.repeat(np.array([name for name, _ in tables]), rows)}
    for name in tables[0][1]:
        found[name] = np.concatenate([columns[name] for _, columns in tables])
    return found


def _write_csv(path: Path, columns: Mapping[str, Column]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(_rows(columns.values()))


def _rows(columns: Iterable[Column]) -> Iterable[Sequence[object]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _write_parquet(path: Path, columns: Mapping[str, Column]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table: Values = {name: pa.array(column) for name, column in columns.items()}
    parquet.write_table(pa.table(table), path, compression="zstd")
