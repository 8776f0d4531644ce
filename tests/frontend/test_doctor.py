"""All obstacles of a model: places, remedies, and fractions of FLOPs computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from wse_sim.cli import app
from wse_sim.errors import ModelError
from wse_sim.frontend import diagnose, lower
from wse_sim.graph import Kernel
from wse_sim.kernels import family


class Troubled(nn.Module):
    """Three products of equal size; an inverse before the second, a value read before the third."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(64, 64, bias=False) for _ in range(3))
        self.unread = nn.Parameter(torch.empty(2 * 10**9, device="meta"))  # so that no run decides the test
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = self.b(torch.linalg.pinv(x).T + torch.linalg.svdvals(x).sum())
        self.calls += 1
        if x.max() > 0:
            x = -x
        return self.c(x) * self.calls


def troubled() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a factory of the model above."""
    return Troubled(), (torch.randn(8, 64),)


def test_every_obstacle_has_a_line_and_a_share():
    """Two operators precede two of three products, and the value that is read precedes one."""
    model, args = troubled()
    with pytest.raises(ModelError):
        lower(model, args)
    found = diagnose(model, args)
    assert found.refused
    assert found.flops == 3 * 2 * 8 * 64 * 64
    fractions = {o.reason.split(" at ")[0]: o.fraction for o in found.obstacles}
    assert fractions["operator linalg_pinv"] == pytest.approx(2 / 3)
    assert fractions["operator linalg_svdvals"] == pytest.approx(2 / 3)
    read = next(o for o in found.obstacles if o.kind == "capture")
    assert read.line.endswith("if x.max() > 0:")
    assert "test_doctor.py" in read.line
    assert read.fraction == pytest.approx(1 / 3)
    assert "torch.where" in read.remedy
    assert any("calls (0 before, 1 after)" in o.reason for o in found.obstacles)
    assert all(o.remedy for o in found.obstacles)
    assert model.calls == 0


class Wasteful(nn.Module):
    """A small product, followed by much elementwise work with many special elements."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + torch.sort(x, dim=-1)[0].exp()


def test_slow_work_is_named_and_refuses_nothing():
    """The sort takes cycles and has no FLOPs."""
    found = diagnose(Wasteful(), (torch.randn(4096, 4),))
    assert not found.refused
    assert any("family topk" in o.reason and 0 < o.fraction < 1 for o in found.obstacles)
    assert lower(Wasteful(), (torch.randn(4096, 4),)).forward_flops == found.flops


class Passing(nn.Module):
    """A product, a running sum, a second product."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 24, bias=False), nn.Linear(24, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.cumsum(self.a(x), dim=-1))


def test_gradients_that_a_family_lacks_are_obstacles_of_training(monkeypatch):
    """The first of two equal products precedes the scan, so half of the FLOPs; inference has no obstacle."""

    def refuse(self: object, kernel: Kernel, *_: object) -> None:
        raise ModelError(f"kernel '{kernel.name}' has no gradient; leave it out of what trains")

    graph = lower(Passing(), (torch.randn(4, 8),))
    (scan,) = [kernel.family for kernel in graph if not kernel.flops]
    monkeypatch.setattr(type(family(scan)), "gradients", refuse)
    with pytest.raises(ModelError, match=r"test_doctor\.py:\d+: .*has no gradient"):
        lower(Passing(), (torch.randn(4, 8),), training=True)
    found = diagnose(Passing(), (torch.randn(4, 8),), training=True)
    (obstacle,) = [o for o in found.obstacles if o.refuses]
    assert (obstacle.kind, obstacle.fraction) == ("gradient", pytest.approx(1 / 2))
    assert "test_doctor.py" in obstacle.line
    assert obstacle.remedy == "leave it out of what trains"
    assert not any(o.refuses for o in diagnose(Passing(), (torch.randn(4, 8),)).obstacles)


class Stops(nn.Module):
    """Raises an error from its own Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("no such mode")


class StoppedOften(nn.Module):
    """Five products of 8 x 64 x 64, with something that torch rejects before each but the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(64, 64, bias=False) for _ in range(5))
        self.part = Stops()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = self.b(x[:, :63])  # 63 features meet a weight for 64
        x = self.c(self.part(x))
        x = self.d(x[x.sum(-1) > 0])  # as many rows as are positive
        counts = x.detach().numpy()
        return self.e(x + float(counts.shape[0]))


def test_what_torch_stops_at_does_not_hide_the_rest():
    """There are four obstacles in program order, with 4, 3, 2 and 1 of five products behind them."""
    with pytest.raises(ModelError, match="shapes do not fit"):
        lower(StoppedOften(), (torch.zeros(8, 64),))
    found = diagnose(StoppedOften(), (torch.zeros(8, 64),))
    refusing = [o for o in found.obstacles if o.refuses]
    lines = ["x[:, :63]", "raise NotImplementedError", "x[x.sum(-1) > 0]", ".numpy()"]
    assert len(refusing) == len(lines)
    for number, (obstacle, line) in enumerate(zip(refusing, lines, strict=True)):
        assert line in obstacle.line
        assert "test_doctor.py" in obstacle.line
        assert obstacle.remedy
        assert obstacle.fraction == pytest.approx((4 - number) / 5)
    assert found.flops == 5 * 2 * 8 * 64 * 64


class Rounded(nn.Module):
    """Reads a number that it computes from a size, which the capture knows."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes half of the columns twice."""
        half = int(torch.ceil(torch.tensor(x.shape[1] / 2.0)))
        return self.a(torch.cat([x[:, :half], x[:, :half]], 1))


def test_constants_that_are_read_are_no_obstacles():
    """What a capture accepts, the doctor accepts: torch knows the value of a tensor that follows from sizes."""
    assert lower(Rounded(), (torch.zeros(2, 8),)).total_flops == 2 * 2 * 8 * 8
    found = diagnose(Rounded(), (torch.zeros(2, 8),))
    assert not [o for o in found.obstacles if o.refuses]
    assert found.flops == 2 * 2 * 8 * 8


def test_the_command(tmp_path, monkeypatch):
    """The status is 1 for a refused model, and 0 otherwise."""
    source = (tmp_path / "sick.py").write_text
    source(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.linalg.pinv(x)\n\n\ndef factory():\n    return Model(), (torch.randn(2, 8),)\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor", "sick:factory"])
    assert result.exit_code == 1
    assert "sick.py:6" in result.output
    assert "remedy:" in result.output
    assert CliRunner().invoke(app, ["doctor", "fc-mnist", "--json"]).exit_code == 0
