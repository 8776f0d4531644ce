"""A GPT-2 block, forward and backward, computed by the kernels' numerics on tiles."""

from __future__ import annotations

import numpy as np
import pytest

from wse_sim.kernels import family

torch = pytest.importorskip("torch")
F = torch.nn.functional
HIDDEN, HEADS, TOKENS, PARTS = 768, 12, 24, 7


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "qkv": (HIDDEN, 3 * HIDDEN),
        "out": (HIDDEN, HIDDEN),
        "up": (HIDDEN, 4 * HIDDEN),
        "down": (4 * HIDDEN, HIDDEN),
    }
    made = {name: (0.02 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    made |= {
        f"{name}_b": (0.02 * rng.standard_normal(shape[1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    for norm in ("ln1", "ln2"):
        made[norm] = (1 + 0.1 * rng.standard_normal(HIDDEN)).astype(np.float32)
        made[f"{norm}_b"] = (0.1 * rng.standard_normal(HIDDEN)).astype(np.float32)
    return made


def theirs(x, p):
    """Return the block in torch."""
    a = F.layer_norm(x, (HIDDEN,), p["ln1"], p["ln1_b"])
    q, k, v = (a @ p["qkv"] + p["qkv_b"]).split(HIDDEN, dim=-1)
    q, k, v = (u.view(1, TOKENS, HEADS, -1).transpose(1, 2) for u in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(TOKENS, HIDDEN)
    x = x + o @ p["out"] + p["out_b"]
    h = F.layer_norm(x, (HIDDEN,), p["ln2"], p["ln2_b"])
    return x + F.gelu(h @ p["up"] + p["up_b"], approximate="tanh") @ p["down"] + p["down_b"]


def heads(x):
    return x.reshape(1, TOKENS, HEADS, -1).swapaxes(1, 2)


def flat(x):
    return x.swapaxes(1, 2).reshape(TOKENS, HIDDEN)


def ours(x, p, g):
    """Return the same by `compute` and `gradient`, every reduction split over PARTS cores."""
    gemm, norm, attention = family("gemm"), family("norm"), family("attention")
    add, gelu, total = family("elementwise"), family("activation"), family("reduce")

    def linear(u, name):
        return gemm.compute(u, p[name], p[f"{name}_b"], parts=PARTS)

    a = norm.compute(x, p["ln1"], p["ln1_b"], parts=PARTS)
    q, k, v = (heads(u) for u in np.split(linear(a, "qkv"), 3, axis=-1))
    o = flat(attention.compute(q, k, v, causal=True, parts=PARTS))
    middle = add.compute(x, linear(o, "out"))
    h = norm.compute(middle, p["ln2"], p["ln2_b"], parts=PARTS)
    u = linear(h, "up")
    r = gelu.compute(u, function="gelu_tanh")
    y = add.compute(middle, linear(r, "down"))

    grads = {}

    def linear_back(name, inputs, dy):
        grads[name] = gemm.compute(inputs.T, dy, parts=PARTS)
        grads[f"{name}_b"] = total.compute(dy.T, parts=PARTS)
        return gemm.compute(dy, p[name].T, parts=PARTS)

    d_u = gelu.gradient(u, linear_back("down", r, g), function="gelu_tanh")
    d_h = linear_back("up", h, d_u)
    d_norm, grads["ln2"], grads["ln2_b"] = norm.gradient(middle, p["ln2"], d_h, parts=PARTS)
    d_middle = add.compute(g, d_norm)
    d_o = heads(linear_back("out", o, d_middle))
    d_qkv = attention.gradient(q, k, v, d_o, causal=True, parts=PARTS)
    d_a = linear_back("qkv", a, np.concatenate([flat(d) for d in d_qkv], axis=-1))
    d_norm, grads["ln1"], grads["ln1_b"] = norm.gradient(x, p["ln1"], d_a, parts=PARTS)
    return y, add.compute(d_middle, d_norm), grads


@pytest.mark.slow
def test_gpt2_block_forward_and_backward():
    """Output, input gradient and all twelve parameter gradients within 1e-4 of PyTorch in fp32."""
    p, rng = weights(), np.random.default_rng(1)
    x, g = (rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32) for _ in range(2))
    tp = {name: torch.tensor(value, requires_grad=True) for name, value in p.items()}
    tx = torch.tensor(x, requires_grad=True)
    wanted = theirs(tx, tp)
    wanted.backward(torch.tensor(g))
    y, dx, grads = ours(x, p, g)

    def relative(a, b) -> float:
        b = b.detach().numpy()
        return float(np.abs(a - b).max() / np.abs(b).max())

    assert relative(y, wanted) < 1e-4
    assert relative(dx, tx.grad) < 1e-4
    assert set(grads) == set(tp)
    for name, value in tp.items():
        assert relative(grads[name], value.grad) < 1e-4, name
