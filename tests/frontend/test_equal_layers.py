"""Equal layers are captured once: the graph equals the one that torch captures layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import capture, lower  # noqa: E402
from wse_sim.frontend.equal_layers import Layers  # noqa: E402
from wse_sim.frontend.layer_copies import NotCopiedError  # noqa: E402

WIDE = 16


class Block(nn.Module):
    """A layer with a norm, two products and a number."""

    def __init__(self, number: int, how: str = "plain") -> None:
        super().__init__()
        self.layer_idx, self.how = number, how
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDE),
            nn.Linear(WIDE, 2 * WIDE),
            nn.Linear(2 * WIDE, WIDE),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """By `how`: what makes a layer other than those before it."""
        y = self.up(self.norm(x))
        if self.how == "number":
            y = torch.relu(y) if self.layer_idx % 2 else torch.tanh(y)
        y = self.down(torch.relu(y))
        if self.how == "left":
            self.seen = y
        if self.how == "in place":
            return x.add_(y)
        return x + y if self.how != "view" else (x + y, x[:, :2])  # type: ignore[return-value]


class Elsewhere(Block):
    """A layer that reads a tensor of its parent."""

    parent: list[nn.Module]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what the parent made."""
        return super().forward(x) + self.parent[0].made


class Convolution(nn.Module):
    """A layer whose norm counts batches, and whose activation works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolution, norm, activation."""
        return self.act(self.norm(self.conv(x)))


class Experts(nn.Module):
    """A layer made of equal layers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.experts, self.gate = nn.ModuleList(Block(k) for k in range(3)), nn.Linear(WIDE, 3)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A sum of experts, by weight."""
        share = self.gate(x).softmax(-1)
        return sum(e(x) * share[..., k, None] for k, e in enumerate(self.experts))  # type: ignore[return-value]


class Deep(nn.Module):
    """Four layers."""

    def __init__(self, make: Callable[[int], nn.Module], tied: bool = False) -> None:
        super().__init__()
        self.made: torch.Tensor | None = None
        self.first = nn.Linear(WIDE, WIDE)
        self.layers = nn.ModuleList(make(k) for k in range(4))
        for layer in self.layers:
            if isinstance(layer, Elsewhere):
                object.__setattr__(layer, "parent", [self])
            if tied and isinstance(layer, Block):
                layer.up.weight = self.layers[0].up.weight  # type: ignore[union-attr, assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after the other."""
        if x.dim() == 2:
            x = self.first(x)
        self.made = x * 2
        for layer in self.layers:
            found = layer(x)
            x = found[0] if isinstance(found, tuple) else found
            if getattr(layer, "how", "") == "left":
                x = x + layer.seen
        return x


ROWS, IMAGES = torch.randn(4, WIDE), torch.randn(2, 4, 8, 8)
CASES: dict[str, tuple[Callable[[int], nn.Module], torch.Tensor, int]] = {
    "numbers that nobody reads": (Block, ROWS, 3),
    "numbers that are read": (lambda k: Block(k % 2, "number"), ROWS, 2),
    "tensors left for the parent": (lambda k: Block(k, "left"), ROWS, 0),
    "arguments changed in place": (lambda k: Block(k, "in place"), ROWS, 0),
    "parts of arguments as results": (lambda k: Block(k, "view"), ROWS, 0),
    "tensors of the parent": (Elsewhere, ROWS, 0),
    "norms that count, work in place": (lambda k: Convolution(), IMAGES, 3),
    "equal parts of equal layers": (Experts, ROWS, 5),
    "other shapes": (lambda k: nn.Sequential(nn.Linear(WIDE, 8 + k), nn.Linear(8 + k, WIDE)), ROWS, 0),
}


def copies_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls that become copies in each capture from here on."""
    counts: list[int] = []
    copied = capture.copied

    def counting(program: torch.export.ExportedProgram, layers: Layers) -> torch.export.ExportedProgram:
        made = copied(program, layers)
        counts.append(len(layers.pairs))
        return made

    monkeypatch.setattr(capture, "copied", counting)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_graph_is_that_of_layers_traced_one_by_one(
    case: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, sizes, weights and order of all kernels are equal, and there are as many copies as equal layers, none
    where a copy would be wrong.
    """
    make, x, copies = CASES[case]
    model = Deep(make)
    counts = copies_of(monkeypatch)
    once = lower(model, (x,), training=training)
    assert sum(counts) == copies
    monkeypatch.setattr(capture, "is_collecting", lambda: True)  # each layer by itself
    assert lower(model, (x,), training=training) == once


@pytest.mark.slow
def test_weights_that_layers_share_stay_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of all four layers is stored once, whether layers are copies or not."""
    model = Deep(Block, tied=True)
    once = lower(model, (ROWS,), training=True)
    monkeypatch.setattr(capture, "is_collecting", lambda: True)
    assert lower(model, (ROWS,), training=True) == once
    assert once.facts["training_flops"] == "as torch counts"


@pytest.mark.slow
def test_hooks_and_other_settings_make_layers_unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook on the third layer changes its result; the graph has it."""
    model = Deep(Block)
    model.layers[2].register_forward_hook(lambda *given: given[2] * 3)
    counts = copies_of(monkeypatch)
    once = lower(model, (ROWS,))
    assert counts == [2]
    monkeypatch.setattr(capture, "is_collecting", lambda: True)
    assert lower(model, (ROWS,)) == once


class Repeats(nn.Module):
    """A product with a weight that is repeated for every sample, so that the batch is in doubt."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDE, WIDE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.unsqueeze(1), self.weight.expand(x.shape[0], -1, -1)).squeeze(1)


def test_layers_that_cannot_be_copied_are_captured_also_with_more_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Deep(lambda k: nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), Repeats()))
    once = lower(model, (ROWS,))

    def fails(*_: object) -> None:
        raise NotCopiedError("a result comes from elsewhere")

    monkeypatch.setattr(capture, "copied", fails)
    assert lower(model, (ROWS,)) == once


class Reads(Deep):
    """Four layers and the sum of weights that the model reads outside them."""

    def __init__(self, read: Callable[[Deep], list[torch.Tensor]]) -> None:
        super().__init__(Block)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Layers, then a penalty on weights."""
        return super().forward(x) + sum(weight.square().sum() for weight in self.read(self))


READ: dict[str, Callable[[Any], list[torch.Tensor]]] = {
    "the first": lambda model: [next(model.parameters())],
    "one of a copy": lambda model: [model.layers[2].up.weight],
    "all": lambda model: list(model.parameters()),
    "all by state": lambda model: list(model.state_dict(keep_vars=True).values()),
}


@pytest.mark.parametrize("read", READ)
def test_weights_of_copies_are_captured_where_the_model_reads_them(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of copies are hidden from torch; the graph is that of layers traced one by one."""
    model = Reads(READ[read])
    hidden = Layers(model).hidden.weights
    assert {*hidden} == {n for n, _ in model.named_parameters() if n.split(".")[1] in "123"}
    before, counts = dict(model.named_parameters()), copies_of(monkeypatch)
    once = lower(model, (ROWS,), training=True)
    assert counts == [3]
    assert list(model.named_parameters()) == list(before.items())
    monkeypatch.setattr(capture, "is_collecting", lambda: True)
    assert lower(model, (ROWS,), training=True) == once


def test_a_module_has_its_weights_again_after_a_fault() -> None:
    def fails(model: Deep) -> list[torch.Tensor]:
        raise ValueError("no weights")

    model = Reads(fails)
    before = dict(model.named_parameters())
    with pytest.raises(ModelError, match="no weights"):
        lower(model, (ROWS,))
    assert list(model.named_parameters()) == list(before.items())


def test_equal_layers_of_another_scale_each_are_found_at_the_first_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No layer of a pyramid is a copy of another one, because each gets fewer rows: the first of them that is called ends the
    capture, and the second capture, which has the weights of all, is the last.
    """

    class Pyramid(Deep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([layer(x[: len(x) - k]) for k, layer in enumerate(self.layers)])

    ends: list[bool] = []
    export = torch.export.export

    def counting(*given: object, **named: object) -> object:
        ends.append(False)
        made = export(*given, **named)  # type: ignore[arg-type]
        ends[-1] = True
        return made

    monkeypatch.setattr(torch.export, "export", counting)
    model = Pyramid(Block)
    capture.export(model, (ROWS,), None, training=False, once=[])
    assert ends == [False, True]


def test_layers_whose_weights_are_those_of_other_layers_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder has the weights of an encoder, under which name torch captures them, and layers of another kind."""

    class Other(Block):
        pass

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.ModuleList(Block(k) for k in range(3))
            self.decoder = nn.ModuleList(Other(k) for k in range(3))
            for mine, theirs in zip(self.decoder, self.encoder, strict=True):
                for (name, weight), part in zip(
                    theirs.named_parameters(), [m for m in mine.modules() for _ in m._parameters], strict=True
                ):
                    setattr(part, name.rpartition(".")[2], weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in (*self.encoder, *self.decoder):
                x = layer(x)
            return x

    counts = copies_of(monkeypatch)
    once = lower(Shared(), (ROWS,), training=True)
    assert counts == [4]
    monkeypatch.setattr(capture, "is_collecting", lambda: True)
    assert lower(Shared(), (ROWS,), training=True) == once
