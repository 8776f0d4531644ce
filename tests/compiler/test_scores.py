"""Attention scores are kept if they fit and recomputed otherwise; the cost is computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.handmade import transformer
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.scores import NOTE, score_bytes, without_scores
from wse_sim.compiler.sizing import Sizer
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined

WAFER, CLUSTER = load_wafer("wse2"), load_cluster()
SMALL = WAFER.derive(rows=132, cols=137, program_rows=130, program_cols=130)
LONG = transformer(2, 128, 8, 512)


def attention_of(graph, name="h.0.attn"):
    """Return a forward attention kernel and its gradient kernel."""
    by_name = {k.name: k for k in graph.kernels}
    return by_name[name], by_name[f"{name}.dx"]


def test_what_is_kept_without_scores():
    """8 heads x 512 x 512 scores of 2 bytes are 4 MiB; queries, keys and values stay: 6 x 512 x 128 bytes."""
    lean = without_scores(LONG)
    forward, backward = attention_of(lean)
    assert score_bytes(attention_of(LONG)[0]) == 4 * 2**20
    assert forward.saved_bytes == 6 * 512 * 128
    assert backward.attrs["recompute"]
    assert without_scores(lean) is lean
    inference = transformer(2, 128, 8, 512, training=False)
    assert without_scores(inference) is inference


def test_backward_pays_the_score_product_and_the_softmax_again():
    """The stage takes longer by less than a forward pass, and by all of its special elements."""
    costs = []
    for graph in (LONG, without_scores(LONG)):
        sizer = Sizer(graph, WAFER, Prices(WAFER, {"training": True}))
        group = next(g for g in sizer.groups if g.name == "h.0.attn")
        costs.append(sizer.stage_cost(group, 20, 20))
    (forward, kept), (same, again) = costs
    assert float(np.asarray(forward.total)) == float(np.asarray(same.total))
    more = float(np.asarray(again.total - kept.total))
    assert float(np.asarray(again.special - kept.special)) == pytest.approx(
        float(np.asarray(forward.special))
    )
    assert float(np.asarray(forward.special)) < more < float(np.asarray(forward.total))


@pytest.mark.slow
def test_scores_are_recomputed_only_when_they_do_not_fit():
    """With the memory of a complete wafer nothing is recomputed; on a corner of it the model fits only with
    recomputation.
    """
    whole = compile_pipelined(LONG, WAFER, CLUSTER, batch=16, replicas=1, layouts=False)
    assert isinstance(whole, PipelinedPlan)
    assert NOTE not in whole.notes
    corner = compile_pipelined(LONG, SMALL.derive(sram_bytes=10 * 1024), CLUSTER, batch=16, replicas=1)
    assert isinstance(corner, PipelinedPlan), corner.message
    assert NOTE in corner.notes
    assert all(s.memory.total_bytes <= corner.wafer.sram_usable_bytes for s in corner.stages)


def test_a_model_too_large_without_scores_names_what_it_needs_then():
    """The answer counts the weights, not scores that would not be kept."""
    answer = compile_pipelined(transformer(8, 768, 8, 64), SMALL, CLUSTER, batch=4)
    assert isinstance(answer, Infeasible)
    assert answer.need > answer.limit
