"""FLOPs of training steps equal those of torch's own forward and backward pass, and a difference is reported."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks.zoo_coverage import _convolution_backward  # noqa: E402
from tests.frontend.random_programs import OPERATORS, Program  # noqa: E402
from tests.generated import examples  # noqa: E402
from wse_sim import door  # noqa: E402
from wse_sim.cli import app  # noqa: E402
from wse_sim.cstorch import device  # noqa: E402
from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import build, diagnose, lower, lower_exported, torch_flops  # noqa: E402
from wse_sim.frontend.capture import export  # noqa: E402
from wse_sim.frontend.training import FLOPS_CHECKED  # noqa: E402
from wse_sim.graph import KernelGraph, Phase  # noqa: E402
from wse_sim.kernels.families.scan.family import Scan  # noqa: E402
from wse_sim.user_code import OURS  # noqa: E402

EQUAL = "as torch counts"


class Uses(nn.Module):
    """A module from a function of modules and arguments."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*self.parts, *args)


def by_torch(module: nn.Module, args: tuple[Any, ...]) -> int:
    """Count the FLOPs of one real forward and backward pass with torch's counter, which knows every operator."""
    own = {
        torch.ops.aten.convolution_backward: _convolution_backward
    }  # torch's counts all channels of groups
    with (
        FlopCounterMode(display=False, custom_mapping=own) as counter,
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        made = module.train()(*args)
        wanted = [x for x in (made if isinstance(made, tuple) else (made,)) if x.requires_grad]
        sum((x.sum() for x in wanted[1:]), wanted[0].sum()).backward()
    return counter.get_total_flops()


def linear(*widths: int) -> list[nn.Module]:
    return [nn.Linear(a, b) for a, b in pairwise(widths)]


def in_no_grad(a: Any, b: Any, c: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h = torch.relu(b(torch.relu(a(x))))
        with torch.enable_grad():
            h = h + c(h)
    return h.sum(-1)


def switched(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    h = torch.relu(a(x))
    torch.set_grad_enabled(True)
    return b(h)


def inferred(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        h = torch.relu(a(x))
    return b(h.clone())


@torch.no_grad()
def trunk(a: Any, x: torch.Tensor) -> torch.Tensor:
    return a(x)


def one_reader(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
    h = a(x)
    return b(h.detach()) * h


def straight_through(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
    h = a(x)
    return h + (b(h) - h).detach()


def target(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
    h = a(x)
    return F.mse_loss(b(h), h.detach())


def one_number(a: Any, x: torch.Tensor) -> torch.Tensor:
    s = a(x).mean()
    return s.view(1) * s.expand(3)


def modulated(filters: Any, style: Any, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Build StyleGAN2's modulated convolution: every sample has its own filters."""
    b, c, *sides = x.shape
    w = filters.weight[None] * style(s)[:, None, :, None, None]
    return F.conv2d(x.reshape(1, b * c, *sides), w.flatten(0, 1), padding=1, groups=b).unflatten(1, (b, -1))


def masked(a: Any, x: torch.Tensor) -> torch.Tensor:
    a.weight.data *= torch.ones(8, 8).tril()
    return a(x)


def clipped(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a.weight.clamp_(-1, 1)
    return b(a(x))


def by_place(a: Any, w: Any, x: torch.Tensor) -> torch.Tensor:
    best, at = a(x).topk(2, 0)
    return F.linear(x[at[:, 0]], w.weight) * best[:, :1]


def sunk(q: Any, k: Any, v: Any, x: torch.Tensor) -> torch.Tensor:
    scores = q(x) @ k(x).transpose(-1, -2) / 8**0.5
    return (scores.softmax(-1) @ v(x)) * scores.logsumexp(-1, keepdim=True).sigmoid()


def one_query(a: Any, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Attend to a memory, which does not train, with one query."""
    weights = torch.bmm(memory, a(x).unsqueeze(-1)).squeeze(-1).softmax(-1)
    return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


X, T = torch.randn(4, 8), torch.randn(2, 5, 8)
IMAGES, STYLES = torch.randn(3, 8, 5, 5), torch.randn(3, 4)
CASES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "attention with weights": (
        Uses(lambda a, x: a(x, x, x), nn.MultiheadAttention(32, 4, batch_first=True)),
        (torch.randn(2, 9, 32),),
    ),
    "attention, weights dropped": (
        Uses(lambda a, x: a(x, x, x)[0], nn.MultiheadAttention(768, 12, batch_first=True)),
        (torch.randn(1, 197, 768),),
    ),
    "attention whose scores are read again": (Uses(sunk, *linear(8, 8, 8, 8)), (T,)),
    "detached trunk": (Uses(lambda a, b, x: b(a(x).detach()), *linear(8, 8, 8)), (X,)),
    "data": (Uses(lambda a, b, x: b(a(x).data), *linear(8, 8, 8)), (X,)),
    "no_grad": (Uses(in_no_grad, *linear(8, 8, 8, 8)), (X,)),
    "gradients switched off and on": (Uses(switched, *linear(8, 8, 8)), (X,)),
    "inference mode": (Uses(inferred, *linear(8, 8, 8)), (X,)),
    "decorated trunk": (Uses(lambda a, b, x: b(trunk(a, x)), *linear(8, 8, 8)), (X,)),
    "detached at one reader": (Uses(one_reader, *linear(8, 8, 8)), (X,)),
    "straight through": (Uses(straight_through, *linear(8, 8, 8)), (X,)),
    "target detached": (Uses(target, *linear(8, 8, 8)), (X,)),
    **{
        f"{kind} {'behind' if behind else 'without'} a layer": (
            Uses(
                (lambda r, a, x: r(a(x))[0]) if behind else (lambda r, a, x: r(x)[0]),
                getattr(nn, kind)(8, 8, 1 + behind, batch_first=True, bidirectional=behind),
                nn.Linear(8, 8),
            ),
            (T,),
        )
        for kind in ("RNN", "GRU", "LSTM")
        for behind in (False, True)
    },
    "filters of samples": (Uses(modulated, nn.Conv2d(8, 6, 3), nn.Linear(4, 8)), (IMAGES, STYLES)),
    "filters of samples behind a layer": (
        Uses(
            lambda f, s, c, x, y: modulated(f, s, c(x), y),
            nn.Conv2d(8, 6, 3, bias=False),
            nn.Linear(4, 8),
            nn.Conv2d(8, 8, 1),
        ),
        (IMAGES, STYLES),
    ),
    "weights of another layer, and a bias": (
        Uses(lambda a, b, x, y: F.linear(x, a(y).view(6, 8), b.bias), *linear(4, 12, 6)),
        (X, torch.randn(4, 4)),
    ),
    "weights of low rank": (
        Uses(lambda a, b, x: F.linear(x, a.weight @ b.weight), *linear(2, 4), *linear(8, 2)),
        (X,),
    ),
    "weights times themselves": (Uses(lambda a, x: x @ (a.weight @ a.weight.T), *linear(8, 8)), (X,)),
    "a bend behind two operands": (
        Uses(
            lambda a, b, p, x: p(torch.bmm(a(x), b(x).transpose(1, 2))),
            *linear(8, 4),
            *linear(8, 4),
            nn.PReLU(),
        ),
        (T,),
    ),
    "an addend of the model's own": (
        Uses(lambda a, b, x: torch.baddbmm(b(x), a(x), a(x).transpose(1, 2)), *linear(8, 4), *linear(8, 5)),
        (T,),
    ),
    "one number read in two shapes": (
        Uses(one_number, *linear(8, 4)),
        (X,),
    ),
    "weights that forward() writes": (Uses(masked, *linear(8, 8)), (X,)),
    "weights that forward() clips": (Uses(clipped, *linear(8, 8, 8)), (X,)),
    "rows at the places of the largest": (Uses(by_place, *linear(8, 8, 8)), (X,)),
    "rows of what does not train": (Uses(lambda a, x: a(x[0]) + a(x[1]), *linear(8, 8)), (X,)),
    "einsum over one": (
        Uses(lambda a, x: torch.einsum("bij,bkj->bki", a(x), x), *linear(1, 1)),
        (torch.randn(2, 3, 1),),
    ),
    "loss of a squeezed vector": (
        Uses(lambda a, x, z: F.mse_loss(torch.tanh(a(x)).squeeze(1), z), *linear(8, 1)),
        (X, torch.randn(4)),
    ),
    "attention of one query, keys times queries": (
        Uses(one_query, *linear(8, 8)),
        (X, torch.randn(4, 5, 8)),
    ),
    "filters from a turned product": (
        Uses(lambda a, x, t: F.conv1d(x, a(t).t()[:, None], groups=8), *linear(4, 8)),
        (torch.randn(2, 8, 20), torch.randn(3, 4)),
    ),
}


@pytest.mark.thinned(12)
@pytest.mark.parametrize("name", CASES)
def test_a_step_has_the_flops_of_torch(name: str) -> None:
    """The FLOPs equal those of a real run; the check of the capture, which counts independently, agrees."""
    module, args = CASES[name]
    graph = lower(module, args, training=True)
    assert graph.total_flops == by_torch(module, args)
    assert graph.facts[FLOPS_CHECKED] == EQUAL


def test_a_gru_by_hand() -> None:
    """GRU(8, 8), 2 samples, 5 steps: 3 x 8 x (8 + 8) weights are multiplied in every step, forward and for their
    gradients; back in time the 3 x 8 x 8 weights of the state are multiplied in 4 steps: 2 x 2 x (5 x 384 + 5 x 384 + 4
    x 192).
    """
    graph = lower(*CASES["GRU without a layer"], training=True)
    assert graph.total_flops == 2 * 2 * (5 * 384 + 5 * 384 + 4 * 192) == 18_432


class Repeats(torch.autograd.Function):
    """A checkpoint by another author, as that of guided-diffusion and its many copies."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: Any, *weights: Any) -> Any:
        ctx.function, ctx.kept = function, (x, *weights)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x = ctx.kept[0].detach().requires_grad_(True)
        with torch.enable_grad():
            y = ctx.function(x.view_as(x))
        return None, *torch.autograd.grad(y, (x, *ctx.kept[1:]), g)


CHECKPOINTS: dict[str, Callable[..., Any]] = {
    "torch's": lambda f, b, x: checkpoint(f, x, use_reentrant=False),
    "torch's, reentrant": lambda f, b, x: checkpoint(f, x, use_reentrant=True),
    "another author's": lambda f, b, x: Repeats.apply(f, x, b.weight, b.bias),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_what_a_checkpoint_repeats_is_noted(kind: str) -> None:
    """The graph keeps what gradients need; torch's counter counts one product of 2 x 4 x 8 x 8 twice."""
    module = Uses(
        lambda a, b, x: a(CHECKPOINTS[kind](lambda y: torch.tanh(b(y)), b, a(x))),
        *linear(8, 8, 8),
    )
    device.register()  # in a process that has the device of the scripts, too
    graph = lower(module, (X,), training=True)
    assert graph.facts[FLOPS_CHECKED] == EQUAL
    assert by_torch(module, (X,)) - graph.total_flops == 2 * 4 * 8 * 8
    assert any("recomputation of checkpoints, 512 FLOPs" in note for note in graph.notes)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Mixed(Rounded):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] @ torch.ones(8, 8, device=gradients[0].device)


def test_a_backward_pass_of_ones_own_is_told() -> None:
    """The capture sees only its forward pass: right for a rounding that passes gradients, but not for a product in it."""
    for kind, verdict in ((Rounded, EQUAL), (Mixed, "differ from torch's")):
        module = Uses(lambda a, b, x, kind=kind: b(kind.apply(a(x))), *linear(8, 8, 8))
        graph = lower(module, (X,), training=True)
        told = f"gradient: {kind.__name__} has its own backward pass"
        assert any(note.startswith(told) for note in graph.notes)
        assert graph.facts[FLOPS_CHECKED] == verdict


def updated(graph: KernelGraph) -> set[str]:
    return {p for k in graph if k.phase is Phase.UPDATE for p in k.parameters}


def asks(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
    x = x[:, None]
    x.requires_grad = True
    return b(torch.relu(a(x)))


def test_a_gradient_that_nothing_reads_is_left_out_and_told() -> None:
    """backward() of torch computes it for a value inside forward(): 2 x 4 x 8 x 16 FLOPs more for the first product."""
    module = Uses(asks, *linear(8, 16, 4))
    graph = lower(module, (X,), training=True)
    assert by_torch(module, (X,)) - graph.total_flops == 2 * 4 * 8 * 16
    assert graph.facts[FLOPS_CHECKED] == EQUAL
    told = [note for note in graph.notes if note.startswith("gradient: ")]
    assert len(told) == 1
    assert "x.requires_grad = True asks for the gradient of a value" in told[0]
    assert not lower(module, (X,)).notes


def test_what_runs_under_no_grad_has_no_gradient_and_no_update() -> None:
    module = Uses(lambda a, b, x: b(trunk(a, x)), *linear(8, 8, 8))
    graph = lower(module, (X,), training=True)
    assert updated(graph) == {"parts.1.weight", "parts.1.bias"}
    assert graph.trained_parameters == 8 * 8 + 8
    assert updated(lower(module, (X,), training=True, skip=["product epilogue"])) == updated(graph)
    program = torch.export.export(module, (X,))
    assert lower_exported(program, training=True).total_flops == graph.total_flops
    assert torch.is_grad_enabled()  # what marks these places is taken away again
    with torch.no_grad():
        pass
    assert torch.is_grad_enabled()


def test_the_captured_program_is_counted_where_the_module_reads_values() -> None:
    module = Uses(lambda a, x, mask: a(x) if bool(mask.any()) else x, *linear(8, 8))
    graph = lower(module, (X, torch.tensor([True, False])), training=True)
    assert graph.facts[FLOPS_CHECKED] == EQUAL


@pytest.mark.slow
def test_a_wrong_rule_is_told_with_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass back in time without products: 3,072 FLOPs of 18,432 are missing, in notes and in the diagnosis."""
    monkeypatch.setattr(Scan, "_flops_back", lambda self, kernel, wanted: 0)
    module, args = CASES["GRU without a layer"]
    graph = lower(module, args, training=True)
    assert graph.facts[FLOPS_CHECKED] == "differ from torch's"
    told = [note for note in graph.notes if note.startswith("training FLOPs: 15,360 in the graph, 18,432")]
    assert len(told) == 1
    assert "(-16.7 %)" in told[0]
    assert "mm of 2 x 24 and 24 x 8" in told[0]
    assert diagnose(module, args, training=True).lines()[-1] == told[0]
    monkeypatch.undo()
    assert diagnose(module, args, training=True).lines()[-1] == f"training FLOPs: {EQUAL}"


def test_a_count_that_fails_stops_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("of torch's own")

    monkeypatch.setattr(torch_flops, "_step", fails)
    graph = lower(Uses(lambda a, x: a(x), *linear(8, 8)), (X,), training=True)
    assert graph.facts[FLOPS_CHECKED] == "not compared"
    assert "KeyError" in graph.notes[-1]


def test_chosen_parameters_adapters_and_recomputation_are_counted_alike() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.attn(x)
            return self.head(F.scaled_dot_product_attention(q, q, q))

    for how in ({"train": "head"}, {"train": "attn"}, {"lora": 2}, {"recompute": "attention"}):
        graph = lower(Two(), (T,), training=True, **how)
        assert graph.facts[FLOPS_CHECKED] == EQUAL, how


# --- faults of ours


def test_a_fault_in_our_own_files_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 3, with what to report; the same fault in the user's file, called in our capture, is the
    user's.
    """
    text = "import torch\n\nclass M(torch.nn.Linear):\n    def forward(self, x):\n        {}\n        return super().forward(x)\n\n"
    text += "def make():\n    return M(4, 4), (torch.zeros(2, 4),)\n"
    (tmp_path / "fine.py").write_text(text.format("pass"))
    (tmp_path / "theirs.py").write_text(text.format("[][1]"))
    assert door.run(app, ["show", "model", f"{tmp_path}/theirs.py:make"]) == 2
    assert "theirs.py:5" in capsys.readouterr().err
    # A line of this file stands for one of ours.
    monkeypatch.setattr(build, "reordered", lambda *_: list[str]().pop())
    monkeypatch.setattr("wse_sim.user_code.owner_of", lambda name: "ours" if "/tests/" in name else "user")
    assert door.run(app, ["show", "model", f"{tmp_path}/fine.py:make"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("wse-sim: fault of the simulator: IndexError: pop from empty list")
    assert "report it" in said
    with pytest.raises(IndexError) as fault:
        lower(nn.Linear(4, 4), (torch.zeros(2, 4),))
    assert OURS in fault.value.__notes__


@pytest.mark.slow
@examples(150)
@given(
    st.lists(
        st.tuples(st.integers(0, len(OPERATORS) - 1), st.integers(0, 60), st.integers(0, 60)),
        min_size=1,
        max_size=24,
    ),
    st.sampled_from([((2, 3, 8), (2, 6)), ((4, 8), (4,)), ((2, 4, 6), (2, 3, 4, 4)), ((1, 5, 4),)]),
)
def test_any_operators_in_any_order(
    steps: list[tuple[int, int, int]], shapes: tuple[tuple[int, ...], ...]
) -> None:
    """Random programs are captured, or refused in a sentence; FLOPs then equal torch's in both phases."""
    args = tuple(torch.randn(shape) for shape in shapes)
    module = Program(steps, args)
    try:
        graph = lower(module, args, training=True)
    except ModelError as fault:
        if any(said in str(fault) for said in ("no parameters that train", "computes nothing")):
            return
        raise
    count = torch_flops.counted_module(module, args)
    assert (graph.total_flops, lower(module, args).total_flops) == (count.total, count.forward), module.names


def test_weights_written_in_place_train_in_both_counts() -> None:
    """A linear layer of 4 x 4 for 6 rows, whose weight forward() clamps: torch's autograd reaches the weight.

    Three products of 2 * 6 * 4 * 4 FLOPs per layer; the input of the first layer needs no gradient.
    """

    def clamped(a: Any, b: Any, x: torch.Tensor) -> torch.Tensor:
        b.weight.data.clamp_(-1, 1)
        return b(a(x))  # type: ignore[no-any-return]

    module, args = Uses(clamped, *linear(4, 4), *linear(4, 4)), (torch.randn(6, 4),)
    program = export(module, args, None, training=True).run_decompositions({})
    by_program = torch_flops.counted_program(program, lambda name: True)
    assert by_program.total == torch_flops.counted_module(module, args).total == (2 * 3 - 1) * 2 * 6 * 4 * 4
    assert by_torch(module, args) == lower(module, args, training=True).total_flops == by_program.total


def test_rows_that_a_mask_replaces_have_gradients() -> None:
    """Layers of 4 x 4 for six rows, and for the three that replace some of them; inputs need no gradient.

    Each layer has two products, forward and for its weight.
    """

    def replaced(a: Any, b: Any, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = a(x)
        h[mask] = b(y)
        return h  # type: ignore[no-any-return]

    mask = torch.tensor([True, False, True, False, False, True])
    module, args = Uses(replaced, *linear(4, 4), *linear(4, 4)), (torch.randn(6, 4), torch.randn(3, 4), mask)
    program = export(module, args, None, training=True).run_decompositions({})
    assert torch_flops.counted_program(program, lambda name: True).total == 2 * (6 + 3) * 2 * 4 * 4
    assert lower(module, args, training=True).total_flops == by_torch(module, args) == 2 * (6 + 3) * 2 * 4 * 4
