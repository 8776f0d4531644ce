"""Sparse weights: masks, their changes, and the density that the simulation gets."""

from __future__ import annotations

import pytest
import torch

from wse_sim import cstorch
from wse_sim.cstorch import amp, optim, runtime, simulated, sparse
from wse_sim.cstorch.compiled import Compiled
from wse_sim.cstorch.faults import ProgramError
from wse_sim.cstorch.sparse import schedules
from wse_sim.cstorch.sparse.algorithms import first_mask, rank


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))


def trained(algorithm, steps: int, model=None, scaler=None, optimizer=None):
    model = net() if model is None else model
    algorithm.apply(model)
    optimizer = optim.AdamW(model.parameters(), lr=0.01) if optimizer is None else optimizer
    algorithm.apply(optimizer)
    draw = torch.Generator().manual_seed(1)
    fractions = []
    for _ in range(steps):
        x = torch.randn(16, 8, generator=draw)
        amp.optimizer_step((model(x) ** 2).mean(), optimizer, scaler)
        fractions.append(float((model[0].weight != 0).float().mean()))
    return model, optimizer, fractions


def test_ranks_make_masks_of_exactly_so_many_ones() -> None:
    score = torch.tensor([[3.0, 1.0], [2.0, 2.0]])
    assert rank(score).tolist() == [[0, 3], [1, 2]]
    for method in ("random", "topk", "checkerboard"):
        mask = first_mask(torch.randn(10, 10), 0.7, method)
        assert mask.sum() == 30, method
    weights = torch.randn(100)
    kept = weights[first_mask(weights, 0.9, "topk") > 0].abs()
    assert kept.min() >= weights.abs().sort().values[90]


def test_static_zeros_stay_zero_in_weights_gradients_and_moments() -> None:
    model, optimizer, fractions = trained(sparse.Static(0.75), 5)
    assert fractions == [0.25] * 5
    state = optimizer.state[model[0].weight]
    zeros = model[0].weight == 0
    assert not state["exp_avg"][zeros].any()
    assert not state["exp_avg_sq"][zeros].any()
    assert state["exp_avg"][~zeros].all()
    # the normalisation and the biases are dense
    assert [n for n, _ in model.named_buffers()] == ["0.weight_mask", "2.weight_mask"]
    assert runtime.settings().density == {"0.weight": 0.25, "2.weight": 0.25}


def test_gradual_pruning_follows_its_schedule() -> None:
    schedule = {"type": "polynomial", "init": 0.0, "final": 0.5, "total_steps": 6}
    _, _, fractions = trained(sparse.GMP(schedule, update={"freq": 2}), 8)
    n = 128
    # updates at steps 0, 2, 4, 6: 1 - s = 0.5 + 0.5 (1 - t/6)^3
    wanted = [round(n * (0.5 + 0.5 * (1 - t / 6) ** 3)) / n for t in (0, 0, 2, 2, 4, 4, 6, 6)]
    assert fractions == pytest.approx([1 - (1 - w) for w in wanted], abs=1 / n)
    assert fractions[-1] == 0.5


@pytest.mark.parametrize("kind", [sparse.SET, sparse.RigL])
def test_dropped_weights_grow_elsewhere(kind) -> None:
    algorithm = kind(sparsity=0.75, drop_fraction=0.5, update={"freq": 3, "start": 3})
    model = net()
    algorithm.apply(model)
    before = model[0].weight_mask.clone()
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    algorithm.apply(optimizer)
    x = torch.randn(16, 8)
    masks = []
    for _ in range(4):
        amp.optimizer_step((model(x) ** 2).mean(), optimizer)
        masks.append(model[0].weight_mask.clone())
    assert all(torch.equal(m, before) for m in masks[:3])
    assert masks[3].sum() == before.sum() == 32
    # half of the 32 ones stay, the largest; those that were grown start at zero
    stayed = (masks[3] * before) > 0
    assert 16 <= int(stayed.sum()) <= 32
    assert int((model[0].weight != 0).sum()) == 16
    if kind is sparse.RigL:
        gradient = model[0].weight.grad
        assert gradient is not None


def test_rigl_grows_where_the_gradient_is_largest() -> None:
    p = torch.nn.Parameter(torch.tensor([[4.0, 3.0, 0.0, 0.0, 0.0, 0.0]]))
    module = torch.nn.Module()
    module.register_parameter("weight", p)
    algorithm = sparse.RigL(
        sparsity=2 / 3, drop_fraction=0.5, init_method="from_zeros", param_filter="*", update={"freq": 1}
    )
    algorithm.apply(module)
    optimizer = optim.SGD([p], lr=0.0)
    algorithm.apply(optimizer)
    p.grad = torch.tensor([[0.0, 0.0, 1.0, 0.0, -9.0, 2.0]])
    optimizer.step()
    # 2 ones, 1 dropped (the 3), 1 grown where |gradient| is 9
    assert module.weight_mask.tolist() == [[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]]


def test_a_step_that_overflows_changes_no_mask() -> None:
    algorithm = sparse.SET(sparsity=0.5, drop_fraction=0.5, update={"freq": 1})
    model = net()
    algorithm.apply(model)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    algorithm.apply(optimizer)
    scaler = amp.GradScaler("dynamic", 2.0)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer.zero_grad()
    scaler.scale((model(torch.randn(4, 8)) * float("inf")).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert int(algorithm.count) == 0


def test_groups_and_configurations() -> None:
    algorithm = sparse.configure(
        [
            {"algorithm": "static", "sparsity": 0.5, "param_filter": "0.*"},
            {
                "algorithm": "gmp",
                "schedule": [0.0, 0.25, 0.75],
                "update": {"freq": 2},
                "param_filter": "re:^2",
            },
        ]
    )
    model, _, _ = trained(algorithm, 5)
    assert float((model[0].weight != 0).float().mean()) == 0.5
    # levels after updates at steps 2 and 4
    assert float((model[2].weight != 0).float().mean()) == 0.25
    assert isinstance(sparse.configure(0.5), sparse.Static)
    wrapped = sparse.configure_sparsity_wrapper(
        net(), optim.SGD(net().parameters(), lr=0.1), "static", sparsity=0.5
    )
    assert set(wrapped.state_dict()["sparsity"]) == {"0.weight", "2.weight", "count"}
    assert isinstance(wrapped, optim.SGD)


def test_masks_of_earlier_releases_are_saved_with_the_optimizer() -> None:
    model = net()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    wrapped = sparse.configure_sparsity_wrapper(model, optimizer, "set", sparsity=0.5, schedule={"freq": 1})
    schedule = optim.configure_lr_scheduler(wrapped, 0.01)
    assert "0.weight_mask" not in model.state_dict()
    for _ in range(3):
        amp.optimizer_step(model(torch.randn(4, 8)).square().mean(), wrapped, amp.GradScaler("dynamic"))
        schedule.step()
    other = net()
    again = sparse.configure_sparsity_wrapper(
        other, optim.AdamW(other.parameters(), lr=0.01), "set", sparsity=0.5
    )
    again.load_state_dict(wrapped.state_dict())
    assert torch.equal(other[0].weight_mask, model[0].weight_mask)


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (schedules.Linear(0.1, 0.05), [0.1, 0.15, 0.2]),
        (
            schedules.Exponential(0.0, -0.5, 0.8),
            [0.0, 0.8 * (1 - 2.718281828**-0.5), 0.8 * (1 - 2.718281828**-1.0)],
        ),
        (schedules.Cosine(0.4, 2), [0.4, 0.2, 0.0]),
        (schedules.Polynomial(0.0, 0.8, 2, 1.0), [0.0, 0.4, 0.8]),
    ],
)
def test_forms_of_sparsity(form, values) -> None:
    assert [float(form(torch.tensor(t))) for t in range(3)] == pytest.approx(values)


@pytest.mark.slow
def test_captured_masks_change_as_eager_ones_do(tmp_path, monkeypatch) -> None:
    def compiled(run, program, trace_s):
        found = Compiled(program.name, None, None, 1, True, 0.0, 0.0)
        run.compiled.append(found)
        return found

    monkeypatch.setattr(simulated, "compile_program", compiled)

    def loader():
        draw = torch.Generator().manual_seed(2)
        return torch.utils.data.DataLoader(torch.randn(64, 8, generator=draw), batch_size=8)

    def losses(kind: str) -> list[float]:
        runtime.reset()
        backend = cstorch.backend(kind, artifact_dir=str(tmp_path))
        model = net()
        compiled_model = cstorch.compile(model, backend)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        algorithm = sparse.RigL(sparsity=0.5, drop_fraction=0.3, init_method="topk", update={"freq": 2})
        algorithm.apply(model)
        algorithm.apply(optimizer)
        found = []

        @cstorch.trace
        def step(x):
            loss = compiled_model(x).square().mean()
            amp.optimizer_step(loss, optimizer)
            return loss

        @cstorch.step_closure
        def after(loss):
            found.append(loss.item())

        for x in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(loader), num_steps=8):
            after(step(x))
        return found

    assert losses("CSX") == losses("CPU")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sparse.Static(1.5), "1.5"),
        (lambda: sparse.configure({"algorithm": "prune"}), "prune"),
        (lambda: sparse.Static(0.5, init_method="best"), "best"),
        (lambda: sparse.Static(0.5, param_filter="nothing").apply(net()), "no parameter"),
        (sparse.GMP, "schedule"),
        (lambda: sparse.Static({"type": "zigzag"}), "zigzag"),
        (lambda: sparse.Static(0.5).apply(3), "int"),
        (lambda: sparse.RigL(0.5, update={"freq": 0}), "freq"),
    ],
)
def test_faults_name_value_and_remedy(make, words) -> None:
    with pytest.raises(ProgramError, match=words):
        make()
