"""The worker's part of a study: evaluates one captured graph with many settings.

A row has the numbers of ``wse-sim run`` with the same options. A setting that does not fit yields a row that
names the binding resource; a setting with inconsistent options yields a row with the message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from wse_sim import api, result_cache
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import WseError
from wse_sim.graph import KernelGraph
from wse_sim.hardware.chip import silicon_of
from wse_sim.service.data import as_data
from wse_sim.service.serving_run import Unserved, answer_of
from wse_sim.serving.metrics import read_goals
from wse_sim.serving.options import ServingOptions
from wse_sim.studies import serving_parameters
from wse_sim.studies.model_objects import kept
from wse_sim.studies.quantities import finite, of_misfit, of_result, of_silicon
from wse_sim.studies.settings import Request
from wse_sim.uncertainty import result_intervals

DONE, MISFIT, REFUSED, DIED = "done", "misfit", "refused", "died"


@dataclass(frozen=True)
class StudyRow:
    """The outcome of one run; `low` and `high` map outputs to the bounds of their 90 % intervals."""

    key: str
    status: str  # done, misfit, refused, died
    outputs: dict[str, float] = field(default_factory=dict)
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    mode: str = ""
    binding: str = ""
    message: str = ""
    seconds: float = 0.0


def capture(request: Request) -> KernelGraph | str:
    """Return the kernel graph of a request, or the message why there is none."""
    try:
        model = request.model
        found = kept(model) if isinstance(model, str) else None
        return api.read(model if found is None else found, request.options)
    except WseError as fault:
        return str(fault)


def evaluate(graph: KernelGraph | str, requests: Sequence[Request]) -> list[StudyRow]:
    """Evaluate all requests of one graph; return one row each, in order."""
    return [run_one(graph, request) for request in requests]


def run_one(graph: KernelGraph | str, request: Request) -> StudyRow:
    """Run one request. Errors from the user's values become a row; faults of the simulator are raised."""
    began = time.perf_counter()
    try:
        row = _run(graph, request)
    except WseError as fault:
        row = StudyRow(request.key, REFUSED, message=str(fault))
    return StudyRow(**{**row.__dict__, "seconds": time.perf_counter() - began})


def _run(graph: KernelGraph | str, request: Request) -> StudyRow:
    wafer = request.options.wafer
    assert not isinstance(wafer, str)  # the resolver loads it
    silicon = silicon_of(wafer, request.chip)
    cost = of_silicon(silicon, wafer.cores, wafer.sram_bytes)
    if request.must_fit and silicon.fault:
        missed = cost | of_misfit(silicon.need, silicon.limit)
        return StudyRow(request.key, MISFIT, missed, binding=silicon.binding, message=silicon.fault)
    if isinstance(graph, str):
        return StudyRow(request.key, REFUSED, cost, message=graph)
    if request.serving is not None:
        return _run_served(graph, request, request.serving, cost)
    with result_cache.paused():  # only the row is kept; writing a plan would take longer than making it
        # The graph has the frozen weights and the adapters already.
        result = api.run(graph, request.options.replace(train=None, lora=None), trace=False)
    if isinstance(result, Infeasible):
        missed = cost | of_misfit(result.need, result.limit)
        return StudyRow(
            request.key, MISFIT, missed, mode=result.mode, binding=result.binding, message=result.message
        )
    low, high = {}, {}
    if request.draws:
        for name, interval in result_intervals(result, samples=request.draws).items():
            low[name], high[name] = interval.low, interval.high
    found = {**of_result(result), **cost}
    if "tokens_per_s" in found and "samples_per_s" in low:  # tokens per sample, the same in all settings
        for bounds in (low, high):
            bounds.setdefault(
                "tokens_per_s", bounds["samples_per_s"] * found["tokens_per_s"] / found["samples_per_s"]
            )
    return StudyRow(request.key, DONE, found, low, high, result.mode, result.binding)


def _run_served(
    graph: KernelGraph, request: Request, options: ServingOptions, cost: dict[str, float]
) -> StudyRow:
    """Serve a load, or run the search that its options ask for."""
    with result_cache.paused():
        found = answer_of(graph, options)
    mode = request.options.mode
    if isinstance(found, Unserved):
        missed = cost | of_misfit(found.need, found.limit)
        return StudyRow(request.key, MISFIT, missed, mode=mode, binding=found.binding, message=found.message)
    goals = None if options.goodput is None else read_goals(options.goodput)
    data = as_data(graph.name, options, found, goals)
    outputs = finite({**serving_parameters.of_answer(options, data), **cost})
    return StudyRow(request.key, DONE, outputs, mode=mode, binding=found.serving.binding)
