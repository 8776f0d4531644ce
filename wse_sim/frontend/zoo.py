"""Compact definitions of the named model families, built without weights.

Each is plain PyTorch with the usual module paths. :func:`build` takes validated parameters and returns
``(module, example_args)`` on the meta device, so that a model of any size needs no memory. With ``loss=True``
the module takes the target as its last argument and returns the loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wse_sim.errors import ModelError
from wse_sim.frontend.parameters import ModelParameters
from wse_sim.frontend.zoo_vision import Dit, ResNet, Unet, Vit

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with rotary positions on the first ``cos.shape[-1]`` features of each head."""
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    half = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), dim=-1)
    turned = turned * cos + half * sin
    return turned if width == x.shape[-1] else torch.cat((turned, rest), dim=-1)


def _dropout(p: ModelParameters) -> nn.Module:
    return nn.Dropout(p.training_dropout) if p.training_dropout else nn.Identity()


class Attention(nn.Module):
    """Self-attention with one projection to q, k and v, and optional grouped heads and rotary positions."""

    cos: Tensor
    sin: Tensor

    def __init__(self, p: ModelParameters, seq: int, causal: bool, bias: bool) -> None:
        super().__init__()
        assert p.hidden
        assert p.heads
        self.heads, self.kv_heads = p.heads, p.kv_heads or p.heads
        self.width = p.hidden // p.heads
        self.causal, self.dropout = causal, p.training_dropout
        self.qkv = nn.Linear(p.hidden, (self.heads + 2 * self.kv_heads) * self.width, bias=bias)
        self.out = nn.Linear(p.hidden, p.hidden, bias=bias)
        self.rotary = p.positions == "rotary"
        if self.rotary:
            table = torch.empty(seq, p.rotary_dim or self.width)
            self.register_buffer("cos", table, persistent=False)
            self.register_buffer("sin", torch.empty_like(table), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        heads = self.qkv(x).view(batch, seq, -1, self.width).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.rotary:
            q, k = _rotate(q, self.cos, self.sin), _rotate(k, self.cos, self.sin)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
            enable_gqa=self.kv_heads != self.heads,
        )
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))


class Mlp(nn.Module):
    """A feed-forward block; it is gated if the activation is swiglu or geglu."""

    def __init__(self, p: ModelParameters, bias: bool) -> None:
        super().__init__()
        assert p.hidden
        assert p.ffn
        self.gated = p.activation in ("swiglu", "geglu")
        if self.gated:
            self.gate = nn.Linear(p.hidden, p.ffn, bias=bias)
        self.up = nn.Linear(p.hidden, p.ffn, bias=bias)
        self.down = nn.Linear(p.ffn, p.hidden, bias=bias)
        self.function = _FUNCTIONS[p.activation]

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(self.gate(x)) * self.up(x) if self.gated else self.function(self.up(x))
        return self.down(y)


class Experts(nn.Module):
    """A mixture of experts with static shapes: router, top-k, and one grouped product per projection."""

    def __init__(self, p: ModelParameters) -> None:
        super().__init__()
        assert p.hidden
        assert p.ffn
        assert p.experts
        assert p.experts_per_token
        self.experts, self.top = p.experts, p.experts_per_token
        self.router = nn.Linear(p.hidden, p.experts, bias=False)
        self.gate = nn.Parameter(torch.empty(p.experts, p.hidden, p.ffn, dtype=torch.bfloat16))
        self.up = nn.Parameter(torch.empty(p.experts, p.hidden, p.ffn, dtype=torch.bfloat16))
        self.down = nn.Parameter(torch.empty(p.experts, p.ffn, p.hidden, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        share, chosen = torch.topk(F.softmax(self.router(tokens), dim=-1), self.top, dim=-1)
        order = torch.argsort(chosen.flatten())
        ends = torch.cumsum(F.one_hot(chosen.flatten(), self.experts).sum(0), 0).to(torch.int32)
        rows = tokens[order // self.top].to(torch.bfloat16)
        gated = F.silu(F.grouped_mm(rows, self.gate, offs=ends)) * F.grouped_mm(rows, self.up, offs=ends)
        y = F.grouped_mm(gated, self.down, offs=ends).to(x.dtype)
        y = y * share.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // self.top, y).view_as(x)


class DecoderBlock(nn.Module):
    """A decoder block with norms before attention and MLP, which are sequential or, as in GPT-J, parallel."""

    def __init__(self, p: ModelParameters, seq: int) -> None:
        super().__init__()
        gated = p.activation in ("swiglu", "geglu")
        norm: Callable[[int | None], nn.Module] = nn.RMSNorm if gated else nn.LayerNorm  # type: ignore[assignment]
        learned = p.positions == "learned"
        self.parallel = p.parallel_residual
        self.ln_1 = norm(p.hidden)
        self.attn = Attention(p, seq, causal=True, bias=learned and not gated)
        if not self.parallel:
            self.ln_2 = norm(p.hidden)
        self.mlp = Experts(p) if p.family == "moe" else Mlp(p, bias=not gated)
        self.drop = _dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel:
            y = self.ln_1(x)
            return x + self.drop(self.attn(y)) + self.drop(self.mlp(y))
        x = x + self.drop(self.attn(self.ln_1(x)))
        return x + self.drop(self.mlp(self.ln_2(x)))


class Decoder(nn.Module):
    """A language model like GPT-2, GPT-3, GPT-J or LLaMA, or a mixture of experts."""

    def __init__(self, p: ModelParameters, seq: int) -> None:
        super().__init__()
        assert p.hidden
        assert p.vocab
        gated = p.activation in ("swiglu", "geglu")
        self.wte = nn.Embedding(p.vocab, p.hidden)
        self.learned = p.positions == "learned"
        if self.learned:
            self.wpe = nn.Embedding(max(seq, p.max_positions or p.seq or 0), p.hidden)
        self.drop = _dropout(p)
        self.h = nn.ModuleList(DecoderBlock(p, seq) for _ in range(p.layers))
        self.ln_f = nn.RMSNorm(p.hidden) if gated else nn.LayerNorm(p.hidden)
        self.lm_head = nn.Linear(p.hidden, p.vocab, bias=not gated and not self.learned)
        if p.is_tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        if self.learned:
            x = x + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(x)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class EncoderBlock(nn.Module):
    """A block of BERT, with a norm after each residual."""

    def __init__(self, p: ModelParameters, seq: int) -> None:
        super().__init__()
        assert p.hidden
        self.attn = Attention(p, seq, causal=False, bias=True)
        self.ln_1 = nn.LayerNorm(p.hidden)
        self.mlp = Mlp(p, bias=True)
        self.ln_2 = nn.LayerNorm(p.hidden)
        self.drop = _dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_1(x + self.drop(self.attn(x)))
        return self.ln_2(x + self.drop(self.mlp(x)))


class Encoder(nn.Module):
    """BERT with its masked-language-model head, on all positions or on those that are passed to it."""

    def __init__(self, p: ModelParameters, seq: int) -> None:
        super().__init__()
        assert p.hidden
        assert p.vocab
        self.words = nn.Embedding(p.vocab, p.hidden)
        self.places = nn.Embedding(max(seq, p.max_positions or p.seq or 0), p.hidden)
        self.types = nn.Embedding(2, p.hidden)
        self.ln = nn.LayerNorm(p.hidden)
        self.drop = _dropout(p)
        self.layer = nn.ModuleList(EncoderBlock(p, seq) for _ in range(p.layers))
        self.head = nn.Linear(p.hidden, p.hidden)
        self.head_ln = nn.LayerNorm(p.hidden)
        self.decoder = nn.Linear(p.hidden, p.vocab)
        if p.is_tied:
            self.decoder.weight = self.words.weight

    def forward(self, tokens: Tensor, types: Tensor, masked: Tensor | None = None) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(self.ln(x + self.types(types)))
        for block in self.layer:
            x = block(x)
        if masked is not None:
            x = torch.gather(x, 1, masked.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return self.decoder(self.head_ln(F.gelu(self.head(x))))


class Perceptron(nn.Module):
    """A network of `layers` hidden layers and a classifier."""

    def __init__(self, p: ModelParameters) -> None:
        super().__init__()
        assert p.hidden
        assert p.input
        assert p.classes
        widths = [p.input] + [p.hidden] * p.layers
        self.fc = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.classifier = nn.Linear(p.hidden, p.classes)
        self.drop = _dropout(p)
        self.function = _FUNCTIONS[p.activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.fc:
            x = self.drop(self.function(layer(x)))
        return self.classifier(x)


class WithLoss(nn.Module):
    """A model whose last argument is the target and whose result is the mean loss."""

    def __init__(self, model: nn.Module, loss: str) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: Tensor) -> Tensor:
        y = self.model(*args[:-1])
        if self.loss == "squares":
            return F.mse_loss(y, args[-1])
        return F.cross_entropy(y.reshape(-1, y.shape[-1]), args[-1].reshape(-1))


def build(
    p: ModelParameters, batch: int = 1, seq: int | None = None, *, loss: bool = False
) -> tuple[nn.Module, Any]:
    """Return a model on the meta device and its example arguments: ``(module, example_args)``.

    `seq` replaces the default sequence length; with `loss`, the model is a :class:`WithLoss`.

    Raises
    ------
    ModelError
        If the family works on sequences and no length is known.
    """
    length = seq or p.seq
    if p.is_sequence and not length:
        raise ModelError(f"a model of family '{p.family}' needs a sequence length; give seq (--seq)")
    with torch.device("meta"):
        tokens = (batch, length or 1)
        args: tuple[Tensor, ...]
        module: nn.Module
        target = torch.zeros(batch, dtype=torch.long)
        if p.family in ("decoder", "moe"):
            module, args = Decoder(p, tokens[1]), (torch.zeros(tokens, dtype=torch.long),)
            target = torch.zeros(tokens, dtype=torch.long)
        elif p.family == "encoder":
            module, args = (
                Encoder(p, tokens[1]),
                tuple(torch.zeros(tokens, dtype=torch.long) for _ in range(2)),
            )
            target = torch.zeros((batch, p.mlm_positions or tokens[1]), dtype=torch.long)
            if p.mlm_positions:
                args = (*args, torch.zeros_like(target))
        elif p.family == "mlp":
            module, args = Perceptron(p), (torch.zeros(batch, p.input or 1),)
        elif p.family in ("resnet", "vit"):
            side = p.input or 1
            module = ResNet(p) if p.family == "resnet" else Vit(p, EncoderOf(p))
            args = (torch.zeros(batch, 3, side, side),)
        else:
            module, args = (Dit if p.family == "dit" else Unet)(p).with_example(batch)  # type: ignore[attr-defined]
            target = torch.zeros_like(args[0])
            if p.family == "dit":  # it also learns the variance of the noise
                target = torch.cat((target, target), 1)
        if loss:
            squares = p.family in ("dit", "unet")
            module, args = WithLoss(module, "squares" if squares else "classes"), (*args, target)
    return module, args


class EncoderOf(nn.Module):
    """The trunk of a vision transformer: blocks with norms first and without a mask."""

    def __init__(self, p: ModelParameters) -> None:
        super().__init__()
        places = (p.input // p.patch) ** 2 + 1 if p.input and p.patch else 1
        self.h = nn.ModuleList(DecoderBlock(p, places) for _ in range(p.layers))
        for block in self.h:
            block.attn.causal = False  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x
