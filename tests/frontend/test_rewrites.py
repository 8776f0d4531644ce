"""Each rewrite rule on the smallest program that it changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from tests.frontend.families import FAMILIES  # noqa: E402
from wse_sim.frontend import explain, load_model, lower  # noqa: E402
from wse_sim.graph import KernelGraph  # noqa: E402


class _Of(nn.Module):
    """A module from a function, with weights it may use as `self.w`, ..."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


def lowered(function: Callable[..., Any], *args: Tensor, training: bool = False, **parts: Any) -> KernelGraph:
    return lower(_Of(function, **parts), args, training=training)


def families(graph: KernelGraph) -> list[str]:
    return [kernel.family for kernel in graph]


X = torch.randn(2, 16, 32)
HEADS = tuple(torch.randn(2, 4, 16, 8) for _ in range(3))


def test_bias_activation_residual_leave_with_the_product() -> None:
    """y + gelu(W x + b) is one kernel in inference; in training the activation keeps its own operand."""
    program = lambda m, x, y: y + F.gelu(m.fc(x))  # noqa: E731
    graph = lowered(program, X, X, fc=nn.Linear(32, 32))
    assert [k.attrs["fused"] for k in graph] == ["bias,gelu,residual"]
    training = lowered(program, X, X, training=True, fc=nn.Linear(32, 32))
    assert [k.family for k in training if k.phase == "forward"] == ["gemm", "elementwise"]
    assert graph.kernels[0].dims == {"m": 32, "k": 32, "n": 32}


def test_a_result_with_two_readers_stays() -> None:
    """A result with another reader cannot be moved into an epilogue."""
    graph = lowered(lambda m, x: (F.relu(y := m.fc(x)), y.exp()), X, fc=nn.Linear(32, 8))
    assert families(graph) == ["gemm", "activation", "elementwise"]


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_spelled_out(offset: float) -> None:
    """LLaMA writes it this way, and Gemma with 1 + weight."""

    def norm(m: Any, x: Tensor) -> Tensor:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (m.w + offset if offset else m.w) * y.type_as(x)

    graph = lowered(norm, X, w=nn.Parameter(torch.ones(32)))
    assert families(graph) == ["norm"]
    assert graph.kernels[0].attrs["kind"] == "rms"
    assert graph.kernels[0].parameters == ("w",)


def test_layer_norm_spelled_out() -> None:
    """The pattern is (x - mean) / sqrt(var + e) w + b."""

    def norm(m: Any, x: Tensor) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-5) * m.w + m.b

    graph = lowered(norm, X, w=nn.Parameter(torch.ones(32)), b=nn.Parameter(torch.zeros(32)))
    assert families(graph) == ["norm"]
    assert graph.kernels[0].parameters == ("w", "b")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), "gelu_tanh"),
        (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
        (lambda x: x / 2 * (1 + torch.erf(x / torch.sqrt(torch.tensor(2.0)))), "gelu"),
        (lambda x: x * torch.sigmoid(x), "silu"),
        (lambda x: x * torch.sigmoid(1.702 * x), "gelu"),
    ],
)
def test_activations_spelled_out(function: Callable[[Tensor], Tensor], name: str) -> None:
    """gelu and silu are recognised by their formulas."""
    graph = lowered(lambda m, x: function(x), X)
    assert [(k.family, k.attrs["function"]) for k in graph] == [("activation", name)]


def _doubled(x: Tensor, times: int) -> Tensor:
    """Return 2^times x by as many sums of equal operands."""
    for _ in range(times):
        x = x + x
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 2.0 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: x / 0.5 * (1 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * x * (1 + torch.tanh(x)),
        lambda x: 0.5 * x * (1 + torch.erf(x)),
        lambda x: 0.5 * x * (1 + torch.tanh(torch.sin(x))),
        lambda x: 0.5 * x * (1 + torch.tanh(x**0.5)),
        lambda x: 0.5 * x * (1 + torch.tanh(x / (x - 2.0))),
        lambda x: 0.5 * x * (1 + torch.tanh(_doubled(x, 40))),
    ],
)
def test_what_only_looks_like_a_gelu_is_none(function: Callable[[Tensor], Tensor]) -> None:
    """Other factors or other arguments of tanh and erf have other values."""
    graph = lowered(lambda m, x: function(x), X)
    assert "gelu" not in str([kernel.attrs for kernel in graph])


def test_constants_of_types_that_numpy_lacks() -> None:
    """A number in bfloat16 makes the same kernels as one in fp32."""
    kernels = [
        [
            (kernel.family, kernel.attrs, kernel.access)
            for kernel in lowered(lambda m, x: x * m.factor - x, X, factor=nn.Buffer(number))
        ]
        for number in (torch.tensor(0.5), torch.tensor(0.5).bfloat16())
    ]
    assert kernels[0] == kernels[1]


def _half(x: Tensor) -> Tensor:
    return torch.cat((-x[..., 4:], x[..., :4]), -1)


def _pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


@pytest.mark.parametrize(("turn", "block"), [(_half, 8), (_pairs, 2)])
def test_rotary_positions(turn: Callable[[Tensor], Tensor], block: int) -> None:
    """Both conventions of rotating a head are one kernel."""
    cos, sin = torch.randn(16, 8), torch.randn(16, 8)
    graph = lowered(
        lambda m, q: q * m.cos + turn(q) * m.sin, HEADS[0], cos=nn.Buffer(cos), sin=nn.Buffer(sin)
    )
    assert [(k.family, dict(k.attrs)) for k in graph] == [("rotary", {"block": block})]


def test_rotary_positions_of_an_image() -> None:
    """Half of a head turns by rows, the other half by columns."""

    def axial(m: Any, q: Tensor) -> Tensor:
        parts = zip(q.chunk(2, -1), m.cos.chunk(2, -1), m.sin.chunk(2, -1), strict=True)
        return torch.cat(
            [x * cos + torch.cat((-x[..., 2:], x[..., :2]), -1) * sin for x, cos, sin in parts], -1
        )

    tables = {"cos": nn.Buffer(torch.randn(16, 8)), "sin": nn.Buffer(torch.randn(16, 8))}
    graph = lowered(axial, HEADS[0], **tables)
    assert [(k.family, dict(k.attrs)) for k in graph] == [("rotary", {"block": 4})]


def test_halves_in_another_order_are_two_rotations() -> None:
    """(b, a) turns both halves of a head and swaps them."""

    def swapped(m: Any, q: Tensor) -> Tensor:
        parts = reversed(q.chunk(2, -1))
        return torch.cat([x * m.cos + torch.cat((-x[..., 2:], x[..., :2]), -1) * m.sin for x in parts], -1)

    tables = {"cos": nn.Buffer(torch.randn(16, 4)), "sin": nn.Buffer(torch.randn(16, 4))}
    assert [k.family for k in lowered(swapped, HEADS[0], **tables)] == ["rotary", "rotary", "layout"]


def test_rotary_on_part_of_a_head() -> None:
    """GPT-J rotates only the first features; the others pass."""

    def partial(m: Any, q: Tensor) -> Tensor:
        turned, rest = q[..., :4], q[..., 4:]
        half = torch.cat((-turned[..., 2:], turned[..., :2]), -1)
        return torch.cat((turned * m.cos + half * m.sin, rest), -1)

    tables = {"cos": nn.Buffer(torch.randn(16, 4)), "sin": nn.Buffer(torch.randn(16, 4))}
    graph = lowered(partial, HEADS[0], **tables)
    assert [(k.family, dict(k.attrs)) for k in graph] == [("rotary", {"block": 4, "turned": 4})]


def test_rotary_as_complex_numbers() -> None:
    """The original LLaMA code uses complex numbers."""

    def rotate(m: Any, q: Tensor) -> Tensor:
        pairs = torch.view_as_complex(q.reshape(2, 4, 16, 4, 2))
        return torch.view_as_real(pairs * m.turns).flatten(3)

    turns = nn.Buffer(torch.randn(16, 4, dtype=torch.complex64))
    assert [k.family for k in lowered(rotate, HEADS[0], turns=turns)] == ["rotary"]


def _spelled(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, where: bool = False) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(8)
    if mask is not None:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min) if where else scores + mask
    return F.softmax(scores, dim=-1) @ v


def _triangle() -> Tensor:
    return torch.ones(16, 16, dtype=torch.bool).tril()


def test_attention_spelled_out() -> None:
    """The pattern is softmax(q k / sqrt d) v, plain and with a causal mask by `where` or by addition."""
    cases: list[tuple[Callable[..., Tensor], bool]] = [
        (lambda m, q, k, v: _spelled(q, k, v), False),
        (lambda m, q, k, v: _spelled(q, k, v, _triangle(), where=True), True),
        (
            lambda m, q, k, v: _spelled(q, k, v, torch.zeros(16, 16).masked_fill(~_triangle(), -torch.inf)),
            True,
        ),
    ]
    for function, causal in cases:
        graph = lowered(function, *HEADS)
        assert families(graph) == ["attention"]
        kernel = graph.kernels[0]
        assert kernel.dims == {"b": 2, "heads": 4, "kv_heads": 4, "q": 16, "kv": 16, "d": 8}
        assert kernel.attrs["causal"] is causal
        assert kernel.flops == 2 * 2 * 2 * 4 * 16 * 16 * 8


def test_one_query_may_be_the_second_operand_of_its_scores() -> None:
    """The softmax says which operand has the keys: 16 keys times one query are scores of 16 columns behind a view."""
    query, memory = torch.randn(2, 8, 1), torch.randn(2, 16, 8)
    graph = lowered(
        lambda m, q, x: torch.bmm(torch.bmm(x, q).squeeze(-1).softmax(-1).unsqueeze(1), x), query, memory
    )
    assert families(graph) == ["attention"]
    assert graph.kernels[0].dims == {"b": 2, "heads": 1, "kv_heads": 1, "q": 1, "kv": 16, "d": 8}
    assert graph.kernels[0].inputs[0] != graph.kernels[0].inputs[1]


def test_masks_are_recognised() -> None:
    """The mask of torch.sdpa is all, causal, or dense."""
    causal = _triangle
    window = lambda: _triangle() & ~torch.ones(16, 16, dtype=torch.bool).tril(-4)  # noqa: E731
    everything = lambda: torch.ones(16, 16, dtype=torch.bool)  # noqa: E731
    found = []
    for mask in (causal, window, everything):
        graph = lowered(
            lambda m, q, k, v, mask=mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask()), *HEADS
        )
        found.append((graph.kernels[0].attrs["causal"], graph.kernels[0].attrs.get("mask")))
    assert found == [(True, None), (False, "dense"), (False, None)]


def test_a_mask_from_outside_is_dense_and_read() -> None:
    """Padding given by the user is a separate stream."""
    mask = torch.ones(2, 1, 16, 16, dtype=torch.bool)
    graph = lowered(lambda m, q, k, v, a: F.scaled_dot_product_attention(q, k, v, attn_mask=a), *HEADS, mask)
    assert graph.kernels[0].attrs["mask"] == "dense"
    assert len(graph.kernels[0].inputs) == 4


def test_grouped_heads() -> None:
    """K and V repeated by a view are the original, fewer heads."""

    def grouped(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t[:, :, None].expand(2, 2, 2, 16, 8).reshape(2, 4, 16, 8) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v)

    graph = lowered(grouped, HEADS[0], HEADS[1][:, :2].clone(), HEADS[2][:, :2].clone())
    assert graph.kernels[0].dims["kv_heads"] == 2


def test_gated_activation() -> None:
    """silu(gate) up is one pass; the projections remain products."""
    graph = lowered(lambda m, x: F.silu(m.g(x)) * m.u(x), X, g=nn.Linear(32, 64), u=nn.Linear(32, 64))
    assert families(graph) == ["gemm", "gemm", "generated"]
    assert graph.kernels[2].attrs["ops"] == "silu,mul"
    assert graph.kernels[2].dims["elements"] == 2 * 16 * 64


@pytest.mark.slow
def test_convolution_takes_its_batch_norm_at_inference() -> None:
    """conv + bn + relu + add is one kernel in inference; in training the statistics need their own kernel."""
    image = torch.randn(2, 8, 10, 10)
    parts = {"c": nn.Conv2d(8, 8, 3, padding=1, bias=False), "n": nn.BatchNorm2d(8)}
    chain = lambda m, x, y: F.relu(m.n(m.c(x)) + y)  # noqa: E731
    graph = lowered(chain, image, image, **parts)
    assert [k.attrs["fused"] for k in graph] == ["bias,residual,relu"]
    training = lowered(chain, image, image, training=True, **parts)
    assert [k.family for k in training if k.phase == "forward"] == ["conv2d", "norm", "generated"]


def test_elementwise_chains_are_generated() -> None:
    """Operators that no other rule takes become one pass."""
    graph = lowered(lambda m, x: torch.exp(-x).add(1).sqrt(), X)
    assert families(graph) == ["generated"]
    assert graph.kernels[0].attrs["ops"] == "neg,exp,add,sqrt"


def test_split_loss_is_one_kernel() -> None:
    """The pattern is nll_loss(log_softmax(x))."""
    target = torch.zeros(32, dtype=torch.long)
    graph = lowered(lambda m, x, t: F.nll_loss(F.log_softmax(x.flatten(0, 1), -1), t), X, target)
    assert families(graph) == ["cross_entropy"]


def test_positions_fold_and_views_are_free() -> None:
    """Masks and position numbers that depend on nothing make no kernels, and neither do views."""

    def program(m: Any, x: Tensor) -> Tensor:
        places = (torch.arange(16) + 1).float().cos().unsqueeze(-1)
        return (x.transpose(1, 2).reshape(2, 32, 16).permute(0, 2, 1) + places).contiguous()

    assert families(lowered(program, X)) == ["elementwise"]


def test_equal_operators_of_a_module_merge() -> None:
    """A helper called twice on one value is computed once."""
    graph = lowered(lambda m, x: torch.exp(x) @ torch.exp(x).transpose(1, 2), X)
    assert families(graph) == ["elementwise", "batch_gemm"]


def test_tied_weights_stay_tied() -> None:
    """An embedding that is also the head is one parameter."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x))

    for device in ("cpu", "meta"):
        with torch.device(device):
            module, tokens = Tied(), torch.zeros(2, 5, dtype=torch.long)
        assert lower(module, (tokens,)).parameters == 400
        training = lower(module, (tokens,), training=True)
        assert sum(k.family == "optimizer" for k in training) == 1
        assert any(k.name.startswith("table.dw_sum") for k in training)


def test_half_precision_attention_is_whole() -> None:
    """A bf16 model's attention is one kernel, not fp32 products."""
    graph = lowered(
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v), *(h.bfloat16() for h in HEADS)
    )
    assert families(graph) == ["attention"]


def test_einsum() -> None:
    """Sums of two operands are a gemm with a weight, and a batch of products with shared batch letters."""
    weight = nn.Parameter(torch.randn(32, 4, 8))
    graph = lowered(lambda m, x: torch.einsum("bsd,dhe->bshe", x, m.w), X, w=weight)
    assert [(k.family, dict(k.dims)) for k in graph] == [("gemm", {"m": 32, "k": 32, "n": 32})]
    graph = lowered(lambda m, x: torch.einsum("bsd,btd->bst", x, x), X)
    assert [(k.family, dict(k.dims)) for k in graph] == [("batch_gemm", {"b": 2, "m": 16, "k": 32, "n": 16})]


def test_rules_can_rest() -> None:
    """`skip` disables a rule by its name."""
    small = {"family": "mlp", "layers": 2, "hidden": 8, "input": 8, "classes": 2, "activation": "relu"}
    assert len(load_model(small)) == 3
    assert len(load_model(small, skip=["product epilogue"])) == 5


def test_every_rule_tells_what_it_did() -> None:
    """`explain` lists rules with counts."""
    lines = explain(FAMILIES["llama"])
    assert "rotary: add -> wse.rotary (x4)" in lines
    assert "gated activation: h.*.mlp.silu and h.*.mlp.mul (x2)" in lines


def test_einsum_with_dots() -> None:
    """'...' represents the remaining dimensions, aligned at the last; FLOPs equal torch's counter."""
    weight = nn.Parameter(torch.randn(32, 3))
    graph = lowered(lambda m, x: torch.einsum("...d,dh->...h", x, m.w), X, w=weight)
    assert graph.total_flops == 2 * X.numel() * 3
    graph = lowered(lambda m, x: torch.einsum("...id,...jd->...ij", x, x[0]), X)
    assert graph.total_flops == 2 * X.numel() * X.shape[1]
    graph = lowered(lambda m, x: torch.einsum("...n,d->...nd", x, m.w), X, w=nn.Parameter(torch.randn(3)))
    assert families(graph) == ["elementwise"]


def test_attention_without_samples_is_captured() -> None:
    """Queries and memories of two axes, as in a Hopfield network; whoever reads the result sees no heads.

    FLOPs: scores 2 * 5 * 8 * 20 and values 2 * 5 * 20 * 8 in each of two steps.
    """

    class Hopfield(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memories = nn.Parameter(torch.randn(20, 8))

        def forward(self, x):
            for _ in range(2):
                x = torch.softmax(4.0 * x @ self.memories.T, -1) @ self.memories
            return x.min(1).values

    assert lower(Hopfield(), (torch.randn(5, 8),)).total_flops == 2 * (2 * 2 * 5 * 8 * 20)


@pytest.mark.parametrize("training", [False, True])
def test_a_cache_of_keys_that_begins_empty_is_no_work(training: bool) -> None:
    """Decoders of transformers join keys to an empty cache and repeat them for groups of queries with a copy; both move nothing."""

    def attend(self: Any, x: Tensor, cached: bool) -> Tensor:
        q, k, v = (part(x).view(1, 6, -1, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        if cached:
            k, v = (torch.cat([torch.tensor([]), part], -2) for part in (k, v))
        k, v = (part[:, :, None].expand(1, 2, 2, 6, 8).contiguous().reshape(1, 4, 6, 8) for part in (k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 6, 32))

    parts = {"q": nn.Linear(32, 32), "k": nn.Linear(32, 16), "v": nn.Linear(32, 16), "o": nn.Linear(32, 32)}
    graphs = [
        lowered(lambda self, x, cached=cached: attend(self, x, cached), torch.randn(1, 6, 32), training=training, **parts)
        for cached in (False, True)
    ]  # fmt: skip
    assert families(graphs[0]) == families(graphs[1])
    assert "layout" not in families(graphs[1])
    for graph in graphs:
        (attention,) = (k for k in graph if k.family == "attention" and not k.name.endswith((".dx", ".bwd")))
        assert [(first, end) for _, first, end in attention.access.heads] == [(0, 32), (0, 16), (0, 16)]
