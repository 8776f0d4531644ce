"""Patterns of published models in forward(): caches that they fill, weights on "meta" next to values, work on
constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.frontend import lower
from wse_sim.graph import Phase, TensorKind


class Cached(nn.Module):
    """Attention biases by device, as in vision transformers: they are gathered once from a weight and then cached."""

    def __init__(self, of_the_input: bool) -> None:
        super().__init__()
        self.fc, self.biases = nn.Linear(8, 8), nn.Parameter(torch.zeros(4, 9))
        self.register_buffer("index", torch.zeros(8, 8, dtype=torch.long), persistent=False)
        self.cache: dict[str, torch.Tensor] = {}
        self.of_the_input = of_the_input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = str(x.device)
        if device not in self.cache:
            self.cache[device] = self.biases[:, self.index]
        if self.of_the_input:
            self.cache["last"] = 2 * x
        return self.fc(x) + self.cache[device].sum(0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_cache_of_weights_is_worked_out_in_each_step(device):
    """The note names it; the user's module keeps an empty cache."""
    with torch.device(device):
        model = Cached(of_the_input=False)
    graph = lower(model, (torch.zeros(8, 8, device=device),), training=True)
    assert [note for note in graph.notes if "cache['cpu'] filled in forward() depend on no input" in note]
    assert "biases" in {name for k in graph for name in k.parameters}
    assert model.cache == {}


def test_a_cache_of_inputs_is_refused():
    """A value that one step leaves for the next is state, which a compiled step does not have."""
    with pytest.raises(
        ModelError, match=r"assigns to self\.cache\['last'\], which a compiled step cannot keep"
    ):
        lower(Cached(of_the_input=True), (torch.zeros(8, 8),))


class Tied(nn.Module):
    """One weight under two names, next to a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.ones(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids) * self.scale)


def test_a_module_on_meta_stays_tied():
    """Weights get no memory, but stay the same weight; plain tensors move with them."""
    with torch.device("meta"):
        model = Tied()
    graph = lower(model, (torch.zeros(2, 4, dtype=torch.long, device="meta"),))
    assert {name for k in graph for name in k.parameters} >= {"embed.weight"}
    assert "head.weight" not in graph.tensors
    assert model.scale.device.type == "meta"


class Switching(nn.Module):
    """Changes its kind of attention at the first call, as sparse transformers do for short sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.kind, self.calls = nn.Linear(8, 8), "sparse", 0

    def forward(self, x: torch.Tensor, *, counts: bool = False) -> torch.Tensor:
        if self.kind == "sparse" and x.shape[0] < 100:
            self.kind = "full"
            return self.fc(torch.sin(x))
        if counts:
            self.calls += 1
        return self.fc(x) * self.calls


def test_a_switch_settles():
    """The graph is that of the second call; the module is unchanged; a counter that affects the work is refused."""
    model = Switching()
    graph = lower(model, (torch.zeros(8, 8),))
    assert [k.family for k in graph] == ["gemm"]
    assert any("sets kind to 'full' at its first call" in note for note in graph.notes)
    assert model.kind == "sparse"
    with pytest.raises(ModelError, match=r"changes the attribute calls \(0 before, 1 after\)"):
        lower(model, (torch.zeros(8, 8),), {"counts": True})


class Counting(nn.Module):
    """Counts its calls, as right-hand sides of differential equations do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.evaluations = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            self.evaluations += 1
            x = torch.tanh(self.fc(x))
        return x


def test_a_counter_that_no_work_depends_on_is_a_note():
    """There are three products, the number of evaluations as before, and a note about it."""
    model = Counting()
    graph = lower(model, (torch.zeros(8, 8),))
    assert [k.family for k in graph].count("gemm") == 3
    assert any("forward() changes evaluations" in note for note in graph.notes)
    assert not any("sets evaluations" in note for note in graph.notes)
    assert model.evaluations == 0


class Choosy(nn.Module):
    """Examines the exact type of its argument, and types as values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(type(x), type)
        assert type("Made", (), {}).__name__ == "Made"
        if type(x) is torch.Tensor:
            return self.fc(x)
        raise TypeError("not a tensor")


def test_the_type_of_a_captured_tensor_is_that_of_eager_mode():
    """A product is captured; afterwards the file has the builtin again."""
    assert [k.family for k in lower(Choosy(), (torch.zeros(8, 8),))] == ["gemm"]
    assert "type" not in globals()


class Placed(nn.Module):
    """Moves tensors to a GPU inside forward(), as GPU scripts do, and reads lengths as an array."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        here = self.fc(x.cuda(non_blocking=True)) + torch.ones(8, device=torch.device("cuda", 1))
        longest = int(lengths.cpu().numpy().max())
        return here[:, :longest] + torch.arange(8).to("cuda:0")[:longest]


@pytest.mark.parametrize("training", [False, True])
def test_devices_and_arrays_inside_of_forward(training: bool):
    """There is one product, as without them; a note names the first line with a GPU, another the length that was read."""
    graph = lower(Placed(), (torch.zeros(8, 8), torch.tensor([3, 5])), training=training)
    assert graph.forward_flops == 2 * 8**3
    assert [note.partition(":")[0] for note in graph.notes if note.startswith(("devices", "masks"))] == [
        "devices",
        "masks",
    ]


class Windowed(nn.Module):
    """Shrinks its window to the picture at the first call, as shifted-window transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.shift = nn.Linear(8, 8), 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = torch.sin(x) if self.shift else x
        self.shift = min(self.shift, 0)
        return self.fc(shifted)


def test_a_number_settles_as_a_switch_does():
    """The graph is that of the second call, without the shift; the module keeps its number."""
    model = Windowed()
    graph = lower(model, (torch.zeros(8, 8),))
    assert [k.family for k in graph] == ["gemm"]
    assert any("sets shift to 0 at its first call" in note for note in graph.notes)
    assert model.shift == 3


class Masked(nn.Module):
    """Skips the work on a mask that hides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        if not (mask == 1).all():
            y = y.masked_fill(mask[:, None] == 0, 0.0)
        return torch.sin(y) if (mask == 7).any().item() else y


def test_a_test_of_a_mask_is_folded():
    """The example decides the branch, and a note states this; without values of the mask the test is a fault."""
    x, ones = torch.zeros(4, 8), torch.ones(4, dtype=torch.long)
    graph = lower(Masked(), (x, ones))
    assert [k.family for k in graph] == ["gemm"]
    assert sum("masks: a test of" in note for note in graph.notes) == 2
    assert len(lower(Masked(), (x, 0 * ones))) > 1
    with torch.device("meta"):
        model = Masked()
    assert len(lower(model, (x, ones))) == 1
    with pytest.raises(ModelError, match="control flow depends on the values"):
        lower(model, (x, ones.to("meta")))


class Counted(nn.Module):
    """Reads integers of a mask as sizes: the first sample's tokens are cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        lengths = mask.sum(dim=1).tolist()
        return self.fc(x[:, : max(lengths)])


def test_a_length_of_a_mask_is_folded():
    """Five of seven tokens are unmasked: 2 x 5 x 8 x 8 x 2 FLOPs, and a note states for which values this holds."""
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[0, :5] = mask[1, :3] = True
    graph = lower(Counted(), (torch.randn(2, 7, 8), mask))
    assert graph.forward_flops == 2 * 2 * 5 * 8 * 8
    assert sorted(note.partition(" is ")[2][0] for note in graph.notes if "masks: a value of" in note) == [
        "3",
        "5",
    ]


class Standardised(nn.Module):
    """Weights that the model computes: a length times a direction, and a centred filter."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 8, 3))
        self.conv = nn.Conv1d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.conv.weight - self.conv.weight.mean()
        return nn.functional.conv1d(torch.relu(self.line(x)), weight, self.conv.bias).mean()


def test_gradients_of_worked_out_weights():
    """Each convolution has a kernel for its weight's gradient; FLOPs equal those of torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    model, x = Standardised(), torch.randn(2, 4, 32)
    with FlopCounterMode(display=False) as counter:
        model(x).backward()
    graph = lower(model, (x,), training=True)
    assert graph.total_flops == counter.get_total_flops()


class Pyramid(nn.Module):
    """Keeps its levels in an attribute, as networks of optical flow do; `carried` reads those of the last call."""

    def __init__(self, *, carried: bool = False) -> None:
        super().__init__()
        self.fc, self.carried, self.levels = nn.Linear(8, 8), carried, [torch.tensor(0.0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.levels[-1]
        self.levels = [self.fc(x)]
        self.levels.append(torch.sin(self.levels[0]))
        self.seen = x
        return self.levels[1] + before if self.carried else self.levels[1]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_assigned_before_it_is_read_is_no_state(device):
    """Scratch values in attributes are removed, with a note; values that one call leaves for the next are refused; the
    module is unchanged.
    """
    with torch.device(device):
        model, carried = Pyramid(), Pyramid(carried=True)
    x = torch.zeros(4, 8, device=device)
    graph = lower(model, (x,))
    assert [k.family for k in graph] == ["gemm", "elementwise"]
    (note,) = [note for note in graph.notes if note.startswith("scratch:")]
    assert "levels, seen assigned in forward() before it is read" in note
    assert len(model.levels) == 1
    assert model.levels[0].shape == ()
    assert not hasattr(model, "seen")
    with pytest.raises(ModelError, match=r"assigns to self\.levels\[0\], self\.levels\[1\]"):
        lower(carried, (x,))


class Record(nn.Module):
    """Appends to a list that it never empties; `whole` reads all of it."""

    def __init__(self, *, whole: bool = False) -> None:
        super().__init__()
        self.fc, self.whole = nn.Linear(8, 8), whole
        self.seen: list[torch.Tensor] = []
        self.fc.register_forward_hook(lambda _, given, made: self.seen.append(made))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + (sum(self.seen) if self.whole else self.seen[-1])


def test_what_is_appended_to_a_list_is_no_state_unless_it_is_read():
    """The module's list stays empty, also after the check of its FLOPs."""
    model, x = Record(), torch.zeros(4, 8)
    graph = lower(model, (x,), training=True)
    assert [note for note in graph.notes if note.startswith("scratch: seen")]
    assert graph.facts["training_flops"] == "as torch counts"
    assert model.seen == []
    with pytest.raises(ModelError, match=r"assigns to self\.seen\[0\], which"):
        lower(Record(whole=True), (x,))


class Frequencies(nn.Module):
    """Tables in a list and a dictionary, as rotary embeddings of picture models keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.tables = [torch.ones(8), {"late": torch.ones(8)}]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x * self.tables[0]) * self.tables[1]["late"]


def test_tensors_in_containers_come_along():
    """On "meta" and with values, the tables are constants."""
    graphs = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = Frequencies()
        graphs.append(lower(model, (torch.zeros(4, 8, device=device),)))
        assert model.tables[0].device.type == device
        assert not list(model.buffers())
    first, second = ([(k.family, dict(k.dims)) for k in graph] for graph in graphs)
    assert first == second


class Skipping(nn.Module):
    """Omits layers at random while it trains, as speech encoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if torch.rand([]) < 0.1 else self.a(x)
        x = x if torch.rand(1).item() < 0.9 else self.b(x)
        return x if np.random.random() < 0.5 else self.c(x)  # noqa: NPY002 - as published models draw


def test_a_test_of_random_numbers_takes_the_likelier_branch():
    """The layer that is omitted one time in ten is included, the one omitted nine times in ten is not; numpy's draws
    repeat.
    """
    graphs = [lower(Skipping(), (torch.zeros(4, 8),), training=True) for _ in range(4)]
    names = {name for k in graphs[0] for name in k.parameters if name.endswith("weight")}
    assert "a.weight" in names
    assert "b.weight" not in names
    assert all(graph == graphs[0] for graph in graphs)
    assert sum(note.startswith("chance:") for note in graphs[0].notes) == 2


class Shaped(nn.Module):
    """A product whose shape alone is read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = self.a(x)
        return torch.cat([self.b(x), side.new_zeros(4, 2), torch.ones_like(side)], dim=1)


def test_what_only_says_a_shape_is_not_worked_out():
    """One of two products remains, as in torch's own compiler."""
    graph = lower(Shaped(), (torch.zeros(4, 8),))
    assert graph.total_flops == 2 * 4 * 8 * 8


class Asks(nn.Module):
    """Positions after a picture: a list of integers, one of them a tensor; a truth value of the shape of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([[ids.max(), 1], [2, 3]])
        means = torch.tensor([x.mean(), x.amax()])
        marked = (ids == (4 if torch.equal(ids[:, 0], ids[:, 1]) else 3))[:, :, None].expand_as(x)
        return self.fc(x[marked].view(-1, 8) + ends.float().sum() + means.sum())


@pytest.mark.thinned(1)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_lists_of_tensors_and_masks_of_the_shape_of_activations(device):
    """Two of the ids are 3, so the product has two rows of 8: 2 x 2 x 8 x 8 FLOP; eager torch gives that shape too."""
    ids = torch.tensor([[3, 1, 0, 3]])
    with torch.device(device):
        model, x = Asks(), torch.ones(1, 4, 8)
    graph = lower(model, (x, ids))
    assert Asks()(torch.ones(1, 4, 8), ids).shape == (2, 8)
    assert graph.total_flops == 2 * 2 * 8 * 8


class Draws(nn.Module):
    """Computes the entropy of a distribution, whose parameters torch checks and a program cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.fc(x)).entropy()


def test_a_distribution_is_captured_and_still_tested_outside(monkeypatch):
    """The check of its parameters is off only during the capture. (torch's compiler turns it off permanently.)"""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    lower(Draws(), (torch.zeros(3, 8),))
    with pytest.raises(ValueError, match="satisfy the constraint"):
        torch.distributions.Categorical(logits=torch.full((3,), float("nan")))


class PerDegree(nn.Module):
    """Has a separate product for the rows of each kind; no row of the example is of kind 2."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
        self.register_buffer("kinds", torch.tensor([0, 1, 0, 0, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x.new_zeros(5, 4)
        for kind, layer in enumerate(self.layers):
            rows = (self.kinds == kind).nonzero().view(-1)
            made = made.index_copy(0, rows, layer(x.index_select(0, rows)))
        return made


@pytest.mark.slow
def test_a_product_of_no_rows_is_no_work():
    """Five rows in total have 2 x 5 x 8 x 4 FLOPs, three times that in training except for the inputs, which need no
    gradient.
    """
    assert lower(PerDegree(), (torch.zeros(5, 8),)).total_flops == 2 * 5 * 8 * 4
    assert lower(PerDegree(), (torch.zeros(5, 8),), training=True).total_flops == 2 * (2 * 5 * 8 * 4)


class Pieces(nn.Module):
    """Cuts a list of rows into pieces whose starts are written into a table, then runs each."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        starts = torch.empty(counts.shape, dtype=counts.dtype)
        starts[0] = 0
        starts[1:] = counts.cumsum(0)[:-1]
        pieces = [self.fc(x[a : a + n]) for a, n in zip(starts, counts, strict=True)]
        counts += 1  # what is read after it has other values
        places = torch.arange(counts.sum())[:, None]
        return torch.cat([*pieces, self.fc(x[:1] * places)])


def test_what_is_written_in_place_is_read_as_written():
    """Six rows are cut into pieces of 1, 2 and 3; after the addition there are nine places. The given counts are
    unchanged.
    """
    counts = torch.tensor([1, 2, 3])
    graph = lower(Pieces(), (torch.zeros(6, 8), counts))
    assert [k.dims["m"] for k in graph if k.family == "gemm"] == [1, 2, 3, 9]
    assert counts.tolist() == [1, 2, 3]
    assert any("arange" in note for note in graph.notes)


class SizedByAMask(nn.Module):
    """Sizes are the number of marked tokens: a tensor of one number, which torch reads in its parser of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, marked: torch.Tensor) -> torch.Tensor:
        count = marked.sum(dim=1).max()
        held = x.new_zeros((x.shape[0], count, 8))
        table = torch.ones(count, 8) * count.expand(count)[:, None]
        return self.layer(held + table.view(1, count, 8) + x.narrow(1, 0, count))


@pytest.mark.parametrize("training", [False, True])
def test_sizes_may_be_tensors_that_the_example_determines(training: bool) -> None:
    x, marked = torch.randn(2, 6, 8), torch.arange(6).expand(2, 6) < 3
    graph = lower(SizedByAMask(), (x, marked), training=training)
    # 2 samples of 3 marked tokens through 8 x 8 weights; training adds the product of the weight gradient.
    assert graph.total_flops == 2 * (2 * 3) * 8 * 8 * (2 if training else 1)


class BlockByBlock(nn.Module):
    """Reads and writes blocks by tensors of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(x)
        for i, j in torch.tensor([[0, 0], [1, 0], [2, 1]]):
            made[:, i] += self.layer(x[:, j])
        return made


def test_an_index_may_be_a_tensor_of_one_number() -> None:
    graph = lower(BlockByBlock(), (torch.randn(2, 3, 4, 8),))
    assert graph.total_flops == 3 * 2 * (2 * 4) * 8 * 8  # three pairs of blocks, of 2 samples and 4 rows


class EveryOther(nn.Module):
    """Takes every other place by a slice or by a list of places, and adds the result there."""

    def __init__(self, places: Any) -> None:
        super().__init__()
        self.places = places
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.places()
        taken = x[:, places]
        taken += 1  # a list of places gives a copy, so x is unchanged
        made = torch.zeros_like(x)
        made[:, places] = self.layer(taken)
        return made + x


@pytest.mark.parametrize("training", [False, True])
def test_a_constant_list_of_equidistant_places_is_a_slice(training: bool) -> None:
    x = (torch.randn(2, 12, 8),)
    families = []
    for places in (lambda: slice(1, 12, 2), lambda: torch.arange(1, 12, 2), lambda: torch.tensor([1, 3, 4])):
        families.append({k.family for k in lower(EveryOther(places), x, training=training)})
    assert "indexed" not in families[0] | families[1]
    assert "indexed" in families[2]  # not equidistant


class PlacesInLists(nn.Module):
    """Marks places of a table whose rows and columns are tuples of tensors of one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        free = torch.full_like(x[:, :, 0], True).bool()
        rows, columns = zip(*places, strict=True)
        free[rows, columns] = False
        return torch.cat([self.layer(x[i][free[i]]) for i in range(len(x))])


def test_an_index_may_be_a_list_of_tensors() -> None:
    x, places = torch.randn(2, 6, 8), torch.tensor([[0, 1], [0, 4], [1, 5]])
    graph = lower(PlacesInLists(), (x, places))
    assert [k.dims["m"] for k in graph if k.family == "gemm"] == [4, 5]  # of 6 places, 2 and 1 are marked


class Hidden(torch.nn.Module):
    """Layers in a plain list, whose weights are registered under a name that is also a method."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)]
        self.parameters = torch.nn.ParameterList(  # type: ignore[assignment]
            [weight for layer in self.layers for weight in layer.parameters()]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](torch.relu(self.layers[0](x)))


def test_a_submodule_that_a_method_hides_has_its_weights():
    """Two layers of 8 x 8 + 8 and 8 x 4 + 4 weights; the module keeps its own names."""
    model = Hidden()
    names = [name for name, _ in model.named_parameters()]
    graph = api.lower(model, (torch.zeros(1, 8),), training=True, optimizer="sgd")
    updated = {name for kernel in graph.kernels if kernel.phase is Phase.UPDATE for name in kernel.parameters}
    assert sum(graph.tensors[name].elements for name in updated) == 8 * 8 + 8 + 8 * 4 + 4
    assert [name for name, _ in model.named_parameters()] == names
    assert names[0] == "parameters.0"


class Unregistered(torch.nn.Module):
    """A layer in a plain list: torch computes gradients of its weights, and no optimizer sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = [torch.nn.Linear(8, 8)], torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.layers[0](x)))


def test_weights_that_no_optimizer_sees_are_constants_and_a_note_names_them():
    graph = api.lower(Unregistered(), (torch.zeros(1, 8),), training=True, optimizer="sgd")
    assert [kernel.name for kernel in graph.kernels if kernel.phase is Phase.UPDATE] == ["last.update"]
    assert [note for note in graph.notes if note.startswith("weights: 72 weights of the modules in 'layers'")]


@dataclass
class Outputs:
    """Fields of a result, one of which is optional and one a namespace."""

    logits: torch.Tensor
    loss: torch.Tensor | None
    more: SimpleNamespace


class ObjectsOut(nn.Module):
    """A layer whose results are fields of objects."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, y=None):
        logits = self.layer(x)
        loss = None if y is None else nn.functional.mse_loss(logits, y)
        return Outputs(logits, loss, SimpleNamespace(largest=logits.amax(-1), kind="logits"))


@pytest.mark.parametrize("training", [False, True])
def test_results_may_be_fields_of_dataclasses_and_namespaces(training):
    """The layer is 2 * 3 * 8 * 4 FLOPs, and as many again for the gradient of its weight."""
    graph = lower(ObjectsOut(), (torch.randn(3, 8), torch.randn(3, 4)), training=training)
    assert graph.total_flops == (2 if training else 1) * 2 * 3 * 8 * 4
    assert not [note for note in graph.notes if "FLOP" in note]
    results = [tensor for tensor in graph.tensors.values() if tensor.kind is TensorKind.OUTPUT]
    assert [tensor.shape for tensor in results] == [(3, 4), (), (3,)]
