"""How much of a plan's time rests on composed prices: by two plans of one model, one laid as the fabric has it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from wse_sim import api
from wse_sim.compiler.pricing import Prices
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.lower import laid_graph
from wse_sim.whole.over_plain import FamilyProof, by_family, mean_of, priced_parts, weighted_median


class Block(nn.Module):
    """A norm before a layer and a sum around both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(self.norm(x))


@pytest.fixture(scope="module")
def graph() -> api.KernelGraph:
    return api.lower(nn.Sequential(Block(), nn.Linear(32, 16)), (torch.zeros(1, 12, 32),))


def plan(graph: api.KernelGraph, mode: str = "pipelined"):
    return api.compile(
        graph,
        "wse2",
        mode=mode,
        batch=16,
        **({"replicas": 1, "prices": "plain"} if mode == "pipelined" else {}),
    )


def test_a_plan_laid_as_the_fabric_has_it_rests_on_composed_prices_alone(graph):
    """Priced again it is what it was, so every family is at 1 and the fractions are those of the time."""
    rows = by_family(priced_parts(plan(inputs_over_rows(graph))))
    assert {row.family for row in rows} >= {"gemm", "norm"}
    assert all(row.laid_over_plain == pytest.approx(1) for row in rows)
    assert all(row.composed_fraction == row.fraction for row in rows)
    assert sum(row.fraction for row in rows) == pytest.approx(1)


def test_a_plain_layer_is_priced_on_its_own_region_both_ways(graph):
    """The ratio of one layer is that of the two prices of its family on the cores that it has."""
    compiled = plan(graph)
    stage = next(stage for stage in compiled.stages if stage.name == "1")
    part = next(part for part in priced_parts(compiled) if part.name == "1")
    laid = next(kernel for kernel in laid_graph(graph).kernels if kernel.name == "1")
    plain = next(kernel for kernel in graph.kernels if kernel.name == "1")
    cols = stage.region.compute_cores // stage.region.rows
    prices = Prices(compiled.wafer)
    found = [prices.cost(kernel, stage.region.rows, cols, "stationary") for kernel in (plain, laid)]
    one, other = (float(np.asarray(cost.total - cost.idle)) for cost in found)  # without the fill, once a run
    assert part.laid_over_plain == pytest.approx(other / one)
    assert part.weight == pytest.approx(stage.cycles_per_sample * stage.region.cores)


def test_queries_keys_and_values_of_one_product_are_priced_as_the_three_layers_that_they_become():
    """One of 32 outputs on a third of the columns; on the links of two bands of heads, 12 x 8 words each, where one of all three took 12 x 48."""
    graph = api.lower(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), (torch.zeros(1, 12, 32),))
    laid = {kernel.name: kernel for kernel in laid_graph(graph).kernels}
    whole = next(kernel for kernel in laid.values() if kernel.attrs.get("layers", 1) > 1)
    third = next(kernel for kernel in inputs_over_rows(graph).kernels if kernel.name == f"{whole.name}.q")
    assert (whole.dims["n"], third.dims["n"]) == (96, 32)
    assert whole.attrs["link_words"] == third.attrs["link_words"] == 12 * 8
    prices = Prices(load_wafer("wse2"))
    for rows, cols in ((4, 12), (16, 24)):
        costs = (
            prices.cost(whole, rows, cols, "stationary"),
            prices.cost(third, rows, cols // 3, "stationary"),
        )
        one, other = (float(np.asarray(cost.total - cost.idle)) for cost in costs)
        assert one == other > 0


def test_layers_before_a_loss_of_the_model_are_priced_as_a_network_that_trains():
    """They have the layout of a model that leaves the loss to the training step: a row apart that finishes outputs."""
    layers = [
        kernel
        for kernel in laid_graph(api.load_model("fc-mnist", training=True)).kernels
        if kernel.family == "gemm"
    ]
    assert len(layers) == 3 * 11 - 1  # forward, and both gradients but that of the inputs of the model
    assert {one.attrs["orientation"] for one in layers} == {"kn", "nk"}
    assert all(one.attrs.get("trained_rows") for one in layers if one.phase is Phase.FORWARD)


def test_streamed_products_are_priced_as_they_are_stepped(graph):
    rows = {row.family: row for row in by_family(priced_parts(plan(graph, "weight-streaming")))}
    assert rows["gemm"].composed_fraction == rows["gemm"].fraction > 0
    assert rows["norm"].laid_over_plain is None
    assert rows["norm"].composed_fraction == 0


def test_means_over_plans_count_families_that_a_plan_has_not():
    one = (FamilyProof("gemm", 1.0, 1.0, 1.0),)
    two = (FamilyProof("gemm", 0.5, 0.0, 3.0), FamilyProof("norm", 0.5, 0.0, None))
    gemm, norm = mean_of([one, two])
    assert (gemm.fraction, gemm.composed_fraction, gemm.laid_over_plain) == (0.75, 0.5, 1.0)
    assert (norm.fraction, norm.laid_over_plain) == (0.25, None)
    assert weighted_median([(9.0, 1.0), (2.0, 1.5), (1.0, 0.4)]) == 2.0
    assert weighted_median([]) is None
