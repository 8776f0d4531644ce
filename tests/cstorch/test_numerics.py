"""Mixed numerics: half types against numpy and torch's own, autocast's rules, overflow; checks; Inductor's replay."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest
import torch
from torch.nn import functional

from wse_sim import cstorch
from wse_sim.cstorch import faults, numerics, runtime, step
from wse_sim.cstorch.execution import begin_execution


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch):
    monkeypatch.setattr(step, "prepare", lambda run, program, seconds: None)


def nearest_cbfloat16(values: np.ndarray) -> np.ndarray:
    """Round by the definition: 9 mantissa bits, ties to even, exponents -30 to 31, smaller numbers zero, larger ones
    infinite.
    """
    fraction, exponent = np.frexp(values)  # values = fraction * 2**exponent, 0.5 <= |fraction| < 1
    rounded = np.ldexp(np.round(fraction * 2**10), exponent - 10)  # numpy rounds ties to even
    rounded = np.where(np.abs(rounded) > (2 - 2**-9) * 2.0**31, np.copysign(np.inf, values), rounded)
    return np.where(np.abs(rounded) < 2.0**-30, 0.0, rounded)


def test_cbfloat16_is_the_nearest_number_of_its_definition() -> None:
    """Random bit patterns (all exponents, infinities, NaN), ties, and both ends of the range."""
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, 20_000).astype(np.int32)
    ends = [
        2.0**-30,
        2.0**-30 * (1 - 2.0**-11),
        2.0**32 * (1 - 2.0**-11),
        2.0**32,
        1 + 2.0**-10,
        1 + 3 * 2.0**-10,
        0.0,
    ]
    values = np.concatenate([bits.view(np.float32), np.array(ends, np.float32)])
    found = numerics.rounded_cbfloat16(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(found, nearest_cbfloat16(values.astype(np.float64)))


def trained(half: str | None, steps: int = 6, level: int = 1, scale: float | None = None) -> list[float]:
    """Return the losses of a small network with embedding, attention and norms; `half` None: fp32."""
    runtime.reset()
    runtime.options().numerics = "fp32" if half is None else "mixed"
    cstorch.backend("CSX")
    if half is not None:
        cstorch.amp.set_half_dtype(half)
    cstorch.backends.csx.precision.optimization_level = level
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    head, tokens = torch.nn.Linear(16, 9), torch.nn.Embedding(9, 16)
    whole = cstorch.compile(torch.nn.Sequential(tokens, model, head))
    optimizer = cstorch.optim.AdamW(whole.parameters(), lr=1e-2)
    scaler = cstorch.amp.GradScaler("dynamic", init_scale=scale) if scale else None

    @cstorch.trace
    def one(ids):
        loss = functional.cross_entropy(whole(ids).flatten(0, 1), (ids.flatten() + 1) % 9)
        cstorch.amp.optimizer_step(loss, optimizer, scaler)
        return loss, scaler.get_scale() if scaler else loss

    losses: list[float] = []
    scales: list[float] = []
    keep = cstorch.step_closure(lambda out: (losses.append(out[0].item()), scales.append(out[1].item())))
    execution = begin_execution(None, num_steps=steps)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        keep(one(execution.feed(torch.randint(0, 9, (4, 6), generator=draw))))
        execution.end_step()
    execution.finish()
    return scales if scale else losses


@pytest.mark.slow
def test_mixed_numerics_are_close_to_fp32_by_the_bits_of_the_type() -> None:
    """Ten bits of mantissa are nearer to fp32 than nine, and nine nearer than seven; none equals fp32."""
    exact = np.array(trained(None, steps=1))
    far = {half: abs(trained(half, steps=1)[0] - exact[0]) for half in numerics.ROUNDED}
    assert 0 < far["float16"] < 2e-3
    assert 0 < far["cbfloat16"] < 4e-3
    assert 0 < far["bfloat16"] < 2e-2
    later = np.array(trained("float16"))
    np.testing.assert_allclose(later, trained(None), rtol=2e-2)
    assert (np.diff(later) < 0).mean() > 0.5  # it trains


@pytest.mark.slow
def test_a_level_of_two_also_rounds_softmax() -> None:
    assert trained("bfloat16", steps=1, level=1) != trained("bfloat16", steps=1, level=2)
    assert trained("bfloat16", steps=1, level=0) == trained("bfloat16", steps=1, level=1)


@pytest.mark.slow
def test_overflow_of_float16_is_real_and_halves_the_dynamic_scale() -> None:
    scales = trained("float16", steps=8, scale=2.0**30)
    assert scales[0] == 2.0**29
    assert scales == sorted(scales, reverse=True)
    assert trained("bfloat16", steps=3, scale=2.0**30) == [2.0**30] * 3  # the range of fp32


def test_products_take_rounded_operands_and_sum_in_fp32() -> None:
    """One linear layer by hand: round(x) round(w) summed in fp32, then rounded once."""
    runtime.reset()
    runtime.options().numerics = "mixed"
    cstorch.backend("CSX")
    cstorch.amp.set_half_dtype("float16")
    torch.manual_seed(3)
    layer = torch.nn.Linear(40, 7)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    compiled = cstorch.compile(layer)
    seen = []
    one = cstorch.trace(compiled.forward)
    x = torch.randn(5, 40)
    execution = begin_execution(None, num_steps=1)
    cstorch.step_closure(seen.append)(one(execution.feed(x)))
    execution.end_step()
    execution.finish()
    r = numerics.rounded_float16
    assert torch.equal(seen[0], r(torch.addmm(r(bias), r(x), r(weight).t())))


def test_the_first_operator_with_a_result_that_is_not_finite_is_named() -> None:
    """A mask of infinities is not a fault; the logarithm of a negative number is one, with its line."""
    runtime.options().check_values = True
    cstorch.backend("CSX")
    layer = cstorch.compile(torch.nn.Linear(4, 4))
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    faults.LOG.addHandler(handler)

    @cstorch.trace
    def one(x):
        scores = layer(x).masked_fill(torch.eye(4, dtype=torch.bool), -torch.inf).softmax(-1)
        return torch.log(scores.sum() - 100.0) * 2

    execution = begin_execution(None, num_steps=2)
    for _ in range(2):
        one(execution.feed(torch.ones(4, 4)))
        execution.end_step()
    execution.finish()
    faults.LOG.removeHandler(handler)
    lines = [line for line in stream.getvalue().splitlines() if "not finite" in line]
    assert len(lines) == 1
    assert "step 1: aten::log at" in lines[0]
    assert "test_numerics.py" in lines[0]


@pytest.mark.slow
def test_inductors_replay_is_eager_to_rounding() -> None:
    losses = []
    for kind in ("fp32", "compiled"):
        runtime.reset()
        runtime.options().numerics = kind
        cstorch.backend("CSX")
        torch.manual_seed(0)
        model = cstorch.compile(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5)))
        optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01)

        @cstorch.trace
        def one(x, model=model, optimizer=optimizer):
            loss = model(x).square().mean()
            cstorch.amp.optimizer_step(loss, optimizer, max_gradient_norm=1.0)
            return loss

        found: list[float] = []
        keep = cstorch.step_closure(lambda loss, found=found: found.append(loss.item()))
        execution = begin_execution(None, num_steps=4)
        for _ in range(4):
            keep(one(execution.feed(torch.ones(4, 6))))
            execution.end_step()
        execution.finish()
        losses.append(found)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
