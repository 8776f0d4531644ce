"""The numbers of a run under the keys of `vllm bench serve`, with its definitions.

Duration is from the first arrival to the last token.  TTFT counts from the arrival; TPOT is (end - first
token) / (tokens - 1) of requests with more than one; ITL are the gaps between tokens over all requests, from
a histogram with bins of 1.6 % (the mean is exact); E2EL is the time from arrival to the last token.  All in
ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.files import Values
from wse_sim.serving.base import (
    FIRST_GAP_TICKS,
    GAP_EDGES,
    TICK_S,
    Load,
    Served,
    ServingError,
)

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
MS = 1e3 * TICK_S
Floats = NDArray[np.floating]


def request_times(load: Load, served: Served) -> dict[str, Floats]:
    """Return the times of completed requests in ms, by name: queue, ttft, tpot (nan for a single token),
    e2el."""
    done = served.completed
    arrival, first, last = (
        column[done] for column in (served.arrival_ticks, served.first_ticks, served.last_ticks)
    )
    more = (load.output_tokens[done] - 1).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(more > 0, (last - first) / np.maximum(more, 1), np.nan)
    return {
        "queue": (served.admitted_ticks[done] - arrival) * MS,
        "ttft": (first - arrival) * MS,
        "tpot": tpot * MS,
        "e2el": (last - arrival) * MS,
    }


def read_goals(text: str) -> dict[str, float]:
    """Parse goals in ms by name, from text such as "ttft:200 tpot:5".

    Raises
    ------
    ServingError
        If a name is not ttft, tpot or e2el, or a time is invalid.
    """
    goals: dict[str, float] = {}
    for part in text.split():
        name, _, value = part.partition(":")
        try:
            limit = float(value) if value.isascii() else np.nan
        except ValueError:
            limit = np.nan
        if name not in ("ttft", "tpot", "e2el") or not limit > 0 or name in goals:
            raise ServingError(
                f"goal '{part[:60]}' cannot be parsed; give ttft:MS, tpot:MS or e2el:MS, each once"
            )
        goals[name] = limit
    if not goals:
        raise ServingError("no goals are given; give some of ttft:MS, tpot:MS and e2el:MS")
    return goals


def meets(times: Mapping[str, Floats], goals: Mapping[str, float]) -> NDArray[np.bool_]:
    """Return which completed requests meet all goals; the TPOT of a single-token answer is 0."""
    good = np.ones(len(times["ttft"]), bool)
    for name, limit in goals.items():
        good &= np.nan_to_num(times[name]) <= limit
    return good


def bench_result(
    load: Load,
    served: Served,
    *,
    model: str,
    rate: float | str,
    goals: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    burstiness: float = 1.0,
    most_users: int | None = None,
) -> Values:
    """Return the result of a run, with the keys and definitions of `vllm bench serve`."""
    done, times = served.completed, request_times(load, served)
    count = int(done.sum())
    begun = int(served.arrival_ticks.min()) if len(load) else 0
    span_s = (int(served.last_ticks[done].max()) - begun) * TICK_S if count else 0.0
    inputs, outputs = (int(column[done].sum()) for column in (load.input_tokens, load.output_tokens))
    per_s = 1 / span_s if span_s else 0.0
    good = None if goals is None else float(meets(times, goals).sum()) * per_s
    found: Values = {
        "endpoint_type": "wse_sim",
        "backend": "wse_sim",
        "label": None,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": len(load) + load.refused,
        "request_rate": rate,
        "burstiness": burstiness,
        "max_concurrency": most_users,
        "duration": span_s,
        "completed": count,
        "failed": len(load) + load.refused - count,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": count * per_s,
        "request_goodput": good,
        "output_throughput": outputs * per_s,
        "total_token_throughput": (inputs + outputs) * per_s,
        "max_concurrent_requests": most_at_once(served),
    }
    for name in ("ttft", "tpot", "e2el"):
        values = times[name][~np.isnan(times[name])]
        found |= _statistics(name, values, percentiles)
        if name == "tpot":
            found |= _gap_statistics(served, percentiles)
    return found


def most_at_once(served: Served) -> int:
    """Return the most simultaneous requests between arrival and last token; at equal times, ends precede
    arrivals."""
    done = served.completed
    arrivals, ends = np.sort(served.arrival_ticks[done]), np.sort(served.last_ticks[done])
    if not len(arrivals):
        return 0
    return int((np.arange(1, len(arrivals) + 1) - np.searchsorted(ends, arrivals, side="right")).max())


def _statistics(name: str, values: Floats, percentiles: Sequence[float]) -> dict[str, float]:
    """Return mean, median, standard deviation and percentiles; zeros without values, as in vLLM."""
    values = values if len(values) else np.zeros(1)
    found = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    return found | {f"p{p:g}_{name}_ms": float(np.percentile(values, p)) for p in percentiles}


def _gap_statistics(served: Served, percentiles: Sequence[float]) -> dict[str, float]:
    """Return the statistics of the gaps between tokens: the mean is exact, the others come from the middles of the
    histogram's bins.
    """
    total = int(served.gaps.sum())
    edges = np.concatenate([[FIRST_GAP_TICKS], GAP_EDGES, [GAP_EDGES[-1]]]).astype(float) * MS
    middles = (edges[:-1] + edges[1:]) / 2
    mean = served.counters["gap_ticks"] / total * MS if total else 0.0
    around = float(np.dot(served.gaps, (middles - mean) ** 2)) / total if total else 0.0
    below = np.cumsum(served.gaps)

    def quantile(fraction: float) -> float:
        return float(middles[np.searchsorted(below, max(1, fraction * total))]) if total else 0.0

    found = {"mean_itl_ms": mean, "median_itl_ms": quantile(0.5), "std_itl_ms": around**0.5}
    return found | {f"p{p:g}_itl_ms": quantile(p / 100) for p in percentiles}
