"""Times of an engine on other hardware, from tables of measured layer times.

The folder holds ``dense.csv`` (layer, tokens, time_us), ``per_sequence.csv`` (layer, sequences, time_us),
``attention.csv`` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us), of a mixture of experts
``moe.csv`` (tokens, activated_experts, time_us) and, where attention was measured on uneven contexts,
``skew_fit.csv``, which ``meta.yaml`` in the folder above turns on: the format of LLMServingSim's profiler.
With one region and as many joined decodes as the engine allows, the scheduler of this package equals that of
the engine, so its rules can be compared with real runs of vLLM::

    step = embedding + L (2 layernorm + qkv_proj [+ qk_norm] + rotary_emb + attention + o_proj + gate_up_proj + act_fn
           + down_proj + 2 all-reduces [instead of the last three: all-gather + moe + reduce-scatter]) + final_layernorm
           + lm_head + sampler

Dense layers depend on the tokens of the step, the last two on the requests that get a token; both are linear
between rows.  Attention at (tokens of chunks, their contexts, number of decodes, mean of their contexts),
linear between rows, at the nearest measured pair of chunk and decodes; uneven contexts add alpha (t(longest)
- t(mean)), alpha by bucket.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from wse_sim.errors import ConfigError
from wse_sim.files import read_yaml
from wse_sim.serving.base import Ticks, ticks
from wse_sim.units import counted

ONCE, TWICE = ("embedding", "final_layernorm"), ("layernorm",)
KILO = 1024


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce between two devices: 2 (latency + half of the bytes over the link)."""

    hidden: int
    latency_s: float
    link_bytes_per_s: float
    element_bytes: int = 2

    def us(self, tokens: int) -> float:
        """Return the microseconds for the hidden state of some tokens."""
        return 2e6 * (self.latency_s + tokens * self.hidden * self.element_bytes / 2 / self.link_bytes_per_s)


@dataclass(frozen=True)
class ExpertRanks:
    """Experts distributed over `ranks` devices; each device has its own requests, and all devices step
    together.

    A rank has experts / ranks of them. The other ranks are assumed to have as many tokens as this one, so n
    tokens bring n x `per_token` picks to each rank, from the tokens of all ranks; each pick hits every expert
    with the same probability.
    """

    experts: int
    per_token: int
    ranks: int
    hidden: int
    latency_s: float
    link_bytes_per_s: float
    element_bytes: int = 2

    def activated(self, tokens: int) -> float:
        """Return the mean number of different experts of a rank that some tokens of every rank use."""
        missed = (1.0 - self.per_token / self.experts) ** (tokens * self.ranks)
        return self.experts / self.ranks * (1.0 - missed)

    def exchange_us(self, tokens: int) -> float:
        """Return the microseconds of an all-gather of hidden states with the scores of experts, and of the
        reduce-scatter of results, on a ring.
        """
        elements = tokens * (2 * self.hidden + self.experts) * self.element_bytes
        return 1e6 * (self.ranks - 1) * (2 * self.latency_s + elements / self.link_bytes_per_s)


class EngineProfile:
    """Ticks of the steps of an engine with one region; `layers` of the model.

    Raises
    ------
    ConfigError
        If a table is missing or malformed.
    """

    regions = 1

    def __init__(
        self,
        folder: str | Path,
        layers: int,
        *,
        all_reduce: AllReduce | None = None,
        experts: ExpertRanks | None = None,
    ) -> None:
        path = Path(folder)
        self._layers, self._all_reduce, self._ranks = layers, all_reduce, experts
        self._experts = _Experts(path / "moe.csv") if experts is not None else None
        self._dense = _curves(path / "dense.csv", "tokens")
        self._sequence = _curves(path / "per_sequence.csv", "sequences")
        self._attention = _Attention(path / "attention.csv")
        self._alphas = _fit_of(path)

    def ticks_of(self, parts: Sequence[tuple[int, int, int]]) -> Ticks:
        """Return the ticks of a step, (1,), for entries (tokens, context after them, tokens that may be
        emitted)."""
        tokens, answers = sum(part[0] for part in parts), sum(part[2] for part in parts)
        layer = self._attention_us(parts)
        once = 0.0
        for name, curve in self._dense.items():
            time_us = float(np.interp(tokens, *curve))
            if name in ONCE:
                once += time_us
            else:
                layer += time_us * (2 if name in TWICE else 1)
        if self._all_reduce is not None:
            layer += 2 * self._all_reduce.us(tokens)
        if self._ranks is not None and self._experts is not None:
            layer += self._experts.us(tokens, self._ranks.activated(tokens)) + self._ranks.exchange_us(tokens)
        once += sum(float(np.interp(max(1, answers), *curve)) for curve in self._sequence.values())
        return np.atleast_1d(ticks(np.array((once + self._layers * layer) * 1e-6)))

    def _attention_us(self, parts: Sequence[tuple[int, int, int]]) -> float:
        chunks = [(tokens, context - tokens) for tokens, context, _ in parts if tokens > 1]
        decodes = [context for tokens, context, _ in parts if tokens == 1]
        chunk, before = sum(one[0] for one in chunks), sum(one[1] for one in chunks)
        mean = sum(decodes) // len(decodes) if decodes else 0
        time_us = self._attention.us(chunk, before, len(decodes), mean)
        if self._alphas is None or len(decodes) < 2 or max(decodes) == min(decodes):
            return time_us
        skew = (sum(decodes) / len(decodes) - min(decodes)) / (max(decodes) - min(decodes))
        alpha = self._alphas.of(chunk, len(decodes), skew, max(decodes), before)
        longest = self._attention.us(chunk, before, len(decodes), max(decodes))
        return time_us + alpha * (longest - time_us)


class _Attention:
    """Times over (chunk, decodes) pairs, of each a table over the two contexts."""

    def __init__(self, path: Path) -> None:
        rows: dict[tuple[int, int], dict[tuple[int, int], float]] = defaultdict(dict)
        for row in _rows(path, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")):
            chunk, before, decodes, context, time_us = row
            rows[int(chunk), int(decodes)][int(before), int(context)] = time_us
        self._tables = {pair: _grid(table) for pair, table in rows.items()}
        self._chunks = sorted({pair[0] for pair in self._tables})
        self._decodes = sorted({pair[1] for pair in self._tables})

    def us(self, chunk: int, before: int, decodes: int, context: int) -> float:
        """Return microseconds, linear in all four; for a corner that was not measured, those of the nearest
        measured pair."""
        total = 0.0
        for one, weight in _corners(self._chunks, chunk):
            for two, other in _corners(self._decodes, decodes):
                if weight * other:
                    total += weight * other * _bilinear(self._near(one, two), before, context)
        return total

    def _near(self, chunk: int, decodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if (chunk, decodes) in self._tables:
            return self._tables[chunk, decodes]
        best = min(
            (
                pair
                for pair in self._tables
                if (pair[0] > 0) == (chunk > 0) and (pair[1] > 0) == (decodes > 0)
            ),
            key=lambda pair: (
                abs(np.log2(pair[0] + 1) - np.log2(chunk + 1))
                + abs(np.log2(pair[1] + 1) - np.log2(decodes + 1))
            ),
            default=next(iter(self._tables)),
        )
        return self._tables[best]


class _Experts:
    """Times of a mixture of experts over tokens, for numbers of different experts that these meet."""

    def __init__(self, path: Path) -> None:
        rows: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for tokens, experts, time_us in _rows(path, ("tokens", "activated_experts", "time_us")):
            rows[int(experts)].append((tokens, time_us))
        self._curves = {experts: np.array(sorted(points)).T for experts, points in sorted(rows.items())}

    def us(self, tokens: int, experts: float) -> float:
        """Return microseconds, linear in both; below the measured range, those of the fewest tokens or
        experts."""
        times = [float(np.interp(tokens, *curve)) for curve in self._curves.values()]
        return float(np.interp(experts, list(self._curves), times))


class _Alphas:
    """Weights of the longest context by bucket: chunk, number of decodes, skew, longest context, contexts of chunks."""

    def __init__(self, path: Path, default: float) -> None:
        self._default = default
        self._table: dict[tuple[int, str, str, str, str], float] = {}
        labels: list[set[str]] = [set(), set(), set(), set()]
        with _opened(path) as file:
            for row in csv.DictReader(file):
                names = (row["n_label"], row["skew_rate_label"], row["kv_big_label"], row["kp_label"])
                for seen, name in zip(labels, names, strict=True):
                    seen.add(name)
                self._table[(int(row["pc"]), *names)] = float(row["alpha"])
        self._bins = [sorted((_upper(name), name) for name in seen) for seen in labels]

    def of(self, chunk: int, decodes: int, skew: float, longest: int, before: int) -> float:
        """Return the weight of a step; the default if its bucket was not measured."""
        values = (decodes, 100 * skew, longest, before)
        names = []
        for bins, value in zip(self._bins, values, strict=True):
            place = bisect_left(bins, (value, ""))
            if place == len(bins):
                return self._default
            names.append(bins[place][1])
        return self._table.get((chunk, *names), self._default)  # type: ignore[arg-type]  # four names


def _fit_of(path: Path) -> _Alphas | None:
    """Weights for uneven contexts, if the profile's ``meta.yaml`` enables them, else None."""
    about = path.parent / "meta.yaml"
    fit = read_yaml(about).get("skew_fit", {}) if about.exists() else {}
    if not isinstance(fit, dict) or not fit.get("enabled"):
        return None
    own = fit.get("per_tp", {}).get(counted(path.name.removeprefix("tp")), {})
    return _Alphas(path / "skew_fit.csv", float(own.get("alpha_default", 0.0)))


def _upper(label: str) -> float:
    """Return the upper end of a bucket, from its label: n<=16, sr<=40%, kvB<=4k, kp=0, sr>70%."""
    found = re.search(r"([\d.]+)(k?)", label)
    number = float(found[1]) * (KILO if found[2] else 1) if found else 0.0
    return float("inf") if ">" in label else number


def _corners(values: list[int], at: int) -> list[tuple[int, float]]:
    """Return the two measured values around `at` with their weights; beyond the last one, the last."""
    if at <= values[0] or at in values:
        return [(max(at, values[0]), 1.0)]
    k = bisect_left(values, at)
    if k == len(values):
        return [(values[-1], 1.0)]
    low, high = values[k - 1], values[k]
    fraction = (at - low) / (high - low)
    return [(low, 1 - fraction), (high, fraction)]


Grid = tuple[np.ndarray, np.ndarray, np.ndarray]


def _grid(table: dict[tuple[int, int], float]) -> Grid:
    """Return contexts of chunks, contexts of decodes, and times; missing values are interpolated linearly in
    their row."""
    ones, twos = (sorted({key[axis] for key in table}) for axis in (0, 1))
    values = np.full((len(ones), len(twos)), np.nan)
    for (one, two), time_us in table.items():
        values[ones.index(one), twos.index(two)] = time_us
    for row in values:
        known = ~np.isnan(row)
        row[~known] = np.interp(np.array(twos)[~known], np.array(twos)[known], row[known])
    return np.array(ones, float), np.array(twos, float), values


def _bilinear(grid: Grid, one: float, two: float) -> float:
    """Interpolate linearly between rows; extrapolate beyond the last one from the last two."""
    ones, twos, values = grid
    columns = np.array([_line(twos, row, two) for row in values])
    return max(0.0, _line(ones, columns, one))


def _line(at: np.ndarray, values: np.ndarray, x: float) -> float:
    if len(at) > 1 and x > at[-1]:
        return float(values[-1] + (values[-1] - values[-2]) / (at[-1] - at[-2]) * (x - at[-1]))
    return float(np.interp(x, at, values))


def _curves(path: Path, axis: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return times by layer, over tokens or sequences."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with _opened(path) as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                found[row["layer"]].append((float(row[axis]), float(row["time_us"])))
            except (KeyError, TypeError, ValueError):
                raise ConfigError(
                    f"{path}: line {line} has no layer, {axis} and time_us; is it the right file?"
                ) from None
    return {name: (*np.array(sorted(rows)).T,) for name, rows in found.items()}  # type: ignore[misc]  # two columns


def _rows(path: Path, names: Sequence[str]) -> Iterator[list[float]]:
    with _opened(path) as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                yield [float(row[name]) for name in names]
            except (KeyError, TypeError, ValueError):
                raise ConfigError(
                    f"{path}: line {line} has no {', '.join(names)}; is it the right file?"
                ) from None


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as fault:
        raise ConfigError(
            f"table {path} cannot be read ({fault.strerror}); give a folder of profiles"
        ) from None
