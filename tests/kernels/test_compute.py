"""Numerics of every family are compared with PyTorch, on random shapes, odd sizes included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from wse_sim.errors import KernelError
from wse_sim.kernels import family

torch = pytest.importorskip("torch")
F = torch.nn.functional

EXAMPLES = examples(100)
size = st.integers(1, 17)
seeds = st.integers(0, 2**31)
# Bound of the relative error of one rounding: half a unit in the last place of 1.
ROUNDING = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "cbfloat16": 2.0**-10}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def t(x: np.ndarray, grad: bool = False):
    return torch.tensor(x, requires_grad=grad)


def close(ours, theirs, tol: float = 2e-5) -> None:
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else theirs
    assert np.shape(ours) == np.shape(theirs)
    assert np.allclose(ours, theirs, rtol=tol, atol=tol * max(1.0, float(np.abs(theirs).max(initial=0.0))))


@EXAMPLES
@given(m=size, k=size, n=size, parts=st.integers(1, 5), seed=seeds)
def test_gemm(m, k, n, parts, seed):
    """A product split over the cores of a chain equals torch's; so do its two gradients."""
    x, w, b, g = draw(seed, m, k), draw(seed + 1, k, n), draw(seed + 2, n), draw(seed + 3, m, n)
    gemm = family("gemm")
    tx, tw = t(x, True), t(w, True)
    out = tx @ tw + t(b)
    out.backward(t(g))
    close(gemm.compute(x, w, b, parts=parts), out)
    close(gemm.compute(g, w.T, parts=parts), tx.grad)
    close(gemm.compute(x.T, g, parts=parts), tw.grad)


@EXAMPLES
@given(m=size, k=size, n=size, dtype=st.sampled_from(sorted(TYPES)), seed=seeds)
def test_gemm_in_16_bits_rounds_once(m, k, n, dtype, seed):
    """Operands round to 16 bits, sums stay fp32, results round once: error within one rounding of the exact."""
    x, w = draw(seed, m, k), draw(seed + 1, k, n)
    rx, rw = (t(v).to(TYPES[dtype]).to(torch.float64) for v in (x, w))
    exact = (rx @ rw).numpy()
    scale = (rx.abs() @ rw.abs()).numpy()  # fp32 sums err relative to the sum of magnitudes
    bound = ROUNDING[dtype] * np.abs(exact) + (k + 1) * ROUNDING["fp32"] * scale + 1e-7
    assert (np.abs(family("gemm").compute(x, w, dtype=dtype) - exact) <= bound).all()


@EXAMPLES
@given(m=size, k=size, n=size, seed=seeds)
def test_gemm_with_int8_weights_and_fp16_sums(m, k, n, seed):
    """int8 weights err by half a step of their scale; fp16 sums by one rounding per multiply-accumulate."""
    x, w = draw(seed, m, k), draw(seed + 1, k, n)
    step = np.abs(w).max() / 127
    limit = np.abs(x).sum(axis=1, keepdims=True) * step * 0.5 + 1e-5
    assert (np.abs(family("gemm").compute(x, w, dtype="int8") - x @ w) <= limit * 1.01).all()
    half = family("gemm").compute(x, w, dtype="fp16", accumulate="fp16")
    assert (np.abs(half - x @ w) <= (k + 3) * ROUNDING["fp16"] * (np.abs(x) @ np.abs(w)) + 1e-4).all()


@EXAMPLES
@given(b=st.integers(1, 4), m=size, k=size, n=size, seed=seeds)
def test_batch_gemm_gemv_grouped(b, m, k, n, seed):
    """Independent products, a vector product, and one weight matrix per group of rows."""
    x, y = draw(seed, b, m, k), draw(seed + 1, b, k, n)
    close(family("batch_gemm").compute(x, y), t(x) @ t(y))
    close(family("gemv").compute(x[0, 0], y[0]), t(x[0, 0]) @ t(y[0]))
    group = np.random.default_rng(seed).integers(0, b, m)
    wanted = np.stack([x[0, r] @ y[g] for r, g in enumerate(group)])
    close(family("grouped_gemm").compute(x[0], y, group), wanted)


@EXAMPLES
@given(
    b=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    shared=st.integers(1, 2),
    q=st.integers(1, 9),
    d=st.integers(1, 9),
    causal=st.booleans(),
    seed=seeds,
)
def test_attention(b, kv_heads, shared, q, d, causal, seed):
    """Grouped-query attention, forward and backward, causal or not."""
    heads = kv_heads * shared
    query, key, value = (
        draw(seed, b, heads, q, d),
        draw(seed + 1, b, kv_heads, q, d),
        draw(seed + 2, b, kv_heads, q, d),
    )
    g = draw(seed + 3, b, heads, q, d)
    tq, tk, tv = t(query, True), t(key, True), t(value, True)
    out = F.scaled_dot_product_attention(
        tq, tk.repeat_interleave(shared, 1), tv.repeat_interleave(shared, 1), is_causal=causal
    )
    out.backward(t(g))
    attention = family("attention")
    close(attention.compute(query, key, value, causal=causal, parts=3), out)
    for ours, theirs in zip(
        attention.gradient(query, key, value, g, causal=causal), (tq, tk, tv), strict=True
    ):
        close(ours, theirs.grad)


@EXAMPLES
@given(
    rows=size,
    cols=st.integers(2, 30),
    parts=st.integers(1, 6),
    kind=st.sampled_from(["layer", "rms"]),
    seed=seeds,
)
def test_norm(rows, cols, parts, kind, seed):
    """Layer and RMS norm with statistics reduced over the cores of a row."""
    x, scale, shift, g = (
        draw(seed, rows, cols),
        draw(seed + 1, cols),
        draw(seed + 2, cols),
        draw(seed + 3, rows, cols),
    )
    tx, ts, tb = t(x, True), t(scale, True), t(shift, True)
    if kind == "layer":
        out = F.layer_norm(tx, (cols,), ts, tb)
    else:
        out = F.rms_norm(tx, (cols,), ts, eps=1e-5) + tb
    out.backward(t(g))
    norm = family("norm")
    close(norm.compute(x, scale, shift, kind=kind, parts=parts), out, 1e-4)
    dx, ds, db = norm.gradient(x, scale, g, kind=kind, parts=parts)
    close(ds, ts.grad, 1e-4)
    close(db, tb.grad, 1e-4)
    # Two nearly equal columns divide by almost nothing: compare where the norm is well conditioned.
    if x.std(axis=1).min() > 0.05:
        close(dx, tx.grad, 2e-3)


@EXAMPLES
@given(rows=size, cols=st.integers(1, 40), log=st.booleans(), parts=st.integers(1, 6), seed=seeds)
def test_softmax_and_cross_entropy(rows, cols, log, parts, seed):
    """Softmax, its logarithm, the loss, and their gradients."""
    x, g = 4 * draw(seed, rows, cols), draw(seed + 1, rows, cols)
    tx = t(x, True)
    out = (F.log_softmax if log else F.softmax)(tx, dim=-1)
    out.backward(t(g))
    softmax = family("softmax")
    y = softmax.compute(x, parts=parts, log=log)
    close(y, out)
    close(softmax.gradient(y, g, log=log), tx.grad)
    labels = np.random.default_rng(seed).integers(0, cols, rows)
    tx = t(x, True)
    loss = F.cross_entropy(tx, t(labels))
    loss.backward()
    close(family("cross_entropy").compute(x, labels), loss)
    close(family("cross_entropy").gradient(x, labels), tx.grad)


FUNCTIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@EXAMPLES
@given(n=st.integers(1, 99), function=st.sampled_from(sorted(FUNCTIONS)), seed=seeds)
def test_activation(n, function, seed):
    """Activation functions and their slopes."""
    x, g = 3 * draw(seed, n), draw(seed + 1, n)
    tx = t(x, True)
    out = FUNCTIONS[function](tx)
    out.backward(t(g))
    close(family("activation").compute(x, function=function), out)
    close(family("activation").gradient(x, g, function=function), tx.grad)


@EXAMPLES
@given(rows=size, cols=size, dtype=st.sampled_from(["fp32", "fp16", "bf16"]), seed=seeds)
def test_elementwise_and_generated(rows, cols, dtype, seed):
    """A chain of operators works in fp32 on rounded operands and rounds once."""
    a, b, c = draw(seed, rows, cols), draw(seed + 1, rows, cols), draw(seed + 2, cols)
    kind = {"fp32": torch.float32, **TYPES}[dtype]
    ra, rb, rc = (t(v).to(kind).float() for v in (a, b, c))
    close(
        family("elementwise").compute(a, b, c, ops="mul,add", dtype=dtype),
        (ra * rb + rc).to(kind).float(),
        1e-6,
    )
    wanted = torch.exp(ra - rb).sum(-1, keepdim=True)
    tol = 4 * ROUNDING[dtype] + 1e-5
    close(family("generated").compute(a, b, ops="sub,exp,sum", dtype=dtype), wanted, tol)


@EXAMPLES
@given(p=st.floats(0, 0.9), seed=seeds)
def test_dropout_keeps_the_mean_and_repeats_its_mask(p, seed):
    """Kept elements are scaled by 1 / (1 - p); one seed gives one mask."""
    x = np.ones(4000, np.float32)
    y = family("dropout").compute(x, p=p, seed=seed)
    assert np.array_equal(y, family("dropout").compute(x, p=p, seed=seed))
    assert np.allclose(y[y > 0], 1 / (1 - p))
    # 4000 draws: five standard deviations of the fraction of zeros.
    assert abs((y == 0).mean() - p) <= 5 * (p * (1 - p) / 4000) ** 0.5 + 1 / 4000


@EXAMPLES
@given(vocab=size, cols=size, n=size, seed=seeds)
def test_embedding(vocab, cols, n, seed):
    """Gather and scatter-add equal torch's."""
    table, g = draw(seed, vocab, cols), draw(seed + 1, n, cols)
    ids = np.random.default_rng(seed).integers(0, vocab, n)
    tt = t(table, True)
    out = F.embedding(t(ids), tt)
    out.backward(t(g))
    close(family("embedding").compute(ids, table), out)
    close(family("embedding").gradient(ids, g, vocab), tt.grad)


@pytest.mark.slow
@EXAMPLES
@given(
    b=st.integers(1, 2),
    h=st.integers(3, 9),
    w=st.integers(3, 9),
    c=st.integers(1, 3),
    k=st.integers(1, 3),
    r=st.sampled_from([1, 3]),
    stride=st.integers(1, 2),
    groups=st.integers(1, 2),
    seed=seeds,
)
def test_conv2d(b, h, w, c, k, r, stride, groups, seed):
    """Direct convolution and its two backward kernels, grouped and strided, equal torch's."""
    c, k = c * groups, k * groups
    x, f = draw(seed, b, h, w, c), draw(seed + 1, r, r, c // groups, k)
    tx = t(np.ascontiguousarray(x.transpose(0, 3, 1, 2)), True)
    tf = t(np.ascontiguousarray(f.transpose(3, 2, 0, 1)), True)
    out = F.conv2d(tx, tf, stride=stride, padding=r // 2, groups=groups)
    g = draw(seed + 2, *out.shape)
    out.backward(t(g))
    g = g.transpose(0, 2, 3, 1)
    options = {"stride": stride, "padding": r // 2, "groups": groups}
    close(family("conv2d").compute(x, f, **options), out.permute(0, 2, 3, 1))
    dx, df = family("conv2d").gradient(x, f, g, **options)
    close(dx, tx.grad.permute(0, 2, 3, 1))
    close(df, tf.grad.permute(2, 3, 1, 0))


@EXAMPLES
@given(
    h=st.integers(3, 11), w=st.integers(3, 11), window=st.integers(1, 3), stride=st.integers(1, 3), seed=seeds
)
def test_pool2d_and_resample(h, w, window, stride, seed):
    """Pooling windows, nearest and bilinear resampling equal torch's."""
    x = draw(seed, 2, h, w, 3)
    nchw = t(x).permute(0, 3, 1, 2)
    for kind, pool in (("max", F.max_pool2d), ("avg", F.avg_pool2d)):
        wanted = pool(nchw, window, stride).permute(0, 2, 3, 1)
        close(family("pool2d").compute(x, window=window, stride=stride, kind=kind), wanted)
    for mode in ("nearest", "bilinear"):
        wanted = F.interpolate(nchw, (h + stride, 2 * w), mode=mode).permute(0, 2, 3, 1)
        close(family("resample").compute(x, h + stride, 2 * w, mode=mode), wanted)


@EXAMPLES
@given(rows=size, cols=st.integers(1, 33), parts=st.integers(1, 40), k=st.integers(1, 4), seed=seeds)
def test_reduce_topk_layout(rows, cols, parts, k, seed):
    """Reductions over any number of cores, the k largest elements, and moved values equal torch's."""
    x = draw(seed, rows, cols)
    for op, wanted in (("sum", x.sum(-1)), ("mean", x.mean(-1)), ("max", x.max(-1)), ("min", x.min(-1))):
        close(family("reduce").compute(x, op=op, parts=parts), wanted)
    k = min(k, cols)
    values, indices = family("topk").compute(x, k)
    wanted = torch.topk(t(x), k)
    close(values, wanted.values)
    assert np.array_equal(indices, wanted.indices.numpy())
    close(family("layout").compute(x, op="transpose"), x.T)
    close(family("layout").compute(x, x, op="cat", axes=1), np.concatenate([x, x], 1))


@pytest.mark.slow
@EXAMPLES
@given(steps=st.integers(1, 6), batch=st.integers(1, 4), width=st.integers(1, 9), seed=seeds)
def test_scan(steps, batch, width, seed):
    """An LSTM layer, a selective scan and a cumulative sum equal torch's."""
    torch.manual_seed(seed)
    layer = torch.nn.LSTM(width, width)
    x = draw(seed, steps, batch, width)
    wanted, _ = layer(t(x))
    w_in, w_h = (p.detach().numpy() for p in (layer.weight_ih_l0, layer.weight_hh_l0))
    bias = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().numpy()
    zero = np.zeros((batch, width), np.float32)
    close(family("scan").compute(x @ w_in.T + bias, w_h.T, zero, zero), wanted)
    a, b, c = np.abs(draw(seed, steps, width)) % 1, draw(seed + 1, steps, width), draw(seed + 2, steps, width)
    state, out = np.zeros(width), []
    for i in range(steps):
        state = a[i] * state + b[i]
        out.append(c[i] * state)
    close(family("scan").compute(a, b, c, kind="selective"), np.array(out))
    close(family("scan").compute(x, kind="cumsum"), x.cumsum(0))


@EXAMPLES
@given(n=st.integers(1, 30), seed=seeds, algorithm=st.sampled_from(["sgd", "momentum", "adamw"]))
def test_optimizer(n, seed, algorithm):
    """Three updates equal torch's."""
    w = draw(seed, n)
    p = torch.nn.Parameter(t(w))
    made = {
        "sgd": lambda: torch.optim.SGD([p], lr=0.1),
        "momentum": lambda: torch.optim.SGD([p], lr=0.1, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW([p], lr=0.1, weight_decay=0.01),
    }[algorithm]()
    state = ()
    for step in (1, 2, 3):
        g = draw(seed + step, n)
        p.grad = t(g)
        made.step()
        w, state = family("optimizer").compute(
            w,
            g,
            state,
            algorithm=algorithm,
            lr=0.1,
            step=step,
            weight_decay=0.01 if algorithm == "adamw" else 0.0,
        )
    close(w, p, 1e-4)


def test_cbfloat16_has_nine_bits_of_mantissa():
    """1 + 2^-9 is kept, 1 + 2^-10 ties to even (1), 2^-31 vanishes and 2^32 overflows."""
    from wse_sim.kernels.contract.numerics import rounded

    x = np.array([1 + 2**-9, 1 + 2**-10, 1 + 3 * 2**-10, 2.0**-31, 2.0**32, -(2.0**31)], np.float32)
    assert rounded(x, "cbfloat16").tolist() == [1 + 2**-9, 1.0, 1 + 2**-8, 0.0, np.inf, -(2.0**31)]


def test_bfloat16_is_torchs():
    """Every rounding of 1000 numbers equals torch's."""
    from wse_sim.kernels.contract.numerics import rounded

    x = draw(0, 1000) * 10.0 ** np.random.default_rng(0).integers(-8, 8, 1000).astype(np.float32)
    assert np.array_equal(rounded(x, "bf16"), t(x).to(torch.bfloat16).float().numpy())
    assert np.array_equal(rounded(x, "fp16"), t(x).to(torch.float16).float().numpy())


def test_faults_are_one_sentence():
    """The error for an unknown precision, function or operator lists the valid ones."""
    for call in (
        lambda: family("gemm").compute(np.ones((2, 2)), np.ones((2, 2)), dtype="fp8"),
        lambda: family("activation").compute(np.ones(2), function="wobble"),
        lambda: family("elementwise").compute(np.ones(2), ops="add"),
        lambda: family("scan").compute(kind="wobble"),
    ):
        with pytest.raises(KernelError, match=r"use|lacks"):
            call()
