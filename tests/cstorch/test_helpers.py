"""Small helpers: layers, structures, filters, measured loaders, names that are not simulated."""

from __future__ import annotations

import pytest
import torch

from wse_sim import cstorch
from wse_sim.cstorch import experimental, nn
from wse_sim.cstorch.faults import ProgramError
from wse_sim.cstorch.utils import benchmark, call_once, kernel, nest, num_kv_groups, utils


def test_one_hot_without_a_read() -> None:
    labels = torch.tensor([[0, 2], [1, 1]])
    assert torch.equal(nn.functional.one_hot(labels, 3), torch.nn.functional.one_hot(labels, 3))
    with pytest.raises(ProgramError, match="number of classes"):
        nn.functional.one_hot(labels)


def test_selective_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    nn.SelectiveGrad("1.*", "zeros")(model)
    model(torch.ones(2, 4)).sum().backward()
    assert not model[1].weight.grad.any()
    assert model[0].weight.grad.any()
    with pytest.raises(ProgramError, match="no parameter"):
        nn.SelectiveGrad("missing")(model)
    with pytest.raises(ProgramError, match="init_method='odd'"):
        nn.SelectiveGrad("*", "odd")


def test_marks_that_change_nothing() -> None:
    x = torch.ones(2, 3, 4)
    assert nn.Scope("part")(x) is x
    assert nn.StripPadding()(x) is x
    masked = nn.StripPadding()(x, torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert masked.sum() == 3 * 4
    assert torch.equal(kernel.kernel_annotater("attention")(torch.matmul)(x, x.mT), x @ x.mT)
    assert num_kv_groups.groups_annotater(2)(torch.matmul) is torch.matmul


def test_paths_of_structures() -> None:
    data = {"a": [torch.ones(1), {"b": torch.zeros(2)}], "c": (torch.ones(3),)}
    assert [(".".join(p), t.numel()) for p, t in nest.visit_torch_tensors(data, scope=["in"])] == [
        ("in.a.0", 1), ("in.a.1.b", 2), ("in.c.0", 3),
    ]  # fmt: skip
    _, spec = nest.tree_flatten(data)
    assert list(nest.recurse_spec(spec)) == [["a", "0"], ["a", "1", "b"], ["c", "0"]]
    with pytest.raises(TypeError, match="x is a int"):
        list(nest.visit_torch_tensors({"a": {"x": 3}}, strict=True))
    assert nest.diff({"a": 1, "b": 2}, {"a": 1, "b": 3}) == [["b"]]


def test_filters_of_names() -> None:
    fits = utils.make_param_filter(["*.bias", "re:^head"])
    assert [fits(n, None) for n in ("a.bias", "head.weight", "a.weight")] == [True, True, False]
    with pytest.raises(ProgramError, match="regular expression"):
        utils.convert_glob_to_regex("re:(")


def test_a_function_that_runs_once() -> None:
    seen = []

    @call_once()
    def greet(name):
        seen.append(name)
        return name

    assert (greet("a"), greet("b")) == ("a", "a")
    assert seen == ["a"]


def test_a_loader_is_measured(capsys) -> None:
    found = benchmark.benchmark_dataloader(
        lambda: torch.utils.data.DataLoader(torch.arange(12), batch_size=4), num_epochs=2, steps_per_epoch=2
    )
    assert (len(found.batches), found.total_samples) == (4, 16)
    assert found.samples_per_s > 0
    assert "4 batches in 2 epochs" in capsys.readouterr().out


def test_names_that_are_not_simulated_say_so() -> None:
    for call in (
        lambda: experimental.run_implicit_autoregressive_loop(None),
        lambda: cstorch.cirh.FusedTopK(1),
        lambda: cstorch.storage.S3Writer("s3://x"),
    ):
        with pytest.raises(ProgramError, match="not part of this simulator"):
            call()
    assert experimental.optim.SGD is cstorch.optim.SGD
    with pytest.raises(ProgramError, match="listener"):
        experimental.listener.create_listener("wiretap")
