"""Compares whole models on the fabric with the event engine; prints JSON on standard output.

14 plans of inference and 14 of training as pipelines, 14 and 12 of weight streaming, 20 and 9 of convolutions, 48 of transformers and layers of several tokens,
11 of networks that train.

    python -m benchmarks.whole_fabric [--part transformers] [--keep]

Sizes of layers, wafers, placers, batches and links differ.  Inference: steady cycles per sample of both, busy, stalled
and idle, order of starts, link loads; the largest error of an output against PyTorch in fp16, over the largest output.
Training: cycles of a batch of 64 samples, and busy cycles.  States: the time of the busiest cores.  Weight streaming: cycles of a step and of its passes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks import measurements
from benchmarks.measurements import Row
from benchmarks.whole_images import CONVOLVED, Image, lenet, moved, small_resnet, strided
from benchmarks.whole_values import measure_values
from benchmarks.whole_values import moved as with_moved_parameters
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.hardware import load_wafer
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole import (
    compare_streaming,
    compare_training,
    compare_with_engine,
    inputs_over_rows,
    run_streamed,
    run_whole,
    train_streamed,
    train_whole,
)

Arrays = dict[str, NDArray[np.float32]]

PLANS: tuple[tuple[tuple[int, ...], int, Row, Row], ...] = (
    ((196, 64, 64, 10), 48, {}, {}),
    ((196, 64, 64, 10), 48, {}, {"placer": "snake"}),
    ((196, 64, 64, 10), 96, {}, {}),
    ((128, 128, 128, 32), 32, {}, {}),
    ((256, 96, 96, 96, 16), 40, {}, {}),
    ((64, 64), 24, {}, {}),
    ((400, 120, 84, 10), 24, {}, {}),
    ((400, 120, 84, 10), 16, {}, {}),
    ((128, 128, 128, 32), 20, {}, {}),
    ((400, 120, 84, 10), 24, {}, {"placer": "peel"}),
    ((128, 128, 128, 32), 32, {"hop_cycles": 2, "turn_cycles": 20, "wavelet_cycles": 1.125}, {}),
    ((196, 64, 64, 10), 48, {}, {"batch": 8}),
    ((256, 96, 96, 96, 16), 40, {"wavelet_cycles": 2.0}, {}),
    ((128, 128, 128, 32), 40, {}, {"placer": "snake"}),
)
TRAINED: tuple[tuple[tuple[int, ...], int, Row, Row], ...] = (
    ((64, 32, 32, 10), 24, {}, {}),
    ((196, 64, 64, 10), 48, {}, {}),
    ((196, 64, 64, 10), 96, {}, {}),
    ((128, 128, 128, 32), 32, {}, {}),
    ((128, 128, 128, 32), 20, {}, {}),
    ((400, 120, 84, 10), 24, {}, {}),
    ((400, 120, 84, 10), 16, {}, {}),
    ((256, 96, 96, 96, 16), 40, {}, {}),
    ((60, 40, 30, 20, 10), 32, {}, {}),
    ((128, 128, 128, 32), 32, {"hop_cycles": 2, "turn_cycles": 20, "wavelet_cycles": 1.125}, {}),
    ((128, 128, 128, 32), 32, {}, {"placer": "snake"}),
    ((196, 64, 64, 10), 48, {}, {"batch": 16}),
    ((400, 120, 84, 10), 24, {}, {"placer": "peel"}),
    ((100, 50, 20), 16, {}, {}),
)
STREAMED: tuple[tuple[tuple[int, ...], int, int, int, Row], ...] = (
    # layers, rows, columns, rows of samples, choices and constants; `links` is a fraction of what the edges carry
    ((64, 64, 32, 10), 16, 16, 64, {}),
    ((64, 64, 32, 10), 16, 16, 128, {"lanes": 2}),
    ((192, 64, 64, 10), 24, 24, 192, {}),
    ((192, 64, 64, 10), 24, 24, 192, {"lanes": 3}),
    ((128, 128, 128, 32), 32, 32, 256, {}),
    ((256, 96, 96, 96, 16), 20, 20, 160, {}),
    ((192, 96, 48, 24), 24, 24, 192, {"links": 0.3}),
    ((196, 64, 64, 10), 24, 24, 192, {"links": 0.3}),
    ((400, 120, 84, 10), 16, 40, 128, {}),
    ((196, 64, 64, 10), 24, 96, 192, {"lanes": 1}),
    ((128, 64, 64, 32), 16, 48, 256, {"lanes": 4}),
    ((192, 64, 64, 10), 24, 24, 96, {}),
    ((96, 160, 24, 72, 12), 20, 24, 160, {}),
    ((128, 128, 64, 16), 24, 24, 192, {"base": "wse3"}),
)
STREAMED_TRAINED = STREAMED[:4] + STREAMED[5:7] + STREAMED[8:]


CONVOLVED_TRAINED: tuple[tuple[tuple[int, ...], int, int, Row, Row], ...] = (
    # channels of the image and of two layers of stride 2 with 3 x 3 taps, columns of the image, columns of the wafer, constants and
    # choices; batches of 16, all forward first
    ((4, 16, 32), 16, 16, {}, {}),
    ((4, 16, 32), 16, 24, {}, {}),
    ((1, 8, 16), 16, 20, {}, {}),
    ((1, 8, 16), 16, 40, {}, {}),
    ((4, 16, 32), 16, 16, {}, {"placer": "snake"}),
    ((4, 16, 32), 16, 32, {"wavelet_cycles": 2.0}, {}),
    ((4, 16, 32), 16, 16, {}, {"batch": 64, "schedule": "1f1b"}),
)

LENET_SIDES = (16, 24)
"""Columns of the wafers on which LeNet-5 trains."""


class Attention(nn.Module):
    """Attention of `heads` heads on its own layers."""

    def __init__(self, features: int, heads: int, *, is_causal: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(features, features) for _ in range(4))
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (layer(x).view(*split).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.o(out.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A block of a transformer: norms first, 4 times as wide between its last two layers."""

    def __init__(self, features: int, activation: nn.Module, heads: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)
        self.attention, self.activation = Attention(features, heads), activation
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = x + self.attention(self.first(x))
        return x + self.down(self.activation(self.up(self.second(x))))


class GatedBlock(nn.Module):
    """A LLaMA block without the rotation of queries and keys: RMS norms, a gate with SiLU."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = (nn.RMSNorm(features, eps=1e-5) for _ in range(2))
        self.attention = Attention(features, 2, is_causal=True)
        self.gate, self.up = (nn.Linear(features, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def pytorch_block(*, norm_first: bool) -> nn.TransformerEncoderLayer:
    """A block of 32 features as PyTorch has it, twice as wide between its last two layers."""
    return nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=norm_first)


BLOCK = partial(Block, 32, nn.ReLU())
TRANSFORMERS: tuple[tuple[str, Callable[[], nn.Module], tuple[int, int], int, Row, Row], ...] = (
    # model, tokens and features, columns of the wafer, constants and choices
    ("attention and its four layers", lambda: Attention(32, 2), (8, 32), 64, {}, {}),
    ("the same, causal", lambda: Attention(32, 2, is_causal=True), (16, 32), 64, {}, {}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (8, 32), 96, {}, {}),
    ("a block, GELU", lambda: Block(32, nn.GELU()), (8, 32), 96, {}, {}),
    (
        "two blocks, ReLU",
        lambda: nn.Sequential(*(Block(32, nn.ReLU()) for _ in range(2))),
        (8, 32),
        96,
        {},
        {},
    ),
    (
        "two blocks, GELU",
        lambda: nn.Sequential(*(Block(32, nn.GELU()) for _ in range(2))),
        (8, 32),
        96,
        {},
        {},
    ),
    ("a block, ReLU", lambda: Block(64, nn.ReLU()), (8, 64), 96, {}, {}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (16, 32), 96, {}, {}),
    ("a gated block, SiLU", lambda: GatedBlock(32, 88), (8, 32), 96, {}, {}),
    ("`nn.TransformerEncoderLayer`", lambda: pytorch_block(norm_first=False), (8, 32), 64, {}, {}),
    ("the same, norms first", lambda: pytorch_block(norm_first=True), (8, 32), 64, {}, {}),
    (
        "`nn.TransformerEncoder` of two",
        lambda: nn.TransformerEncoder(pytorch_block(norm_first=False), 2, enable_nested_tensor=False),
        (8, 32),
        96,
        {},
        {},
    ),
    ("three dense layers 64-64-64-32", lambda: network((64, 64, 64, 32)), (8, 64), 32, {}, {}),
    (
        "norm, layer, norm, layer",
        lambda: nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)),
        (16, 64),
        48,
        {},
        {},
    ),
    ("a block, ReLU", BLOCK, (8, 32), 96, {}, {"placer": "snake"}),
    ("a block, ReLU", BLOCK, (8, 32), 96, {}, {"placer": "peel"}),
    ("a block, ReLU", BLOCK, (8, 32), 96, {"wavelet_cycles": 2.0}, {}),
    ("a block, ReLU", BLOCK, (8, 32), 96, {"hop_cycles": 2, "turn_cycles": 20, "wavelet_cycles": 1.125}, {}),
    ("a block, ReLU", BLOCK, (8, 32), 48, {}, {}),
    ("a block, GELU", lambda: Block(32, nn.GELU()), (8, 32), 48, {}, {}),
    ("a gated block, SiLU", lambda: GatedBlock(32, 88), (8, 32), 96, {"wavelet_cycles": 2.0}, {}),
    (
        "`nn.TransformerEncoderLayer`",
        lambda: pytorch_block(norm_first=False),
        (8, 32),
        64,
        {},
        {"placer": "snake"},
    ),
    ("three dense layers 64-64-64-32", lambda: network((64, 64, 64, 32)), (8, 64), 20, {}, {}),
    (
        "three dense layers 64-64-64-32",
        lambda: network((64, 64, 64, 32)),
        (8, 64),
        32,
        {},
        {"placer": "snake"},
    ),
    (
        "three dense layers 64-64-64-32",
        lambda: network((64, 64, 64, 32)),
        (8, 64),
        32,
        {"wavelet_cycles": 2.0},
        {},
    ),
    ("two layers 32-128-32", lambda: network((32, 128, 32)), (16, 32), 40, {}, {}),
    ("attention and its four layers", lambda: Attention(128, 2), (16, 128), 120, {}, {}),
    ("a block, ReLU", lambda: Block(48, nn.ReLU()), (12, 48), 96, {}, {}),
    ("a block, GELU", lambda: Block(48, nn.GELU()), (12, 48), 96, {}, {}),
    ("a block of four heads, ReLU", lambda: Block(64, nn.ReLU(), 4), (16, 64), 96, {}, {}),
    ("a block of four heads, GELU", lambda: Block(64, nn.GELU(), 4), (16, 64), 120, {}, {}),
    ("a block, ReLU", BLOCK, (32, 32), 96, {}, {}),
    ("a block, ReLU", BLOCK, (8, 32), 40, {}, {"cols": 120}),
    ("a block, ReLU", BLOCK, (8, 32), 120, {}, {"cols": 40}),
    ("a block, ReLU", BLOCK, (8, 32), 96, {}, {"base": "wse3"}),
    ("three blocks, ReLU", lambda: nn.Sequential(*(BLOCK() for _ in range(3))), (8, 32), 120, {}, {}),
    ("a gated block, SiLU", lambda: GatedBlock(64, 176), (16, 64), 120, {}, {}),
    ("a gated block, SiLU", lambda: GatedBlock(32, 88), (8, 32), 40, {}, {"cols": 120}),
    ("a gated block, SiLU", lambda: GatedBlock(32, 88), (8, 32), 96, {}, {"placer": "snake"}),
    ("a gated block, SiLU", lambda: GatedBlock(32, 88), (8, 32), 96, {}, {"placer": "peel"}),
    ("a gated block, SiLU", lambda: GatedBlock(32, 88), (8, 32), 96, {}, {"base": "wse3"}),
    ("a gated block, SiLU", lambda: GatedBlock(48, 128), (12, 48), 96, {"wavelet_cycles": 2.0}, {}),
    ("a block, GELU", lambda: Block(32, nn.GELU()), (8, 32), 96, {"wavelet_cycles": 2.0}, {}),
    (
        "`nn.TransformerEncoderLayer` of four heads, norms first, GELU",
        lambda: nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        ),
        (16, 64),
        96,
        {},
        {},
    ),
    ("norm, layer, norm, layer", lambda: normed(32), (64, 32), 48, {}, {}),
    ("two layers 128-256-128", lambda: network((128, 256, 128)), (8, 128), 64, {}, {}),
    ("two layers 48-96-48", lambda: network((48, 96, 48)), (12, 48), 48, {}, {}),
    ("three dense layers 96-96-96-96", lambda: network((96, 96, 96, 96)), (4, 96), 48, {}, {}),
)
NETWORKS: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...], int, Row, Row], ...] = (
    # model, a sample, columns of the wafer, constants and choices; batches of 64
    ("two layers 32-64-32", lambda: network((32, 64, 32)), (8, 32), 32, {}, {}),
    ("two layers 32-64-32", lambda: network((32, 64, 32)), (8, 32), 16, {}, {}),
    ("norm, layer, norm, layer", lambda: normed(32), (8, 32), 32, {}, {}),
    ("attention and its four layers", lambda: Attention(32, 2), (8, 32), 64, {}, {}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (8, 32), 96, {}, {}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (8, 32), 96, {}, {"batch": 16}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (8, 32), 96, {}, {"placer": "snake"}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (8, 32), 64, {}, {}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (8, 32), 96, {"wavelet_cycles": 2.0}, {}),
    ("`nn.TransformerEncoderLayer`", lambda: pytorch_block(norm_first=False), (8, 32), 96, {}, {}),
    (
        "two blocks, ReLU",
        lambda: nn.Sequential(*(Block(32, nn.ReLU()) for _ in range(2))),
        (8, 32),
        96,
        {},
        {},
    ),
)


STREAMING = {"mode": "weight-streaming"}
VALUES: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...], int, int, Row], ...] = (
    # model, a sample, columns of the wafer, samples of a batch, choices; two steps of training
    ("196-64-64-10", lambda: network((196, 64, 64, 10)), (196,), 48, 64, {}),
    ("192-64-64-10, weights streamed", lambda: network((192, 64, 64, 10)), (192,), 24, 192, STREAMING),
    ("two convolutions, 4-16-32-32-10", lambda: strided((4, 16, 32), 16), (4, 16, 16), 24, 8, {}),
    ("LeNet-5, maxima", lambda: lenet(nn.MaxPool2d), (1, 28, 28), 24, 8, {}),
    ("a block, ReLU", lambda: Block(32, nn.ReLU()), (8, 32), 64, 8, {}),
    ("a gated block, SiLU", lambda: GatedBlock(32, 64), (8, 32), 96, 8, {}),
    ("`nn.TransformerEncoderLayer`", lambda: pytorch_block(norm_first=False), (8, 32), 96, 8, {}),
    ("two blocks, ReLU", lambda: blocks(nn.ReLU(), nn.ReLU()), (8, 32), 96, 8, {}),
    ("two blocks, ReLU and GELU", lambda: blocks(nn.ReLU(), nn.GELU()), (8, 32), 96, 8, {}),
    ("two blocks, GELU", lambda: blocks(nn.GELU(), nn.GELU()), (8, 32), 96, 8, {}),
)


def blocks(*activations: nn.Module) -> nn.Sequential:
    """Return the blocks of 32 features and a layer of 8 classes."""
    return nn.Sequential(*(Block(32, activation) for activation in activations), nn.Linear(32, 8))


def normed(features: int) -> nn.Sequential:
    """Norms before two layers."""
    return nn.Sequential(
        nn.LayerNorm(features),
        nn.Linear(features, features),
        nn.LayerNorm(features),
        nn.Linear(features, features),
    )


def network(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def planned(
    model: nn.Module,
    shape: tuple[int, ...],
    side: int,
    constants: Row | None = None,
    choices: Row | None = None,
    *,
    training: bool = False,
) -> PipelinedPlan:
    """Return the plan of the programs of a model on a corner of a wafer of `side` rows and as many columns, unless the `choices`
    have other ones, or another base.
    """
    wanted: Row = {"batch": 64, "cols": side, "base": "wse2", **(choices or {})}
    cols, base = wanted.pop("cols"), wanted.pop("base")
    size = {"rows": side, "cols": cols, "program_rows": side, "program_cols": cols}
    wafer = load_wafer(base).derive(**size, io_channels_per_edge=side // 4, **(constants or {}))
    how: Row = {"training": True, "optimizer": "sgd"} if training else {}
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),), **how))
    return expect(api.compile(graph, wafer=wafer, mode="pipelined", replicas=1, **wanted), PipelinedPlan)


def weights_of(model: nn.Module) -> Arrays:
    """Return parameters and buffers by name."""
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def measure(sizes: tuple[int, ...], side: int, constants: Row, choices: Row) -> Row:
    """Measure one plan."""
    model = network(sizes)
    plan = planned(model, sizes[:1], side, constants, choices)
    began = time.process_time()
    named = {"sizes": sizes, "side": side, **constants, **choices}
    try:
        found = compare_with_engine(plan)
    except ModelError as refusal:
        return {**named, "refused": str(refusal)}
    torch.manual_seed(1)
    x = torch.randn(8, sizes[0]).half()
    outputs = run_whole(plan, weights_of(model), x.float().numpy()).outputs
    with torch.no_grad():
        wanted = model.half()(x).float().numpy()
    return {
        **named,
        **found.as_json(),
        "difference": found.difference,
        "output_error": float(np.abs(outputs - wanted).max() / np.abs(wanted).max()),
        "cpu_s": time.process_time() - began,
    }


def measure_training(sizes: tuple[int, ...], side: int, constants: Row, choices: Row) -> Row:
    """One plan that trains."""
    found = compare_training(planned(network(sizes), sizes[:1], side, constants, choices, training=True))
    return {
        "sizes": sizes,
        "side": side,
        **constants,
        **choices,
        **found.as_json(),
        "difference": found.difference,
    }


def measure_streaming(
    sizes: tuple[int, ...], rows: int, cols: int, batch: int, choices: Row, *, training: bool
) -> Row:
    """One plan of weight streaming: four streams carry four bytes a cycle each."""
    outer = 2 if training else 1
    size = {"rows": rows + 2 * outer, "cols": cols, "program_rows": rows, "program_cols": cols}
    wafer = load_wafer(choices.get("base", "wse2")).derive(**size, io_channels_per_edge=2)
    links = choices.get("links", 1.0)
    wafer = wafer.derive(io_bytes_per_s=links * 4 * 4 * wafer.clock_hz)
    model = network(sizes).half().float()
    how: Row = {"training": True, "optimizer": "sgd"} if training else {}
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, sizes[0]),), **how), streamed=True)
    lanes = {name: choices[name] for name in ("lanes",) if name in choices}
    plan = expect(
        api.compile(graph, mode="weight-streaming", wafer=wafer, batch=batch, **lanes), WeightStreamingPlan
    )
    began = time.process_time()
    found = compare_streaming(plan)
    torch.manual_seed(1)
    x = torch.randn(batch, sizes[0]).half()
    weights = weights_of(model)
    if training:
        labels = np.arange(batch) % sizes[-1]
        # Outputs rounded as on the cores: a sum near zero has the same slope in both.
        for layer in model[::2]:
            layer.register_forward_hook(lambda _, __, out: out + (out.half().float() - out).detach())
        given = train_streamed(plan, weights, x.float().numpy(), labels, rate=0.1).gradients
        wanted = nn.functional.one_hot(torch.tensor(labels), sizes[-1])
        (((model(x.float()) - wanted) ** 2).sum() / 2 / batch).backward()
        exact = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    else:
        given = {"": run_streamed(plan, weights, x.float().numpy()).outputs}
        with torch.no_grad():
            exact = {"": model.half()(x).float().numpy()}
    errors = [np.abs(given[name] - value).max() / np.abs(value).max() for name, value in exact.items()]
    return {
        "sizes": sizes,
        "rows": rows,
        "cols": cols,
        "batch": batch,
        **choices,
        **found.as_json(),
        "difference": found.difference,
        "largest_error": float(max(errors)),
        "cpu_s": time.process_time() - began,
    }


def measure_convolution(name: str, make: Callable[[], nn.Module], shape: Image, side: int) -> Row:
    """One network on images; 16 to 32 samples."""
    torch.manual_seed(0)
    model = moved(make())
    plan = planned(model, shape, side)
    found = compare_with_engine(plan)
    images = torch.randn(4, *shape).half().float()
    outputs = run_whole(plan, weights_of(model), images.numpy()).outputs
    with torch.no_grad():
        wanted = model(images).numpy()
    return {
        "model": name,
        "image": shape,
        "side": side,
        **found.as_json(),
        "difference": found.difference,
        "output_error": float(np.abs(outputs - wanted).max() / np.abs(wanted).max()),
    }


def measure_transformer(
    name: str, make: Callable[[], nn.Module], shape: tuple[int, int], side: int, constants: Row, choices: Row
) -> Row:
    """One model of regions of several kinds, in a steady stream of 12 to 24 samples."""
    torch.manual_seed(0)
    model = with_moved_parameters(make().eval())  # norms too are away from their defaults
    plan = planned(model, shape, side, constants, choices)
    found = compare_with_engine(plan, 12)
    x = torch.randn(3, *shape).half().float()
    outputs = run_whole(plan, weights_of(model), x.numpy()).outputs
    with torch.no_grad():
        wanted = model(x).numpy().reshape(outputs.shape)
    return {
        "model": name,
        "tokens": shape[0],
        "features": shape[1],
        "side": side,
        **constants,
        **choices,
        **found.as_json(),
        "difference": found.difference,
        "output_error": float(np.abs(outputs - wanted).max() / np.abs(wanted).max()),
    }


def states() -> list[Row]:
    """Compare the activity of regions, the busiest link and the order of starts in both simulators, for a few plans of
    every kind.

    Fractions of a step that the busiest core of a region issues, is stalled on input, stalled on output and idle.
    """
    rows: list[Row] = []
    inference = [measure(*PLANS[i]) for i in (0, 6)] + [measure_transformer(*TRANSFORMERS[0])]
    training = [measure_training(*TRAINED[i]) for i in (1, 3)]
    for phase, found in [
        *(("inference", row) for row in inference),
        *(("training", row) for row in training),
    ]:
        spans = [found[key] for key in ("engine_period_cycles", "fabric_period_cycles")] if phase == "inference" else [
            found["engine_step"], found["fabric_step"]
        ]  # fmt: skip
        links = found["busiest_link_words_per_sample"]
        kept = {
            "phase": phase,
            "links": [links["plan"], links["fabric"], links["moving"]],
            "same_order": found["same_order_of_starts"],
        }
        rows += [
            {
                **kept,
                **{key: found[key] for key in ("sizes", "model", "side") if key in found},
                "region": region["name"],
                "plan": [cycles / spans[0] for cycles in (region["engine"], *region["engine_waits"])],
                "fabric": [cycles / spans[1] for cycles in (region["busiest"], *region["waits"])],
            }
            for region in found["regions"]
        ]
    for training_step in (False, True):
        found = measure_streaming(*STREAMED[2], training=training_step)
        rows.append(
            {
                "phase": "streamed training" if training_step else "streamed inference",
                "links": found["link_words"],
                "same_order": True,
                "sizes": found["sizes"],
                "side": found["rows"],
                "region": "mean core",
                "plan": [cycles / found["engine_step"] for cycles in found["engine_times"]],
                "fabric": [cycles / found["fabric_step"] for cycles in found["times"]],
            }
        )
    return rows


def measure_network(
    name: str,
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    side: int,
    constants: Row,
    choices: Row,
) -> Row:
    """One batch of training of regions of several kinds: its time, and the largest errors of a batch of 4 samples."""
    torch.manual_seed(0)
    model = with_moved_parameters(make())
    plan = planned(model, shape, side, constants, choices, training=True)
    found = compare_training(plan)
    x = torch.randn(4, *shape).half().float()
    outputs, loss, gradients = _taught(model, x)
    weights = weights_of(model)
    labels = np.arange(len(outputs)) % outputs.shape[-1]
    step = train_whole(plan, weights, x.numpy(), labels, rate=0.1)
    return {
        "model": name,
        "shape": shape,
        "side": side,
        **constants,
        **choices,
        **found.as_json(),
        "difference": found.difference,
        "output_error": float(np.abs(step.outputs - outputs).max() / np.abs(outputs).max()),
        "gradient_error": _largest_error(step.gradients, gradients),
        "loss_error": abs(step.loss / loss - 1),
    }


def _taught(model: nn.Module, x: torch.Tensor) -> tuple[NDArray[np.float32], float, Arrays]:
    """Outputs (rows, N), mean loss of labels 0, 1, 2 ..., and its gradients by parameter, in PyTorch."""
    model.zero_grad()
    outputs = model(x)
    outputs = outputs.reshape(-1, outputs.shape[-1])
    loss = nn.functional.cross_entropy(outputs, torch.arange(len(outputs)) % outputs.shape[-1])
    loss.backward()
    gradients = {key: parameter.grad.numpy().copy() for key, parameter in model.named_parameters()}
    return outputs.detach().numpy(), loss.item(), gradients


def _largest_error(found: Mapping[str, NDArray[np.float32]], wanted: Arrays) -> float:
    """Return the largest error of any parameter, relative to its largest gradient, or to the median of those where it
    has small ones.
    """
    scale = float(np.median([np.abs(value).max() for value in wanted.values()]))
    return float(
        max(
            np.abs(found[key] - value).max() / max(np.abs(value).max(), scale)
            for key, value in wanted.items()
        )
    )


def measure_strided(channels: tuple[int, ...], width: int, side: int, constants: Row, choices: Row) -> Row:
    """One batch of training of two convolutions and two dense layers."""
    name = "-".join(map(str, (*channels, 32, 10)))
    shape = (channels[0], width, width)
    return measure_network(
        name,
        lambda: strided(channels, width),
        shape,
        side,
        constants,
        {"batch": 16, "schedule": "gpipe"} | choices,
    )


def measure_lenet(side: int) -> Row:
    """One batch of training of LeNet-5 with maxima, all forward first."""
    choices: Row = {"batch": 16, "schedule": "gpipe"}
    name = "LeNet-5, maxima"
    return measure_network(name, lambda: lenet(nn.MaxPool2d), (1, 28, 28), side, {}, choices)


def measure_resnet(side: int) -> Row:
    """One batch of training of two residual blocks of convolutions, all forward first."""
    choices: Row = {"batch": 16, "schedule": "gpipe"}
    return measure_network("two residual blocks, 2-8-8-16-10", small_resnet, (2, 16, 16), side, {}, choices)


PARTS: dict[str, Callable[[], list[Row]]] = {
    "inference": lambda: [measure(*plan) for plan in PLANS],
    "training": lambda: [measure_training(*plan) for plan in TRAINED],
    "streamed": lambda: [measure_streaming(*plan, training=False) for plan in STREAMED],
    "convolutions": lambda: [measure_convolution(*plan) for plan in CONVOLVED],
    "transformers": lambda: [measure_transformer(*plan) for plan in TRANSFORMERS],
    "networks": lambda: [measure_network(*plan) for plan in NETWORKS],
    "trained_convolutions": lambda: [
        *(measure_strided(*plan) for plan in CONVOLVED_TRAINED),
        *(measure_lenet(side) for side in LENET_SIDES),
        measure_resnet(40),
    ],
    "streamed_training": lambda: [measure_streaming(*plan, training=True) for plan in STREAMED_TRAINED],
    "values": lambda: [measure_values(*plan) for plan in VALUES],
    "states": states,
}


def main() -> None:
    """Run all plans, or those of a part, print JSON, keep the rows if asked."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.whole_fabric", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--keep", action="store_true", help="put the rows into docs/measured.json")
    parser.add_argument("--part", choices=list(PARTS), help="run this part alone; default: all")
    options = parser.parse_args()
    chosen = [options.part] if options.part else list(PARTS)
    found = {part: PARTS[part]() for part in chosen}
    print(json.dumps(found, indent=1))
    if options.keep:
        measurements.keep(
            "whole_fabric",
            {part: [_short(row) for row in rows] for part, rows in found.items()},
            "cycles; no clock",
        )


def _short(row: Row) -> Row:
    """Return a row without what no table shows."""
    if "regions" not in row:
        return {key: value for key, value in row.items() if key != "cpu_s"}
    regions = [{"busiest": each["busiest"], "engine": each["engine"]} for each in row["regions"]]
    return {key: value for key, value in row.items() if key not in ("streams", "cpu_s")} | {
        "regions": regions
    }


if __name__ == "__main__":
    main()
