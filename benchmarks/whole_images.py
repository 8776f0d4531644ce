"""Networks on images for :mod:`benchmarks.whole_fabric`: strided convolutions, LeNet, pooling, a residual network with batch norms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

Image = tuple[int, int, int]
"""Channels, lines, columns."""


def strided(channels: tuple[int, ...], width: int) -> nn.Module:
    """Return the convolutions of 3 x 3 taps and stride 2, then two dense layers."""
    layers: list[nn.Module] = []
    for a, b in pairwise(channels):
        layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU()]
    features = channels[-1] * (width // 2 ** (len(channels) - 1)) ** 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 10))


def lenet(pool: type[nn.Module]) -> nn.Module:
    """LeNet-5 on 28 x 28 pixels with ReLU."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), pool(2), nn.Conv2d(6, 16, 5), nn.ReLU(), pool(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def averaged() -> nn.Module:
    """Two convolutions, and the mean of every channel."""
    layers = [nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def pooled() -> nn.Module:
    """Maxima of overlapping windows between two convolutions."""
    layers = [nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 16, 3, padding=1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))


class Residual(nn.Module):
    """Two convolutions with batch norms, and a skip around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.middle, self.end = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        return (self.end(self.second(self.middle(self.first(x)).relu())) + x).relu()


def residual() -> nn.Module:
    """Return a convolution with a batch norm, two residual blocks, the mean of every channel."""
    first = [nn.Conv2d(2, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(*first, Residual(8), Residual(8), *last)


class Narrowing(nn.Module):
    """Two convolutions with batch norms, the first with stride 2, and a skip of one tap and stride 2 around them."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, filters, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.skip = nn.Conv2d(channels, filters, 1, stride=2, bias=False)
        self.middle, self.end, self.side = (nn.BatchNorm2d(filters) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        return (self.end(self.second(self.middle(self.first(x)).relu())) + self.side(self.skip(x))).relu()


def resnet(stride: int) -> nn.Module:
    """Return a ResNet of three stages of one block, with 8, 16 and 16 channels (32 without a stride before them)."""
    last = 16 * (3 - stride)
    first = [nn.Conv2d(2, 8, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    stages = [Residual(8), Narrowing(8, 16), Narrowing(16, last)]
    return nn.Sequential(*first, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10))


class Around(nn.Module):
    """Two convolutions without norms, with stride 2 where there are more filters than channels, and a skip around them."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        stride = 1 if filters == channels else 2
        self.first = nn.Conv2d(channels, filters, 3, stride=stride, padding=1)
        self.second = nn.Conv2d(filters, filters, 3, padding=1)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(channels, filters, 1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        return (self.second(self.first(x).relu()) + self.skip(x)).relu()


def small_resnet() -> nn.Module:
    """Return a convolution, two residual blocks, the second of stride 2, the mean of every channel; no norms, so it
    trains.
    """
    first = [nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(*first, Around(8, 8), Around(8, 16), *last)


def mnist() -> nn.Module:
    """Return the network of PyTorch's MNIST example on 14 x 14 pixels, half as wide or less, without its last logarithm
    of a softmax.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(400, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10),
    )  # fmt: skip


def vgg() -> nn.Module:
    """Three convolutions of 3 x 3 taps with maxima behind each, as VGG has them, then two dense layers."""
    layers: list[nn.Module] = []
    for channels, filters in ((2, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def separable(stride: int) -> nn.Module:
    """Three pairs of a filter for every channel and filters of one tap, with batch norms, as MobileNet has them."""
    layers: list[nn.Module] = [
        nn.Conv2d(2, 8, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
    ]
    for channels, filters, step in ((8, 16, 1), (16, 32, 2), (32, 32, 1)):
        for convolution in (
            nn.Conv2d(channels, channels, 3, stride=step, padding=1, groups=channels, bias=False),
            nn.Conv2d(channels, filters, 1, bias=False),
        ):
            layers += [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


CONVOLVED: tuple[tuple[str, Callable[[], nn.Module], Image, int], ...] = (
    # model, image, columns of the wafer
    ("two of stride 2, 4-16-32-32-10", lambda: strided((4, 16, 32), 16), (4, 16, 16), 16),
    ("the same", lambda: strided((4, 16, 32), 16), (4, 16, 16), 24),
    ("two of stride 2, 1-8-16-32-10", lambda: strided((1, 8, 16), 16), (1, 16, 16), 20),
    ("the same", lambda: strided((1, 8, 16), 16), (1, 16, 16), 40),
    ("three of stride 2, 4-8-16-32-32-10", lambda: strided((4, 8, 16, 32), 16), (4, 16, 16), 32),
    ("LeNet-5, maxima", lambda: lenet(nn.MaxPool2d), (1, 28, 28), 24),
    ("LeNet-5, means", lambda: lenet(nn.AvgPool2d), (1, 28, 28), 24),
    ("LeNet-5, maxima", lambda: lenet(nn.MaxPool2d), (1, 28, 28), 40),
    ("two, mean of the whole", averaged, (4, 12, 12), 24),
    ("two, overlapping maxima between", pooled, (4, 16, 16), 24),
    ("two residual blocks, batch norms", residual, (2, 16, 16), 24),
    ("the same", residual, (2, 16, 16), 40),
    ("ResNet, three stages", lambda: resnet(2), (2, 16, 16), 24),
    ("the same", lambda: resnet(2), (2, 16, 16), 40),
    ("ResNet, three stages, four times the pixels", lambda: resnet(1), (2, 16, 16), 48),
    ("MNIST example", mnist, (1, 14, 14), 32),
    ("VGG, three stages", vgg, (2, 16, 16), 24),
    ("the same", vgg, (2, 16, 16), 40),
    ("MobileNet, three stages", lambda: separable(2), (2, 16, 16), 24),
    ("MobileNet, four times the pixels", lambda: separable(1), (2, 16, 16), 48),
)


def moved(model: nn.Module) -> nn.Module:
    """Return the model with parameters and statistics away from their defaults, in fp16 numbers."""
    torch.manual_seed(0)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            other = value + 0.1 * torch.randn_like(value)
            value.copy_((other.abs() if name.endswith("running_var") else other).half())
    return model.eval()
