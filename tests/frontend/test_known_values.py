"""Values that the example determines: integers in tensors, masks of padding, modules that forward() replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from tests.frontend.test_training_flops import by_torch  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.capture import export  # noqa: E402
from wse_sim.frontend.obstacles import DECIDED  # noqa: E402

READS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "split": lambda y, n: y.split([n, 8 - n], -1)[0],
    "tile": lambda y, n: y.tile(n, 1),
    "roll": lambda y, n: torch.roll(y, (n, n), (0, 1)),
    "unflatten": lambda y, n: y.unflatten(1, (n, -1)),
    "pad": lambda y, n: F.pad(y, (0, n)),
    "interpolate": lambda y, n: F.interpolate(y[None, None], size=(n, n)),
    "unfold": lambda y, n: y.unfold(1, n, n),
    "topk": lambda y, n: y.topk(n)[0],
    "window": lambda y, n: y[:, :2] * torch.hann_window(n),
    "view": lambda y, n: y.view(n, -1),
    "arange": lambda y, n: y[:, torch.arange(n)],
    "operand": lambda y, n: y / n + n,
}


class Reads(nn.Module):
    def __init__(self, read: Callable[[Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(8, 8), read

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        return self.read(self.layer(x), sizes[0] // 2)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", READS)
def test_torch_reads_known_integers_in_tensors(name: str) -> None:
    """The captured program has the values of the module; the note of a read appears if, and only if, it is one."""
    module, x, sizes = Reads(READS[name]), torch.randn(4, 8), torch.tensor([4])
    notes: list[str] = []
    program = export(module, (x, sizes), None, False, notes)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x, sizes), module(x, sizes))
    assert any(note.startswith("values:") for note in notes) == (name != "operand")


def test_an_integer_that_activations_determine_is_that_of_the_example() -> None:
    module, x = Reads(lambda y, n: y.tile(cast("int", (y > -1e9).all(0).sum() - 5), 1)), torch.randn(4, 8)
    graph = lower(module, (x, torch.tensor([4])))
    assert graph.tensors[graph.kernels[-1].outputs[0]].elements == module(x, torch.tensor([4])).numel()
    assert any(note.startswith(DECIDED) for note in graph.notes)


class Images(nn.Module):
    """Leaves out padding, as the image models of transformers do: images of zeros, or of the value that `pads` tells."""

    def __init__(self, pads: Callable[[Tensor], Tensor] = lambda x: (x == 0.0).all(-1)) -> None:
        super().__init__()
        self.layer, self.pads = nn.Linear(8, 16), pads

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        samples, number, _ = images.shape
        flat = images.view(samples * number, -1)
        real = ~self.pads(flat)
        counts = real.view(samples, number).sum(1)
        return tuple(part.mean(0) for part in self.layer(flat[real].contiguous()).split(counts.tolist()))


def test_images_that_are_no_padding_are_all_captured() -> None:
    images = torch.randn(2, 3, 8)
    graph = lower(Images(), (images,), training=True)
    assert graph.total_flops == by_torch(Images(), (images,))
    assert any("leaves out nothing of the example" in note for note in graph.notes)


def test_an_image_that_is_padding_is_left_out_with_a_note() -> None:
    """Five of six images are not padding; a note states that this is so in the example only."""
    images = torch.randn(2, 3, 8)
    images[0, 1] = 0
    graph = lower(Images(), (images,))
    assert graph.forward_flops * 6 == lower(Images(), (torch.randn(2, 3, 8),)).forward_flops * 5
    assert any(note.startswith(DECIDED) for note in graph.notes)


def test_a_threshold_is_no_padding_even_if_all_pass() -> None:
    """Other data would not all pass a test for size, so the example decides."""
    graph = lower(Images(lambda x: x.sum(-1) > 1e9), (torch.randn(2, 3, 8),))
    assert any(note.startswith(DECIDED) for note in graph.notes)
    assert not any(note.startswith("masks:") for note in graph.notes)


class Sum(nn.Module):
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x)


class Product(Sum):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None, "replaced at the first call"
        return self.left(x) * self.right(x) * mask


class Switches(nn.Module):
    """Replaces the part of each layer at its first call, as BigBird does for short texts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Product(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3))
        self.kind = "sparse"

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "sparse":
            self.kind = "full"
            for i, layer in enumerate(self.layers):
                assert isinstance(layer, Sum)
                self.layers[i] = Sum(layer.left, layer.right)
        for layer in self.layers:
            x = layer(x)
        return x


def test_modules_that_the_first_call_replaces_are_those_of_the_graph() -> None:
    """Three layers of two products: 3 x 2 x 2 x 4 x 8 x 8 FLOPs; the caller's module stays as it was."""
    module = Switches()
    graph = lower(module, (torch.randn(4, 8),))
    assert graph.total_flops == 3 * 2 * 2 * 4 * 8 * 8
    assert any("sets kind to 'full'" in note for note in graph.notes)
    assert all(type(layer) is Product and "forward" not in vars(layer) for layer in module.layers)
