"""Names that trainers of later releases use: hooks around and in a step, schedules of checkpoints, typed constructors,
storage.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from wse_sim import cstorch
from wse_sim.cstorch import ProgramError, experimental, legacy_torch, step
from wse_sim.cstorch.appliance import storage
from wse_sim.cstorch.appliance.utils import classes, file
from wse_sim.cstorch.core import annotation
from wse_sim.cstorch.core import compile as around
from wse_sim.cstorch.execution import begin_execution
from wse_sim.cstorch.utils import data


def model_on_wafer(monkeypatch) -> torch.nn.Module:
    """Two layers, whose steps are not simulated."""
    monkeypatch.setattr(step, "prepare", lambda run, program, seconds: None)
    cstorch.backend("CSX")
    torch.manual_seed(0)
    return cstorch.compile(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)))


def run(steps: int, step_function, between=lambda: None, **how) -> list[int]:
    """Return the steps of which weights can be fetched, counted from 1."""
    execution = begin_execution(None, num_steps=steps, **how)
    fetched = []
    for n in range(steps):
        step_function(execution.feed(torch.full((4, 6), float(n + 1))))
        between()
        if execution.is_checkpoint_step:
            fetched.append(execution.iteration)
        execution.end_step()
    execution.finish()
    return fetched


def test_schedules_of_checkpoints_count_from_0(monkeypatch) -> None:
    """Every 2nd of 5 steps is index 1, 3 and the last one: after steps 2, 4, 5."""
    model = model_on_wafer(monkeypatch)
    every = data.Schedule([data.Schedule.Range(start=1, end=5, step=2, include_last=True)])
    assert run(5, cstorch.trace(lambda x: model(x).sum()), checkpoint_steps=every) == [2, 4, 5]


def test_a_range_of_steps_is_counted_and_continued() -> None:
    steps = data.Schedule.Range(start=1, end=6, step=2, include_last=True)
    assert list(steps) == [1, 3, 5]
    assert list(data.Schedule.Range(1, 7, 2, include_last=True)) == [1, 3, 5, 6]
    assert (len(data.Schedule.Range(1, 7, 2, include_last=True)), len(steps.range())) == (4, 3)
    assert (steps.next_immediate_step(3), steps.next_immediate_step(4)) == (3, 5)
    with pytest.raises(ProgramError, match="give end"):
        data.Schedule.Range().range()


class Norms:
    """A listener that uses in the loop the values that it computed from the step's tensors."""

    def __init__(self) -> None:
        self.total: torch.Tensor | None = None
        self.names: list[str] = []
        self.seen: list[float] = []

    def hook(self, tensor: torch.Tensor, name: str) -> None:
        self.names.append(name)
        self.total = tensor.pow(2).sum() if self.total is None else self.total + tensor.pow(2).sum()

    def in_the_loop(self) -> None:
        if self.total is not None:
            cstorch.step_closure(lambda norm: self.seen.append(float(norm)))(torch.sqrt(self.total))
            self.total = None


def test_hooks_of_tensors_see_every_module_and_their_results_live_on(monkeypatch) -> None:
    model, norms = model_on_wafer(monkeypatch), Norms()
    plain = [p.detach().clone() for p in torch.nn.Sequential(*model).parameters()]
    handle = experimental.listener.register_traced_tensor_hook(norms.hook)
    run(2, cstorch.trace(lambda x: model(x).sum()), norms.in_the_loop)
    handle.remove()
    assert norms.names == ["0", "1"]
    values = [p._value for p in plain]
    first = functional.linear(torch.ones(4, 6), values[0], values[1])
    second = functional.linear(first, values[2], values[3])
    wanted = float(torch.cat([first.flatten(), second.flatten()]).norm())
    assert norms.seen == [pytest.approx(wanted, rel=1e-5)]  # the hook runs while the step is captured, once


def test_hooks_around_steps_are_called_every_time(monkeypatch) -> None:
    model, calls = model_on_wafer(monkeypatch), []
    before = around.register_trace_fn_pre_hook(lambda: calls.append("before"))
    after = around.register_trace_fn_post_hook(lambda: calls.append("after"))
    run(2, cstorch.trace(lambda x: model(x).sum()))
    before.remove()
    after.remove()
    run(1, cstorch.trace(lambda x: model(x).sum()))
    assert calls == ["before", "after"] * 2


def test_a_backend_traces_in_the_loop_and_not_in_closures(monkeypatch) -> None:
    model, said = model_on_wafer(monkeypatch), []
    backend = cstorch.backend()
    closure = cstorch.step_closure(lambda: said.append(backend.is_tracing))
    run(1, cstorch.trace(lambda x: model(x).sum()), lambda: said.append(backend.is_tracing) or closure())
    assert [*said, backend.is_tracing] == [True, False, False]


@pytest.mark.parametrize(("features", "out"), [(16, 8), (3, 5)])
def test_rows_meet_the_weights_of_their_expert(features, out) -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 3, 2, features, requires_grad=True)
    weights = torch.randn(out, 4, features, requires_grad=True)
    chosen = torch.randint(0, 4, (2, 3, 2))
    wanted = torch.einsum("bski,obski->bsko", x, weights[:, chosen])
    found = cstorch.nn.functional.sparse_matmul(x, chosen, weights)
    torch.testing.assert_close(found, wanted)
    direction = torch.randn_like(wanted)
    for mine, other in zip(
        torch.autograd.grad(found, (x, weights), direction),
        torch.autograd.grad(wanted, (x, weights), direction),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_a_scope_leaves_what_enters_and_leaves_it() -> None:
    scope, x = cstorch.nn.Scope("FLASH"), torch.ones(2)
    assert scope(x) is scope.enter(x) is scope.exit(x) is x


def test_masked_tokens_are_zero() -> None:
    x, weight, mask = torch.randn(2, 3, 4), torch.randn(5, 4), torch.tensor([[1, 0, 1], [0, 1, 1]])
    found = cstorch.nn.functional.sparse_act_matmul(x, mask, weight)
    assert torch.equal(found[mask == 0], torch.zeros(2, 5))
    torch.testing.assert_close(found[mask == 1], x[mask == 1] @ weight.T)


def test_dice_with_cross_entropy_is_the_sum_over_classes_without_the_background() -> None:
    torch.manual_seed(2)
    outputs, labels = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    shares = outputs.softmax(1)
    dice = []
    for sample in range(2):
        for c in (1, 2):
            p, t = shares[sample, c], (labels[sample] == c).float()
            dice.append(2 * (p * t).sum() / (p.sum() + t.sum() + 1e-6))
    wanted = 0.5 * functional.cross_entropy(outputs, labels) + 0.5 * (1 - sum(dice) / 4)
    torch.testing.assert_close(cstorch.nn.DiceCELoss(3, None, False)(outputs, labels), wanted)


def test_constructors_have_types_that_configurations_are_made_of() -> None:
    def of(cls: type, name: str) -> object:
        return inspect.signature(cls.__init__).parameters[name].annotation

    rates = cstorch.optim.lr_scheduler
    assert of(cstorch.optim.AdamW, "lr") is float
    assert of(cstorch.optim.Adafactor, "lr") == typing.Optional[float]  # noqa: UP045
    assert of(cstorch.optim.AdamW, "params") is cstorch.optim.ParamsT
    assert of(rates.SequentialLR, "schedulers") == typing.List[rates.LRScheduler]  # noqa: UP006
    assert of(rates.LinearLR, "optimizer") is torch.optim.Optimizer
    for base in (cstorch.optim.Optimizer, rates.LRScheduler, cstorch.sparse.SparsityAlgorithm):
        for kind in classes.retrieve_all_subclasses(base):
            for parameter in inspect.signature(kind.__init__).parameters.values():
                assert not isinstance(parameter.annotation, str), (kind, parameter)


def test_sparsity_tells_what_it_wants_and_has(monkeypatch) -> None:
    model, told = model_on_wafer(monkeypatch), []
    sparsity = cstorch.sparse.configure([{"sparsity": 0.5, "param_filter": ["0.weight"]}])
    model.apply(sparsity)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(sparsity)

    def hook(kind: str):
        return lambda algorithm, name, value: cstorch.step_closure(
            lambda v: told.append((kind, name, float(v)))
        )(value)

    sparsity.register_target_sparsity_hook(hook("wanted"))
    sparsity.register_computed_sparsity_hook(hook("present"))

    @cstorch.trace
    def one(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    run(1, one)
    assert told == [("wanted", "0.weight", 0.5), ("present", "0.weight", 0.5)]


def test_what_is_applied_to_a_model_is_not_applied_to_its_parts() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    chosen = cstorch.nn.SelectiveGrad("1.0.weight", "zeros")
    model.apply(chosen)
    assert chosen.masked == ["1.0.weight"]
    compressed = experimental.Compression("4-bit", "1.*")
    model.apply(compressed)
    assert compressed.names == ["1.0.weight", "1.0.bias"]
    with pytest.raises(ProgramError, match="patterns"):
        model.apply(experimental.Compression("4-bit", "nothing"))


def test_annotations_of_both_kinds_leave_values_as_they_are() -> None:
    @dataclasses.dataclass
    class Named(annotation.AnnotationMode.Config):
        name: str

    made = annotation.create_annotation(
        Named, lambda config, backward: annotation.AnnotationMode.Attribute("name", config.name), name="a"
    )
    assert made(lambda x: x + 1)(1) == 2
    mode = annotation.AnnotationMode(config=Named(name="b", enable_bwd=True))
    assert annotation.annotate(annotation_mode=mode)(lambda x: x + 1)(1) == 2


def test_structures_are_replaced_by_the_names_of_fields_that_torch_had(monkeypatch) -> None:
    monkeypatch.setattr(pytree.TreeSpec, "__init__", pytree.TreeSpec.__init__)
    legacy_torch.enter()
    values, spec = pytree.tree_flatten((1, 2))
    changed = dataclasses.replace(spec, type=list, children_specs=spec.children())
    assert pytree.tree_unflatten(values, changed) == [1, 2]


def test_links_and_storage(tmp_path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    link = tmp_path / "latest"
    file.create_symlink(link, Path("a"))
    file.create_symlink(link, Path("b"))
    assert link.read_text() == "b"
    with pytest.raises(FileExistsError, match="not a link"):
        file.create_symlink(tmp_path / "a", Path("b"))
    assert file.get_path_size(tmp_path) == 3
    assert storage.StorageReader.get_type("x.mdl") is storage.H5Reader
    assert storage.StorageWriter.path_exists(tmp_path / "a")
    storage.StorageDeleter.get(tmp_path / "a").delete()
    assert not storage.StorageReader.path_exists(tmp_path / "a")
    with pytest.raises(ProgramError, match="local path"):
        storage.StorageReader.path_exists("s3://bucket/x")
