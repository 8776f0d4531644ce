"""Operators without their own kernel: their replacements give torch's values, and as many FLOPs as torch counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.frontend import oracle  # noqa: E402
from tests.frontend.test_forward import check_wired  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.capture import trace_module  # noqa: E402
from wse_sim.frontend.decompositions import _distances, _drawn, _places, _summed_products  # noqa: E402
from wse_sim.frontend.expansions import SPELLED  # noqa: E402
from wse_sim.frontend.function_definitions import _attention, defined  # noqa: E402
from wse_sim.frontend.training import FLOPS_CHECKED  # noqa: E402

X, V, CUBE = torch.randn(4, 16), torch.randn(16), torch.randn(4, 5, 16)


class Net(nn.Module):
    """A linear layer, and a function of it and of x."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self.fc, x)


# Functions of a layer f and of x whose products torch counts.
COUNTED: dict[str, tuple[Callable[..., Any], Any]] = {
    "einsum of three": (lambda f, x: torch.einsum("bi,ij,bj->b", f(x), f.weight, x), X),
    "einsum of four": (lambda f, x: torch.einsum("bti,ij,bsj,jk->btsk", f(x), f.weight, x, f.weight), CUBE),
    "einsum with an ellipsis": (lambda f, x: torch.einsum("...i,ij,...j->...", f(x), f.weight, x), CUBE),
    "einsum without a result": (lambda f, x: torch.einsum("bi,ij,jk", f(x), f.weight, f.weight), X),
    "tensordot": (lambda f, x: torch.tensordot(f(x), f.weight, dims=([2], [0])), CUBE),
    "vdot": (lambda f, x: torch.vdot(f(x), x), V),
    "inner": (lambda f, x: torch.inner(f(x), x), X),
    "matrix and vector": (lambda f, x: f.weight @ f(x), V),
    "addmv": (lambda f, x: torch.addmv(x, f.weight, f(x)), V),
    "addbmm": (lambda f, x: torch.addbmm(torch.zeros(5, 5), f(x), x.mT), CUBE),
    "chain": (lambda f, x: torch.linalg.multi_dot([f(x), f.weight, f.weight]), X),
    "power": (lambda f, x: torch.linalg.matrix_power(f(x).mT @ x, 3), X),
    "far apart": (lambda f, x: torch.cdist(f(x), f.weight.repeat(2, 1)), CUBE),
    "near": (lambda f, x: torch.cdist(f(x), x), CUBE),
    "bilinear": (lambda f, x: nn.functional.bilinear(f(x), f(x), f.weight.expand(3, 16, 16)), X),
    "shifted bits": (lambda f, x: ((f(x) * 8).int() << 2 ^ 3 | 1 & ~(x > 0).int()).float(), X),
    "grid": (lambda f, x: nn.functional.affine_grid(f(x)[:, :6].view(4, 2, 3), (4, 1, 3, 3), False), X),
    "block diagonal": (lambda f, x: torch.block_diag(f(x), x), X),
    "special functions": (lambda f, x: torch.logaddexp(f(x), x) + torch.lgamma(x.abs() + 1) + torch.acos(x), X),
    "searched": (lambda f, x: torch.searchsorted(torch.arange(9.0), f(x)), X),
    "drawn": (lambda f, x: torch.multinomial(f(x).softmax(-1), 2), X),
    "forward derivative": (lambda f, x: torch.func.jvp(lambda v: f(v).tanh(), (x,), (x,))[1], X),
    "many samples": (lambda f, x: torch.vmap(f)(x), X),
    "triplets": (lambda f, x: nn.functional.triplet_margin_loss(f(x), x, x.roll(1, 0)), X),
}  # fmt: skip

_QUICK = ("einsum of three", "matrix and vector", "far apart", "bilinear")
_WITHOUT_GRADIENT = ("searched", "drawn", "shifted bits")  # only the layer before them could train


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in COUNTED]
)
def test_training_flops_are_torchs(name: str) -> None:
    """Torch's autograd computes the same products in forward pass, backward pass and update."""
    function, x = COUNTED[name]
    graph = lower(Net(function), (x,), training=name not in _WITHOUT_GRADIENT)
    check_wired(graph)
    if graph.training:
        assert graph.facts[FLOPS_CHECKED] == "as torch counts", graph.notes


@pytest.mark.parametrize("equation", ["ab,bc,cd->ad", "ab,bc,cd", "...ab,bc,...cd->...ad", "ab,ab,ab->a", "ab,cd,bd->ac", "ab,a,b->", "aab,bc,cd->ad"])  # fmt: skip
def test_sums_of_three(equation: str) -> None:
    """Pairwise sums give torch's value; torch counts from left to right if opt_einsum is not installed."""
    sizes = {"a": 3, "b": 4, "c": 5, "d": 6}
    parts = equation.partition("->")[0].replace("...", "").split(",")
    lead = [(2,) if "..." in part else () for part in equation.partition("->")[0].split(",")]
    operands = [
        torch.randn(*first, *(sizes[c] for c in part)) for first, part in zip(lead, parts, strict=True)
    ]
    torch.testing.assert_close(SPELLED[torch.einsum](equation, *operands), torch.einsum(equation, *operands))


def test_values_of_parts_are_torchs() -> None:
    """Bilinear forms, distances, searches and sums of products are equal element by element."""
    x, y, weight, bias = torch.randn(5, 3, 4), torch.randn(5, 3, 6), torch.randn(7, 4, 6), torch.randn(7)
    torch.testing.assert_close(
        SPELLED[torch.bilinear](x, y, weight, bias), torch.bilinear(x, y, weight, bias)
    )
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        torch.testing.assert_close(_distances(x, x + 1, p), torch.cdist(x, x + 1, p))
    edges, values = torch.tensor([0.0, 1.0, 1.0, 2.0]), torch.tensor([[-1.0, 0.0, 1.0], [1.5, 2.0, 3.0]])
    for right in (False, True):
        assert torch.equal(
            _places(edges, values, right=right), torch.searchsorted(edges, values, right=right)
        )
    matrix, a, b = torch.randn(3, 5), torch.randn(4, 3, 2), torch.randn(4, 2, 5)
    torch.testing.assert_close(
        _summed_products(matrix, a, b, beta=2, alpha=3), torch.addbmm(matrix, a, b, beta=2, alpha=3)
    )


def test_draws_follow_their_weights() -> None:
    """4,000 draws with weights 1 : 3 : 0 give a quarter, three quarters and none; deviations of 5 sigma (0.034) do not
    happen.
    """
    torch.manual_seed(0)
    drawn = _drawn(torch.tensor([1.0, 3.0, 0.0]).expand(4000, 3), 1).flatten()
    shares = drawn.bincount(minlength=3) / 4000
    assert shares[2] == 0
    assert abs(shares[0] - 0.25) < 0.034


class Flex(nn.Module):
    """Attention by the user's function of scores."""

    def __init__(self, score: Any = None, seen: Any = None) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.score = score
        self.mask = create_block_mask(seen, None, None, 32, 32, device="cpu") if seen is not None else None

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(2, 32, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, score_mod=self.score, block_mask=self.mask)


def test_flexible_attention_is_attention() -> None:
    """A function that states a causal mask gives a kernel's causal mask; changed scores have the same products."""
    x = torch.randn(2, 32, 16)
    products = 2 * 2 * 32 * 16 * 48 + 2 * (2 * 2 * 2 * 32 * 32 * 8)
    causal = lower(Flex(seen=lambda b, h, i, j: i >= j), (x,))
    assert [k.attrs["causal"] for k in causal if k.family == "attention"] == [True]
    assert causal.forward_flops == products
    biased = lower(Flex(score=lambda s, b, h, i, j: s + (j - i) * 0.1), (x,), training=True)
    assert biased.forward_flops == products
    assert biased.facts[FLOPS_CHECKED] == "as torch counts"


@pytest.mark.parametrize("factor", [0.05, 1.0, 4.0])
def test_scores_may_have_any_factor(factor: float) -> None:
    """With the scale 8 / d, which some trainers use for steps that keep their size, narrow heads have a factor above 1."""

    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(x, x, x, scale=factor)

    graph = lower(Scaled(), (torch.randn(2, 4, 16, 8),))
    assert [k.attrs["scale"] for k in graph if k.family == "attention"] == [factor]
    assert graph.forward_flops == 2 * (2 * 2 * 4 * 16 * 16 * 8)


def test_values_of_flexible_attention() -> None:
    """Values are compared with torch's own unfused run, with grouped heads, a bias by position and a window."""
    q, k, v = torch.randn(2, 4, 32, 8), torch.randn(2, 2, 32, 8), torch.randn(2, 2, 32, 8)
    table = torch.randn(4)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * 0.5 + table[h] * (j - i)

    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 9), None, None, 32, 32, device="cpu")
    with torch.no_grad():
        got = _attention(q, k, v, score, mask.as_tuple(), 8**-0.5)[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
            wanted = flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(got, wanted)


class Packed(nn.Module):
    """A recurrent layer over sequences of several lengths."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(16, 8, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        rnn = nn.utils.rnn
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.slow), pytest.param(nn.RNN, marks=pytest.mark.slow)])  # fmt: skip
def test_packed_sequences_are_padded(kind: type[nn.RNNBase]) -> None:
    """FLOPs are those of the layer on padded input, as torch counts them, in both phases (a note states this)."""
    x, lengths = torch.randn(3, 6, 16), torch.tensor([6, 2, 4])
    net = Packed(kind)
    graph = lower(net, (x, lengths), training=True)
    assert graph.forward_flops == oracle.flops_of(oracle.forward(net.layer, (x,), {}))
    assert graph.facts[FLOPS_CHECKED] == "as torch counts"
    assert any(note.startswith("packed:") for note in graph.notes)
    whole = torch.full((3,), 6)
    with torch.no_grad(), defined() as notes:  # of equal lengths nothing is padded, and values are torch's
        got = net(x, whole)
    torch.testing.assert_close(got, net(x, whole))
    assert notes


class Draws(nn.Module):
    """Layers, some of which are omitted at random."""

    def __init__(self, keeps: Callable[[], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.keeps = keeps

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            if self.keeps():
                x = layer(x)
        return x


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("keeps", "layers"),
    [
        (lambda: torch.empty(1).uniform_() > 0.3, 2),
        (lambda: torch.empty(1).uniform_(0, 0.4) > 0.3, 0),
        (lambda: torch.bernoulli(torch.rand(1), 0.8) > 0, 2),
        (lambda: torch.bernoulli(torch.full((1,), 0.2)) > 0, 0),
        (lambda: torch.rand_like(torch.ones(1)) < 0.1, 0),
        (lambda: torch.randint(0, 10, (1,)) >= 5, 2),
    ],
)
def test_layers_left_out_by_chance(keeps: Callable[[], Any], layers: int) -> None:
    """The graph is the likelier step, by the mean of the numbers that torch draws; a note names it."""
    graph = lower(nn.Sequential(nn.Linear(16, 16), Draws(keeps)), (X,))
    assert graph.forward_flops == (1 + layers) * 2 * 4 * 16 * 16
    assert any(note.startswith("chance:") for note in graph.notes)


def test_what_has_a_kernel_stays_whole() -> None:
    """An operator with a handler is not decomposed: attention, norms and convolutions keep their names."""
    net = nn.Sequential(nn.Conv1d(4, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Dropout(0.1))
    ops = {
        node.op for node in trace_module(net, (torch.randn(2, 4, 8),)).nodes.values() if node.kind == "call"
    }
    assert ops == {"conv1d", "group_norm", "gelu", "dropout"}


ALONG: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[int, int, int]]] = {
    "topk": (lambda x: x.topk(3, 1)[0], (8, 6, 3)),
    "topk, negative": (lambda x: torch.topk(x, k=3, dim=-2)[0], (8, 6, 3)),
    "topk, last": (lambda x: x.topk(3)[0], (12, 4, 3)),
    "sort": (lambda x: x.sort(dim=-2, descending=True)[0], (8, 6, 6)),
    "stable sort": (lambda x: torch.sort(x, stable=True, dim=1)[0], (8, 6, 6)),
    "argsort": (lambda x: x.argsort(1), (8, 6, 6)),
    "kthvalue": (lambda x: x.kthvalue(2, 1)[0], (8, 6, 2)),
    "median": (lambda x: x.median(-2)[0], (8, 6, 6)),
    "median of all": (lambda x: x.median(), (1, 48, 48)),
    "nanmedian": (lambda x: x.nanmedian(1)[0], (8, 6, 6)),
    "mode": (lambda x: x.mode(1)[0], (8, 6, 6)),
    "logsumexp": (lambda x: x.logsumexp(-2), (8, 6, 0)),
    "logsumexp of two": (lambda x: x.logsumexp((1, -1)), (2, 24, 0)),
    "log_softmax": (lambda x: x.log_softmax(-2), (8, 6, 0)),
    "softmax over samples": (lambda x: x.softmax(0), (24, 2, 0)),
    "cummax": (lambda x: x.cummax(-2)[0], (8, 6, 0)),
}


@pytest.mark.parametrize("name", ALONG)
def test_rows_are_those_of_the_dimension_that_is_sorted_or_summed(name: str) -> None:
    """A tensor (2, 6, 4) has 8 rows of 6 along its dimension 1."""
    function, (rows, cols, k) = ALONG[name]
    (kernel,) = lower(function, (torch.randn(2, 6, 4),))
    dims = kernel.dims
    found = (dims["batch"], dims["steps"]) if kernel.family == "scan" else (dims["rows"], dims["cols"])
    assert (*found, dims.get("k", 0)) == (rows, cols, k)
    assert kernel.dims[kernel.sample_dim] % 2 == 0  # two samples


def test_an_index_by_tensors_inside_vmap_is_an_index() -> None:
    """Functions of masks read tables at the places that torch.vmap gives; torch would keep such a read whole."""

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 8)
            self.register_buffer("kind", torch.tensor([0, 0, 1, 1, 1, 0]))

        def forward(self, x: Any) -> Any:
            at = torch.arange(6)
            with TransformGetItemToIndex():
                same = torch.vmap(
                    torch.vmap(lambda i, j: self.kind[i] == self.kind[j], (None, 0)), (0, None)
                )(at, at)
            y = self.fc(x)
            return (y @ y.mT).masked_fill(~same, float("-inf")).softmax(-1) @ x

    module, x = Masked().eval(), torch.randn(3, 6, 8)
    with FlopCounterMode(display=False) as counter:
        module(x)
    graph = lower(module, (x,))
    assert graph.total_flops == counter.get_total_flops()
