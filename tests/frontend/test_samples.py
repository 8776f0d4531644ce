"""A graph stated for another batch has the kernels of a capture with that batch, and the FLOPs of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks.zoo_coverage import _convolution_backward  # noqa: E402
from tests.frontend.test_training_flops import Uses, by_torch, linear  # noqa: E402
from wse_sim.frontend import load_model  # noqa: E402
from wse_sim.frontend.samples import is_uncertain  # noqa: E402
from wse_sim.graph import KernelGraph  # noqa: E402


def forward_by_torch(module: nn.Module, args: tuple[Tensor, ...]) -> int:
    own = {torch.ops.aten.convolution_backward: _convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=own) as counter, sdpa_kernel(SDPBackend.MATH):
        module.eval()(*args)
    return counter.get_total_flops()


def heads(q: Any, k: Any, v: Any, x: Tensor) -> Tensor:
    b, t, d = x.shape
    apart = lambda y: y.view(b, t, 4, d // 4).transpose(1, 2).reshape(b * 4, t, d // 4)  # noqa: E731
    weights = torch.bmm(apart(q(x)), apart(k(x)).transpose(1, 2)).softmax(-1)
    return torch.bmm(weights, apart(v(x))).view(b, 4, t, d // 4).transpose(1, 2).reshape(b, t, d)


def windows(a: Any, x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    y = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
    q = a(y)
    y = (q @ q.transpose(-1, -2)).softmax(-1) @ q
    return y.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)


def channels(c: Any, x: Tensor) -> Tensor:
    b, many, n = x.shape
    return c(x.reshape(b * many, 1, n)).view(b, many, -1, n)


def grouped(c: Any, x: Tensor) -> Tensor:
    b, many, n = x.shape
    filters = c.weight.repeat(b, 1, 1)
    return F.conv1d(x.reshape(1, b * many, n), filters, groups=b * many, padding=1).view(b, many, n)


def experts(a: Any, x: Tensor) -> Tensor:
    b, t, d = x.shape
    y = x.unsqueeze(1).expand(b, 3, t, d).reshape(b * 3, t, d)
    weights = a.weight.view(1, 3, d, d).expand(b, 3, d, d).reshape(b * 3, d, d)
    return torch.bmm(y, weights).view(b, 3, t, d).sum(1)


def queries(a: Any, b: Any, x: Tensor) -> Tensor:
    q = a(b.weight.expand(len(x), -1, -1))
    return F.scaled_dot_product_attention(q, x, x)


def routed(a: Any, b: Any, x: Tensor) -> Tensor:
    """Send every token to one of three experts by einsum, over the tokens of all samples."""
    y = a(x).reshape(-1, x.shape[-1])
    chosen = F.one_hot(y.argmax(-1) % 3, 3).to(y.dtype)
    sent = torch.einsum("te,td->etd", chosen, y)
    return torch.einsum("te,etd->td", chosen, torch.bmm(sent, b.weight.view(3, 4, 4))).view(x.shape)


def steps(c: Any, x: Tensor) -> Tensor:
    """Run a cell over time and take two rows of each sample by pairs of indices."""
    h, made = x.new_zeros(len(x), 4), []
    for y in x.unbind(1):
        h = c(y, h)
        made.append(h)
    places = torch.arange(len(x))[:, None], torch.tensor([[0, 2]]).expand(len(x), 2)
    out = torch.stack(made, 1)
    best = out.sum(-1).argsort(1)
    return out[places] + torch.take_along_dim(out, best[..., None], 1)[:, :2]


def balanced(a: Any, x: Tensor) -> Tensor:
    """Divide every column by its sum over the batch, which is a product with ones."""
    y = a(x).exp()
    sums = y.t() @ x.new_ones(len(x), 1)
    return y @ (1 / sums)


def whitened(a: Any, x: Tensor) -> Tensor:
    """Solve one triangular system for all samples, which are its right-hand columns, as a normal distribution does."""
    factor = torch.tril(a.weight) + 3 * torch.eye(4)
    return torch.linalg.solve_triangular(factor, x.t(), upper=False).t()


CASES: dict[str, tuple[nn.Module, Callable[[int], Tensor]]] = {
    "heads": (Uses(heads, *linear(8, 8, 8, 8)), lambda b: torch.randn(b, 3, 8)),
    "windows": (Uses(windows, *linear(4, 4)), lambda b: torch.randn(b, 4, 4, 4)),
    "channels": (Uses(channels, nn.Conv1d(1, 4, 3, padding=1)), lambda b: torch.randn(b, 3, 10)),
    "groups": (Uses(grouped, nn.Conv1d(3, 3, 3, groups=3)), lambda b: torch.randn(b, 3, 10)),
    "experts": (Uses(experts, *linear(4, 12)), lambda b: torch.randn(b, 5, 4)),
    "queries": (Uses(queries, *linear(4, 4), nn.Embedding(3, 4)), lambda b: torch.randn(b, 5, 4)),
    "routed": (Uses(routed, *linear(4, 4), nn.Embedding(12, 4)), lambda b: torch.randn(b, 5, 4)),
    "steps": (Uses(steps, nn.GRUCell(4, 4)), lambda b: torch.randn(b, 3, 4)),
    "frequencies": (
        Uses(lambda e, x: torch.einsum("bxi,iox->box", x, e.weight.view(4, 4, 3)), nn.Embedding(16, 3)),
        lambda b: torch.randn(b, 3, 4),
    ),
    "numbers of a table": (
        Uses(
            lambda e, x: e.weight[x.argmax(-1)[:, 1:], x.argmax(-1)[:, :-1]] + x[:, 1:, 0], nn.Embedding(4, 4)
        ),
        lambda b: torch.randn(b, 3, 4),
    ),
    "a number of a sample": (
        Uses(lambda a, x: (a(x).logsumexp((1, 2)) * 2 + 1).exp() - x[:, 0, 0], *linear(4, 4)),
        lambda b: torch.randn(b, 3, 4),
    ),
    "steps first": (
        Uses(lambda a, x: a(x.transpose(0, 1)).relu().transpose(0, 1) + x, *linear(4, 4)),
        lambda b: torch.randn(b, 3, 4),
    ),
    "sums over the batch": (Uses(balanced, *linear(4, 3)), lambda b: torch.randn(b, 4)),
    "columns of a system": (Uses(whitened, *linear(4, 4)), lambda b: torch.randn(b, 4)),
    "mean over the batch": (
        Uses(lambda a, x: x + a(x.mean(0)), *linear(4, 4)),
        lambda b: torch.randn(b, 4),
    ),
}


def shapes(graph: KernelGraph) -> list[tuple[Any, ...]]:
    return sorted((k.name, str(k.phase), tuple(sorted(k.dims.items())), k.flops) for k in graph)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "steps" else n for n in CASES]
)
def test_sizes_that_contain_the_batch_grow_with_it(name: str, training: bool) -> None:
    module, make = CASES[name]
    counted = by_torch if training else forward_by_torch
    for samples, batch in ((1, 4), (2, 64)):
        graph = load_model((module, (make(samples),)), batch=batch, training=training)
        assert graph.total_flops == counted(module, (make(batch),))
    direct = load_model((module, (make(64),)), training=training)
    assert shapes(graph) == shapes(direct)
    elements = {name: tensor.elements for name, tensor in direct.tensors.items()}
    assert {name: tensor.elements for name, tensor in graph.tensors.items()} == elements


def test_work_with_single_numbers_does_not_grow() -> None:
    """Captured with one sample: the weighted sum of two means is one number for any batch."""
    module = Uses(lambda a, x: 0.5 * a(x).mean() + a(x).square().sum(), *linear(4, 4))
    graph = load_model((module, (torch.randn(1, 4),)), batch=6)
    assert [
        k.dims["elements"] for k in graph if not graph.tensors[k.outputs[0]].shape and "elements" in k.dims
    ] == [1]


def test_work_that_grows_with_the_square_of_the_batch_is_told() -> None:
    """All pairs of samples: exact at a multiple of the captured batch, which is captured again, and a note."""
    module = Uses(lambda a, x: a(x) @ a(x).t(), *linear(4, 4))
    graph = load_model((module, (torch.randn(2, 4),)), batch=6)
    assert graph.total_flops == forward_by_torch(module, (torch.randn(6, 4),)) == 2 * (2 * 6 * 16 + 6 * 6 * 4)
    assert any("does not grow in proportion to the samples" in note for note in graph.notes)


def test_a_model_of_one_batch_is_told() -> None:
    module = Uses(lambda a, b, x: a(b.weight.expand(2, 4)) + x, *linear(4, 4), nn.Linear(4, 1))
    notes = load_model((module, (torch.randn(2, 4),)), batch=4).notes
    assert any("with 4 samples the model cannot be captured" in note for note in notes)


def test_a_saved_program_of_doubtful_sizes_says_so(tmp_path: Path) -> None:
    """It cannot be captured with more samples; its sizes for its own batch are those of torch."""
    module, x = Uses(experts, nn.Linear(8, 24)), torch.randn(2, 6, 8)
    torch.export.save(torch.export.export(module.eval(), (x,)), tmp_path / "experts.pt2")
    graph = load_model(str(tmp_path / "experts.pt2"))
    assert graph.total_flops == forward_by_torch(module, (x,))
    told = [note for note in graph.notes if note.startswith("samples: ")]
    assert len(told) == 1
    assert "sizes for other batches than 2 are estimates; export it with the batch that runs" in told[0]
    torch.export.save(torch.export.export(nn.Linear(4, 4), (torch.randn(2, 4),)), tmp_path / "plain.pt2")
    assert not load_model(str(tmp_path / "plain.pt2")).notes


def shifted(c: Any, x: Tensor) -> Tensor:
    """Add a table, which needs more operators for several samples, before filters of samples."""
    table = torch.arange(x.shape[2]) * 2
    table = table if len(x) == 1 else (table.expand(len(x), -1) + 1).sum(0)
    return grouped(c, x + table)


def test_constants_may_have_other_operators_with_more_samples() -> None:
    module = Uses(shifted, nn.Conv1d(3, 3, 3, groups=3))
    graph = load_model((module, (torch.randn(1, 3, 10),)))
    assert not is_uncertain(graph.notes)
    assert graph.with_samples(4).total_flops == forward_by_torch(module, (torch.randn(4, 3, 10),))
