"""Hints of a script that reach the plan: the precision of a part by ``pol``, placement of modules by pins and
annotations.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from wse_sim import cstorch
from wse_sim.cstorch import runtime
from wse_sim.cstorch.amp import pol
from wse_sim.cstorch.execution import begin_execution
from wse_sim.frontend.hints import shard


class Parts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.norm, self.head = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)

    def forward(self, x):
        x = pol(level=0)(self.norm)(self.plain(x))
        return pol(level=2, bwd_level=0)(self.head)(x)


def kernels(level: int) -> dict[str, tuple[str, str | None]]:
    """Return (type, type of sums) of every kernel under a level of the run."""
    runtime.reset()
    cstorch.backend("CSX", validate_only=True)
    cstorch.backends.csx.precision.optimization_level = level
    model = cstorch.compile(Parts())

    @cstorch.trace
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    execution = begin_execution(None, num_steps=1)
    step(execution.feed(torch.ones(2, 8)))
    execution.finish()
    graph = runtime.run().compiled[0].graph
    return {k.name: (k.dtype, dict(k.attrs).get("accumulate")) for k in graph.kernels}


def test_a_part_has_its_own_level() -> None:
    one, two = kernels(1), kernels(2)
    # the part without a level follows the run
    assert one["plain"] == ("fp16", "fp32")
    assert two["plain"] == ("fp16", "fp16")
    for found in (one, two):
        assert found["norm"][0] == "fp32"  # level 0: rows are summed in fp32, forward and backward
        assert found["norm.dx"][0] == "fp32"
        assert found["head"] == ("fp16", "fp16")  # level 2 forward
        assert found["head.dx"] == found["head.dw"] == ("fp16", "fp32")  # level 0 backward
        assert found["head.update"][0] == "fp32"  # an update is no part of a level


@dataclass
class Place:
    """An annotation with the fields of a pin."""

    rows: int
    cols: int


@pytest.mark.slow
def test_places_of_modules_reach_the_plan(tmp_path) -> None:
    """A sharding by dimension and an annotation with a rectangle reach the plan."""
    cstorch.backend("CSX", compile_only=True, artifact_dir=str(tmp_path))
    cstorch.compile(torch.nn.Identity(), "wse_lp")
    model = Parts()
    shard(model.plain, {"rows": 2, "cols": 3}, ("cols", "rows"))
    placed = cstorch.core.annotation.create_annotation(Place, None, rows=4, cols=5)(model.head)
    cstorch.compile(model)

    @cstorch.trace
    def step(x):
        loss = placed(model.norm(model.plain(x))).square().mean()
        loss.backward()
        return loss

    execution = begin_execution(None, num_steps=1)
    step(execution.feed(torch.ones(2, 8)))
    execution.finish()
    kernels = runtime.run().compiled[0].graph.kernels
    rectangles = {
        k.layer: (k.attrs["pin_rows"], k.attrs["pin_cols"]) for k in kernels if k.attrs.get("pin_rows")
    }
    parts = {
        k.layer: (k.attrs["pin_parts_in"], k.attrs["pin_parts_out"])
        for k in kernels
        if "pin_parts_in" in k.attrs
    }
    assert rectangles == {"head": (4, 5)}
    assert parts == {"plain": (2, 3)}
