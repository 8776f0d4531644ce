"""Measures the effect of each constant of the hardware: on rates of models in both modes, and on prices of kernels.

    python -m benchmarks.constants           compute and write docs/constants.json     (about 15 CPU minutes)
    python -m benchmarks.constants --only hop_cycles link_bytes_per_cycle              some constants, printed

Every constant of a wafer and a cluster is doubled and halved (as far as its limits go), everything is compiled and
simulated again, and the rate is compared with the one before.  A *better* constant (faster, larger, sooner) must
never give a lower rate, because a compiler may leave alone what it is given.  The wafer is a WSE-2 of 198 x 200
cores, which a model of a few layers fills as a large one fills a whole wafer.

A constant that no step of a mode reads moves nothing in it: a wafer that writes down which of its constants are read
says so, and those are not compiled again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.numbers import ROOT

if TYPE_CHECKING:
    from wse_sim.graph import KernelGraph
    from wse_sim.hardware import Cluster, Wafer

FILE = ROOT / "docs" / "constants.json"
MODES = ("pipelined", "weight-streaming")  # of one system
SIZE = {"rows": 200, "cols": 207, "program_rows": 198, "program_cols": 200}
MODELS: dict[str, dict[str, Any]] = {
    "perceptron": {"family": "mlp", "layers": 4, "hidden": 64, "input": 784, "classes": 10, "activation": "relu"},
    "decoder": {"family": "decoder", "layers": 2, "hidden": 128, "heads": 4, "ffn": 512, "seq": 64, "vocab": 512},
    "encoder": {"family": "encoder", "layers": 2, "hidden": 64, "heads": 2, "ffn": 256, "seq": 32, "vocab": 256},
    "vision transformer": {"family": "vit", "layers": 2, "hidden": 64, "heads": 2, "ffn": 256, "input": 32,
                           "patch": 8, "classes": 10},
}  # fmt: skip
BATCH = 16
TOLERANCE = 0.01
"""Relative loss that is no fault: streams are routed, and the host and the pipeline wait for each other by chance."""
LESS_IS_BETTER = (
    "_cycles", "_s", "_factor", "_fraction", "reserved_bytes", "code_bytes", "power_active_w", "power_idle_w", "_streams",
    "_handovers", "_instructions",
)  # fmt: skip
RATES = ("_per_s", "_per_cycle", "_hz")


def is_better(name: str, factor: float) -> bool:
    """Return whether `factor` times a constant is better hardware: more of a rate or a size, less of a time or a loss."""
    less = name.endswith(LESS_IS_BETTER) and not name.endswith(RATES)
    return (factor < 1) == less


@dataclass(frozen=True)
class Change:
    """One constant changed, for one model in one mode, with the ratio of the new rates to the old ones."""

    constant: str
    factor: float
    model: str
    mode: str
    ratio: float | None  # of samples per second; None: it fits only on one side
    compute_ratio: float | None  # the same without the host

    @property
    def lost(self) -> float:
        """Fraction of the rate that better hardware lost, or worse hardware gained; 0 if it is as it should be."""
        ratios = [r for r in (self.ratio, self.compute_ratio) if r is not None]
        better = is_better(self.constant, self.factor)
        return max([0.0, *((1 - r) if better else (r - 1) for r in ratios)])

    @property
    def moved(self) -> float:
        """Largest relative change of a rate."""
        return max(
            (abs(r - 1) for r in (self.ratio, self.compute_ratio) if r is not None), default=float("inf")
        )


Part = TypeVar("Part", "Wafer", "Cluster")


@lru_cache(maxsize=8)
def _graph(model: str) -> KernelGraph:
    from wse_sim.frontend import load_model

    return load_model(MODELS[model], training=True)


def watched(item: Part, names: Iterable[str], read: set[str]) -> Part:
    """Return the same wafer or cluster; the names of the constants that anybody reads of it go into `read`."""
    known = frozenset(names)

    class Watched(type(item)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> object:
            if name in known:
                read.add(name)
            return super().__getattribute__(name)

    return Watched.model_construct(**{name: getattr(item, name) for name in type(item).model_fields})


@lru_cache(maxsize=32)
def before(model: str, mode: str) -> tuple[tuple[float, float] | None, frozenset[str]]:
    """Return the rates on the machine as it stands, and the constants that were read for them."""
    wafer, cluster = system()
    read: set[str] = set()
    machine = watched(wafer, names(), read), watched(cluster, names(), read)
    read.clear()
    return rates(model, mode, *machine), frozenset(read)


def rates(model: str, mode: str, wafer: Wafer, cluster: Cluster) -> tuple[float, float] | None:
    """Return (samples/s, samples/s without the host), or None if the model does not fit."""
    from wse_sim import api

    plan = api.compile(_graph(model), wafer, mode=mode, batch=BATCH, cluster=cluster)
    if isinstance(plan, api.Infeasible):
        return None
    result = api.simulate(plan, trace=False)
    return result.samples_per_s, result.compute_samples_per_s


def changed(item: Part, name: str, factor: float) -> Part | None:
    """Return the wafer or cluster with a constant times `factor`, or None where its limits do not allow that."""
    from wse_sim.errors import ConfigError

    value = getattr(item, name)
    if isinstance(value, str):
        return None
    new: float | tuple[int, ...]
    if isinstance(value, tuple):
        new = tuple(max(1, round(v * factor)) for v in value)
    elif isinstance(value, int):
        new = round(value * factor)
    else:
        new = value * factor
    if new == value:
        return None
    try:
        return item.derive(**{name: new})
    except ConfigError:
        return None


def system() -> tuple[Wafer, Cluster]:
    """Return the wafer and the cluster whose constants are changed."""
    from wse_sim.hardware import load_cluster, load_wafer

    return load_wafer("wse2").derive(**SIZE), load_cluster()


def names() -> list[str]:
    """Return every constant of a wafer and a cluster except the prices of scalar code and of CSL, which no model runs."""
    from wse_sim.hardware.cluster import CLUSTER_UNITS
    from wse_sim.hardware.wafer import UNITS

    return [name for name in (*UNITS, *CLUSTER_UNITS) if not name.startswith(("scalar_", "csl_"))]


def changes(
    constants: Iterable[str], models: Iterable[str] = tuple(MODELS), modes: Iterable[str] = MODES
) -> Iterator[Change]:
    """Yield all changes of some constants, in both directions."""
    wafer, cluster = system()
    runs = [(model, mode, *before(model, mode)) for model in models for mode in modes]
    for name in constants:
        on_wafer = hasattr(wafer, name)
        for factor in (0.5, 2.0):
            item = changed(wafer if on_wafer else cluster, name, factor)
            if item is None:
                continue
            machine = (item, cluster) if on_wafer else (wafer, item)
            for model, mode, old, read in runs:
                if name not in read:
                    continue
                new = rates(model, mode, *machine)
                if old is None and new is None:
                    continue
                both = (None, None) if old is None or new is None else (new[0] / old[0], new[1] / old[1])
                yield Change(name, factor, model, mode, *both)


def prices_moved(name: str) -> int | None:
    """Return the kernels at their default sizes whose formula the constant changes (doubled or halved); None for a
    cluster's.
    """
    wafer, _ = system()
    if not hasattr(wafer, name):
        return None
    base = _prices(wafer)
    moved: set[str] = set()
    for factor in (0.5, 2.0):
        item = changed(wafer, name, factor)
        if item is not None:
            moved |= {kernel for kernel, cycles in _prices(item).items() if cycles != base.get(kernel)}
    return len(moved)


def _prices(wafer: Wafer) -> dict[str, float]:
    from wse_sim.bench.command import kernel_commands, run_kernel

    return {name: run_kernel(name, {}, wafer, timing="model").model_cycles for name in kernel_commands()}


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or print some constants."""
    parser = argparse.ArgumentParser(prog="benchmarks.constants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], choices=names(), help="print these, write nothing")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), help="of these")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    table: dict[str, dict[str, Any]] = {}
    worst = 0.0
    asked = options.only or names()
    with ProcessPoolExecutor(options.workers) as pool:
        answers = pool.map(partial(_effects, models=tuple(options.models)), asked)
        for name, (found, kernels) in zip(asked, answers, strict=True):
            worst = max([worst, *(one.lost for one in found)])
            table[name] = {"kernels": kernels, "models": [_row(one) for one in found]}
            print(f"{name}: {_line(found)}", file=sys.stderr, flush=True)
            if (
                not options.only
            ):  # what is known so far; a run that is cut off leaves a file with fewer constants
                _write(table)
    print(f"largest loss by better hardware: {worst:.2%}")
    return int(worst > TOLERANCE)


def _row(one: Change) -> dict[str, Any]:
    ratios = {
        name: None if value is None else round(value, 5)
        for name, value in (("ratio", one.ratio), ("compute_ratio", one.compute_ratio))
    }
    return {"model": one.model, "mode": one.mode, "factor": one.factor, **ratios, "lost": round(one.lost, 5)}


def _write(table: dict[str, dict[str, Any]], unmeasured: Iterable[str] = ()) -> None:
    """Write the file; `unmeasured` constants have no numbers of the pipelined mode."""
    lines = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in table.items()]
    head = f'{{"tolerance": {TOLERANCE}, "modes": {json.dumps(MODES)}, "unmeasured": {json.dumps(sorted(unmeasured))}, "changes": {{\n'
    FILE.write_text(head + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


def _effects(name: str, models: tuple[str, ...]) -> tuple[list[Change], int | None]:
    return list(changes([name], models)), prices_moved(name)


def _line(found: Iterable[Change]) -> str:
    return (
        ", ".join(
            f"{one.model} {one.mode} x{one.factor:g}: {one.moved:.2%}"
            + (f" LOST {one.lost:.2%}" if one.lost > TOLERANCE / 5 else "")
            for one in found
            if one.moved > 1e-4
        )
        or "nothing"
    )


if __name__ == "__main__":
    sys.exit(main())
