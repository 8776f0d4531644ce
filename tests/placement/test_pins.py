"""Placement hints: pinned rectangles, regions and replicas are honoured or refused by name."""

from __future__ import annotations

import itertools

import pytest

from tests.handmade import transformer
from wse_sim.compiler.pins import uneven_copies
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import ConfigError, ModelError
from wse_sim.frontend.hints import make_pin, pin_kernels, shard
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined

WAFER, CLUSTER = load_wafer("wse2"), load_cluster()
SMALL = WAFER.derive(rows=132, cols=137, program_rows=130, program_cols=130)
GRAPH = transformer(2, 128, 4, 32)


def plan(*pins, **options):
    """Return the answer for the small transformer with pins."""
    return compile_pipelined(pin_kernels(GRAPH, *pins), SMALL, CLUSTER, batch=16, **options)


@pytest.mark.slow
@pytest.mark.parametrize("placer", ["shelves", "snake"])
def test_a_pinned_rectangle_is_exact(placer):
    """The stage gets 20 x 30 cores and the others make room; no two overlap."""
    made = plan(make_pin("h.0.fc", rows=20, cols=30), placer=placer, time_limit_s=0.5)
    assert isinstance(made, PipelinedPlan), made.message
    region = next(s.region for s in made.stages if s.name == "h.0.fc")
    assert (region.rows, region.cols) == (20, 30)
    for one, other in itertools.combinations(made.stages, 2):
        assert not one.region.overlaps(other.region)


@pytest.mark.slow
def test_a_narrow_pin_slows_the_pipeline():
    """On 8 x 8 cores the stage sets the pace."""
    free, tight = plan(), plan(make_pin("h.0.fc", rows=8, cols=8))
    assert isinstance(tight, PipelinedPlan), tight.message
    slowest = max(tight.stages, key=lambda s: s.cycles_per_sample)
    assert slowest.name == "h.0.fc"
    assert slowest.cycles_per_sample > max(s.cycles_per_sample for s in free.stages)


def test_pins_that_do_not_fit_are_named():
    """The error names a rectangle that is too large for the wafer, or too small for the weights."""
    with pytest.raises(ModelError, match=r"'h\.0\.fc' is pinned to 131 x 10 cores"):
        plan(make_pin("h.0.fc", rows=131, cols=10))
    answer = plan(make_pin("h.0.fc", rows=2, cols=2))
    assert isinstance(answer, Infeasible)
    assert "'h.0.fc' on the 2 x 2 cores it is pinned to" in answer.message


@pytest.mark.slow
def test_a_region_is_a_run_of_neighbours():
    """Neighbouring stages of one name are accepted; scattered ones and other placers are refused."""
    near = make_pin("h.0", region="west")
    assert isinstance(plan(near), PipelinedPlan)
    with pytest.raises(ModelError, match="'west' is pinned to stages that do not follow each other"):
        plan(make_pin("h.0.qkv", region="west"), make_pin("h.1.qkv", region="west"))
    with pytest.raises(ModelError, match="does not keep region 'west' together"):
        plan(near, placer="snake")


@pytest.mark.slow
def test_pinned_replicas_hold_for_the_pipeline():
    """All stages are copied twice; contradictions are refused."""
    made = plan(make_pin("h.0.fc", replicas=2))
    assert isinstance(made, PipelinedPlan)
    assert made.replicas == 2
    with pytest.raises(ModelError, match="same number"):
        plan(make_pin("h.0.fc", replicas=2), make_pin("h.1.fc", replicas=3))
    with pytest.raises(ModelError, match="3 replicas are requested"):
        plan(make_pin("h.0.fc", replicas=2), replicas=3)


@pytest.mark.slow
def test_dimensions_of_a_weight_are_sharded_into_so_many_parts():
    """Input features are over 16 rows, output features over 24 columns that compute; the remaining columns pass data."""
    made = plan(make_pin("h.0.fc", parts_in=16, parts_out=24))
    assert isinstance(made, PipelinedPlan), made.message
    region = next(s.region for s in made.stages if s.name == "h.0.fc")
    assert region.rows == 16
    assert int(region.cols * SMALL.pipeline_efficiency + 1e-9) == 24
    # more parts of a dimension: less work per core, a faster stage
    finer = plan(make_pin("h.0.fc", parts_in=32, parts_out=24))
    pace = [next(s.cycles_per_sample for s in p.stages if s.name == "h.0.fc") for p in (made, finer)]
    assert pace[1] < pace[0]
    with pytest.raises(ModelError, match="129 parts of its 128 input features"):
        plan(make_pin("h.0.fc", parts_in=129))


def test_sharding_is_said_by_axes_of_a_mesh():
    """The terms are those of annotated sharding: one axis per dimension of the weight, None for no split."""
    module = type("Layer", (), {})()
    shard(module, {"rows": 4, "cols": 8}, ("cols", None))
    assert module._wse_pin == {"parts_in": 1, "parts_out": 8}
    for mesh, spec, words in (
        ({"rows": 4, "cols": 8}, ("rows", "cols"), "'cols'"),
        ({"rows": 4}, ("cols", "rows"), "no axis 'cols'"),
        ({"x": 4}, ("cols", "rows"), "mesh"),
        ({"rows": 4, "cols": 8}, ("cols",), "two"),
    ):
        with pytest.raises(ConfigError, match=words):
            shard(module, mesh, spec)
    with pytest.raises(ConfigError, match="covers no product"):
        plan(make_pin("h.0.ln_1", parts_in=2))
    with pytest.raises(ConfigError, match="rectangle and parts"):
        make_pin("h.0.fc", rows=2, cols=2, parts_in=2)


def test_copies_that_share_a_batch_unevenly_are_said():
    """For 16 samples on 3 copies the fullest has 6, as in a batch of 18; on 4 copies, or without a pin, there is no
    note.
    """
    pinned = pin_kernels(GRAPH, make_pin("h.0.fc", replicas=3))
    (note,) = uneven_copies(pinned, 3, 16)
    assert "'h.0.fc' asks for 3 copies" in note
    assert "fullest has 6 samples" in note
    assert "batch 18" in note
    assert uneven_copies(pinned, 4, 16) == uneven_copies(GRAPH, 3, 16) == ()


@pytest.mark.slow
def test_a_plan_has_the_note_of_its_uneven_copies():
    """The sentence is in the plan's notes."""
    notes = plan(make_pin("h.0.fc", replicas=3)).notes
    assert any("'h.0.fc' asks for 3 copies" in note for note in notes)
