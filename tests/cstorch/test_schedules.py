"""Schedules in closed form, compared with torch's step-by-step schedules of the same name and with worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from wse_sim.cstorch import optim
from wse_sim.cstorch.faults import ProgramError
from wse_sim.cstorch.optim import lr_scheduler as lrs
from wse_sim.cstorch.optim import scheduler as forms

STEPS = 60


def optimizer(groups: int = 1, lr: float = 0.1):
    return optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(groups)], lr=lr)


def course(schedule, steps: int = STEPS, key: str = "lr") -> list[float]:
    """Return the value that steps 0, 1, 2 ... use, read where the optimizer reads it."""
    values = []
    for _ in range(steps):
        values.append(float(schedule.optimizer.param_groups[0][key]))
        schedule.step()
    return values


def torchs(make, steps: int = STEPS, lr: float = 0.1) -> list[float]:
    opt = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=lr)
    schedule = make(opt)
    values = []
    for _ in range(steps):
        values.append(float(opt.param_groups[0]["lr"]))
        opt.step()
        schedule.step()
    return values


T = torch.optim.lr_scheduler
PAIRS = {
    "polynomial": (
        lambda o: lrs.PolynomialLR(o, 0.1, 0.0, 40, power=2.0),
        lambda o: T.PolynomialLR(o, 40, 2.0),
    ),
    "linear": (lambda o: lrs.LinearLR(o, 0.1, 0.02, 40), lambda o: T.LinearLR(o, 1.0, 0.2, 40)),
    "exponential": (lambda o: lrs.ExponentialLR(o, 0.1, 1, 0.9), lambda o: T.ExponentialLR(o, 0.9)),
    "multistep": (
        lambda o: lrs.MultiStepLR(o, 0.1, 0.3, [10, 30]),
        lambda o: T.MultiStepLR(o, [10, 30], 0.3),
    ),
    "step": (lambda o: lrs.StepLR(o, 0.1, 7, 0.5), lambda o: T.StepLR(o, 7, 0.5)),
    "cosine": (lambda o: lrs.CosineAnnealingLR(o, 0.1, 20, 0.01), lambda o: T.CosineAnnealingLR(o, 20, 0.01)),
    "restarts": (
        lambda o: lrs.CosineAnnealingWarmRestarts(o, 0.1, 8),
        lambda o: T.CosineAnnealingWarmRestarts(o, 8),
    ),
    "growing restarts": (
        lambda o: lrs.CosineAnnealingWarmRestarts(o, 0.1, 3, 2, 0.01),
        lambda o: T.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    ),
    "tripling restarts": (
        lambda o: lrs.CosineAnnealingWarmRestarts(o, 0.1, 2, 3),
        lambda o: T.CosineAnnealingWarmRestarts(o, 2, 3),
    ),
    "lambda": (lambda o: lrs.LambdaLR(o, 0.1, lambda e: 0.95**e), lambda o: T.LambdaLR(o, lambda e: 0.95**e)),
    "multiplicative": (
        lambda o: lrs.MultiplicativeLR(o, 0.1, 0.9),
        lambda o: T.MultiplicativeLR(o, lambda e: 0.9),
    ),
    "one cycle": (
        lambda o: lrs.OneCycleLR(o, 0.04, 1.0, 60, 0.25, 1e3),
        lambda o: T.OneCycleLR(o, 1.0, 60, pct_start=0.25, final_div_factor=1e3, cycle_momentum=False),
    ),
    "one cycle, three phases, linear": (
        lambda o: lrs.OneCycleLR(o, 0.04, 1.0, 60, 0.4, 1e3, three_phase=True, anneal_strategy="linear"),
        lambda o: T.OneCycleLR(
            o,
            1.0,
            60,
            pct_start=0.4,
            final_div_factor=1e3,
            three_phase=True,
            anneal_strategy="linear",
            cycle_momentum=False,
        ),
    ),
    "triangles": (
        lambda o: lrs.CyclicLR(o, 0.1, 0.5, 7, 9),
        lambda o: T.CyclicLR(o, 0.1, 0.5, 7, 9, cycle_momentum=False),
    ),
    "halved triangles": (
        lambda o: lrs.CyclicLR(o, 0.1, 0.5, 6, mode="triangular2"),
        lambda o: T.CyclicLR(o, 0.1, 0.5, 6, mode="triangular2", cycle_momentum=False),
    ),
    "shrinking triangles": (
        lambda o: lrs.CyclicLR(o, 0.1, 0.5, 6, mode="exp_range", gamma=0.97),
        lambda o: T.CyclicLR(o, 0.1, 0.5, 6, mode="exp_range", gamma=0.97, cycle_momentum=False),
    ),
    "sequence": (
        lambda o: lrs.SequentialLR(
            o, [lrs.LinearLR(o, 0.01, 0.1, 10), lrs.ExponentialLR(o, 0.1, 1, 0.95)], [10]
        ),
        lambda o: T.SequentialLR(o, [T.LinearLR(o, 0.1, 1.0, 10), T.ExponentialLR(o, 0.95)], [10]),
    ),
    "chain": (
        lambda o: lrs.ChainedScheduler([lrs.LinearLR(o, 0.05, 0.1, 20), lrs.ExponentialLR(o, 0.1, 1, 0.95)]),
        lambda o: T.ChainedScheduler([T.LinearLR(o, 0.5, 1.0, 20), T.ExponentialLR(o, 0.95)]),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_to_torchs_schedule(name: str) -> None:
    ours, theirs = PAIRS[name]
    assert course(ours(optimizer())) == pytest.approx(torchs(theirs), rel=2e-5, abs=1e-7)


def test_forms_that_torch_has_not() -> None:
    # 2 (1 - t/8)^1 + ... with cycle: after 8 steps the line starts again at twice the length: 1 - 9/16 of 0.1
    cycled = course(lrs.PolynomialLR(optimizer(), 0.1, 0.0, 8, cycle=True), 12)
    assert cycled[4] == pytest.approx(0.05)
    assert cycled[9] == pytest.approx(0.1 * (1 - 9 / 16))
    # halves down a cosine: 0.02 + 0.08 (1 + cos(pi/2)) / 2 in the middle, the end afterwards
    cosine = course(lrs.CosineDecayLR(optimizer(), 0.1, 0.02, 10), 15)
    assert cosine[5] == pytest.approx(0.06)
    assert cosine[10:] == pytest.approx([0.02] * 5)
    # 0.1 * 2 / sqrt(max(t, 4))
    root = course(lrs.InverseSquareRootDecayLR(optimizer(), 0.1, 2.0, 4.0), 20)
    assert root[0] == root[4] == pytest.approx(0.1)
    assert root[16] == pytest.approx(0.05)
    # 0.1 / (1 + 3 (t/5)^2); staircase takes floor((t/5)^2)
    inverse = course(lrs.InverseExponentialTimeDecayLR(optimizer(), 0.1, 2.0, 5, 3.0), 12)
    assert inverse[10] == pytest.approx(0.1 / (1 + 3 * 4))
    stairs = course(lrs.InverseExponentialTimeDecayLR(optimizer(), 0.1, 2.0, 5, 3.0, staircase=True), 12)
    assert stairs[9] == pytest.approx(0.1 / (1 + 3 * math.floor((9 / 5) ** 2)))
    assert course(lrs.ExponentialLR(optimizer(), 0.1, 4, 0.5, staircase=True), 9)[7] == pytest.approx(0.05)
    assert course(lrs.PiecewiseConstantLR(optimizer(), [0.3, 0.2, 0.1], [2, 5]), 7) == pytest.approx(
        [0.3, 0.3, 0.2, 0.2, 0.2, 0.1, 0.1]
    )


def test_a_step_reads_no_value_and_keeps_its_tensors() -> None:
    """Values are written in place: the group's tensor, the count and the result of get_last_lr stay the same objects."""
    opt = optimizer()
    schedule = PAIRS["sequence"][0](opt)
    rate, count, last = opt.param_groups[0]["lr"], schedule.last_epoch, schedule.get_last_lr()[0]
    for _ in range(12):
        schedule.step()
    assert opt.param_groups[0]["lr"] is rate is last
    assert schedule.last_epoch is count
    assert int(count) == 12
    with torch.device("meta"):  # a tensor without values: reading one would fail
        on_meta = optim.SGD([torch.nn.Parameter(torch.ones(1, device="meta"))], lr=0.1)
        for make, _ in PAIRS.values():
            make(on_meta).step()


class Triangle(lrs.LRScheduler):
    def __init__(self, opt, peak, total_iters) -> None:
        self.peak = peak
        super().__init__(opt, total_iters=total_iters)

    def _get_closed_form_lr(self):
        half = self.total_iters / 2
        up = self.last_epoch / half
        return self.peak * torch.where(self.last_epoch < half, up, torch.clamp(2.0 - up, min=0.05))


def test_own_schedule_alone_and_in_a_sequence() -> None:
    # up by a quarter of the peak for four steps, down for four, then the floor of 5 %
    wanted = [0.0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.05, 0.05]
    assert course(Triangle(optimizer(), 1.0, 8), 10) == pytest.approx(wanted)
    opt = optimizer()
    both = lrs.SequentialLR(opt, [lrs.ConstantLR(opt, 0.3, 3), Triangle(opt, 1.0, 8)], [3])
    assert course(both, 13) == pytest.approx([0.3] * 3 + wanted)


def test_resume_goes_on_where_it_stopped() -> None:
    whole = course(PAIRS["sequence"][0](optimizer()))
    first = PAIRS["sequence"][0](optimizer())
    begun = course(first, 17)
    second = PAIRS["sequence"][0](optimizer())
    second.load_state_dict(first.state_dict())
    assert begun + course(second, STEPS - 17) == pytest.approx(whole)
    by_count = PAIRS["sequence"][0](optimizer())
    by_count.last_epoch = torch.tensor(17)
    assert course(by_count, 5) == pytest.approx(whole[17:22])
    with pytest.raises(ProgramError, match="last_epoch"):
        second.load_state_dict({})


def test_configured_by_number_dict_and_list() -> None:
    assert optim.configure_lr_scheduler(optimizer(), None) is None
    assert course(optim.configure_lr_scheduler(optimizer(), 0.7), 3) == pytest.approx([0.7] * 3)
    for word in ("Linear", "linear", "LinearLR", "linearlr"):
        spec = {"scheduler": word, "initial_learning_rate": 0.0, "end_learning_rate": "1e-1", "steps": 10}
        assert course(optim.configure_lr_scheduler(optimizer(), spec), 12)[5] == pytest.approx(0.05)
    warm = {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 4}
    then = {"scheduler": "Constant", "learning_rate": 0.2}
    assert course(optim.configure_lr_scheduler(optimizer(), [warm, then]), 6) == pytest.approx(
        [0, 0.025, 0.05, 0.075, 0.2, 0.2]
    )
    chained = [
        {**warm, "main_scheduler": "ChainedLR", "initial_learning_rate": 0.1},
        {**warm, "initial_learning_rate": 0.2},
    ]
    # 0.1 stays; the second goes from 0.2 to 0.1, so it halves
    assert course(optim.configure_lr_scheduler(optimizer(), chained), 6)[-1] == pytest.approx(0.05)


def test_each_group_at_its_own_rate() -> None:
    opt = optim.SGD(
        [
            {"params": [torch.nn.Parameter(torch.ones(1))], "adjust_learning_rate": 0.5},
            {"params": [torch.nn.Parameter(torch.ones(1))]},
        ],
        lr=1.0,
    )
    schedule = optim.configure_lr_scheduler(opt, 0.2, {"0": 0.5})
    schedule.step()
    assert [float(v) for v in schedule.get_last_lr()] == pytest.approx([0.1, 0.2])


def test_a_form_by_its_name_is_one_schedule() -> None:
    """Configurations of the Trainer: `{form: arguments}`, sequences without milestones, weight decay by its own form."""
    warm = {"LinearLR": {"initial_learning_rate": 0.0, "end_learning_rate": 0.4, "total_iters": 4}}
    then = {"CosineDecayLR": {"initial_learning_rate": 0.4, "end_learning_rate": 0.0, "total_iters": 8}}
    found = optim.configure_scheduler(optimizer(), {"SequentialLR": {"schedulers": [warm, then]}})
    assert course(found, 6) == pytest.approx(
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.2 * (1 + math.cos(math.pi / 8))], abs=1e-7
    )
    scaled = optim.configure_scheduler(optimizer(), {"ScalePerParamLR": {"scheduler": warm}})
    assert isinstance(scaled, lrs.ScalePerParamLR)
    decay = optim.configure_scheduler(
        optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, weight_decay=0.3), {"ConstantWD": {"val": 0.2}}
    )
    assert isinstance(decay, forms.ConstantScheduler)
    assert not isinstance(decay, lrs.LRScheduler)


def test_other_options_have_schedules_too() -> None:
    opt = optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.1, weight_decay=0.3)
    decay = optim.weight_decay_scheduler.LinearWD(opt, 0.3, 0.1, 10)
    rate, eps = optim.configure_scheduler(
        opt, [{"lr": 0.5}, {"eps": {"scheduler": "Step", "initial_val": 1.0, "step_size": 2, "gamma": 0.1}}]
    )
    assert course(decay, 6, "weight_decay")[5] == pytest.approx(0.2)
    assert course(eps, 4, "eps")[3] == pytest.approx(0.1)
    assert float(rate.get_last_lr()[0]) == 0.5
    tagged = optim.SGD(
        [
            {"params": [torch.nn.Parameter(torch.ones(1))], "tags": {"head"}},
            {"params": [torch.nn.Parameter(torch.ones(1))]},
        ],
        lr=1.0,
    )
    lrs.ConstantLR(tagged, 0.25, param_group_tags="head")
    assert float(tagged.param_groups[0]["lr"]) == 0.25
    assert tagged.param_groups[1]["lr"] == 1.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda o: optim.configure_lr_scheduler(o, {"scheduler": "Cosin", "T_max": 3}),
            ["Cosin", "did you mean"],
        ),
        (lambda o: optim.configure_lr_scheduler(o, {"initial_learning_rate": 3}), ["scheduler"]),
        (
            lambda o: optim.configure_lr_scheduler(o, {"scheduler": "Linear", "initial_learning_rate": 3}),
            ["total_iters"],
        ),
        (lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 1.0)] * 2, []), ["1 milestones"]),
        (lambda o: lrs.MultiStepLR(o, 0.1, 0.1, [5, 5]), ["[5, 5]", "rise"]),
        (lambda o: lrs.SequentialLR(optimizer(), [lrs.ConstantLR(o, 1.0)], []), ["another optimizer"]),
        (lambda o: lrs.SequentialLR(o, [T.StepLR(o, 2)], []), ["StepLR", "closed form"]),
        (lambda o: lrs.OneCycleLR(o, 0.1, 1.0, anneal_strategy="steep"), ["steep", "linear"]),
        (lambda o: lrs.ConstantLR(o, 1.0, param_group_tags="tail"), ["tail"]),
        (lambda o: forms.ConstantScheduler("adam", 1.0), ["optimizer", "str"]),
    ],
)
def test_faults_name_value_and_remedy(make, words) -> None:
    with pytest.raises(ProgramError) as caught:
        make(optimizer())
    for word in words:
        assert word in str(caught.value)
