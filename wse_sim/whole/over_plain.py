"""Fraction of a plan's time that is priced by mappings verified on the fabric, by kernel family.

A plan without ``--whole-fabric`` prices *plain* mappings; the fabric simulates the *laid-out* mappings of
:func:`wse_sim.whole.run.inputs_over_rows`. This module prices every stage of a plan with both mappings, on
the same region::

    laid over plain   cycles of the laid-out mapping / cycles of the plain one, same cores
    composed          the time of stages of families that run on the fabric and whose two prices are within 1 %

In a weight-streaming plan the kernels of a phase are priced on the whole wafer, and only products have fabric
programs. A residual that the fabric adds in a separate region stays in its convolution or product here.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.plan import Plan
from wse_sim.compiler.pricing import Prices
from wse_sim.graph import Kernel
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.repricing import reprice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole.lower import is_laid, laid_graph, without_program
from wse_sim.whole.regions import KINDS
from wse_sim.whole.trained.kinds import TRAINED

SAME = 0.01  # relative difference of two prices of one mapping: whole words round


@dataclass(frozen=True)
class PricedPart:
    """A stage or phase of a plan: `weight` is its time times its cores, in core cycles per sample or per
    step."""

    name: str
    family: str
    weight: float
    laid_over_plain: float | None  # None: no program of the family is composed

    @property
    def is_composed(self) -> bool:
        """Whether the price in use is that of a mapping that runs on the fabric."""
        return self.laid_over_plain is not None and abs(self.laid_over_plain - 1.0) <= SAME


@dataclass(frozen=True)
class FamilyProof:
    """The verified part of the time of one family in one plan; fractions relate to the time of the whole
    plan."""

    family: str
    fraction: float
    composed_fraction: float
    laid_over_plain: float | None  # median of its parts by time


def priced_parts(plan: Plan) -> tuple[PricedPart, ...]:
    """Price every stage of a pipeline, or every kernel of weight streaming, with its plain and its laid-out
    mapping.

    Returns an empty tuple for other plans.

    Example
    -------
    >>> from wse_sim import api
    >>> plan = api.compile(api.load_model("bert-large"), "wse2", mode="pipelined", batch=64)
    >>> sorted({part.family for part in priced_parts(plan) if part.is_composed})
    ['activation', 'attention', 'gemm', 'norm']
    """
    if isinstance(plan, PipelinedPlan):
        return tuple(_stages(plan))
    if isinstance(plan, WeightStreamingPlan):
        return tuple(_phases(plan))
    return ()


def _stages(plan: PipelinedPlan) -> Iterator[PricedPart]:
    plain = reprice(plan, plan.wafer, plan.cluster)
    graph = plan.graph if is_laid(plan.graph) else laid_graph(plan.graph)
    laid = reprice(dataclasses.replace(plan, graph=graph), plan.wafer, plan.cluster)
    kinds, aside = TRAINED if plan.graph.training else KINDS, without_program(plan.graph)
    for one, other in zip(plain.stages, laid.stages, strict=True):
        ratio = other.cycles_per_sample / one.cycles_per_sample if one.cycles_per_sample else 1.0
        yield PricedPart(
            one.name,
            one.family,
            one.cycles_per_sample * one.region.cores,
            ratio if one.family in kinds and aside.isdisjoint(one.kernels) else None,
        )


def _phases(plan: WeightStreamingPlan) -> Iterator[PricedPart]:
    prices, rows, cols = Prices(plan.wafer), plan.used.program_rows, plan.used.program_cols

    def cycles(kernel: Kernel) -> float:
        return float(np.asarray(prices.cost(kernel, rows, cols, "streamed", plan.lanes).total))

    plain = {kernel.name: kernel for kernel in plan.graph.kernels}
    laid = {kernel.name: kernel for kernel in laid_graph(plan.graph, streamed=True).kernels}
    for phase in plan.phases:
        ratio = None
        if phase.family == "gemm" and phase.kernel in plain:
            ratio = cycles(laid[phase.kernel]) / cycles(plain[phase.kernel])
        yield PricedPart(phase.name, phase.family, phase.compute_cycles * plan.micro_batches, ratio)


def by_family(parts: Iterable[PricedPart]) -> tuple[FamilyProof, ...]:
    """Return one row per family, sorted by decreasing time."""
    groups: defaultdict[str, list[PricedPart]] = defaultdict(list)
    for part in parts:
        groups[part.family].append(part)
    whole = sum(part.weight for group in groups.values() for part in group) or 1.0
    rows = [
        FamilyProof(
            family,
            sum(part.weight for part in group) / whole,
            sum(part.weight for part in group if part.is_composed) / whole,
            weighted_median(
                [(part.laid_over_plain, part.weight) for part in group if part.laid_over_plain is not None]
            ),
        )
        for family, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.fraction))


def mean_of(plans: Sequence[tuple[FamilyProof, ...]]) -> tuple[FamilyProof, ...]:
    """Average several plans, one row per family: means of the fractions, medians of the ratios."""
    groups: defaultdict[str, list[FamilyProof]] = defaultdict(list)
    for rows in plans:
        for row in rows:
            groups[row.family].append(row)
    found = [
        FamilyProof(
            family,
            sum(row.fraction for row in rows) / len(plans),
            sum(row.composed_fraction for row in rows) / len(plans),
            weighted_median(
                (row.laid_over_plain, row.fraction) for row in rows if row.laid_over_plain is not None
            ),
        )
        for family, rows in groups.items()
    ]
    return tuple(sorted(found, key=lambda row: -row.fraction))


def weighted_median(values: Iterable[tuple[float, float]]) -> float | None:
    """Return the weighted median; None if there are no values."""
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return None
