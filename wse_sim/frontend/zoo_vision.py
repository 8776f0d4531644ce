"""Image models of the zoo: residual networks, vision and diffusion transformers, and a diffusion U-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wse_sim.errors import ModelError
from wse_sim.frontend.parameters import ModelParameters

_STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


class _Residual(nn.Module):
    """A residual block of two 3 x 3 convolutions, or of 1 x 1, 3 x 3 and 1 x 1 with four times the channels.

    The stride is that of the first 3 x 3 convolution.
    """

    def __init__(self, channels: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        out = 4 * width if deep else width
        if deep:
            shapes = [(channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        else:
            shapes = [(channels, width, 3, stride), (width, out, 3, 1)]
        self.conv = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in shapes)
        self.bn = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in shapes)
        self.short: nn.Module | None = None
        if stride != 1 or channels != out:
            self.short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        last = len(self.conv) - 1
        for i, (conv, bn) in enumerate(zip(self.conv, self.bn, strict=True)):
            y = bn(conv(y))
            if i != last:
                y = F.relu(y)
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    """A ResNet with 18, 34, 50, 101 or 152 layers."""

    def __init__(self, p: ModelParameters) -> None:
        super().__init__()
        if p.layers not in _STAGES:
            raise ModelError(
                f"a resnet cannot have {p.layers} layers; use one of {', '.join(map(str, _STAGES))}"
            )
        deep = p.layers >= 50
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        channels, stages = 64, []
        for stage, count in enumerate(_STAGES[p.layers]):
            width, blocks = 64 << stage, []
            for i in range(count):
                blocks.append(_Residual(channels, width, 2 if stage and not i else 1, deep))
                channels = 4 * width if deep else width
            stages.append(nn.Sequential(*blocks))
        self.stage = nn.ModuleList(stages)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, p.classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        for stage in self.stage:
            x = stage(x)
        return self.fc(self.mean(x).flatten(1))


class Vit(nn.Module):
    """A vision transformer: patches, a class token, blocks with norms first, and a classifier."""

    def __init__(self, p: ModelParameters, trunk: nn.Module) -> None:
        super().__init__()
        assert p.hidden
        assert p.input
        assert p.patch
        assert p.classes
        self.patches = nn.Conv2d(3, p.hidden, p.patch, p.patch)
        self.token = nn.Parameter(torch.empty(1, 1, p.hidden))
        self.places = nn.Parameter(torch.empty(1, (p.input // p.patch) ** 2 + 1, p.hidden))
        self.trunk = trunk
        self.ln = nn.LayerNorm(p.hidden)
        self.head = nn.Linear(p.hidden, p.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        return self.head(self.ln(self.trunk(x))[:, 0])


class _Heads(nn.Module):
    """Multi-head attention over `width` features, to itself or to a context."""

    def __init__(self, width: int, heads: int, context: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(context or width, width, bias=bias)
        self.v = nn.Linear(context or width, width, bias=bias)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.q(x), self.k(source), self.v(source))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _DitBlock(nn.Module):
    """A transformer block whose norms are shifted, scaled and gated by the condition."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = _Heads(width, heads)
        self.ln_2 = nn.LayerNorm(width, elementwise_affine=False)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)
        self.modulate = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulate(F.silu(condition))[:, None].chunk(
            6, -1
        )
        x = x + gate_a * self.attn(self.ln_1(x) * (1 + scale_a) + shift_a)
        y = self.ln_2(x) * (1 + scale_m) + shift_m
        return x + gate_m * self.down(F.gelu(self.up(y), approximate="tanh"))


class Dit(nn.Module):
    """A diffusion transformer on latents of 4 channels, which predicts noise and variance, 4 channels each."""

    def __init__(self, p: ModelParameters) -> None:
        super().__init__()
        assert p.hidden
        assert p.heads
        assert p.ffn
        assert p.input
        assert p.patch
        assert p.classes
        self.side, self.patch, self.width = p.input, p.patch, p.hidden
        self.patches = nn.Conv2d(4, p.hidden, p.patch, p.patch)
        self.register_buffer("places", torch.empty(1, (p.input // p.patch) ** 2, p.hidden))
        self.time = nn.Sequential(nn.Linear(256, p.hidden), nn.SiLU(), nn.Linear(p.hidden, p.hidden))
        self.label = nn.Embedding(p.classes + 1, p.hidden)
        self.blocks = nn.ModuleList(_DitBlock(p.hidden, p.heads, p.ffn) for _ in range(p.layers))
        self.ln = nn.LayerNorm(p.hidden, elementwise_affine=False)
        self.modulate = nn.Linear(p.hidden, 2 * p.hidden)
        self.out = nn.Linear(p.hidden, p.patch * p.patch * 8)

    def with_example(self, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the module and example arguments: latents, sinusoidal features of the time step, class."""
        return self, (
            torch.zeros(batch, 4, self.side, self.side),
            torch.zeros(batch, 256),
            torch.zeros(batch, dtype=torch.long),
        )

    def forward(self, latents: Tensor, waves: Tensor, label: Tensor) -> Tensor:
        x = self.patches(latents).flatten(2).transpose(1, 2) + self.places
        condition = self.time(waves) + self.label(label)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulate(F.silu(condition))[:, None].chunk(2, -1)
        x = self.out(self.ln(x) * (1 + scale) + shift)
        n = self.side // self.patch
        x = x.view(-1, n, n, self.patch, self.patch, 8)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, 8, self.side, self.side)


class _UnetResidual(nn.Module):
    """Norm, SiLU and convolution, twice, with the time step added between them and a residual connection."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.short = nn.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.short is None else self.short(x))


class _UnetAttention(nn.Module):
    """Self-attention, attention to the text and a gated feed-forward layer on all pixels."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.ln_1, self.ln_2, self.ln_3 = (nn.LayerNorm(width) for _ in range(3))
        self.own = _Heads(width, heads, bias=False)
        self.text = _Heads(width, heads, context, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        y = y + self.own(self.ln_1(y))
        y = y + self.text(self.ln_2(y), context)
        value, gate = self.up(self.ln_3(y)).chunk(2, dim=-1)
        y = y + self.down(value * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).reshape(x.shape))


class Unet(nn.Module):
    """A U-Net of latent diffusion with four levels, attention on the three finest, and skip connections."""

    def __init__(self, p: ModelParameters) -> None:
        super().__init__()
        assert p.hidden
        assert p.heads
        assert p.input
        assert p.context
        assert p.context_width
        self.parameters_of_example = (p.input, p.context, p.context_width, p.hidden)
        widths = [p.hidden * f for f in (1, 2, 4, 4)]
        time = 4 * p.hidden
        self.time = nn.Sequential(nn.Linear(p.hidden, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, p.hidden, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, channels = [p.hidden], p.hidden
        for level, width in enumerate(widths):
            for _ in range(p.layers):
                self.down.append(self._stage(channels, width, time, p, level < 3))
                channels = width
                skips.append(channels)
            if level < 3:
                self.down.append(nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1)]))
                skips.append(channels)
        self.middle = self._stage(channels, channels, time, p, True)
        self.last = _UnetResidual(channels, channels, time)
        for level, width in reversed(list(enumerate(widths))):
            for i in range(p.layers + 1):
                stage = self._stage(channels + skips.pop(), width, time, p, level < 3)
                channels = width
                if level and i == p.layers:
                    stage.append(nn.Conv2d(width, width, 3, padding=1))
                self.up.append(stage)
        self.norm, self.leave = nn.GroupNorm(32, channels), nn.Conv2d(channels, 4, 3, padding=1)

    @staticmethod
    def _stage(channels: int, width: int, time: int, p: ModelParameters, attends: bool) -> nn.ModuleList:
        stage = nn.ModuleList([_UnetResidual(channels, width, time)])
        if attends:
            stage.append(_UnetAttention(width, p.heads or 1, p.context_width or 1))
        return stage

    def with_example(self, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the module and example arguments: latents, sinusoidal features of the time step, text."""
        side, length, width, hidden = self.parameters_of_example
        return self, (
            torch.zeros(batch, 4, side, side),
            torch.zeros(batch, hidden),
            torch.zeros(batch, length, width),
        )

    @staticmethod
    def _run(stage: nn.Module, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        for part in stage.children():
            if isinstance(part, _UnetResidual):
                x = part(x, time)
            elif isinstance(part, _UnetAttention):
                x = part(x, context)
            elif part.stride == (2, 2):  # type: ignore[comparison-overlap]
                x = part(x)
            else:
                x = part(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x

    def forward(self, latents: Tensor, waves: Tensor, context: Tensor) -> Tensor:
        time = self.time(waves)
        x = self.enter(latents)
        skips = [x]
        for stage in self.down:
            x = self._run(stage, x, time, context)
            skips.append(x)
        x = self.last(self._run(self.middle, x, time, context), time)
        for stage in self.up:
            x = self._run(stage, torch.cat((x, skips.pop()), dim=1), time, context)
        return self.leave(F.silu(self.norm(x)))
