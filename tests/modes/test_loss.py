"""A loss over the outputs of a model without one: its price on paper and on the fabric, and its stage in the pipeline."""

from __future__ import annotations

import dataclasses

import pytest

from tests.whole.test_dense_chain import graph_of, network, plan_of
from wse_sim.engine.options import Options
from wse_sim.errors import ModelError
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.modes.pipelined import Pipelined
from wse_sim.modes.pipelined.loss import LOSS, loss_cycles, with_loss
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.repricing import reprice
from wse_sim.modes.pipelined.run import free_step_cycles
from wse_sim.modes.registry import mode_of
from wse_sim.report.levers import levers_of
from wse_sim.report.tables import summary_text
from wse_sim.whole import compare_training, inputs_over_rows
from wse_sim.whole.run import stepped
from wse_sim.whole.trained import trained_network


def training_plan(sizes: tuple[int, ...], side: int, batch: int = 16, **how: object) -> PipelinedPlan:
    """Plan dense layers that train by plain gradient descent."""
    graph = graph_of(network(sizes), sizes[0], training=True, optimizer="sgd")
    return plan_of(
        inputs_over_rows(graph), side, phase="training", optimizer="sgd", batch=batch, mode_options=how
    )


@pytest.mark.thinned(1)
@pytest.mark.parametrize("loss", ["squared error", "cross entropy"])
@pytest.mark.parametrize("logits", [20, 40])
def test_the_price_is_what_the_core_issues(loss: str, logits: int) -> None:
    """With twice as many samples the first core of the loss issues what the formula says for each of its own more."""
    plan = training_plan((32, logits), 16)
    found = []
    for samples in (32, 64):
        made = trained_network(plan, samples, loss=loss, most_in_flight=32)
        cell = made.loss_place.cores[0]
        found.append((len(made.loss_place.cores), int(stepped(made.program, made.config, None).busy[cell])))
    (cores, few), (same, many) = found
    assert cores == same
    one = sum(loss_cycles(loss, logits, plan.wafer))
    assert (many - few) / (32 / cores) == pytest.approx(one, rel=0.01)


def test_cycles_on_paper() -> None:
    """20 logits on WSE-2 with squared error: 10 words in, 2 (21 + 20), 10 words out and a control word.

    Cross entropy: 20 (52 + 5.5 + 0.5), twelve starts of 21, a logarithm of 52, a quotient of 50, 4; the same way out.
    """
    wafer = load_wafer("wse2")
    assert loss_cycles("squared error", 20, wafer) == (10 + 2 * (21 + 20), 11)
    assert loss_cycles("cross entropy", 20, wafer) == (20 * 58 + 12 * 21 + 52 + 50 + 4, 11)


@pytest.mark.slow
def test_a_slow_loss_sets_the_pace_of_both_simulators() -> None:
    """For 64 to 64, cross entropy takes 4103 cycles per sample and the layer 40; 16 cores in rotation take 256."""
    plan = training_plan((64, 64), 24, batch=64)
    found = compare_training(plan, "cross entropy")
    assert abs(found.difference) < 0.05
    assert found.regions[-1].name == LOSS
    assert found.regions[-1].busiest == pytest.approx(found.regions[-1].engine, rel=0.01)
    assert free_step_cycles(plan) < found.fabric_step / 3
    assert free_step_cycles(with_loss(plan, "cross entropy", 1)) > 10 * found.fabric_step
    assert free_step_cycles(with_loss(plan, "cross entropy", 16)) == pytest.approx(found.fabric_step, rel=0.1)


def test_samples_in_rotation_on_paper() -> None:
    """Four cores for 20 logits take a quarter of a sample each.  However many there are, a sample's 10 words take 10 cycles."""
    plan = training_plan((32, 20), 16)
    one, back = loss_cycles("cross entropy", 20, plan.wafer)
    stage = with_loss(plan, "cross entropy", 4).stages[-1]
    assert (stage.forward_cycles, stage.backward_cycles) == (one / 4, back / 4)
    assert stage.region.cores == stage.rotation == 4
    stage = with_loss(plan, "squared error", 16).stages[-1]
    assert stage.forward_cycles == 10
    assert stage.rotation == 10  # of 16: after 10 samples of 10 cycles the first core is done with its 92


def test_cores_in_rotation_shorten_no_sample() -> None:
    """A batch of one takes as long with 16 cores as with one, but for hops along the column.  16 samples on 16 cores take
    one turn of 4070 cycles, on one core they take 16.
    """
    plan = dataclasses.replace(training_plan((64, 64), 24, batch=1), round_samples=1)
    one, shared = (free_step_cycles(with_loss(plan, "cross entropy", cores)) for cores in (1, 16))
    assert shared == pytest.approx(one, abs=40)
    turn, _ = loss_cycles("cross entropy", 64, plan.wafer)
    many = dataclasses.replace(training_plan((64, 64), 24, batch=16), round_samples=16)
    assert turn < free_step_cycles(with_loss(many, "cross entropy", 16)) < 1.5 * turn
    assert 16 * turn < free_step_cycles(with_loss(many, "cross entropy", 1)) < 17 * turn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "side", "batch", "loss"),
    [((14, 51, 50), 16, 5, "squared error"), ((16, 50, 32), 32, 8, "cross entropy")],
)
def test_few_samples_wait_for_a_whole_loss(sizes: tuple[int, ...], side: int, batch: int, loss: str) -> None:
    """Every sample has a core of its own, whose time is much of the step: the engine is within a tenth of the fabric."""
    assert abs(compare_training(training_plan(sizes, side, batch=batch), loss).difference) < 0.1


def test_rows_of_a_sample_are_shared_out() -> None:
    """Eight tokens on four cores are two each; without a number there are as many cores as rows of the region."""
    plan = training_plan((64, 64), 24)
    stages = tuple(dataclasses.replace(stage) for stage in plan.stages)
    tokens = dataclasses.replace(
        plan,
        stages=stages,
        graph=dataclasses.replace(
            plan.graph,
            tensors={
                name: dataclasses.replace(one, shape=(8, *one.shape[1:])) if name == _output(plan) else one
                for name, one in plan.graph.tensors.items()
            },
        ),
    )
    one = sum(loss_cycles("cross entropy", 64, plan.wafer))
    for cores, each in ((1, 8), (4, 2), (None, 1)):
        stage = with_loss(tokens, "cross entropy", cores).stages[-1]
        assert stage.cycles_per_sample == pytest.approx(each * one)
        assert stage.rows_per_sample == 8
        assert (stage.rotation, stage.in_flight) == (1, plan.stages[-1].in_flight)


def test_the_option_adds_a_stage_and_nothing_else() -> None:
    """A model that returns its outputs is compiled with and without the option.

    Samples have one row, so 16 cores take them in rotation, 1 / 16 of the samples each.
    """
    plain, priced = training_plan((64, 64), 24), training_plan((64, 64), 24, loss="cross entropy")
    assert [stage.name for stage in priced.stages] == [*(stage.name for stage in plain.stages), LOSS]
    assert priced.stages[:-1] == plain.stages
    own = sum(loss_cycles("cross entropy", 64, priced.wafer))
    assert own > 50 * plain.pace_cycles
    assert priced.pace_cycles == pytest.approx(own / 16)
    with pytest.raises(ModelError, match="the whole fabric adds its own; plan without the option loss"):
        compare_training(priced)


def test_a_loss_over_many_classes_costs_what_its_kernel_says() -> None:
    """The kernel of a graph that returns its loss counts special elements in calibrated cycles: more than hand-written code."""
    wafer = load_wafer("wse2")
    dims = {"rows": 1, "cols": 64}
    kernel = float(family("cross_entropy").cost(dims, Tiling(1, 1, "streamed"), wafer).total)
    assert sum(loss_cycles("cross entropy", 64, wafer)) < kernel


def test_what_has_no_logits_is_refused() -> None:
    """An inference, an unknown loss, and a graph whose output is a number are refused."""
    infers = plan_of(inputs_over_rows(graph_of(network((16, 8)), 16)), 16)
    with pytest.raises(ModelError, match="an inference has no loss"):
        with_loss(infers, "cross entropy")
    trains = training_plan((16, 8), 16)
    with pytest.raises(ModelError, match="loss 'hinge' is unknown"):
        with_loss(trains, "hinge")
    number = training_plan((16, 1), 16)
    with pytest.raises(ModelError, match="may already be a loss; leave the option loss out"):
        with_loss(number, "squared error")


def _output(plan: PipelinedPlan) -> str:
    return next(stream.tensor for stream in plan.host_streams if stream.consumer == "host")


@pytest.mark.parametrize("loss", ["squared error", "cross entropy"])
def test_a_loss_without_a_kernel_is_priced_again_with_other_constants(loss: str) -> None:
    """Exponentials and starts twice as long: the stage is the one that a plan on such a wafer gets, and draws in one pass
    give the rate of a plan that is priced again.
    """
    plan = training_plan((64, 64), 24, loss=loss)
    wafer = plan.wafer.derive(
        exp_cycles=2 * plan.wafer.exp_cycles, vector_start_cycles=2 * plan.wafer.vector_start_cycles
    )
    again = reprice(plan, wafer, plan.cluster)
    bare = dataclasses.replace(
        again,
        stages=again.stages[:-1],
        streams=tuple(one for one in again.streams if one.consumer != LOSS),
    )
    fresh = with_loss(bare, loss, plan.stages[-1].region.cores).stages[-1]
    stage = again.stages[-1]
    assert stage.forward_cycles == pytest.approx(fresh.forward_cycles)
    assert dict(stage.forward_parts) == pytest.approx(dict(fresh.forward_parts))
    assert stage.rotation == fresh.rotation
    alone, before = (one.rotation * one.forward_cycles for one in (stage, plan.stages[-1]))
    assert alone > before  # words bind the pace of 8 cores, whose time is longer all the same
    mode = Pipelined()
    machines = [(plan.wafer, plan.cluster), (wafer, plan.cluster)]
    drawn = mode.drawn_figures(plan, machines)
    assert drawn is not None
    assert [one["samples_per_s"] for one in drawn] == [
        mode.quick_figures(reprice(plan, *machine))["samples_per_s"] for machine in machines
    ]


def test_the_report_of_a_run_with_a_loss_names_what_helps() -> None:
    """The loss has no kernel, so no kernel of it can be made faster; the sensitivities of all others are there."""
    plan = training_plan((64, 64), 24, loss="squared error")
    result = mode_of(plan).simulate(plan, Options(steps=2), trace=False)
    assert LOSS in summary_text(result)
    assert levers_of(result)
